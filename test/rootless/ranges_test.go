package rootless_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A run with a range of ids has its executor apart from the command, whose files are the
// caller's, and leaves nothing, also when it is killed. Who has no range is told what gives one.
func TestRunRanges(t *testing.T) {
	u := newRanged(t)
	const script = `id -u; touch made; stat -c %u made; touch ~/home; kill -0 1 2>/dev/null || echo held; cat /proc/1/environ 2>/dev/null ||
		echo hidden`
	r := u.run("--ids", "range", "--here", "--report", "-", "--", "sh", "-c", script)
	if want := fmt.Sprintf("%d\n%d\nheld\nhidden\n", u.id, u.id); r.code != 0 || r.out != want {
		t.Errorf("%+v", r)
	}
	for _, want := range []string{
		fmt.Sprintf("the executor has uid %d of a range of the caller's, commands the caller's uid %d", first, u.id),
		fmt.Sprintf("uid_map 0 %d 1 %d %d 1 %d %d 1", first, u.id, u.id, first+1, first+1),
	} {
		if !strings.Contains(r.err, want) {
			t.Errorf("no %q in\n%s", want, r.err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(u.home, "project/made"), &st); err != nil || st.Uid != u.id || st.Gid != u.gid {
		t.Errorf("owner %d:%d, %v", st.Uid, st.Gid, err)
	}
	if r := u.run("--ids", "range", "--keep", "--", "touch", "kept"); r.code != 0 || !strings.Contains(r.err, "the home is kept in") {
		t.Errorf("%+v", r)
	}

	c := u.command("project", filepath.Join(programs, "carrel"), "run", "--ids", "range", "--here", "--", "sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	executors := &user{t: t, id: first}
	until(t, "an executor with its command", func() bool { return len(executors.processes()) > 0 && len(u.processes()) > 1 })
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait() // it was killed
	until(t, "the end of every process", func() bool { return len(u.processes()) == 0 && len(executors.processes()) == 0 })
	if r := u.run("--ids", "auto", "--", "true"); r.code != 0 {
		t.Errorf("the next: %+v", r)
	}
	if got := u.sh("ls -A project; ls .local/state/carrel/runs").out; got != ".git\nmade\n" {
		t.Errorf("left: %q", got)
	}

	other := newUser(t)
	if r := other.run("--ids", "range", "--", "true"); r.code != 125 || !strings.Contains(r.err, "cannot use a range of ids: ") {
		t.Errorf("without a range: %+v", r)
	}
	if r := other.run("--ids", "auto", "--report", "-", "--", "true"); r.code != 0 || !strings.Contains(r.err, "share the caller's uid") ||
		!strings.Contains(r.err, "no range of ids is used: ") {
		t.Errorf("without a range: %+v", r)
	}
	if r := other.run("--ids", "two", "--", "true"); r.code != 125 || !strings.Contains(r.err, "one, range or auto") {
		t.Errorf("%+v", r)
	}
	if os.Geteuid() == 0 {
		u := *other
		u.id = 0
		if r := u.run("--ids", "range", "--", "true"); r.code != 125 || !strings.Contains(r.err, "as root") {
			t.Errorf("as root: %+v", r)
		}
	}
}
