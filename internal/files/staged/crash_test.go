package staged_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/staged"
)

// A child of the test does one thing, and ends as by SIGKILL at a step. It prints the step before.
const childEnv = "CARREL_STAGED_TEST_CHILD"

func TestMain(m *testing.M) {
	if args := os.Getenv(childEnv); args != "" {
		if err := child(strings.Split(args, "\n")); err != nil {
			fmt.Println("child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(args []string) error {
	what, top, copied := args[0], args[1], args[2] == "copied"
	last, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	since, err := strconv.ParseInt(args[4], 10, 64)
	if err != nil {
		return err
	}
	if copied {
		staged.CannotMove()
	}
	n := 0
	staged.OnStep(func(op string) error {
		if n++; n == last {
			fmt.Println(op)
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
		return nil
	})
	lower, err := os.Open(top + "/lower")
	if err != nil {
		return err
	}
	upper, err := os.Open(top + "/upper")
	if err != nil {
		return err
	}
	ctx, keep := context.Background(), top+"/keep"
	switch what {
	case "apply":
		o := staged.Options{Since: time.Unix(0, since), Choice: staged.Choice{All: true}}
		_, err = staged.Apply(ctx, staged.Copy{Lower: lower, Upper: upper}, o, keep)
	case "undo":
		_, err = staged.Undo(ctx, lower, keep)
	case "recover":
		_, err = staged.Recover(ctx, lower, keep)
	}
	return err
}

// killed runs a child, and returns the step at which it was killed, "" if it came to its end.
func (l *lab) killed(t testing.TB, what string, copied bool, n int) string {
	t.Helper()
	how := "moved"
	if copied {
		how = "copied"
	}
	c := exec.CommandContext(t.Context(), os.Args[0])
	args := strings.Join([]string{what, l.top, how, strconv.Itoa(n), strconv.FormatInt(l.since.UnixNano(), 10)}, "\n")
	// The race detector waits a second at the end of a process.
	c.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", childEnv+"="+args)
	out, err := c.Output()
	if err == nil {
		return ""
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || !strings.Contains(exit.Error(), "killed") {
		t.Fatalf("%s, step %d: %v %s", what, n, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (l *lab) recover(t testing.TB) []staged.Recovered {
	t.Helper()
	all, err := staged.Recover(t.Context(), l.copy(t).Lower, l.keep)
	must(t, err)
	return all
}

// A process that is killed at any step leaves a state that Recover makes whole, also if that is killed at any step, again and
// again: before the mark nothing is changed, after it everything is.
func TestKilledAtEveryStep(t *testing.T) {
	for _, copied := range []bool{false, true} {
		l, merged := everyUpper(t)
		before := tree(t, l.lower)
		steps, finished, undone, marked := 0, 0, 0, false
		for n := 1; ; n++ {
			at := l.killed(t, "apply", copied, n)
			if at == "" {
				must(t, l.undo(t))
				break
			}
			steps++
			what := fmt.Sprintf("killed at step %d, %s", n, at)
			for m := 1; n%7 == 0; m++ { // each recovery gets one step further
				if l.killed(t, "recover", copied, m) == "" {
					break
				}
			}
			l.recover(t)
			now := tree(t, l.lower)
			if maps.Equal(now, merged) {
				finished++
				must(t, l.undo(t))
				now = tree(t, l.lower)
			} else {
				undone++
				if marked {
					t.Errorf("%s: undone after the mark", what)
				}
			}
			equalTrees(t, what, now, before)
			if left := l.kept(t); len(left) > 0 {
				t.Errorf("%s: left %q", what, left)
			}
			marked = marked || at == "sync commit"
			if all := l.recover(t); len(all) > 0 {
				t.Errorf("%s: recovered twice: %v", what, all)
			}
		}
		if steps < 50 || finished < 10 || undone < 30 {
			t.Errorf("%d steps, %d finished, %d undone", steps, finished, undone)
		}
	}
}

func TestUndoKilledAtEveryStep(t *testing.T) {
	l, merged := everyUpper(t)
	before := tree(t, l.lower)
	steps, finished, undone := 0, 0, 0
	for n := 1; ; n++ {
		_, err := l.apply(t)
		must(t, err)
		at := l.killed(t, "undo", false, n)
		if at == "" {
			break
		}
		steps++
		what := fmt.Sprintf("killed at step %d, %s", n, at)
		for m := 1; n%7 == 0; m++ {
			if l.killed(t, "recover", false, m) == "" {
				break
			}
		}
		l.recover(t)
		if now := tree(t, l.lower); maps.Equal(now, before) {
			finished++
		} else {
			undone++
			equalTrees(t, what, now, merged)
			must(t, l.undo(t))
			equalTrees(t, what+", undone then", tree(t, l.lower), before)
		}
		if left := l.kept(t); len(left) > 0 {
			t.Errorf("%s: left %q", what, left)
		}
	}
	if steps < 50 || finished < 10 || undone < 30 {
		t.Errorf("%d steps, %d finished, %d undone", steps, finished, undone)
	}
}

// What another process does between a crash and the recovery stays as it is; the other files go back, and what the file was is
// not lost.
func TestChangedAfterCrash(t *testing.T) {
	steps, partly := 0, 0
	for n := 1; ; n++ {
		l := newLab(t, map[string]string{"a": "a\n", "text": "1\n", "z": "z\n"})
		lay(t, l.upper, map[string]string{"a": "A\n", "text": "2\n", "z": "Z\n"})
		at := l.killed(t, "apply", false, n)
		if at == "" {
			break
		}
		steps++
		what := fmt.Sprintf("killed at step %d, %s", n, at)
		must(t, os.WriteFile(l.lower+"/text", []byte("mine\n"), 0o644))
		all := l.recover(t)
		now := tree(t, l.lower)
		if now["text"] != "-rw-r--r-- mine\n" || now["a"][len(now["a"])-2:] == "A\n" != (now["z"][len(now["z"])-2:] == "Z\n") {
			t.Errorf("%s: %q", what, now)
		}
		for _, r := range all {
			if r.Outcome != staged.Partly {
				continue
			}
			partly++
			found := false
			for _, is := range now {
				found = found || is == "-rw-r--r-- 1\n"
			}
			if len(r.Left) != 1 || r.Left[0].Path != "text" || !found {
				t.Errorf("%s: %+v, %q", what, r, now)
			}
		}
	}
	if steps < 25 || partly < 3 {
		t.Errorf("%d steps, %d partly", steps, partly)
	}
}
