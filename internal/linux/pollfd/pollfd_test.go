package pollfd_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/pollfd"
)

func blockingPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	r, w = os.NewFile(uintptr(p[0]), "r"), os.NewFile(uintptr(p[1]), "w")
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func TestCloseEndsARead(t *testing.T) {
	r, _ := blockingPipe(t)
	// The violation: on the file as it came, a deadline is not possible.
	if err := r.SetReadDeadline(time.Now()); !errors.Is(err, os.ErrNoDeadline) {
		t.Fatalf("a blocking pipe took a deadline: %v", err)
	}
	p, err := pollfd.Open(r)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := p.Read(make([]byte, 1))
		done <- err
	}()
	p.Close()
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("read of a closed file: %v", err)
	}
}

func TestOpenAllKeepsWhatIsPolled(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	files := []*os.File{r, w}
	if err := pollfd.OpenAll(files); err != nil {
		t.Fatal(err)
	}
	if files[0] != r || files[1] != w {
		t.Error("a polled file was replaced")
	}
	// A closed file cannot be polled: the others must not leak.
	bad, _ := blockingPipe(t)
	bad.Close()
	if err := pollfd.OpenAll([]*os.File{w, bad}); err == nil {
		t.Fatal("a closed file was polled")
	}
	if _, err := w.Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the other file is still open: %v", err)
	}
}
