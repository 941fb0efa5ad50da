package staged_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/staged"
)

// project is what most tests begin with.
func project() map[string]string {
	return map[string]string{
		"same": "same\n", "text": "1\n2\n3\n", "script": "#!/bin/sh\n", "gone": "gone\n",
		"dir/one": "1\n", "dir/two": "2\n", "dir/sub/three": "3\n",
		"old/a": "a\n", "old/deep/b": "b\n", "link": "-> text", "file": "file\n", "tree/x": "x\n", "tree/y/z": "z\n", "empty/": "",
	}
}

// everything makes a change of every kind.
func everything(m string) error {
	p := func(name string) string { return filepath.Join(m, name) }
	touch, err := os.OpenFile(p("same"), os.O_RDWR, 0) // is copied up, and stays as it is
	if err != nil {
		return err
	}
	touch.Close()
	return errors.Join(
		os.WriteFile(p("text"), []byte("1\nII\n3\n"), 0),
		os.Chmod(p("script"), 0o755),
		os.Remove(p("gone")),
		os.RemoveAll(p("old")),
		os.Remove(p("link")), os.Symlink("dir/one", p("link")),
		os.Remove(p("file")), os.MkdirAll(p("file/in"), 0o750), os.WriteFile(p("file/in/it"), []byte("it\n"), 0o600),
		os.RemoveAll(p("tree")), os.Symlink("dir", p("tree")),
		os.RemoveAll(p("dir")), os.Mkdir(p("dir"), 0o755), os.WriteFile(p("dir/two"), []byte("2\n"), 0o644), os.Mkdir(p("dir/sub"), 0o755),
		os.Chmod(p("empty"), 0o700),
		os.MkdirAll(p("new/dir"), 0o755), os.WriteFile(p("new/dir/file"), []byte("new\n"), 0o640),
		os.WriteFile(p("new\nline \"\\\x1b"), []byte("odd\n"), 0o644),
		os.Symlink("/etc/passwd", p("new/abs")),
	)
}

var everyChange = []string{
	"delete dir/one", "delete dir/sub/three", "mode empty", "type file", "create file/in", "create file/in/it", "delete gone", "link link",
	"create new", "create new\nline \"\\\x1b", "create new/abs (out)", "create new/dir", "create new/dir/file", "delete old",
	"delete old/a", "delete old/deep", "delete old/deep/b", "mode script", "modify text", "type tree", "delete tree/x", "delete tree/y",
	"delete tree/y/z",
}

// Both forms of the overlay say the same.
func TestChanges(t *testing.T) {
	for _, user := range []bool{false, true} {
		l := newLab(t, project())
		l.user = user
		l.run(t, everything)
		want := slices.Clone(everyChange)
		slices.SortFunc(want, func(a, b string) int {
			path := func(s string) string { return strings.TrimSuffix(s[strings.IndexByte(s, ' ')+1:], " (out)") }
			return staged.ComparePaths(path(a), path(b))
		})
		if got := shorts(l.changes(t)); !slices.Equal(got, want) {
			t.Errorf("userxattr %v:\n%q\nwant\n%q", user, got, want)
		}
	}
}

// What one form calls a mark is in the other an attribute that a run can set itself.
func TestMarksOfTheOtherForm(t *testing.T) {
	for _, c := range []struct {
		user        bool
		name, value string
		ok          bool
	}{
		{false, "trusted.overlay.origin", "x", true},
		{false, "trusted.overlay.impure", "y", true},
		{false, "trusted.overlay.nlink", "U+1", true},
		{false, "trusted.overlay.uuid", "x", true},
		{true, "user.overlay.origin", "x", true},
		{false, "user.overlay.opaque", "y", false},
		{false, "user.overlay.whiteout", "y", false},
		{true, "trusted.overlay.opaque", "y", false},
		{false, "trusted.overlay.redirect", "/x", false},
		{true, "user.overlay.redirect", "/x", false},
		{false, "trusted.overlay.metacopy", "", false},
		{true, "user.overlay.protattr", "", false},
		{false, "trusted.overlay.overlay.opaque", "y", false},
		{true, "user.overlay.never", "heard of", false},
		{false, "trusted.overlay.opaque", "z", false},
		{false, "trusted.overlay.opaque", "yy", false},
		{true, "user.other", "x", true},
	} {
		needRoot(t)
		l := newLab(t, nil)
		l.user = c.user
		lay(t, l.upper, map[string]string{"d/": ""})
		must(t, unix.Setxattr(l.upper+"/d", c.name, []byte(c.value), 0))
		_, err := staged.Changes(t.Context(), l.copy(t))
		if c.ok && err != nil || !c.ok && !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s=%s, userxattr %v: %v", c.name, c.value, c.user, err)
		}
	}
}

