package pidfd_test

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/linux/pidfd"
)

// A process that runs is held; one that has ended is known to have, waited for or not, and one with a
// pid that was used before is another.
func TestOpen(t *testing.T) {
	c := exec.Command("/bin/cat")
	in, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	pid := c.Process.Pid
	start, err := pidfd.StartTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	f, err := pidfd.Open(pid, start)
	if err != nil || pidfd.Ended(f, time.Millisecond) {
		t.Fatalf("one that runs: %v", err)
	}
	defer f.Close()
	if _, err := pidfd.Open(pid, start+1); !errors.Is(err, pidfd.ErrEnded) {
		t.Errorf("another with its pid: %v", err)
	}
	in.Close()
	if !pidfd.Ended(f, time.Minute) {
		t.Error("its end is not seen")
	}
	if _, err := pidfd.Open(pid, start); !errors.Is(err, pidfd.ErrEnded) {
		t.Errorf("one that nobody has waited for: %v", err)
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := pidfd.Open(pid, start); !errors.Is(err, pidfd.ErrEnded) {
		t.Errorf("one that is gone: %v", err)
	}
}
