package root_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/sched"
)

// Broker and daemon are preferred by the scheduler; executors and commands have the share of everybody, and cannot take
// more.
func TestSchedulerPrefersWhoServes(t *testing.T) {
	d := shared.desk(t)
	nice := func(pid int) int {
		t.Helper()
		n, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
		if err != nil {
			t.Fatal(err)
		}
		return 20 - n
	}
	session := func(pid int) string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", pid))
		if err != nil {
			t.Log("sessions are not told apart here:", err)
			return fmt.Sprintf("nice %d\n", sched.Nice)
		}
		return string(b)
	}
	own := nice(os.Getpid())
	for _, part := range []string{"broker", "daemon"} {
		if s := session(shared.part(t, part)); !strings.HasSuffix(s, fmt.Sprintf(" nice %d\n", sched.Nice)) && s != fmt.Sprintf("nice %d\n", sched.Nice) {
			t.Errorf("the session of the %s: %s", part, s)
		}
	}
	if n := nice(shared.part(t, "daemon")); n != sched.Nice {
		t.Errorf("the daemon has %d", n)
	}
	if n := nice(d.ExecutorPID); n != own {
		t.Errorf("the executor has %d, and this test %d", n, own)
	}
	got := d.sh(t, `nice; nice -n -5 nice 2>/dev/null; renice -n -5 -p $$ >/dev/null 2>&1; nice; echo -5 2>/dev/null > /proc/$$/autogroup && echo opened || true`)
	if want := fmt.Sprintf("%d\n%d\n%d", own, own, own); got != want {
		t.Errorf("a command has %q, want %q", got, want)
	}
}
