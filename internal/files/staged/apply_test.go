package staged_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/staged"
)

func (l *lab) apply(t testing.TB, paths ...string) (staged.Result, error) {
	t.Helper()
	o := staged.Options{Since: l.since, Choice: staged.Choice{All: len(paths) == 0, Paths: paths}}
	return staged.Apply(t.Context(), l.copy(t), o, l.keep)
}

func (l *lab) undo(t testing.TB) error {
	t.Helper()
	_, err := staged.Undo(t.Context(), l.copy(t).Lower, l.keep)
	return err
}

// kept lists the transactions in the directory of journals.
func (l *lab) kept(t testing.TB) (names []string) {
	t.Helper()
	all, err := os.ReadDir(l.keep)
	must(t, err)
	for _, e := range all {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// conflicts checks that an error is about conflicts at these paths.
func conflicts(t testing.TB, what string, err error, paths ...string) {
	t.Helper()
	c, ok := errors.AsType[*staged.ConflictError](err)
	if !ok || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("%s: %v", what, err)
		return
	}
	var got []string
	for _, one := range c.Conflicts {
		got = append(got, one.Path)
	}
	if !slices.Equal(got, paths) {
		t.Errorf("%s: conflicts at %q, not %q", what, got, paths)
	}
}

// everyUpper runs everything, and returns what the copy shows.
func everyUpper(t testing.TB) (l *lab, merged map[string]string) {
	t.Helper()
	l = newLab(t, project())
	l.run(t, func(m string) error {
		err := errors.Join(everything(m), os.RemoveAll(m+"/new/abs"))
		merged = tree(t, m)
		return err
	})
	return l, merged
}

// Applied, the project is what the copy showed; undone, it is what it was; and it can be applied again.
func TestApplyAndUndo(t *testing.T) {
	for _, move := range []bool{true, false} {
		l, merged := everyUpper(t)
		if !move {
			defer staged.CannotMove()()
		}
		before := tree(t, l.lower)
		for range 3 {
			r, err := l.apply(t)
			must(t, err)
			if r.ID == "" || len(r.Applied) != len(everyChange)-1 || len(r.Refused) > 0 {
				t.Errorf("%+v", r)
			}
			equalTrees(t, "applied", tree(t, l.lower), merged)
			if left := l.changes(t); len(left) > 0 {
				t.Errorf("left to do: %q", shorts(left))
			}
			if r, err := l.apply(t); err != nil || r.ID != "" {
				t.Errorf("applied twice: %+v, %v", r, err)
			}
			must(t, l.undo(t))
			equalTrees(t, "undone", tree(t, l.lower), before)
			if left := l.kept(t); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		}
		if err := l.undo(t); !errdefs.IsNotFound(err) {
			t.Errorf("undone without anything to undo: %v", err)
		}
	}
}

// Old contents go to a journal on another file system too.
func TestAnotherFileSystem(t *testing.T) {
	l, merged := everyUpper(t)
	dir, err := os.MkdirTemp("/dev/shm", "staged-test-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	l.keep = dir
	before := tree(t, l.lower)
	_, err = l.apply(t)
	must(t, err)
	equalTrees(t, "applied", tree(t, l.lower), merged)
	must(t, l.undo(t))
	equalTrees(t, "undone", tree(t, l.lower), before)
}

// Parts are applied one after the other, and undone in the reverse order.
func TestChoice(t *testing.T) {
	l, merged := everyUpper(t)
	before := tree(t, l.lower)
	for _, paths := range [][]string{{"text"}, {"new/dir/file"}, {"old/deep"}, {"dir"}, {"file"}, {"empty"}} {
		if _, err := l.apply(t, paths...); err != nil {
			t.Errorf("%q: %v", paths, err)
		}
	}
	now := tree(t, l.lower)
	for name, is := range map[string]string{
		"text": merged["text"], "new/dir/file": merged["new/dir/file"], "old/a": before["old/a"], "dir/one": "",
		"file/in/it": merged["file/in/it"],
		"gone":       before["gone"], "old/deep": "", "empty": merged["empty"],
	} {
		if now[name] != is {
			t.Errorf("%s is %q, want %q", name, now[name], is)
		}
	}
	_, err := l.apply(t)
	must(t, err)
	equalTrees(t, "applied", tree(t, l.lower), merged)
	for range 7 {
		must(t, l.undo(t))
	}
	equalTrees(t, "undone", tree(t, l.lower), before)
	if _, err := l.apply(t, "nothing"); !errdefs.IsNotFound(err) {
		t.Errorf("an unknown path: %v", err)
	}
	if _, err := staged.Apply(t.Context(), l.copy(t), staged.Options{Since: l.since}, l.keep); !errdefs.IsInvalidArgument(err) {
		t.Errorf("nothing chosen: %v", err)
	}
	o := staged.Options{Choice: staged.Choice{All: true}}
	if _, err := staged.Apply(t.Context(), l.copy(t), o, l.keep); !errdefs.IsInvalidArgument(err) {
		t.Errorf("without the time of the run: %v", err)
	}
	must(t, staged.Forget(t.Context(), l.keep))
}

// What is refused stays as it is, with the directories that it needs, and the rest is made.
func TestRefused(t *testing.T) {
	needRoot(t)
	l := newLab(t, map[string]string{"nested/.git/config": "c", "nested/x": "x", "prog": "p", ".git/HEAD": "h", "twisted/.git/x": "x"})
	l.run(t, func(m string) error {
		return errors.Join(os.RemoveAll(m+"/nested"), os.WriteFile(m+"/.git/HEAD", []byte("evil"), 0o644), os.Mkdir(m+"/.Git", 0o755),
			os.WriteFile(m+"/.Git/hook", nil, 0o755), unix.Mkfifo(m+"/fifo", 0o644), os.Symlink("/etc", m+"/etc"), os.Symlink("prog", m+"/ok"),
			os.WriteFile(m+"/prog", []byte("new"), 0o644), os.Chmod(m+"/prog", 0o755|os.ModeSetuid|os.ModeSetgid),
			os.RemoveAll(m+"/twisted"), os.WriteFile(m+"/twisted", nil, 0o644))
	})
	r, err := l.apply(t)
	must(t, err)
	equalTrees(t, "applied", tree(t, l.lower), map[string]string{
		"nested": "drwxr-xr-x", "nested/.git": "drwxr-xr-x", "nested/.git/config": "-rw-r--r-- c", "nested/x": "-rw-r--r-- x",
		"prog": "-rwxr-xr-x new", ".git": "drwxr-xr-x", ".git/HEAD": "-rw-r--r-- h", "ok": "Lrwxrwxrwx prog",
		"twisted": "drwxr-xr-x", "twisted/.git": "drwxr-xr-x", "twisted/.git/x": "-rw-r--r-- x",
	})
	var refused []string
	for _, f := range r.Refused {
		refused = append(refused, f.Path)
	}
	want := []string{".Git", ".Git/hook", ".git/HEAD", "etc", "fifo", "nested", "nested/.git", "nested/x", "twisted", "twisted/.git"}
	if !slices.Equal(refused, want) {
		t.Errorf("%q\nwant %q", r.Refused, want)
	}
	for _, p := range []string{".Git/hook", "fifo", ".git/HEAD"} {
		if _, err := l.apply(t, p); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", p, err)
		}
	}
	_, err = l.apply(t, "etc")
	must(t, err)
	if to, err := os.Readlink(l.lower + "/etc"); err != nil || to != "/etc" {
		t.Errorf("named: %q, %v", to, err)
	}
}

// What the host changed since the run began is a conflict, and then nothing is changed.
func TestHostEdits(t *testing.T) {
	for name, c := range map[string]struct {
		host func(dir string) error
		at   []string
	}{
		"modified":        {func(d string) error { return os.WriteFile(d+"/text", []byte("mine\n"), 0o644) }, []string{"text"}},
		"deleted by both": {func(d string) error { return os.Remove(d + "/gone") }, nil},
		"modified and deleted by the run": {
			func(d string) error { return os.WriteFile(d+"/gone", []byte("mine\n"), 0o644) }, []string{"gone"},
		},
		"added where the run deleted": {
			func(d string) error { return os.WriteFile(d+"/old/deep/mine", nil, 0o644) }, []string{"old/deep/mine"},
		},
		"made what the run made": {
			func(d string) error {
				return errors.Join(os.Mkdir(d+"/new", 0o755), os.WriteFile(d+"/new/dir", nil, 0o644))
			}, []string{"new/dir"},
		},
		"the same edit": {func(d string) error { return os.WriteFile(d+"/text", []byte("1\nII\n3\n"), 0o644) }, nil},
		"elsewhere":     {func(d string) error { return os.WriteFile(d+"/other", nil, 0o644) }, nil},
		"its mode":      {func(d string) error { return os.Chmod(d+"/script", 0o700) }, []string{"script"}},
		"a link": {
			func(d string) error { return errors.Join(os.Remove(d+"/link"), os.Symlink("elsewhere", d+"/link")) }, []string{"link"},
		},
		"a directory's mode": {func(d string) error { return os.Chmod(d+"/empty", 0o711) }, []string{"empty"}},
		"what was replaced":  {func(d string) error { return os.WriteFile(d+"/tree/y/z", []byte("m"), 0o644) }, []string{"tree/y/z"}},
	} {
		t.Run(name, func(t *testing.T) {
			l, merged := everyUpper(t)
			must(t, c.host(l.lower))
			before := tree(t, l.lower)
			_, err := l.apply(t)
			if len(c.at) > 0 {
				conflicts(t, name, err, c.at...)
				equalTrees(t, name, tree(t, l.lower), before)
				if left := l.kept(t); len(left) > 0 {
					t.Errorf("left: %q", left)
				}
				return
			}
			must(t, err)
			if before["other"] != "" {
				merged["other"] = before["other"]
			}
			equalTrees(t, name, tree(t, l.lower), merged)
		})
	}
}

// An edit of the host's and one of the run's that do not touch go together, if it is known what the file was.
func TestMerge(t *testing.T) {
	base := strings.Repeat("x\n", 5) + "one\n" + strings.Repeat("y\n", 20) + "two\n"
	l := newLab(t, map[string]string{"f": base, "g": base})
	lay(t, l.upper, map[string]string{"f": strings.Replace(base, "one", "ONE", 1)})
	mine := strings.Replace(base, "two", "TWO", 1)
	must(t, os.WriteFile(l.lower+"/f", []byte(mine), 0o644))
	known := func(p string) ([]byte, bool) { return []byte(base), p == "f" }
	o := staged.Options{Since: l.since, Choice: staged.Choice{All: true}}
	_, err := staged.Apply(t.Context(), l.copy(t), o, l.keep)
	conflicts(t, "without a base", err, "f")
	o.Base = known
	r, err := staged.Apply(t.Context(), l.copy(t), o, l.keep)
	must(t, err)
	both, err := os.ReadFile(l.lower + "/f")
	must(t, err)
	if string(both) != strings.Replace(mine, "one", "ONE", 1) || !slices.Equal(r.Merged, []string{"f"}) {
		t.Errorf("%q, %+v", both, r)
	}
	must(t, l.undo(t))
	if b, err := os.ReadFile(l.lower + "/f"); err != nil || string(b) != mine {
		t.Errorf("undone: %q, %v", b, err)
	}
	must(t, os.WriteFile(l.lower+"/f", []byte(strings.Replace(base, "one", "eins", 1)), 0o644))
	_, err = staged.Apply(t.Context(), l.copy(t), o, l.keep)
	conflicts(t, "the same line", err, "f")
	// An edit in the last moment is noticed by the content, also if it hides itself behind the old time.
	must(t, os.WriteFile(l.lower+"/f", []byte(mine), 0o644))
	was, err := os.Stat(l.lower + "/f")
	must(t, err)
	undo := staged.OnStep(func(op string) error {
		if op != "exchange f" {
			return nil
		}
		late := []byte(strings.Replace(mine, "TWO", "TO!", 1))
		return errors.Join(os.WriteFile(l.lower+"/f", late, 0o644), os.Chtimes(l.lower+"/f", was.ModTime(), was.ModTime()))
	})
	_, err = staged.Apply(t.Context(), l.copy(t), o, l.keep)
	undo()
	conflicts(t, "in the last moment", err, "f")
	if b, err := os.ReadFile(l.lower + "/f"); err != nil || !strings.Contains(string(b), "TO!") {
		t.Errorf("%q, %v", b, err)
	}
	must(t, os.Remove(l.lower+"/f"))
	_, err = staged.Apply(t.Context(), l.copy(t), o, l.keep)
	conflicts(t, "deleted meanwhile", err, "f")
}

// What is no longer as Apply left it is not undone, and nothing else is then.
func TestUndoConflicts(t *testing.T) {
	for name, c := range map[string]struct {
		host func(dir string) error
		at   string
	}{
		"modified":               {func(d string) error { return os.WriteFile(d+"/text", []byte("1\nxx\n3\n"), 0o644) }, "text"},
		"added to a new one":     {func(d string) error { return os.WriteFile(d+"/new/mine", nil, 0o644) }, "new"},
		"deeper":                 {func(d string) error { return os.WriteFile(d+"/new/dir/file", []byte("NEW\n"), 0o644) }, "new"},
		"made what was deleted":  {func(d string) error { return os.WriteFile(d+"/gone", nil, 0o644) }, "gone"},
		"removed":                {func(d string) error { return os.Remove(d + "/script") }, "script"},
		"a mode":                 {func(d string) error { return os.Chmod(d+"/empty", 0o755) }, "empty"},
		"removed from a new one": {func(d string) error { return os.Remove(d + "/file/in/it") }, "file"},
	} {
		l, _ := everyUpper(t)
		_, err := l.apply(t)
		must(t, err)
		must(t, c.host(l.lower))
		now := tree(t, l.lower)
		conflicts(t, name, l.undo(t), c.at)
		equalTrees(t, name, tree(t, l.lower), now)
	}
}

// What another process does to a file between the check and the exchange is noticed, and stays.
func TestChangedMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		host func(dir string) error
		at   string
	}{
		"modified": {func(d string) error { return os.WriteFile(d+"/text", []byte("mine"), 0o644) }, "text"},
		"another file": {func(d string) error {
			return errors.Join(os.WriteFile(d+"/x", []byte("1\n2\n3\n"), 0o644), os.Rename(d+"/x", d+"/text"))
		}, "text"},
		"removed":   {func(d string) error { return os.Remove(d + "/text") }, "text"},
		"a link":    {func(d string) error { return errors.Join(os.Remove(d+"/text"), os.Symlink("same", d+"/text")) }, "text"},
		"made":      {func(d string) error { return os.WriteFile(d+"/new", []byte("mine"), 0o644) }, "new"},
		"its mode":  {func(d string) error { return os.Chmod(d+"/gone", 0o600) }, "gone"},
		"in a tree": {func(d string) error { return os.WriteFile(d+"/old/deep/mine", nil, 0o600) }, "old"},
		"deep":      {func(d string) error { return os.WriteFile(d+"/tree/y/z", []byte("Z\n"), 0o600) }, "tree"},
	} {
		for _, when := range []string{"write plan", "write made", "exchange " + c.at} {
			l, _ := everyUpper(t)
			done := false
			undo := staged.OnStep(func(op string) error {
				if op != when || done {
					return nil
				}
				done = true
				return c.host(l.lower)
			})
			_, err := l.apply(t)
			undo()
			if !done {
				t.Fatalf("%s: %s was not reached", name, when)
			}
			if _, ok := errors.AsType[*staged.ConflictError](err); !ok {
				t.Errorf("%s at %s: %v", name, when, err)
			}
			// What was exchanged before is back: all is as it was when the run began, but for the host's edit.
			want := edited(t, c.host)
			equalTrees(t, name+" at "+when, tree(t, l.lower), want)
			if left := l.kept(t); len(left) > 0 {
				t.Errorf("%s at %s: left %q", name, when, left)
			}
		}
	}
}

