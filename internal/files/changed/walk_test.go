package changed_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/changed"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path string) {
	t.Helper()
	must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)))
}

// later is a moment after which the kernel's times differ from those before: it counts in ticks.
func later() time.Time {
	time.Sleep(20 * time.Millisecond)       //nolint:forbidigo // there is no event for a tick of the kernel's clock
	defer time.Sleep(20 * time.Millisecond) //nolint:forbidigo // as above
	return time.Now()
}

func walk(t testing.TB, top string, since time.Time, skip func(string) bool) (paths, unread []string, all []changed.Entry) {
	t.Helper()
	d, err := os.Open(top)
	must(t, err)
	defer d.Close()
	found, err := changed.Walk(t.Context(), d, changed.Options{Since: since, Skip: skip})
	must(t, err)
	if found.More != 0 {
		t.Errorf("%d more", found.More)
	}
	for _, e := range found.Changed {
		paths = append(paths, e.Path)
	}
	return paths, found.Unread, found.Changed
}

func TestWalk(t *testing.T) {
	top := t.TempDir()
	for _, p := range []string{"old", "a/old", "a/b/changed", "a/mode", "a/renamed", "a/linked", "skipped/x", "a/times"} {
		write(t, filepath.Join(top, p))
	}
	since := later()
	in := func(p string) string { return filepath.Join(top, p) }
	must(t, errors.Join(
		os.WriteFile(in("a/b/changed"), []byte("y"), 0o600), os.Chmod(in("a/mode"), 0o700), os.Rename(in("a/renamed"), in("a/new name\n")),
		os.Link(in("a/linked"), in("second")), os.Symlink("/etc/passwd", in("link")), unix.Mkfifo(in("fifo"), 0o600),
		os.WriteFile(in("skipped/new"), nil, 0o600), os.Chtimes(in("a/times"), time.Unix(1, 0), time.Unix(1, 0)),
	))
	paths, unread, all := walk(t, top, since, func(p string) bool { return p == "skipped" })
	want := []string{"a/b/changed", "a/linked", "a/mode", "a/new name\n", "a/times", "fifo", "link", "second"}
	if !slices.Equal(paths, want) || unread != nil {
		t.Errorf("listed %q, want %q; unread %q", paths, want, unread)
	}
	for _, e := range all {
		switch e.Path {
		case "link":
			if e.Target != "/etc/passwd" || e.Mode&unix.S_IFMT != unix.S_IFLNK {
				t.Errorf("%+v", e)
			}
		case "second":
			if e.Links != 2 || e.Size != 1 {
				t.Errorf("%+v", e)
			}
		}
	}
}

// A command cannot hide a change behind a time of its own, a deep tree, a directory that it closed, or a link to elsewhere.
func TestHostileTrees(t *testing.T) {
	top, outside := t.TempDir(), t.TempDir()
	since := later()
	write(t, filepath.Join(outside, "secret"))
	must(t, errors.Join(os.Symlink(outside, filepath.Join(top, "away")), os.Symlink(".", filepath.Join(top, "loop"))))
	deep := filepath.Join(top, strings.Repeat("d/", 400))
	write(t, filepath.Join(deep, "bottom"))
	must(t, os.Mkdir(filepath.Join(top, "closed"), 0))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(top, "closed"), 0o700) })
	paths, unread, _ := walk(t, top, since, nil)
	if want := []string{"away", strings.Repeat("d/", 400) + "bottom", "loop"}; !slices.Equal(paths, want) {
		t.Errorf("listed %q", paths)
	}
	if os.Geteuid() != 0 && !slices.Equal(unread, []string{"closed"}) {
		t.Errorf("unread %q", unread)
	}
}

func TestBounds(t *testing.T) {
	top := t.TempDir()
	since := later()
	dir := top
	for range 6 { // of paths that one call takes
		dir = filepath.Join(dir, strings.Repeat("e/", 100))
		must(t, os.MkdirAll(dir, 0o700))
	}
	write(t, filepath.Join(dir, "far"))
	d, err := os.Open(top)
	must(t, err)
	defer d.Close()
	found, err := changed.Walk(t.Context(), d, changed.Options{Since: since})
	if err != nil || len(found.Changed) != 0 || found.More != 1 {
		t.Errorf("%d listed, %d more, %v", len(found.Changed), found.More, err)
	}
}

