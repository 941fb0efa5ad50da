package patch_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

// A child of the test does one thing, and ends as by SIGKILL at a step. It prints the step before.
const childEnv = "CARREL_PATCH_TEST_CHILD"

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
	what, dir, journals, id := args[0], args[1], args[2], args[3]
	last, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	ctx := context.Background()
	n := 0
	patch.OnStep(func(op string) error {
		if n++; n == last {
			fmt.Println(op)
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
		return nil
	})
	switch what {
	case "apply":
		parsed, err := patch.Parse([]byte(everyKind))
		if err != nil {
			return err
		}
		p, err := patch.Read(ctx, patch.Roots{Dir: dir}, parsed)
		if err != nil {
			return err
		}
		_, err = p.Apply(ctx, journals)
		return err
	case "undo":
		_, err := patch.Undo(ctx, journals, id)
		return err
	case "recover":
		_, err := patch.Recover(ctx, journals)
		return err
	}
	return errors.New("what?")
}

// killed runs a child, and returns the step at which it was killed, "" if it came to its end.
func killed(t testing.TB, what, dir, journals, id string, n int) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0])
	// The race detector waits a second at the end of a process.
	args := strings.Join([]string{what, dir, journals, id, strconv.Itoa(n)}, "\n")
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

// whole checks that all files are changed or none, and that nothing else is left. It reports which.
func whole(t testing.TB, what, dir, journals string, before, after map[string]string) (changed bool) {
	t.Helper()
	now := tree(t, dir)
	changed = maps.Equal(now, after)
	if !changed && !maps.Equal(now, before) {
		t.Errorf("%s: neither all nor none:\n%q", what, now)
	}
	all, err := os.ReadDir(journals)
	must(t, err)
	for _, e := range all {
		if m, _ := filepath.Glob(filepath.Join(journals, e.Name(), "*.json")); len(m) != 1 || filepath.Base(m[0]) == "journal.json" {
			t.Errorf("%s: left %s with %q", what, e.Name(), m)
		}
	}
	if !changed && len(after) > 0 && len(dirs(t, dir)) > 0 && !maps.Equal(before, everyAfter()) {
		t.Errorf("%s: left %q", what, dirs(t, dir))
	}
	return changed
}

// A process that is killed at any step leaves a state that Recover makes whole, also if that is killed at any step, again
// and again.
func TestKilledAtEveryStep(t *testing.T) {
	steps, finished, undone := 0, 0, 0
	for n := 1; ; n++ {
		dir, journals := lay(t, everyBefore()), private(t)
		at := killed(t, "apply", dir, journals, "", n)
		if at == "" {
			break
		}
		steps++
		what := fmt.Sprintf("killed at step %d, %s", n, at)
		// Each recovery gets one step further before it is killed. Every third of the states is enough: the states between
		// two exchanges differ little.
		for m := 1; n%3 == 0; m++ {
			if killed(t, "recover", dir, journals, "", m) == "" {
				break
			}
		}
		_, err := patch.Recover(t.Context(), journals)
		must(t, err)
		if whole(t, what, dir, journals, everyBefore(), everyAfter()) {
			finished++
		} else {
			undone++
		}
		if r, err := patch.Recover(t.Context(), journals); err != nil || len(r) > 0 {
			t.Errorf("%s: recovered twice: %v, %v", what, r, err)
		}
		// What comes next is not hindered.
		if p, err := read(t, dir, "--- other\n+++ other\n@@ -1 +1 @@\n-o\n+p\n"); err != nil {
			t.Errorf("%s: %v", what, err)
		} else if _, err := p.Apply(t.Context(), journals); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if steps < 60 || finished < 10 || undone < 10 {
		t.Errorf("%d steps, %d finished, %d undone", steps, finished, undone)
	}
}

func TestUndoKilledAtEveryStep(t *testing.T) {
	steps, finished, undone := 0, 0, 0
	for n := 1; ; n++ {
		dir, journals := lay(t, everyBefore()), private(t)
		p, err := read(t, dir, everyKind)
		must(t, err)
		id, err := p.Apply(t.Context(), journals)
		must(t, err)
		at := killed(t, "undo", dir, journals, id, n)
		if at == "" {
			break
		}
		steps++
		what := fmt.Sprintf("killed at step %d, %s", n, at)
		_, err = patch.Recover(t.Context(), journals)
		must(t, err)
		if whole(t, what, dir, journals, everyAfter(), everyBefore()) {
			finished++
		} else {
			undone++
			_, err := patch.Undo(t.Context(), journals, id)
			must(t, err)
			same(t, what+", undone then", dir, everyBefore())
		}
		if _, err := patch.Undo(t.Context(), journals, id); err == nil {
			t.Errorf("%s: undone twice", what)
		}
	}
	if steps < 60 || finished < 10 || undone < 10 {
		t.Errorf("%d steps, %d finished, %d undone", steps, finished, undone)
	}
}

// What another process does between a crash and the recovery stays as it is; the other files go back.
func TestChangedAfterCrash(t *testing.T) {
	steps, conflicts := 0, 0
	for n := 1; ; n++ {
		dir, journals := lay(t, everyBefore()), private(t)
		at := killed(t, "apply", dir, journals, "", n)
		if at == "" {
			break
		}
		steps++
		what := fmt.Sprintf("killed at step %d, %s", n, at)
		must(t, os.WriteFile(filepath.Join(dir, "one"), []byte("mine\n"), 0o644))
		all, err := patch.Recover(t.Context(), journals)
		must(t, err)
		if b, err := os.ReadFile(filepath.Join(dir, "one")); err != nil || string(b) != "mine\n" {
			t.Errorf("%s: the file has %q, %v", what, b, err)
		}
		want := everyBefore()
		if _, err := os.Stat(filepath.Join(dir, "gone")); err != nil {
			want = everyAfter()
		}
		want["one"] = "mine\n"
		same(t, what, dir, want)
		for _, r := range all {
			if r.Outcome != patch.Conflict {
				continue
			}
			conflicts++
			if len(r.Left) != 1 || !strings.Contains(r.Left[0], r.ID+"/0") {
				t.Errorf("%s: %q", what, r.Left)
			}
			if b, err := os.ReadFile(filepath.Join(journals, r.ID, "0")); err != nil || string(b) != "1\n" {
				t.Errorf("%s: the backup has %q, %v", what, b, err)
			}
		}
	}
	if steps < 60 || conflicts < 5 {
		t.Errorf("%d steps, %d conflicts", steps, conflicts)
	}
}