// edited is the project with an edit of the host's.
func edited(t testing.TB, host func(string) error) map[string]string {
	t.Helper()
	l := newLab(t, project())
	must(t, host(l.lower))
	return tree(t, l.lower)
}

// Without permission to write to disk at some step, nothing is changed, and nothing is left.
func TestFailsAtEveryStep(t *testing.T) {
	l, merged := everyUpper(t)
	before := tree(t, l.lower)
	no := errors.New("no")
	for n := 1; ; n++ {
		i := 0
		undo := staged.OnStep(func(string) error {
			if i++; i == n {
				return no
			}
			return nil
		})
		r, err := l.apply(t)
		undo()
		if err == nil {
			if n < 50 {
				t.Errorf("%d steps", n)
			}
			break
		}
		if !errors.Is(err, no) {
			t.Fatalf("step %d: %v", n, err)
		}
		if r.ID != "" { // it was done before the step
			equalTrees(t, fmt.Sprint(n), tree(t, l.lower), mergedWithTemps(t, l, merged))
			_, err := staged.Recover(t.Context(), l.copy(t).Lower, l.keep)
			must(t, err)
			equalTrees(t, fmt.Sprint(n, " recovered"), tree(t, l.lower), merged)
			must(t, l.undo(t))
		}
		equalTrees(t, fmt.Sprint("step ", n), tree(t, l.lower), before)
		if left := l.kept(t); len(left) > 0 {
			t.Fatalf("step %d: left %q", n, left)
		}
	}
}

