package program_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

const kept = ".local/state/carrel/patches"

// patched asks for a change to files.
func (x tree) patched(t testing.TB, digest, text string, only ...string) answer {
	t.Helper()
	return x.ask(t, fileapi.Request{Op: fileapi.Patch, Change: &fileapi.Change{Digest: digest, Only: only}}, text)
}

// A change is computed, made if it is still that one, listed and undone. Reading for it changes none of the files.
func TestPatch(t *testing.T) {
	old := unix.Umask(0) // as Run has it
	defer unix.Umask(old)
	x := newTree(t)
	x.put(t, "a", "one\n")
	x.put(t, "d/b", "two\n")
	const text = "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+ONE\n--- a/d/b\n+++ b/d/b\n@@ -1 +1 @@\n-two\n+TWO\n" +
		"--- /dev/null\n+++ b/new/c\n@@ -0,0 +1 @@\n+c\n"
	is := func(a, b string) {
		t.Helper()
		if x.text(t, "a") != a || x.text(t, "d/b") != b {
			t.Errorf("%q and %q", x.text(t, "a"), x.text(t, "d/b"))
		}
	}
	shown := x.patched(t, "", text)
	if shown.Error != "" || shown.Patched == nil || len(shown.Patched.Parts) != 3 || shown.Patched.ID != "" {
		t.Fatalf("%+v", shown.Result)
	}
	if left, _ := os.ReadDir(x.home); len(left) != 3 || left[0].Name() != ".local" { // what a merge needs
		t.Errorf("reading made %v", left)
	}
	n := 0
	for _, p := range shown.Patched.Parts {
		n += p.Shown
	}
	if n != len(shown.Patched.Diff) || !strings.Contains(shown.Patched.Diff, "+ONE") {
		t.Errorf("%d bytes of parts of %q", n, shown.Patched.Diff)
	}
	x.put(t, "a", "one\nmore\n") // the patch fits still, and does something else
	if a := x.patched(t, shown.Patched.Digest, text); a.Error == "" {
		t.Errorf("%+v", a.Result)
	}
	is("one\nmore\n", "two\n")
	x.put(t, "a", "one\n")
	if a := x.patched(t, shown.Patched.Digest, text, "a"); a.Error == "" { // another part than was approved
		t.Errorf("%+v", a.Result)
	}
	is("one\n", "two\n")
	some := x.patched(t, "", text, "d/b")
	if a := x.patched(t, some.Patched.Digest, text, "d/b"); a.Error != "" {
		t.Errorf("%+v", a.Result)
	}
	is("one\n", "TWO\n")
	x.put(t, "d/b", "two\n")
	made := x.patched(t, shown.Patched.Digest, text)
	if made.Error != "" || made.Patched.ID == "" {
		t.Fatalf("%+v", made.Result)
	}
	is("ONE\n", "TWO\n")
	if fi, err := os.Stat(x.home + "/new/c"); err != nil || fi.Mode().Perm() != 0o644 {
		t.Errorf("a new file is %v, %v", fi, err)
	}
	list := x.ask(t, fileapi.Request{Op: fileapi.Patches})
	if len(list.Patches) != 2 || list.Error != "" {
		t.Errorf("%+v", list.Result)
	}
	for i, kind := range []string{"", "failed_precondition"} {
		if a := x.ask(t, fileapi.Request{Op: fileapi.Undo, ID: made.Patched.ID}); a.Kind != kind {
			t.Errorf("%d: %+v", i, a.Result)
		}
	}
	is("one\n", "two\n")
	for id, kind := range map[string]string{"": "invalid_argument", "../x": "invalid_argument", "p-0123456789abcdef": "not_found"} {
		if a := x.ask(t, fileapi.Request{Op: fileapi.Undo, ID: id}); a.Kind != kind {
			t.Errorf("%q: %+v", id, a.Result)
		}
	}
}

