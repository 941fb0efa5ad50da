package treefile_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/treefile"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree is the current directory with what a command may have left in it, and a directory beside it.
func tree(t *testing.T) (outside string) {
	t.Helper()
	top := t.TempDir()
	here, outside := filepath.Join(top, "here"), filepath.Join(top, "outside")
	must(t, errors.Join(os.Mkdir(here, 0o700), os.Mkdir(outside, 0o700)))
	t.Chdir(here)
	must(t, errors.Join(
		os.WriteFile(outside+"/secret", []byte("secret"), 0o600), os.WriteFile("plain", []byte("plain"), 0o600), os.Mkdir("dir", 0o700),
		os.WriteFile("dir/plain", []byte("deep"), 0o600), os.Symlink("plain", "inside"), os.Symlink(outside+"/secret", "link"),
		os.Symlink(outside, "away"), unix.Mkfifo("fifo", 0o600), os.Symlink("fifo", "tofifo"), os.Symlink("/dev/zero", "zero"),
	))
	return outside
}

func TestOpen(t *testing.T) {
	outside := tree(t)
	here, err := os.Getwd()
	must(t, err)
	must(t, os.Symlink(here, outside+"/back"))
	for path, want := range map[string]string{
		"plain": "plain", "dir/plain": "deep", "./dir/../plain": "plain", here + "/plain": "plain", outside + "/secret": "secret",
		// A link that the person has elsewhere is followed.
		outside + "/back/plain": "plain", "/dev/null": "",
	} {
		f, err := treefile.Open(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		b, err := io.ReadAll(f)
		if err = errors.Join(err, f.Close()); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	for _, path := range []string{
		"link", "inside", "away/secret", "fifo", "tofifo", "zero", "dir", here + "/link", here + "/fifo", here + "/away/secret",
	} {
		if f, err := treefile.Open(path); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s is opened: %v, %v", path, f, err)
		}
	}
	if _, err := treefile.Open("none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestPut(t *testing.T) {
	outside := tree(t)
	here, err := os.Getwd()
	must(t, err)
	for _, path := range []string{"plain", "new", "dir/new", "link", "inside", "fifo", "zero", here + "/abs", outside + "/new"} {
		must(t, treefile.Put(path, []byte("written")))
		fi, err := os.Lstat(path)
		must(t, err)
		if b, err := os.ReadFile(path); err != nil || string(b) != "written" || fi.Mode() != 0o600 {
			t.Errorf("%s is %v, %q, %v", path, fi.Mode(), b, err)
		}
	}
	for _, path := range []string{"away/new", here + "/away/secret", "dir", "none/new"} {
		if err := treefile.Put(path, []byte("written")); err == nil {
			t.Errorf("%s is written", path)
		}
	}
	for path, want := range map[string]string{outside + "/secret": "secret", "dir/plain": "deep"} {
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%s is %q, %v", path, b, err)
		}
	}
	left, err := filepath.Glob(".new-*")
	if deep, _ := filepath.Glob("dir/.new-*"); err != nil || len(left)+len(deep) > 0 {
		t.Errorf("left: %q, %q", left, deep)
	}
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	must(t, treefile.Put(strings.Replace("/dev/fd/N", "N", fd(t, w), 1), []byte("x")))
	must(t, w.Close())
	if b, err := io.ReadAll(r); err != nil || string(b) != "x" {
		t.Errorf("by its number: %q, %v", b, err)
	}
}

// fd is the number of an open file.
func fd(t *testing.T, f *os.File) string {
	t.Helper()
	rc, err := f.SyscallConn()
	must(t, err)
	var n string
	must(t, rc.Control(func(fd uintptr) {
		for n = ""; fd > 0; fd /= 10 {
			n = string(rune('0'+fd%10)) + n
		}
	}))
	return n
}
