package sched_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/sched"
)

// A process and its session are preferred, and the test's own are not.
func TestPrefer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may prefer a process")
	}
	c := exec.Command("/bin/cat")
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = c.Wait() }()
	if err := sched.Prefer(c.Process.Pid); err != nil {
		t.Skipf("this root may not: %v", err)
	}
	if err := sched.PreferSession(c.Process.Pid); err != nil {
		t.Fatal(err)
	}
	const zero = 20 // what getpriority returns for a nice value of 0
	if n, err := unix.Getpriority(unix.PRIO_PROCESS, c.Process.Pid); err != nil || n != zero-sched.Nice {
		t.Errorf("priority %d, %v", n, err)
	}
	if n, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err != nil || n > zero {
		t.Errorf("of the test: priority %d, %v", n, err)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", c.Process.Pid))
	if err == nil && !strings.HasSuffix(string(b), fmt.Sprintf("nice %d\n", sched.Nice)) {
		t.Errorf("the session: %s", b)
	}
}
