package machine

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/test/vm/job"
)

// wantedModules are what the guest needs that Debian's kernel has as modules; ext4 and
// the file systems of settle are built in. Their dependencies are found.
var wantedModules = []string{"virtio_mmio", "virtio_blk", "virtio_console", "overlay", "erofs", "fuse", "loop", "nft_tproxy"}

// WriteInitramfs writes the archive that the kernel starts from: init, the plan with
// the modules filled in, and those modules from the tree of the kernel at modules.
func WriteInitramfs(path, init, modules string, p job.Plan) error {
	files, err := moduleFiles(modules, wantedModules)
	if err != nil {
		return err
	}
	var a archive
	a.dir("dev")
	a.device("dev/console", 5, 1) // the kernel opens it for init before anything is mounted
	a.dir("modules")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		a.file("modules/"+filepath.Base(f), 0o644, b)
		p.Modules = append(p.Modules, filepath.Base(f))
	}
	plan, err := json.Marshal(p)
	if err != nil {
		return err
	}
	a.file("plan.json", 0o644, plan)
	b, err := os.ReadFile(init)
	if err != nil {
		return err
	}
	a.file("init", 0o755, b)
	return os.WriteFile(path, a.bytes(), 0o644)
}

// archive is a cpio archive in the "newc" form, which is the one the kernel reads
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	buf  bytes.Buffer
	node int
}

const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeChar = 0o020000
)

func (a *archive) entry(name string, mode int, major, minor int, body []byte) {
	a.node++
	// magic, ino, mode, uid, gid, nlink, mtime, size, devmajor, devminor, rdevmajor,
	// rdevminor, namesize, check; the name with its NUL and the body each padded to 4.
	fmt.Fprintf(&a.buf, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.node, mode, 0, 0, 1, 0, len(body), 0, 0, major, minor, len(name)+1, 0)
	a.buf.WriteString(name + "\x00")
	a.pad()
	a.buf.Write(body)
	a.pad()
}

func (a *archive) pad() {
	for a.buf.Len()%4 != 0 {
		a.buf.WriteByte(0)
	}
}

func (a *archive) dir(name string) { a.entry(name, modeDir|0o755, 0, 0, nil) }
func (a *archive) device(name string, major, minor int) {
	a.entry(name, modeChar|0o600, major, minor, nil)
}
func (a *archive) file(name string, perm int, b []byte) { a.entry(name, modeFile|perm, 0, 0, b) }

func (a *archive) bytes() []byte {
	a.entry("TRAILER!!!", 0, 0, 0, nil)
	return a.buf.Bytes()
}

// moduleFiles finds the wanted modules and what they depend on below dir, each after
// what it depends on. The package brings no modules.dep, which depmod would make, so
// the modules themselves are asked.
func moduleFiles(dir string, wanted []string) ([]string, error) {
	paths := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			paths[moduleName(name)] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot find the kernel's modules: %w", err)
	}
	var files []string
	var add func(name string) error
	add = func(name string) error {
		path, ok := paths[moduleName(name)]
		if !ok {
			return fmt.Errorf("cannot find the module %s below %s: this kernel package cannot be booted as a microvm", name, dir)
		}
		if slices.Contains(files, path) {
			return nil
		}
		needs, err := moduleNeeds(path)
		if err != nil {
			return fmt.Errorf("cannot read what the module %s depends on: %w", name, err)
		}
		for _, n := range needs {
			if err := add(n); err != nil {
				return err
			}
		}
		files = append(files, path)
		return nil
	}
	for _, w := range wanted {
		if err := add(w); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// moduleName is a module's name in the kernel: its file may have hyphens.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// moduleNeeds reads "depends=a,b" of the section .modinfo, a list of NUL-ended strings.
func moduleNeeds(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("it has no section .modinfo")
	}
	b, err := io.ReadAll(s.Open())
	if err != nil {
		return nil, err
	}
	for entry := range strings.SplitSeq(string(b), "\x00") {
		if list, ok := strings.CutPrefix(entry, "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
