package startup_test

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/startup"
)

// pipe returns a pipe whose ends are bare descriptors where the package takes them over.
func pipe(t *testing.T) (r, w int) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	return fds[0], fds[1]
}

func TestAwait(t *testing.T) {
	if err := startup.Await(-1); err != nil {
		t.Errorf("without a descriptor: %v", err)
	}
	r, w := pipe(t)
	if _, err := unix.Write(w, []byte("go\n")); err != nil {
		t.Fatal(err)
	}
	if err := startup.Await(r); err != nil {
		t.Errorf("told to begin: %v", err)
	}
	unix.Close(w)
	r, w = pipe(t)
	unix.Close(w)
	if err := startup.Await(r); !errdefs.IsUnavailable(err) {
		t.Errorf("the starter has ended: %v", err)
	}
}

func TestReady(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := startup.Ready(-1); err != nil {
		t.Errorf("nobody to tell: %v", err)
	}
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	r, w := pipe(t)
	if err := startup.Ready(w); err != nil {
		t.Fatal(err)
	}
	line, err := io.ReadAll(os.NewFile(uintptr(r), "read"))
	if err != nil || string(line) != "ready\n" {
		t.Errorf("the descriptor got %q, %v", line, err)
	}
	_ = l.SetReadDeadline(time.Now().Add(10 * time.Second))
	b := make([]byte, 64)
	n, err := l.Read(b)
	if err != nil || string(b[:n]) != "READY=1" {
		t.Errorf("systemd got %q, %v", b[:n], err)
	}
	if v, ok := os.LookupEnv("NOTIFY_SOCKET"); ok {
		t.Errorf("programs that this one starts would see NOTIFY_SOCKET=%s", v)
	}
	t.Setenv("NOTIFY_SOCKET", path+"-missing")
	if err := startup.Ready(-1); err == nil {
		t.Error("a socket that is not there is no error")
	}
}