// mergedWithTemps is what a copy showed, beside what is still to be cleaned up.
func mergedWithTemps(t testing.TB, l *lab, merged map[string]string) map[string]string {
	t.Helper()
	all := maps.Clone(merged)
	for name, is := range tree(t, l.lower) {
		if strings.Contains(name, ".carrel-") || name == "empty" {
			all[name] = is
		}
	}
	return all
}

// A twin that a directory takes for the same name is not overwritten.
func TestCaseTwins(t *testing.T) {
	// Where names differ by their bytes, all of them are made.
	l := newLab(t, map[string]string{"Readme": "a"})
	lay(t, l.upper, map[string]string{"README": "b", "e\u0301": "1", "\u00e9": "2"})
	_, err := l.apply(t)
	must(t, err)
	if got := tree(t, l.lower); len(got) != 4 || got["README"] != "-rw-r--r-- b" || got["Readme"] != "-rw-r--r-- a" {
		t.Errorf("%q", got)
	}
	must(t, l.undo(t))
	// A file system that folds names shows README under Readme. Here a link to the same file stands for that.
	must(t, os.Link(l.lower+"/Readme", l.lower+"/README"))
	defer staged.FoldCase()()
	defer staged.HideName("README")()
	_, err = l.apply(t, "README")
	conflicts(t, "a twin", err, "README")
}