// A file that changes elsewhere between the question and the answer keeps both, and undoing brings back what was there then.
// What is put in the place of what is kept for that merges nothing, and holds nobody up.
func TestPatchIsMerged(t *testing.T) {
	const text = "--- a/a\n+++ b/a\n@@ -1,4 +1,4 @@\n-one\n+ONE\n two\n three\n four\n"
	x := newTree(t)
	for _, planted := range []bool{false, true} {
		x.put(t, "a", "one\ntwo\nthree\nfour\nfive\n")
		shown := x.patched(t, "", text)
		x.put(t, "a", "one\ntwo\nthree\nfour\n5\n")
		if planted {
			all, err := filepath.Glob(x.home + "/" + kept + "/planned-*")
			if must(t, err); len(all) != 1 {
				t.Fatalf("%q is kept", all)
			}
			must(t, os.Remove(all[0]))
			must(t, unix.Mkfifo(all[0], 0o600))
			if a := x.patched(t, shown.Patched.Digest, text); a.Error == "" || x.text(t, "a") != "one\ntwo\nthree\nfour\n5\n" {
				t.Errorf("%+v", a.Result)
			}
			continue
		}
		a := x.patched(t, shown.Patched.Digest, text)
		if a.Error != "" || len(a.Patched.Merged) != 1 || a.Patched.Made == "" || a.Patched.Digest != shown.Patched.Digest {
			t.Fatalf("%+v, %+v", a.Result, a.Patched)
		}
		if got := x.text(t, "a"); got != "ONE\ntwo\nthree\nfour\n5\n" {
			t.Errorf("%q", got)
		}
		if u := x.ask(t, fileapi.Request{Op: fileapi.Undo, ID: a.Patched.ID}); u.Error != "" {
			t.Errorf("%+v", u.Result)
		}
		if got := x.text(t, "a"); got != "one\ntwo\nthree\nfour\n5\n" {
			t.Errorf("%q", got)
		}
	}
}

// What is no file of its own is not changed, nor what is kept for undoing.
func TestPatchOfNoFile(t *testing.T) {
	x := newTree(t)
	x.put(t, "a", "one\n")
	x.put(t, "d/b", "one\n")
	must(t, os.Link(x.home+"/a", x.home+"/second"))
	must(t, os.Symlink("d", x.home+"/l"))
	must(t, os.Symlink("d/b", x.home+"/link"))
	must(t, unix.Mkfifo(x.home+"/pipe", 0o600))
	must(t, os.MkdirAll(x.home+"/"+kept, 0o700))
	must(t, os.MkdirAll(x.root+"/proc/self", 0o700))
	must(t, os.WriteFile(x.root+"/proc/self/environ", []byte("one\n"), 0o600))
	for _, name := range []string{
		"second", "l/b", "link", "pipe", "d", kept + "/x", filepath.Join(x.root, "proc/self/environ"), "/etc/hostname",
	} {
		add := "--- /dev/null\n+++ b/" + name + "\n@@ -0,0 +1 @@\n+x\n"
		for _, text := range []string{"--- a/" + name + "\n+++ b/" + name + "\n@@ -1 +1 @@\n-one\n+ONE\n", add} {
			if a := x.patched(t, "", text); a.Kind == "" || a.Patched != nil && a.Patched.Digest != "" && a.Patched.Diff != "" {
				t.Errorf("%s: %+v", name, a.Result)
			}
		}
	}
	if x.text(t, "a") != "one\n" || x.text(t, "d/b") != "one\n" {
		t.Error("something was changed")
	}
}

// What an earlier process left half done is put right by whatever comes next. Where others may write to what is kept, nothing is
// done.
func TestPatchesAreRecovered(t *testing.T) {
	x := newTree(t)
	x.put(t, "a", "one\n")
	must(t, os.MkdirAll(x.home+"/"+kept+"/p-0123456789abcdef", 0o700))
	if a := x.ask(t, fileapi.Request{Op: fileapi.Patches}); a.Error != "" {
		t.Errorf("%+v", a.Result)
	}
	if left, err := os.ReadDir(x.home + "/" + kept); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	must(t, os.Chmod(x.home+"/"+kept, 0o770))
	for _, r := range []fileapi.Request{{Op: fileapi.Patches}, {Op: fileapi.Undo, ID: "p-0123456789abcdef"}} {
		if a := x.ask(t, r); a.Kind != "permission_denied" {
			t.Errorf("%s: %+v", r.Op, a.Result)
		}
	}
	if a := x.patched(t, "", "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+ONE\n"); a.Kind != "permission_denied" {
		t.Errorf("%+v", a.Result)
	}
	if a := x.ask(t, fileapi.Request{Op: fileapi.Patch}); a.Kind != "invalid_argument" {
		t.Errorf("%+v", a.Result)
	}
}
