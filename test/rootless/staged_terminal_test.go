package rootless_test

import (
	"path/filepath"
	"testing"
)

// At the end of a run a person at a terminal is asked once what becomes of the copy.
func TestStagedAsksOnATerminal(t *testing.T) {
	u := newUser(t)
	u.sh("cd project; echo one > a")
	ask := func(keys ...string) {
		t.Helper()
		x := u.on(false, filepath.Join(programs, "carrel"), "run", "--here=staged", "--", "sh", "-c", "echo two > a")
		for _, k := range keys {
			x.Expect("discard it [x]?")
			x.Type(k + "\r")
		}
		if code := x.Wait(); code != 0 {
			t.Errorf("exit code %d: %q", code, x.Screen())
		}
	}
	left := func() string { return u.sh("cat project/a; ls .local/state/carrel/staged").out }
	ask("x")
	if got := left(); got != "one\n" {
		t.Errorf("discarded: %q", got)
	}
	ask("d", "k")
	if run := u.sh("ls .local/state/carrel/staged").out; run == "" || u.sh("cat project/a").out != "one\n" {
		t.Errorf("kept: %q", left())
	}
	if r := u.cli("discard"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	ask("a")
	if got := u.sh("cat project/a").out; got != "two\n" {
		t.Errorf("applied: %q", got)
	}
}
