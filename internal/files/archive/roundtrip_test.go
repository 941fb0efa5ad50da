package archive_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/archive"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// ordinary is an unused id.
const ordinary = 61977

// TestAsOrdinaryUser runs this package's tests again with that id.
func TestAsOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("these run as an ordinary user already")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "archive.test")
	b, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, os.WriteFile(program, b, 0o755))
	own := filepath.Join(dir, "own")
	must(t, os.Mkdir(own, 0o700))
	must(t, os.Chown(own, ordinary, ordinary))
	for d := dir; d != "/tmp" && d != "/"; d = filepath.Dir(d) {
		must(t, os.Chmod(d, 0o755))
	}
	c := exec.CommandContext(t.Context(), program, "-test.v", "-test.timeout=100s", "-test.skip=TestAsOrdinaryUser")
	c.Env = append(os.Environ(), "TMPDIR="+own, "HOME="+own)
	c.Dir = own
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary, Groups: []uint32{}}}
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "--- PASS: TestRoundTrip") {
		t.Errorf("nothing was run:\n%s", out)
	}
}

func TestRoundTrip(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			from := t.TempDir()
			grow(t, from, seed)
			want := tree(t, from)
			data, packed := pack(t, from)
			to, unpacked, err := unpack(t, data, archive.Limits{})
			must(t, err)
			grownUp(t, to)
			if d := cmp.Diff(want, tree(t, to)); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(want, tree(t, from)); d != "" {
				t.Errorf("packing changed the tree: %s", d)
			}
			if packed != unpacked {
				t.Errorf("packed %+v\nunpacked %+v", packed, unpacked)
			}
			sum := sha256.Sum256(data)
			if int(packed.Entries) != len(want) || packed.SHA256 != hex.EncodeToString(sum[:]) || packed.Archive != int64(len(data)) {
				t.Errorf("%d entries and %d bytes were packed: %+v", len(want), len(data), packed)
			}
		})
	}
}

// grownUp makes directories removable for an ordinary user's test.
func grownUp(t *testing.T, dir string) {
	t.Cleanup(func() {
		_ = exec.Command("chmod", "-R", "u+rwx", dir).Run()
	})
}

func tarProgram(t *testing.T, stdin io.Reader, args ...string) []byte {
	t.Helper()
	for _, p := range []string{"tar", "zstd"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("the program %s is not here", p)
		}
	}
	c := exec.CommandContext(t.Context(), "tar", args...)
	c.Stdin = stdin
	var out, stderr bytes.Buffer
	c.Stdout, c.Stderr = &out, &stderr
	if err := c.Run(); err != nil {
		t.Fatalf("tar %v: %v\n%s", args, err, stderr.Bytes())
	}
	return out.Bytes()
}

