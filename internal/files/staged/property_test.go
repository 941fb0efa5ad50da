package staged_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// Whatever a run does through a real overlay, Apply gives what the run saw, and Undo what was there before.
func TestAppliedIsWhatTheRunSaw(t *testing.T) {
	needRoot(t)
	changes := 0
	rapid.Check(t, func(r *rapid.T) {
		l := newLab(t, nil)
		l.user = rapid.Bool().Draw(r, "userxattr")
		for i := range rapid.IntRange(0, 25).Draw(r, "before") {
			_ = drawn(r, fmt.Sprint("before ", i))(l.lower) // one that cannot be done is none
		}
		l.start(t)
		before := tree(t, l.lower)
		var run []func(dir string) error
		for i := range rapid.IntRange(0, 25).Draw(r, "during") {
			run = append(run, drawn(r, fmt.Sprint("during ", i)))
		}
		var merged map[string]string
		l.run(t, func(m string) error {
			for _, change := range run {
				_ = change(m)
			}
			merged = tree(t, m)
			return nil
		})
		changes += len(l.changes(t))
		_, err := l.apply(t)
		if err != nil {
			r.Fatal(err)
		}
		same(r, "applied", tree(t, l.lower), merged)
		if left := l.changes(t); len(left) > 0 {
			r.Errorf("left to do: %q", shorts(left))
		}
		if len(l.kept(t)) == 0 {
			return
		}
		if err := l.undo(t); err != nil {
			r.Fatal(err)
		}
		same(r, "undone", tree(t, l.lower), before)
	})
	if changes < 20 {
		t.Errorf("%d changes in all", changes)
	}
}

func same(r *rapid.T, what string, got, want map[string]string) {
	for name, is := range want {
		if got[name] != is {
			r.Errorf("%s: %q is %q, want %q", what, name, got[name], is)
		}
	}
	if len(got) != len(want) {
		r.Errorf("%s: %d names, want %d: %q", what, len(got), len(want), got)
	}
}

// drawn is one random change of a directory.
func drawn(r *rapid.T, label string) func(dir string) error {
	names := rapid.SampledFrom([]string{"a", "b", "A", "a-b", "\u00e9", "e\u0301", "new\nline", "\xff", " "})
	path := func(what string) string { return filepath.Join(rapid.SliceOfN(names, 1, 3).Draw(r, label+what)...) }
	p, to := path(" path"), path(" to")
	text := rapid.SampledFrom([]string{"", "one\n", "two\n", "no end"}).Draw(r, label+" text")
	target := rapid.SampledFrom([]string{"a", "b/a", "x", "."}).Draw(r, label+" target")
	mode := rapid.SampledFrom([]uint32{0o600, 0o644, 0o755, 0o700}).Draw(r, label+" mode")
	what := rapid.IntRange(0, 9).Draw(r, label+" what")
	return func(dir string) error {
		return change(what, filepath.Join(dir, p), filepath.Join(dir, to), text, target, mode)
	}
}

// change does one thing.
func change(what int, p, to, text, target string, mode uint32) error {
	switch what {
	case 0, 1, 2:
		return errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644))
	case 3:
		return os.MkdirAll(p, 0o755)
	case 4:
		return os.RemoveAll(p)
	case 5:
		return os.Symlink(target, p)
	case 6:
		return unix.Fchmodat(unix.AT_FDCWD, p, mode, unix.AT_SYMLINK_NOFOLLOW)
	case 7:
		return os.Rename(p, to)
	case 8:
		return os.Link(p, to)
	}
	f, err := os.OpenFile(p, os.O_RDWR, 0) // which copies up
	if err == nil {
		err = f.Close()
	}
	return err
}

// Fifty thousand files are changed within bounds of time and descriptors.
func TestFiftyThousand(t *testing.T) {
	if testing.Short() {
		t.Skip("it makes 100,000 files")
	}
	inMemory(t)
	l := newLab(t, nil)
	const dirs, files = 100, 500
	for i := range dirs {
		for _, tree := range []string{l.lower, l.upper} {
			must(t, os.Mkdir(fmt.Sprintf("%s/%d", tree, i), 0o755))
			for j := range files {
				must(t, os.WriteFile(fmt.Sprintf("%s/%d/%d", tree, i, j), []byte(tree), 0o644))
			}
		}
	}
	l.start(t)
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: was.Max}))
	defer func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }()
	began := time.Now()
	r, err := l.apply(t)
	must(t, err)
	t.Logf("applied in %v", time.Since(began))
	if len(r.Applied) != dirs*files {
		t.Errorf("%d applied", len(r.Applied))
	}
	for _, name := range []string{"/0/0", "/99/499"} {
		if b, err := os.ReadFile(l.lower + name); err != nil || string(b) != l.upper {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if left := l.changes(t); len(left) > 0 {
		t.Errorf("%d left to do", len(left))
	}
	began = time.Now()
	must(t, l.undo(t))
	t.Logf("undone in %v", time.Since(began))
	if b, err := os.ReadFile(l.lower + "/99/499"); err != nil || string(b) != l.lower {
		t.Errorf("undone: %q, %v", b, err)
	}
}

// Without root it does the same, also in directories that their owner has closed.
func TestWithoutRoot(t *testing.T) {
	asUser(t, func() {
		l := newLab(t, map[string]string{"closed/f": "a", "closed/g": "g", "open/x": "x"})
		lay(t, l.upper, map[string]string{"closed/f": "b", "open/y": "y", "fresh/z": "z"})
		for path, mode := range map[string]os.FileMode{"lower/closed": 0o555, "upper/closed": 0o555, "upper/open": 0o500, "upper/fresh": 0o500} {
			must(t, os.Chmod(l.top+"/"+path, mode))
		}
		t.Cleanup(func() { // so that they can be removed
			for _, path := range []string{"lower/closed", "upper/closed", "upper/open", "upper/fresh"} {
				os.Chmod(l.top+"/"+path, 0o755)
			}
		})
		l.start(t)
		before := tree(t, l.lower)
		for range 2 {
			_, err := l.apply(t)
			must(t, err)
			equalTrees(t, "applied", tree(t, l.lower), map[string]string{
				"closed": "dr-xr-xr-x", "closed/f": "-rw-r--r-- b", "closed/g": "-rw-r--r-- g", "open": "dr-x------", "open/x": "-rw-r--r-- x",
				"open/y": "-rw-r--r-- y", "fresh": "dr-x------", "fresh/z": "-rw-r--r-- z",
			})
			must(t, l.undo(t))
			equalTrees(t, "undone", tree(t, l.lower), before)
			if left := l.kept(t); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		}
	})
}

// As an ordinary user, who mounts the overlay in a user namespace of his own, it is the same.
func TestInUserNamespace(t *testing.T) {
	needRoot(t)
	if inUserNamespace() {
		t.Skip("it makes a user namespace itself")
	}
	const tests = "^(TestApplyAndUndo|TestChoice|TestHiddenBelow|TestChangedMeanwhile)$"
	c := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", tests, "-test.v")
	c.Dir, c.Env = "/", []string{"TMPDIR=/tmp"}
	one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}}
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: one, GidMappings: one, Credential: &syscall.Credential{NoSetGroups: true},
	}
	out, err := c.CombinedOutput()
	if passed := strings.Count(string(out), "--- PASS"); err != nil || passed != 4 {
		t.Errorf("%d passed, %v\n%s", passed, err, out)
	}
}
