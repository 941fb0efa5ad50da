package whole_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// step sets the guest's clock, for good until it is set again.
func step(t *testing.T, d time.Duration) {
	t.Helper()
	// bin and layout are set in a guest alone, where the kernel's command line is test/vm's.
	if cmdline, err := os.ReadFile("/proc/cmdline"); err != nil || !strings.Contains(string(cmdline), "tsc_early_khz=") {
		t.Fatalf("this is no guest of test/vm, and its clock is not to be touched: %q, %v", cmdline, err)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &ts); err != nil {
		t.Fatal(err)
	}
	ts.Sec += int64(d / time.Second)
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		t.Fatal(err)
	}
	t.Logf("it is %v now", time.Unix(ts.Unix()).UTC())
}

const day = 24 * time.Hour

// state is what ls says of a workspace, "" if it has gone.
func state(t *testing.T, key string) string {
	t.Helper()
	for line := range strings.Lines(must(t, "ls")) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == key {
			return f[2]
		}
	}
	return ""
}

// becomes asks until a workspace is in a state: the janitor looks each second.
func becomes(t *testing.T, key, want string) {
	t.Helper()
	var got string
	for range 30 {
		if got = state(t, key); got == want {
			return
		}
		<-time.After(time.Second)
	}
	t.Errorf("%s is %q and does not become %q", key, got, want)
}

// works sees that nothing of the work depends on the clock.
func works(t *testing.T, fresh string) {
	t.Helper()
	if out := must(t, "exec", "demo", "--", "cat", "file"); out != "kept" {
		t.Errorf("the file holds %q", out)
	}
	if r := carrel(t, "exec", "--timeout", "1s", "demo", "--", "sleep", "1000"); r.code != 143 || r.took > 20*time.Second {
		t.Errorf("a time-out: exit code %d after %s", r.code, r.took)
	}
	must(t, "create", "--idle-timeout", "never", fresh)
	must(t, "exec", fresh, "--", "true")
	if out := must(t, "audit", "verify"); !strings.HasPrefix(out, "ok: ") {
		t.Errorf("audit verify says %q", out)
	}
}

// clockSteps sets the clock a day forward and a day back while workspaces live. A time to
// live goes by the clock; an idle time-out and a command's do not.
func clockSteps(t *testing.T) {
	off := time.Duration(0)
	by := func(d time.Duration) { step(t, d); off += d }
	defer func() { step(t, -off) }()
	must(t, "create", "--ttl", "12h", "--idle-timeout", "never", "ends")
	must(t, "create", "--ttl", "7d", "--idle-timeout", "1h", "rests")
	must(t, "create", "--no-start", "answered")
	home := must(t, "destroy", "--request-id", "r-clock", "answered")
	id := must(t, "exec", "--detach", "demo", "--", "sh", "-c", "echo begun; exec sleep 1000")

	by(day)
	becomes(t, "ends", "") // and so the janitor has looked since
	if got := state(t, "rests"); got != "running" {
		t.Errorf("what may rest for an hour, and has for some seconds, is %q", got)
	}
	if out := must(t, "ls", "--retained"); !strings.Contains(out, " ends ") {
		t.Errorf("the home of what had lived its time is not kept:\n%s", out)
	}
	works(t, "forward")

	by(-2 * day)
	if got := must(t, "destroy", "--request-id", "r-clock", "answered"); got != home {
		t.Errorf("a request of before is answered %q, and was %q", got, home)
	}
	must(t, "create", "--ttl", "1h", "--idle-timeout", "never", "short")
	must(t, "create", "--idle-timeout", "2s", "quick")
	becomes(t, "quick", "stopped")
	for _, key := range []string{"short", "rests"} {
		if got := state(t, key); got != "running" {
			t.Errorf("%s is %q", key, got)
		}
	}
	works(t, "back")
	kill(t, part(t, "daemon"))
	kill(t, part(t, "broker"))
	must(t, "up", "--detach")
	if out := must(t, "logs", "demo", id); out != "begun" {
		t.Errorf("a command of before wrote %q", out)
	}

	by(day)
	must(t, "kill", "demo", id)
	works(t, "now")
	// Its time to live ended a day ago less an hour, by the clock that it was given by.
	becomes(t, "short", "")
	must(t, "destroy", "--purge", "rests", "quick", "forward", "back", "now")
}