func TestTarReadsOurs(t *testing.T) {
	kept := "--xattrs"
	if os.Geteuid() != 0 {
		kept = "--no-xattrs" // tar sets them by name, after it has closed the file to its owner
	}
	for seed := range uint64(2) {
		from, to := t.TempDir(), t.TempDir()
		grow(t, from, seed)
		data, _ := pack(t, from)
		tarProgram(t, bytes.NewReader(data), "--zstd", kept, "-xpf", "-", "--no-same-owner", "-C", to)
		grownUp(t, to)
		want, got := tree(t, from), tree(t, to)
		if kept == "--no-xattrs" {
			for path, f := range want {
				f.Xattrs = ""
				want[path] = f
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
}

func TestWeReadTars(t *testing.T) {
	for name, args := range map[string][]string{
		"posix":       {"--format=posix", "--xattrs", "--sparse"},
		"posix plain": {"--format=posix", "--xattrs"},
		"gnu":         {"--format=gnu", "--sparse"},
		"oldgnu":      {"--format=oldgnu"},
	} {
		t.Run(name, func(t *testing.T) {
			from := t.TempDir()
			grow(t, from, 3)
			want := tree(t, from)
			data := tarProgram(t, nil, append(args, "--zstd", "--owner=0", "--group=0", "-C", from, "-cf", "-", ".")...)
			to, _, err := unpack(t, data, archive.Limits{})
			must(t, err)
			grownUp(t, to)
			got := tree(t, to)
			for path, f := range want {
				g := got[path]
				if name != "posix" && name != "posix plain" { // the format has no fractions and no attributes
					f.Time, g.Time = f.Time.Truncate(1e9), g.Time.Truncate(1e9)
					f.Xattrs, g.Xattrs = "", ""
				}
				if !strings.Contains(strings.Join(args, " "), "sparse") {
					f.Sparse, g.Sparse = false, false
				}
				want[path], got[path] = f, g
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// Another program's archive may name another id: its set-id bits are not restored.
func TestSetID(t *testing.T) {
	from := t.TempDir()
	file := filepath.Join(from, "f")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Chmod(file, 0o755|os.ModeSetuid|os.ModeSetgid))
	data, _ := pack(t, from)
	to, s, err := unpack(t, data, archive.Limits{})
	must(t, err)
	info, err := os.Stat(filepath.Join(to, "f"))
	must(t, err)
	kept := info.Mode()&(os.ModeSetuid|os.ModeSetgid) == os.ModeSetuid|os.ModeSetgid
	if root := os.Geteuid() == 0; kept == root || (s.SetID == 1) != root {
		t.Errorf("root: %v, mode %v, %d dropped", root, info.Mode(), s.SetID)
	}
	theirs := tarProgram(t, nil, "--zstd", "--owner=7", "--group=7", "-C", from, "-cf", "-", ".")
	to, s, err = unpack(t, theirs, archive.Limits{})
	must(t, err)
	info, err = os.Stat(filepath.Join(to, "f"))
	must(t, err)
	if info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 || info.Mode().Perm() != 0o755 || s.SetID != 1 {
		t.Errorf("mode %v, %d dropped", info.Mode(), s.SetID)
	}
}

// What cannot be kept is left out and counted, and nothing blocks.
func TestLeftOut(t *testing.T) {
	dir := t.TempDir()
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	listen(t, filepath.Join(dir, "socket"))
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600))
	want := archive.Summary{Entries: 3, Bytes: 1, Sockets: 1}
	if os.Geteuid() == 0 {
		must(t, unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		must(t, os.Mkdir(filepath.Join(dir, "mount"), 0o700))
		must(t, unix.Mount("carrel-archive-test", filepath.Join(dir, "mount"), "tmpfs", 0, "size=64k"))
		t.Cleanup(func() { must(t, unix.Unmount(filepath.Join(dir, "mount"), unix.MNT_DETACH)) })
		must(t, os.WriteFile(filepath.Join(dir, "mount", "theirs"), nil, 0o600))
		// A bind mount has the device number of the tree.
		must(t, os.WriteFile(filepath.Join(dir, "bound"), nil, 0o600))
		must(t, unix.Mount("/etc/hostname", filepath.Join(dir, "bound"), "", unix.MS_BIND, ""))
		t.Cleanup(func() { must(t, unix.Unmount(filepath.Join(dir, "bound"), unix.MNT_DETACH)) })
		must(t, os.Chown(filepath.Join(dir, "file"), 12345, 12345))
		must(t, os.Chmod(filepath.Join(dir, "file"), 0o755|os.ModeSetuid))
		must(t, unix.Setxattr(filepath.Join(dir, "file"), "trusted.carrel-test", []byte("x"), 0))
		want.Xattrs = 1
		want.Entries, want.Devices, want.Mounts, want.Foreign, want.SetID = 4, 1, 2, 1, 1
	}
	data, got := pack(t, dir)
	got.Stream, got.Archive, got.SHA256 = 0, 0, ""
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	to, _, err := unpack(t, data, archive.Limits{})
	must(t, err)
	for _, name := range []string{"socket", "null", "bound", "mount/theirs"} {
		if _, err := os.Lstat(filepath.Join(to, name)); err == nil {
			t.Errorf("%s was packed", name)
		}
	}
	if info, err := os.Stat(filepath.Join(to, "file")); err != nil || info.Mode()&os.ModeSetuid != 0 {
		t.Errorf("another owner's set-id bit came back: %v, %v", info, err)
	}
}

func TestUnreadable(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads everything")
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "closed"), nil, 0))
	_, err := archive.Write(t.Context(), io.Discard, open(t, dir), archive.Limits{}, archive.Options{})
	if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), `"closed"`) {
		t.Errorf("got %v", err)
	}
	s, err := archive.Write(t.Context(), io.Discard, open(t, dir), archive.Limits{}, archive.Options{SkipUnreadable: true})
	if err != nil || s.Unreadable != 1 || s.Entries != 1 {
		t.Errorf("got %+v, %v", s, err)
	}
}

// hook calls f once, with the first compressed bytes.
type hook struct {
	io.Writer
	f func()
}

func (h *hook) Write(b []byte) (int, error) {
	if h.f != nil {
		h.f()
		h.f = nil
	}
	return h.Writer.Write(b)
}

// A file that changes while it is read damages no other file.
func TestChanged(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"shorter": func(path string) error { return os.Truncate(path, 100) },
		"longer":  func(path string) error { return os.Truncate(path, 96<<20) },
		"gone":    os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			const size = 64 << 20 // more than is read ahead
			b := make([]byte, size)
			for i := range b {
				b[i] = byte(i * i >> 7)
			}
			path := filepath.Join(dir, "a")
			must(t, os.WriteFile(path, b, 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "b"), []byte("after"), 0o600))
			var out bytes.Buffer
			s, err := archive.Write(t.Context(), &hook{&out, func() { must(t, change(path)) }}, open(t, dir), archive.Limits{}, archive.Options{})
			must(t, err)
			if want := name != "gone"; (s.Changed == 1) != want {
				t.Errorf("%d changed", s.Changed)
			}
			to, unpacked, err := unpack(t, out.Bytes(), archive.Limits{})
			must(t, err)
			if s.Bytes != unpacked.Bytes {
				t.Errorf("%d bytes were packed, and %d unpacked", s.Bytes, unpacked.Bytes)
			}
			got, err := os.ReadFile(filepath.Join(to, "a"))
			must(t, err)
			if len(got) != size || !bytes.Equal(got[:1<<10], b[:1<<10]) {
				t.Errorf("%d bytes came back", len(got))
			}
			if after, err := os.ReadFile(filepath.Join(to, "b")); err != nil || string(after) != "after" {
				t.Errorf("the next file is %q, %v", after, err)
			}
		})
	}
}

