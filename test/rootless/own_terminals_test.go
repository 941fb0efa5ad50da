package rootless_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/ptytest"
)

// A session of one's own carrel is left and joined again, recorded with the workspace's own id, and ends.
func TestOwnTerminals(t *testing.T) { eachOwner(t, ownTerminals) }

func ownTerminals(t *testing.T, u *user) {
	u.must("create", "one")
	shell := func(args ...string) *ptytest.Terminal {
		return ptytest.Start(t, u.own(append([]string{"shell"}, args...)...), 24, 80, false)
	}
	x := shell("--session", "work", "--record", "one", "--", "sh", "-c", "echo mark-$((20+3)); while read x; do echo got-$x; done")
	x.Expect("mark-23")
	x.Type("one\r")
	x.Expect("got-one")
	x.Type("\x10\x11")
	if code := x.Wait(); code != 0 {
		t.Errorf("left with %d: %q", code, x.Screen())
	}
	y := shell("--session", "work", "one")
	y.Expect("mark-23")
	y.Expect("got-one")
	if out := u.must("shell", "--ls", "one"); !strings.Contains(out, "work") || !strings.Contains(out, "80x24") || !strings.Contains(out, "yes") {
		t.Errorf("listed are\n%s", out)
	}
	{
		z := shell("--record", "--session", "plain", "one", "--", "cat")
		z.Expect("\x1b[?1049h")
		z.Type("\x10\x11")
		z.Wait()
	}
	u.must("shell", "--kill", "--session", "plain", "one")
	until(t, "the end of the session", func() bool { return !strings.Contains(u.must("shell", "--ls", "one"), "plain") })
	shell("--session", "plain", "one", "--", "cat").Expect("\x1b[?1049h")
	if z := shell("--record", "--session", "plain", "one"); z.Wait() == 0 || !strings.Contains(z.Screen(), "opened without a recording") {
		t.Errorf("a recording of one that is open: %q", z.Screen())
	}
	u.must("shell", "--kill", "--session", "plain", "one")
	until(t, "the end of the session", func() bool { return !strings.Contains(u.must("shell", "--ls", "one"), "plain") })
	u.must("shell", "--kill", "--session", "work", "one")
	y.Wait()
	if out := u.must("shell", "--ls", "one"); strings.Contains(out, "work") {
		t.Errorf("listed are\n%s", out)
	}
	cast := strings.TrimSpace(u.must("exec", "one", "--", "sh", "-c", "grep -l mark-23 .carrel/recordings/*.cast"))
	if out := u.must("files", "cat", "one", filepath.ToSlash(cast)); !strings.HasPrefix(out, `{"`) || !strings.Contains(out, `"version":2`) ||
		!strings.Contains(out, "mark-23") {
		t.Errorf("the recording is %.300q", out)
	}
	if r := u.carrel("shell", "--tmux", "one"); r.code == 0 {
		t.Errorf("without a terminal: %+v", r)
	}
}