// The directory of journals is the caller's alone, and two changes do not run at once.
func TestJournals(t *testing.T) {
	l, _ := everyUpper(t)
	must(t, os.Chmod(l.keep, 0o750))
	if _, err := l.apply(t); !errdefs.IsPermissionDenied(err) {
		t.Errorf("open to others: %v", err)
	}
	must(t, os.Chmod(l.keep, 0o700))
	defer staged.DoNotWait()()
	var second error
	undo := staged.OnStep(func(op string) error {
		if op == "exchange text" {
			second = l.undo(t)
		}
		return nil
	})
	_, err := l.apply(t)
	undo()
	must(t, err)
	if !errdefs.IsUnavailable(second) {
		t.Errorf("at once: %v", second)
	}
	other := newLab(t, nil)
	c := other.copy(t)
	if _, err := staged.Undo(t.Context(), c.Lower, l.keep); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("in another directory: %v", err)
	}
}

// Owners, access lists and attributes of a file stay, and what is new belongs to the owner of its directory.
func TestOwnersAndAttributes(t *testing.T) {
	needRoot(t)
	l := newLab(t, map[string]string{"f": "a", "d/x": "x"})
	must(t, os.Chown(l.lower+"/f", 1234, 1235))
	must(t, os.Chown(l.lower+"/d", 1236, 1237))
	must(t, os.Chmod(l.lower+"/d", 0o755|os.ModeSetgid))
	must(t, unix.Setxattr(l.lower+"/f", "user.mine", []byte("m"), 0))
	l.start(t)
	lay(t, l.upper, map[string]string{"f": "b", "d/new/file": "n", "d/link": "-> x"})
	must(t, unix.Setxattr(l.upper+"/f", "user.evil", []byte("e"), 0))
	must(t, os.Chmod(l.upper+"/d", 0o755|os.ModeSetgid))
	_, err := l.apply(t)
	must(t, err)
	for name, want := range map[string][2]uint32{
		"f": {1234, 1235}, "d/new": {1236, 1237}, "d/new/file": {1236, 1237}, "d/link": {1236, 1237},
	} {
		var st unix.Stat_t
		must(t, unix.Lstat(l.lower+"/"+name, &st))
		if st.Uid != want[0] || st.Gid != want[1] {
			t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
		}
		if name == "d/new" && st.Mode&unix.S_ISGID == 0 {
			t.Errorf("%s has mode %o", name, st.Mode)
		}
	}
	buf := make([]byte, 100)
	if n, err := unix.Getxattr(l.lower+"/f", "user.mine", buf); err != nil || string(buf[:n]) != "m" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	if _, err := unix.Getxattr(l.lower+"/f", "user.evil", buf); !errors.Is(err, unix.ENODATA) {
		t.Errorf("the run's own attribute: %v", err)
	}
}

