package broker_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// A process that has ended and that nobody waits for does not hold up a destroy for ever:
// there are hosts without an init that does it.
func TestWhatHasEndedHoldsNobodyUp(t *testing.T) {
	p := newInstallation(t)
	life := p.mustOpen(t)
	e := p.create(t, life)
	c := exec.CommandContext(t.Context(), "true")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: e.IDs.Work, Gid: e.IDs.Work}}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Wait() }() // not before: it stays a zombie
	begun := time.Now()
	if _, err := life.Destroy(t.Context(), brokerapi.DestroyParams{Name: p.name, Purge: true}); err != nil {
		t.Error(err)
	}
	if d := time.Since(begun); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
	p.gone(t, e)
}

// The kernel wakes a thread that nothing ends for a moment, and it is named nevertheless: this one
// begins to sleep, in vfork with a child that executes nothing, after it is looked for.
func TestHeldUpLooksAgain(t *testing.T) {
	p := newInstallation(t)
	e := p.create(t, p.mustOpen(t))
	c := exec.CommandContext(t.Context(), "/proc/self/exe")
	c.Env = []string{"BROKER_TEST_VFORK=1"}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: e.IDs.Work, Gid: e.IDs.Work}, Setpgid: true}
	input, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(-c.Process.Pid, unix.SIGKILL); _ = c.Wait() }()
	late := time.AfterFunc(100*time.Millisecond, func() { _ = input.Close() })
	defer late.Stop()
	if why := new(broker.Host).HeldUp(e.IDs); !strings.Contains(why, "sleeps uninterruptibly") {
		t.Errorf("it is not named: %q", why)
	}
}

// sleepInVfork sleeps uninterruptibly from the end of its input on.
func sleepInVfork() {
	_, _ = os.Stdin.Read(make([]byte, 1)) // io.EOF
	if pid, _, _ := unix.RawSyscall(unix.SYS_CLONE, unix.CLONE_VFORK|uintptr(unix.SIGCHLD), 0, 0); pid == 0 {
		for {
			_, _, _ = unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
		}
	}
}
