package archive_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/archive"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens a directory for Write or Read.
func open(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func pack(t testing.TB, dir string) ([]byte, archive.Summary) {
	t.Helper()
	var b bytes.Buffer
	s, err := archive.Write(t.Context(), &b, open(t, dir), archive.Limits{}, archive.Options{})
	must(t, err)
	return b.Bytes(), s
}

func unpack(t testing.TB, data []byte, l archive.Limits) (string, archive.Summary, error) {
	t.Helper()
	dir := t.TempDir()
	s, err := archive.Read(t.Context(), bytes.NewReader(data), open(t, dir), l, archive.Options{})
	return dir, s, err
}

// facts are the properties of a file that must be restored.
type facts struct {
	Mode   fs.FileMode
	Time   time.Time
	Size   int64
	Sum    string
	Target string
	Xattrs string
	Links  string // the first name of the same file
	Sparse bool
}

// tree lists everything below dir. Some facts are left out for what is not a file.
func tree(t testing.TB, dir string) map[string]facts {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	list, first := map[string]facts{}, map[uint64]string{}
	root := look(t, at(fd, "."), ".", first)
	root.Mode = 0 // stays what the caller made it
	list["."] = root
	below(t, fd, "", list, first)
	return list
}

// at is a path to a name in an open directory. It is short however deep that is.
func at(fd int, name string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", fd, name) }

func below(t testing.TB, fd int, path string, list map[string]facts, first map[uint64]string) {
	t.Helper()
	names, err := os.ReadDir(at(fd, "."))
	must(t, err)
	for _, e := range names {
		rel := filepath.Join(path, e.Name())
		list[rel] = look(t, at(fd, e.Name()), rel, first)
		if !e.IsDir() {
			continue
		}
		sub, err := unix.Openat(fd, e.Name(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		must(t, err)
		below(t, sub, rel, list, first)
		unix.Close(sub)
	}
}

// look returns the facts of what is at path; rel is what it is called in the tree.
func look(t testing.TB, path, rel string, first map[uint64]string) facts {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	f := facts{Mode: info.Mode(), Time: info.ModTime()}
	switch {
	case info.Mode().IsRegular():
		var st unix.Stat_t
		must(t, unix.Lstat(path, &st))
		f.Size = info.Size()
		f.Sparse = info.Size() >= 1<<20 && st.Blocks*512 < info.Size()/2
		if st.Nlink > 1 {
			if first[st.Ino] == "" {
				first[st.Ino] = rel
			}
			f.Links = first[st.Ino]
		}
		if f.Links == "" || f.Links == rel {
			f.Sum = contents(t, path)
		}
	case info.Mode()&fs.ModeSymlink != 0:
		f.Target, err = os.Readlink(path)
		must(t, err)
	}
	if info.Mode().IsRegular() || info.IsDir() {
		f.Xattrs = xattrs(t, path)
	}
	return f
}

// contents is a sum of a file's blocks that are not zero, and where they are: holes of any length take
// no time.
func contents(t testing.TB, path string) string {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	sum, b, zeros := sha256.New(), make([]byte, 64<<10), make([]byte, 64<<10)
	for from := int64(0); ; {
		if from, err = f.Seek(from, unix.SEEK_DATA); errors.Is(err, unix.ENXIO) {
			return fmt.Sprintf("%x", sum.Sum(nil))
		}
		must(t, err)
		from -= from % int64(len(b))
		n, err := f.ReadAt(b, from)
		if !errors.Is(err, io.EOF) {
			must(t, err)
		}
		if !bytes.Equal(b[:n], zeros[:n]) {
			fmt.Fprintln(sum, from)
			sum.Write(b[:n])
		}
		from += int64(len(b))
	}
}

func xattrs(t testing.TB, path string) string {
	t.Helper()
	b := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, b)
	if errors.Is(err, unix.ENOTSUP) {
		return ""
	}
	must(t, err)
	var all []string
	for name := range strings.SplitSeq(string(b[:n]), "\x00") {
		if !strings.HasPrefix(name, "user.") {
			continue
		}
		v := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, v)
		must(t, err)
		all = append(all, fmt.Sprintf("%q=%q", name, v[:n]))
	}
	return strings.Join(all, ",")
}

// grow fills dir with examples of everything that can be kept, the same for the same seed.
func grow(t testing.TB, dir string, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	names := []string{"plain", "with space", "new\nline", "ünïcode", "not\xffutf8", "-dash", "a=b%3D", strings.Repeat(
		"l", 200,
	), ".hidden", "back\\slash"}
	modes := []os.FileMode{0o644, 0o600, 0o755, 0o444, 0o777 | os.ModeSticky, 0o400}
	when := func(path string) {
		ts := []unix.Timespec{{Sec: 1}, {Sec: r.Int64N(4e9) - 1e9, Nsec: r.Int64N(1e9)}}
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, unix.AT_SYMLINK_NOFOLLOW))
	}
	var files []string
	var fill func(dir string, depth int)
	fill = func(dir string, depth int) {
		for i := range 3 + r.IntN(8) {
			path := filepath.Join(dir, fmt.Sprintf("%s%d", names[r.IntN(len(names))], i))
			switch kind := r.IntN(12); {
			case kind < 2 && depth < 6:
				must(t, os.Mkdir(path, 0o755))
				fill(path, depth+1)
				must(t, os.Chmod(path, []os.FileMode{0o755, 0o500, 0o700, 0o1777, 0o711 | 0o400}[r.IntN(5)]))
			case kind == 2:
				must(t, os.Symlink([]string{"/etc/passwd", "..", "nowhere", strings.Repeat("x/", 400)}[r.IntN(4)], path))
			case kind == 3:
				must(t, unix.Mkfifo(path, 0o640))
			case kind == 4 && len(files) > 0:
				must(t, os.Link(files[r.IntN(len(files))], path))
				continue // the time is the other name's too
			case kind == 5:
				f, err := os.Create(path)
				must(t, err)
				for at := int64(0); at < 8<<20; at += 1 << 20 {
					if r.IntN(3) == 0 {
						_, err = f.WriteAt(bytes.Repeat([]byte{byte(at>>20) + 1}, 4096+r.IntN(5000)), at)
						must(t, err)
					}
				}
				must(t, f.Truncate(9<<20+r.Int64N(5000)))
				must(t, f.Close())
			default:
				b := make([]byte, []int{0, 1, 511, 512, 513, 70000, 300 << 10, 1 << 20, 3<<20 + 7}[r.IntN(9)])
				for i := 0; i < len(b); i += 3 {
					b[i] = byte(i>>8) ^ byte(i*int(seed+3))
				}
				must(t, os.WriteFile(path, b, 0o644))
				if r.IntN(4) == 0 {
					err := unix.Setxattr(path, "user.a=b%25", []byte("v\x00\n="), 0)
					if !errors.Is(err, unix.ENOTSUP) {
						must(t, err)
					}
				}
				must(t, os.Chmod(path, modes[r.IntN(len(modes))]))
				files = append(files, path)
			}
			when(path)
		}
		when(dir)
	}
	fill(dir, 0)
	t.Cleanup(func() { // so that an ordinary user can remove it
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				_ = os.Chmod(path, 0o700)
			}
			return nil
		})
	})
}

// listen makes a socket at path.
func listen(t testing.TB, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
}