// A file of the project with several names is changed under each by itself, at once or one after the other.
func TestNamesOfOneFile(t *testing.T) {
	l := newLab(t, map[string]string{"a": "x"})
	must(t, os.Link(l.lower+"/a", l.lower+"/b"))
	must(t, os.Link(l.lower+"/a", l.lower+"/c"))
	l.start(t)
	lay(t, l.upper, map[string]string{"a": "A", "b": "B"})
	want := map[string]string{"a": "-rw-r--r-- A", "b": "-rw-r--r-- B", "c": "-rw-r--r-- x"}
	_, err := l.apply(t)
	must(t, err)
	equalTrees(t, "at once", tree(t, l.lower), want)
	must(t, l.undo(t))
	equalTrees(t, "undone", tree(t, l.lower), map[string]string{"a": "-rw-r--r-- x", "b": "-rw-r--r-- x", "c": "-rw-r--r-- x"})
	must(t, os.Remove(l.lower+"/b"))
	must(t, os.Link(l.lower+"/a", l.lower+"/b"))
	l.start(t)
	for _, p := range []string{"a", "b"} {
		_, err := l.apply(t, p)
		must(t, err)
	}
	equalTrees(t, "one after the other", tree(t, l.lower), want)
}

// A link in the way of a path is not followed, wherever it leads.
func TestLinkInTheWay(t *testing.T) {
	out := t.TempDir()
	lay(t, out, map[string]string{"e/f": "a"})
	for _, target := range []string{out, "was", "./was"} {
		l := newLab(t, map[string]string{"d/e/f": "a"})
		lay(t, l.upper, map[string]string{"d/e/f": "b"})
		undo := staged.OnStep(func(op string) error {
			if op != "write plan" {
				return nil
			}
			return errors.Join(os.Rename(l.lower+"/d", l.lower+"/was"), os.Symlink(target, l.lower+"/d"))
		})
		_, err := l.apply(t)
		undo()
		conflicts(t, target, err, "d/e/f")
		equalTrees(t, target, tree(t, out), map[string]string{"e": "drwxr-xr-x", "e/f": "-rw-r--r-- a"})
		equalTrees(t, target, tree(t, l.lower), map[string]string{
			"d": "Lrwxrwxrwx " + target, "was": "drwxr-xr-x", "was/e": "drwxr-xr-x", "was/e/f": "-rw-r--r-- a",
		})
	}
}

func BenchmarkApply1000(b *testing.B) {
	var cpu time.Duration
	for b.Loop() {
		b.StopTimer()
		l := thousand(b, 1000)
		unix.Sync() // what was laid out is not part of it
		began := used(b)
		b.StartTimer()
		r, err := l.apply(b)
		if err != nil || len(r.Applied) != 1000 {
			b.Fatal(r, err)
		}
		cpu += used(b) - began
	}
	b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
}

// used is the time that this process has had a processor.
func used(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	must(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