func TestNames(t *testing.T) {
	top := t.TempDir()
	for _, p := range []string{".git/config", "a/.git/config", "a/b/.envrc", "c/plain", "skipped/.git/config"} {
		write(t, filepath.Join(top, p))
	}
	must(t, os.Symlink("a", filepath.Join(top, "link")))
	d, err := os.Open(top)
	must(t, err)
	defer d.Close()
	match := func(p string) bool { return slices.Contains([]string{".git", ".envrc", "link"}, filepath.Base(p)) }
	for _, since := range []time.Time{{}, time.Unix(1, 0), time.Now().Add(time.Hour)} {
		skip := func(p string) bool { return p == "skipped" }
		found, err := changed.Walk(t.Context(), d, changed.Options{Since: since, Skip: skip, Match: match})
		if want := []string{".git", "a/.git", "a/b/.envrc", "link"}; err != nil || found.More != 0 || !slices.Equal(found.Names, want) {
			t.Errorf("since %v: %+v, %v; want %q", since, found, err, want)
		}
		if changes := len(found.Changed); changes > 0 != (since.Unix() == 1) {
			t.Errorf("since %v: %d changes", since, changes)
		}
	}
}

// A name is found however many other changes there are, and when a directory that was filled before gets it.
func TestNamesAreNotHidden(t *testing.T) {
	top := t.TempDir()
	for _, p := range []string{"filled/deep/settings.json", "other"} {
		write(t, filepath.Join(top, p))
	}
	since := later()
	must(t, os.Rename(filepath.Join(top, "filled"), filepath.Join(top, ".tool")))
	d, err := os.Open(top)
	must(t, err)
	defer d.Close()
	o := changed.Options{Since: since, Match: func(p string) bool { return filepath.Base(p) == ".tool" }}
	if found, err := changed.Walk(t.Context(), d, o); err != nil || !slices.Equal(found.Names, []string{".tool"}) {
		t.Errorf("%+v, %v", found, err)
	}
	if testing.Short() {
		return
	}
	// Links to one file: they cost no inodes.
	must(t, os.Mkdir(filepath.Join(top, "many"), 0o700))
	for i := range changed.MaxEntries/50_000 + 1 {
		write(t, filepath.Join(top, "file", strconv.Itoa(i)))
		for j := range 50_000 {
			must(t, os.Link(filepath.Join(top, "file", strconv.Itoa(i)), filepath.Join(top, "many", fmt.Sprint(i, ".", j))))
		}
	}
	found, err := changed.Walk(t.Context(), d, o)
	if err != nil || !slices.Equal(found.Names, []string{".tool"}) || len(found.Changed) != changed.MaxEntries || found.More == 0 {
		t.Errorf("%d changes, %d more, names %q, %v", len(found.Changed), found.More, found.Names, err)
	}
}

func BenchmarkNames(b *testing.B) {
	d, err := os.Open(big(b))
	must(b, err)
	defer d.Close()
	for b.Loop() {
		if _, err := changed.Walk(b.Context(), d, changed.Options{Match: func(string) bool { return false }}); err != nil {
			b.Fatal(err)
		}
	}
}

// big is a tree of 50,000 files in 2,500 directories.
func big(b *testing.B) string {
	top := b.TempDir()
	for i := range 50_000 {
		dir := filepath.Join(top, fmt.Sprint("d", i/1000), fmt.Sprint("e", i/20))
		if i%20 == 0 {
			must(b, os.MkdirAll(dir, 0o700))
		}
		must(b, os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), nil, 0o600))
	}
	return top
}

func BenchmarkWalk(b *testing.B) {
	d, err := os.Open(big(b))
	must(b, err)
	defer d.Close()
	since := later()
	for b.Loop() {
		if _, err := changed.Walk(b.Context(), d, changed.Options{Since: since}); err != nil {
			b.Fatal(err)
		}
	}
}