// A whiteout may be an empty file, where its directory says so.
func TestWhiteoutFiles(t *testing.T) {
	l := newLab(t, map[string]string{"d/a": "a", "d/b": "b"})
	l.user = true
	lay(t, l.upper, map[string]string{"d/a": "", "d/b": ""})
	must(t, unix.Setxattr(l.upper+"/d/a", "user.overlay.whiteout", nil, 0))
	if _, err := staged.Changes(t.Context(), l.copy(t)); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a mark where none is made: %v", err)
	}
	must(t, unix.Setxattr(l.upper+"/d", "user.overlay.opaque", []byte("x"), 0))
	if got := shorts(l.changes(t)); !slices.Equal(got, []string{"delete d/a", "modify d/b"}) {
		t.Errorf("%q", got)
	}
	must(t, os.WriteFile(l.upper+"/d/a", []byte("not empty"), 0o644))
	if _, err := staged.Changes(t.Context(), l.copy(t)); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a mark on a file with a content: %v", err)
	}
}

// What a hostile command leaves is reported, and nothing of it is opened or followed.
func TestHostileUpper(t *testing.T) {
	needRoot(t)
	l := newLab(t, map[string]string{"fifo": "f", "loop": "l", "prog": "p", "dev": "d", "d/x": "x"})
	must(t, os.Chmod(l.lower+"/prog", 0o755))
	out := t.TempDir()
	must(t, os.WriteFile(out+"/secret", []byte("secret"), 0o600))
	lay(t, l.upper, map[string]string{"prog": "p", "a": "-> b", "b": "-> a", "d": "-> " + out, "loop": "-> loop", ".GIT/config": "x"})
	must(t, unix.Mkfifo(l.upper+"/fifo", 0o644))
	must(t, unix.Mknod(l.upper+"/dev", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, unix.Mknod(l.upper+"/block", unix.S_IFBLK|0o666, int(unix.Mkdev(7, 99))))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	t.Chdir(l.upper)
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: "sock"}))
	unix.Close(fd)
	must(t, os.Chmod(l.upper+"/prog", 0o755|os.ModeSetuid))
	must(t, os.Link(l.upper+"/prog", l.upper+"/prog2"))
	want := []string{
		"create .GIT (refused)", "create .GIT/config (refused)", "create a", "create b", "create block (refused)", "type d (out)", "delete d/x",
		"type dev (refused)", "type fifo (refused)", "type loop", "mode prog (refused)", "create prog2", "create sock (refused)",
	}
	if got := shorts(l.changes(t)); !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// A tree that is too deep, too wide or too long is an error, and takes no more descriptors than any other one.
func TestBounds(t *testing.T) {
	for name, c := range map[string]struct {
		levels int
		name   string
		ok     bool
	}{"deep": {1000, "d", true}, "deeper": {1100, "d", false}, "long": {30, strings.Repeat("x", 255), false}} {
		l := newLab(t, nil)
		at, err := unix.Open(l.upper, unix.O_PATH, 0)
		must(t, err)
		for range c.levels {
			must(t, unix.Mkdirat(at, c.name, 0o755))
			next, err := unix.Openat(at, c.name, unix.O_PATH, 0)
			must(t, err)
			unix.Close(at)
			at = next
		}
		unix.Close(at)
		var was unix.Rlimit
		must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
		must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: was.Max}))
		all, err := staged.Changes(t.Context(), l.copy(t))
		must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
		if c.ok && (err != nil || len(all) != c.levels) || !c.ok && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %d, %v", name, len(all), err)
		}
		d, err := os.Open(l.top)
		must(t, err)
		must(t, staged.Discard(context.Background(), d, "upper"))
		d.Close()
		if _, err := os.Lstat(l.upper); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: it is still there: %v", name, err)
		}
	}
}

func TestTooManyChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("it makes 200,001 files")
	}
	inMemory(t)
	l := newLab(t, nil)
	for i := range 201 {
		must(t, os.Mkdir(fmt.Sprintf("%s/%d", l.upper, i), 0o755))
		for j := range 1000 {
			must(t, os.Symlink("x", fmt.Sprintf("%s/%d/%d", l.upper, i, j)))
		}
	}
	if _, err := staged.Changes(t.Context(), l.copy(t)); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
	ctx, end := context.WithCancel(t.Context())
	end()
	if _, err := staged.Changes(ctx, l.copy(t)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// An opaque directory hides what is below it too.
func TestHiddenBelow(t *testing.T) {
	l := newLab(t, map[string]string{"d/e/f/g": "g", "d/h": "h"})
	l.run(t, func(m string) error {
		return errors.Join(os.RemoveAll(m+"/d"), os.MkdirAll(m+"/d/e/f", 0o755))
	})
	if got := shorts(l.changes(t)); !slices.Equal(got, []string{"delete d/e/f/g", "delete d/h"}) {
		t.Errorf("%q", got)
	}
}

// A name by which somebody could reach a directory of Git's is refused, and others are not.
func TestGitNames(t *testing.T) {
	for _, name := range []string{
		".git", ".GIT", ".Git", ".g\u200cit", ".git ", ".git.", ".git::$INDEX_ALLOCATION", "git~1", "GIT~2", ".ｇｉｔ", "．git", ".gi\u0307t",
		".g\u0131t", "\u2024git", "\ufeff.git", ".𝐠𝐢𝐭",
	} {
		l := newLab(t, nil)
		lay(t, l.upper, map[string]string{"sub/" + name + "/hooks/x": "x"})
		for _, c := range l.changes(t) {
			if (c.Refused == "") != (c.Path == "sub") {
				t.Errorf("%q: %s", name, short(c))
			}
		}
	}
	for _, name := range []string{".gitignore", "git", ".github", "agit", "git~", "digit", ".gít~x", "..git"} {
		l := newLab(t, nil)
		lay(t, l.upper, map[string]string{name: "x"})
		if got := l.changes(t); len(got) != 1 || got[0].Refused != "" {
			t.Errorf("%q: %q", name, shorts(got))
		}
	}
}

func TestLinksThatLeadOut(t *testing.T) {
	for target, out := range map[string]bool{
		"/": true, "..": false, "../..": true, "../../x": true, "../x": false, "x/../..": true, "x/..": true, "./../x": false, "y": false,
		"../.git/hooks": true, "../../../x": true, "": true,
	} {
		if target == "" {
			continue
		}
		l := newLab(t, nil)
		lay(t, l.upper, map[string]string{"d/l": "-> " + target})
		got := l.changes(t)
		if len(got) != 2 || got[1].LeadsOut != out {
			t.Errorf("%q: %q", target, shorts(got))
		}
	}
}

// A mount in the lower directory is not entered.
func TestMountBelow(t *testing.T) {
	l := newLab(t, map[string]string{"d/in": "x"})
	lay(t, l.upper, map[string]string{"d/in": "y"})
	done := make(chan error)
	needRoot(t)
	c := l.copy(t)
	inMounts(func() error {
		if err := unix.Mount("tmpfs", l.lower+"/d", "tmpfs", 0, ""); err != nil {
			return err
		}
		lower, err := os.Open(l.lower)
		if err != nil {
			return err
		}
		defer lower.Close()
		c.Lower = lower
		_, err = staged.Changes(t.Context(), c)
		if !errdefs.IsFailedPrecondition(err) {
			err = fmt.Errorf("it is entered: %w", err)
		} else {
			err = nil
		}
		return err
	}, done)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
