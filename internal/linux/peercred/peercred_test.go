package peercred_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/peercred"
)

// TestMain is also the peer: the test starts itself again with another identity,
// and that process connects and waits for the end of the connection.
func TestMain(m *testing.M) {
	if path := os.Getenv("PEERCRED_TEST_CONNECT"); path != "" {
		c, err := net.Dial("unix", path)
		if err != nil {
			os.Exit(1)
		}
		_, _ = c.Read(make([]byte, 1))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func connect(t *testing.T, cred *syscall.Credential) (*net.UnixConn, int) {
	t.Helper()
	dir, err := os.MkdirTemp("", "peercred")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"PEERCRED_TEST_CONNECT=" + path}
	if cred != nil {
		for _, p := range []string{dir, path} {
			if err := os.Chown(p, int(cred.Uid), -1); err != nil {
				t.Fatal(err)
			}
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = cmd.Wait()
	})
	return c, cmd.Process.Pid
}

func TestOf(t *testing.T) {
	c, pid := connect(t, nil)
	got, err := peercred.Of(c)
	if err != nil {
		t.Fatal(err)
	}
	if got.PID != pid || got.UID != uint32(os.Getuid()) || got.GID != uint32(os.Getgid()) {
		t.Errorf("got %+v for pid %d", got, pid)
	}
}

func TestOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: another user's credentials need root")
	}
	var many []uint32
	for g := range uint32(100) { // more than fit in the first try
		many = append(many, 70000+g)
	}
	for _, groups := range [][]uint32{nil, {70001, 70002}, many} {
		c, pid := connect(t, &syscall.Credential{Uid: 65432, Gid: 65433, Groups: groups})
		got, err := peercred.Of(c)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(got.Groups)
		if got.PID != pid || got.UID != 65432 || got.GID != 65433 || !slices.Equal(got.Groups, groups) {
			t.Errorf("got %+v", got)
		}
	}
}

func TestPidFD(t *testing.T) {
	c, pid := connect(t, nil)
	f, err := peercred.PidFD(c)
	if errdefs.IsNotImplemented(err) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.PidfdSendSignal(int(f.Fd()), unix.SIGTERM, nil, 0); err != nil {
		t.Fatal(err)
	}
	p, _ := os.FindProcess(pid)
	st, err := p.Wait()
	if err != nil || !st.Sys().(syscall.WaitStatus).Signaled() {
		t.Errorf("the pidfd was not that of the peer: %v, %v", st, err)
	}
}

func TestClosedConnection(t *testing.T) {
	c, _ := connect(t, nil)
	_ = c.Close()
	if _, err := peercred.Of(c); err == nil {
		t.Error("a closed connection has credentials")
	}
	if _, err := peercred.PidFD(c); err == nil {
		t.Error("a closed connection has a pidfd")
	}
}
