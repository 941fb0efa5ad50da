package sealed_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/sealed"
)

func TestCopy(t *testing.T) {
	src, err := os.Open("/bin/echo")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	f, err := sealed.Copy(src, "echo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := exec.CommandContext(t.Context(), "/proc/self/fd/3", "said")
	c.ExtraFiles = []*os.File{f}
	if out, err := c.Output(); err != nil || string(out) != "said\n" {
		t.Errorf("%q, %v", out, err)
	}
	for what, change := range map[string]func() error{
		"write": func() error { _, err := f.WriteAt([]byte("x"), 0); return err },
		"grow": func() error {
			_, err := f.Seek(0, io.SeekEnd)
			_, werr := f.Write([]byte("x"))
			return errors.Join(err, werr)
		},
		"truncate": func() error { return f.Truncate(0) },
		"reopen": func() error {
			g, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0)
			if err == nil {
				_, err = g.WriteAt([]byte("x"), 0)
				g.Close()
			}
			return err
		},
		"map": func() error {
			rc, err := f.SyscallConn()
			if err != nil {
				return nil //nolint:nilerr // it is seen as a change
			}
			cerr := rc.Control(func(fd uintptr) {
				_, err = unix.Mmap(int(fd), 0, 4096, unix.PROT_WRITE, unix.MAP_SHARED)
			})
			return errors.Join(err, cerr)
		},
	} {
		if err := change(); err == nil {
			t.Errorf("%s: it was changed", what)
		}
	}
	if _, err := sealed.Copy(io.MultiReader(strings.NewReader("a"), failing{}), "x"); err == nil {
		t.Error("half a program was sealed")
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("planted") }
