package rootless_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/test/built"
)

var buildCrashable = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(programs, "crashpoints")
	return dir, buildPrograms(dir, built.Crashpoints)
})

// crashable is where programs are that end where they are told to.
func crashable(t *testing.T) string {
	t.Helper()
	if os.Getenv("CARREL_TEST_BIN") != "" {
		t.Skip("skipped: programs that end where they are told to are built with Go, which is not here")
	}
	dir, err := buildCrashable()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// points lets u's programs be told where to end. arm names a place and how often it is
// passed until then; passed says, once, whether it was.
func (u *user) points() (arm func(point string, times int) (passed func() bool)) {
	u.t.Helper()
	dir := filepath.Join(u.home, "points")
	if err := os.Mkdir(dir, 0o777); err != nil {
		u.t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		u.t.Fatal(err)
	}
	u.env = append(u.env, "CARREL_CRASHPOINTS="+dir)
	return func(point string, times int) func() bool {
		path := filepath.Join(dir, point)
		if err := os.WriteFile(path, []byte(strconv.Itoa(times)), 0o666); err != nil {
			u.t.Fatal(err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			u.t.Fatal(err)
		}
		return func() bool {
			_, err := os.Stat(path)
			os.Remove(path)
			return errors.Is(err, os.ErrNotExist)
		}
	}
}

// runCrashes are the places where carrel run, or its executor, is ended on its way.
var runCrashes = []struct {
	point string
	times int
}{
	{"run.begin.registered", 1},
	{"run.begin.noted", 1},
	{"run.begin.placed", 1},
	{"run.begin.placed", 4},
	{"broker.start.cloned", 1},
	{"broker.start.proved", 1},
	{"run.begin.launched", 1},
	{"run.end.ended", 1},
	{"run.end.taken", 1},
	{"run.end.unplaced", 1},
	{"run.end.settled", 1},
	{"executor.stage.step", 3},
	{"executor.stage.step", 12},
	{"executor.stage.proved", 1},
	{"executor.start.entered", 1},
	{"executor.exec.started", 1},
	{"executor.exec.reaped", 1},
}

// A run that is ended at any of its steps leaves no process, no mount and no group, and the next
// removes what is left in the project and closes the record.
func TestRunCrashes(t *testing.T) {
	built := crashable(t)
	u := newUser(t)
	arm := u.points()
	groups := func() string {
		return finish(exec.CommandContext(t.Context(), "find", "/sys/fs/cgroup", "-type", "d", "-uid", strconv.Itoa(int(u.id))), "").out
	}
	before := groups()
	run := func() (*bytes.Buffer, result) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		c := u.command("project", filepath.Join(built, "carrel"), "run", "--here", "--", "sh", "-c", "(setsid sleep 600 &); echo ran")
		var said bytes.Buffer
		c.Stdout, c.Stderr = w, &said
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		err = c.Wait()
		var out bytes.Buffer
		// It ends when the last process that has it does.
		if _, err := out.ReadFrom(r); err != nil {
			t.Error(err)
		}
		res := result{out.String(), said.String(), c.ProcessState.ExitCode()}
		if err != nil {
			res.err += err.Error()
		}
		return &out, res
	}
	for _, c := range runCrashes {
		t.Run(c.point+"/"+strconv.Itoa(c.times), func(t *testing.T) {
			u.t = t
			passed := arm(c.point, c.times)
			_, first := run()
			hit := passed()
			executor := strings.HasPrefix(c.point, "executor.")
			if !executor && (!hit || first.code >= 0) {
				t.Errorf("it was not ended there: %+v", first)
			}
			if executor && first.code != 125 {
				t.Errorf("the executor was not ended there, or its end went unnoticed: %+v", first)
			}
			if os.Geteuid() == 0 {
				until(t, "the end of every process", func() bool { return len(u.processes()) == 0 })
			}
			if got := u.sh("grep -c " + u.home + " /proc/self/mountinfo").out; got != "0\n" {
				t.Errorf("mounts are left: %s", got)
			}
			if after := groups(); after != before {
				t.Errorf("groups are left: %s", after)
			}
			if _, again := run(); again.code != 0 || again.out != "ran\n" {
				t.Errorf("the next: %+v", again)
			}
			if got := u.sh("ls -A project; ls .local/state/carrel/runs; ls -A .local/state/carrel/homes 2>/dev/null").out; got != ".git\n" {
				t.Errorf("left: %q", got)
			}
			open := map[int64]bool{}
			for _, r := range u.records() {
				if r.Type == audit.Intent {
					open[r.Seq] = true
				}
				delete(open, r.Intent)
			}
			if len(open) > 0 {
				t.Errorf("intents without an outcome: %v", open)
			}
		})
	}
	u.t = t
}
