package executor_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/boundary/executor"
)

// What does not end is looked at ever more seldom, and what ends soon is seen to soon.
func TestWhatDoesNotEndIsSeldomLookedAt(t *testing.T) {
	t.Parallel()
	session := func(seconds string) *exec.Cmd {
		c := exec.CommandContext(t.Context(), "/bin/sleep", seconds)
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	lasts := session("1000")
	empty, looks := executor.WaitSession(lasts.Process.Pid, uint32(os.Getuid()), 3*time.Second)
	if empty || looks > 200 {
		t.Errorf("in three seconds it was looked at %d times, and is gone: %v", looks, empty)
	}
	_ = lasts.Process.Kill() // before Wait, which ends it too
	_ = lasts.Wait()
	ends := session("0.2")
	go func() { _ = ends.Wait() }() // as the loop does
	begun := time.Now()
	if empty, _ := executor.WaitSession(ends.Process.Pid, uint32(os.Getuid()), 10*time.Second); !empty || time.Since(begun) > 2*time.Second {
		t.Errorf("the end of what ends after 0.2 s is seen after %v: %v", time.Since(begun), empty)
	}
}
