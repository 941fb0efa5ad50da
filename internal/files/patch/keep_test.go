package patch_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

const twoFiles = "--- f\n+++ f\n@@ -5 +5 @@\n-e\n+E\n--- g\n+++ g\n@@ -1 +1 @@\n-a\n+A\n"

// planned computes a change of f and g, has something happen, and makes it.
func planned(t *testing.T, only []string, happens func(dir, journals string)) (dir, journals, digest string, done patch.Done, err error) {
	t.Helper()
	dir, journals = lay(t, map[string]string{"f": abc, "g": "a\n"}), private(t)
	w := patch.Wanted{Text: twoFiles, Only: only}
	shown, err := patch.Do(t.Context(), journals, patch.Roots{Dir: dir}, w)
	must(t, err)
	happens(dir, journals)
	w.Digest = shown.Digest
	done, err = patch.Do(t.Context(), journals, patch.Roots{Dir: dir}, w)
	return dir, journals, shown.Digest, done, err
}

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
}

// A file that changed elsewhere since it was shown is merged, and that is told; all files or none are changed still.
func TestDoMerges(t *testing.T) {
	const moved = "0\n" + abc + "i\n"
	for name, c := range map[string]struct {
		happens func(t *testing.T, dir, journals string)
		only    []string
		says    string
	}{
		"nothing":      {func(*testing.T, string, string) {}, nil, ""},
		"it moved":     {func(t *testing.T, dir, _ string) { put(t, dir, "f", moved) }, nil, ""},
		"a part of it": {func(t *testing.T, dir, _ string) { put(t, dir, "f", moved) }, []string{"f"}, ""},
		"nothing kept": {func(t *testing.T, dir, j string) {
			put(t, dir, "f", moved)
			must(t, os.Remove(keptOf(t, j)))
		}, nil, "has changed since"},
		"it overlaps":         {func(t *testing.T, dir, _ string) { put(t, dir, "f", strings.Replace(abc, "d", "D", 1)) }, nil, "cannot merge"},
		"the other overlaps":  {func(t *testing.T, dir, _ string) { put(t, dir, "f", moved); put(t, dir, "g", "b\n") }, nil, "cannot merge"},
		"its lines are twice": {func(t *testing.T, dir, _ string) { put(t, dir, "f", abc+abc) }, nil, "not certain"},
		"it is a link": {func(t *testing.T, dir, _ string) {
			must(t, os.Rename(filepath.Join(dir, "f"), filepath.Join(dir, "h")))
			must(t, os.Symlink("h", filepath.Join(dir, "f")))
		}, nil, "symbolic link"},
		"it is a pipe": {func(t *testing.T, dir, _ string) {
			must(t, os.Remove(filepath.Join(dir, "f")))
			must(t, unix.Mkfifo(filepath.Join(dir, "f"), 0o600))
		}, nil, "a pipe"},
		"it has two names": {func(t *testing.T, dir, _ string) {
			put(t, dir, "f", moved)
			must(t, os.Link(filepath.Join(dir, "f"), filepath.Join(dir, "h")))
		}, nil, "hard links"},
		"another is kept": {func(t *testing.T, dir, j string) {
			put(t, dir, "f", moved)
			b, err := os.ReadFile(keptOf(t, j))
			must(t, err)
			put(t, j, filepath.Base(keptOf(t, j)), strings.Replace(string(b), "YQpi", "WApi", 1))
		}, nil, "has changed since"},
		"a pipe is kept": {func(t *testing.T, dir, j string) {
			put(t, dir, "f", moved)
			name := keptOf(t, j)
			must(t, errors.Join(os.Remove(name), unix.Mkfifo(name, 0o600)))
		}, nil, "has changed since"},
	} {
		t.Run(name, func(t *testing.T) {
			before := map[string]string{}
			look := func(dir string) map[string]string {
				all := map[string]string{}
				for _, n := range []string{"f", "g"} {
					if fi, err := os.Lstat(filepath.Join(dir, n)); err == nil && fi.Mode().IsRegular() {
						b, err := os.ReadFile(filepath.Join(dir, n))
						must(t, err)
						all[n] = string(b)
					}
				}
				return all
			}
			dir, journals, digest, done, err := planned(t, c.only, func(dir, j string) {
				c.happens(t, dir, j)
				before = look(dir)
			})
			if left, _ := filepath.Glob(filepath.Join(journals, "planned-*")); len(left) > 0 {
				t.Errorf("%q are kept still", left)
			}
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) || done.ID != "" {
					t.Errorf("%+v, %v", done, err)
				}
				if now := look(dir); fmt.Sprint(now) != fmt.Sprint(before) {
					t.Errorf("%q, and was %q", now, before)
				}
				return
			}
			must(t, err)
			if merged := before["f"] == moved; (len(done.Merged) == 1 && done.Merged[0] == "f") != merged || done.Digest != digest ||
				(done.Made != "" && done.Made != digest) != merged {
				t.Errorf("%+v", done)
			}
			want := map[string]string{"f": strings.Replace(before["f"], "e", "E", 1), "g": "A\n"}
			if c.only != nil {
				want["g"] = "a\n"
			}
			if now := look(dir); fmt.Sprint(now) != fmt.Sprint(want) {
				t.Errorf("%q", now)
			}
			_, err = patch.Undo(t.Context(), journals, done.ID)
			must(t, err)
			if now := look(dir); fmt.Sprint(now) != fmt.Sprint(before) {
				t.Errorf("undone: %q", now)
			}
		})
	}
}

// keptOf is the file with what is kept.
func keptOf(t *testing.T, journals string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(journals, "planned-*"))
	if must(t, err); len(all) != 1 {
		t.Fatalf("%q are kept", all)
	}
	return all[0]
}

// What is kept is bounded in number, size and time, and is for its owner alone.
func TestKeptIsBounded(t *testing.T) {
	dir, journals := lay(t, map[string]string{"f": "a\n"}), private(t)
	compute := func(i int) {
		t.Helper()
		_, err := patch.Do(t.Context(), journals, patch.Roots{Dir: dir},
			patch.Wanted{Text: fmt.Sprintf("--- f\n+++ f\n@@ -1 +1 @@\n-a\n+%d\n", i)})
		must(t, err)
	}
	all := func() []string {
		names, err := filepath.Glob(filepath.Join(journals, "planned-*"))
		must(t, err)
		return names
	}
	for i := range 30 {
		compute(i)
	}
	if n := len(all()); n != 16 {
		t.Errorf("%d are kept", n)
	}
	old := time.Now().Add(-25 * time.Hour)
	for _, n := range all() {
		if fi, err := os.Stat(n); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", fi, err)
		}
		must(t, os.Chtimes(n, old, old))
	}
	compute(30)
	if n := len(all()); n != 1 {
		t.Errorf("%d are kept after a day", n)
	}
	must(t, os.Chtimes(all()[0], old, old))
	_, err := patch.Recover(t.Context(), journals)
	must(t, err)
	if n := len(all()); n != 0 {
		t.Errorf("%d are kept by the next start", n)
	}
	put(t, dir, "f", "a\n"+strings.Repeat("a line that is long\n", 200_000)) // 4 MB, of which 16 are more than is kept
	for i := range 30 {
		compute(i)
	}
	if n := len(all()); n == 0 || n > 16 {
		t.Errorf("%d large ones are kept", n)
	}
}