type fails struct{}

func (fails) Write([]byte) (int, error) { return 0, unix.ENOSPC }

func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "big"), make([]byte, 64<<20), 0o600))
	if _, err := archive.Write(t.Context(), fails{}, open(t, dir), archive.Limits{}, archive.Options{}); !errors.Is(err, unix.ENOSPC) ||
		!errdefs.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	_, err := archive.Write(ctx, &hook{&out, cancel}, open(t, dir), archive.Limits{}, archive.Options{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, _, err := unpack(t, out.Bytes(), archive.Limits{}); err == nil {
		t.Error("what was written until then is taken for an archive")
	}
	d, err := zstd.NewReader(bytes.NewReader(out.Bytes()))
	must(t, err)
	defer d.Close()
	if _, err := io.Copy(io.Discard, d); err == nil {
		t.Error("what was written until then is a whole frame")
	}
}

// The limits hold for packing as for unpacking.
func TestWriteLimits(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "a/b/c/file"), make([]byte, 1000), 0o600))
	must(t, os.Symlink(strings.Repeat("t", 50), filepath.Join(dir, "link")))
	for want, l := range map[string]archive.Limits{
		"limit of 3":   {Depth: 3},
		"limit of 999": {FileBytes: 999},
		"limit of 998": {Bytes: 998},
		"limit of 5":   {Entries: 5},
		"limit of 9":   {PathBytes: 9},
		"limit of 40":  {PathBytes: 40},
		"below zero":   {Ratio: -1},
		"512 levels":   {Depth: 513},
	} {
		_, err := archive.Write(t.Context(), io.Discard, open(t, dir), l, archive.Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v", l, err)
		}
	}
	data, _ := pack(t, dir)
	exact := archive.Limits{Depth: 4, FileBytes: 1000, Bytes: 1000, Entries: 6, PathBytes: 50}
	if _, err := archive.Write(t.Context(), io.Discard, open(t, dir), exact, archive.Options{}); err != nil {
		t.Error(err)
	}
	if _, _, err := unpack(t, data, exact); err != nil {
		t.Error(err)
	}
}
