package remotepatch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/agent/hosts/remotepatch"
	"github.com/carrel-dev/carrel/internal/files/patch"
)

// host is a home of its own, in which shells of this machine run what a remote one would.
type host struct {
	t    *testing.T
	home string
	sh   []string
	path string
	// seen is what is kept for merges, nil for nothing.
	seen *remotepatch.Seen
}

func shells(t *testing.T) (all [][]string) {
	for _, sh := range []string{"dash", "bash"} {
		if p, err := exec.LookPath(sh); err == nil {
			all = append(all, []string{p})
		}
	}
	if len(all) == 0 {
		t.Skip("there is no shell: apt-get install dash")
	}
	return all
}

func newHost(t *testing.T, sh []string) *host {
	home, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return &host{t, home, sh, os.Getenv("PATH"), nil}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run is a Run. A shell of POSIX takes the place of /bin/sh.
func (h *host) run(ctx context.Context, argv []string, input []byte) ([]byte, error) {
	c := exec.CommandContext(ctx, h.sh[0], append(slices.Clone(h.sh[1:]), argv[1:]...)...)
	c.Dir, c.Env, c.Stdin = h.home, []string{"HOME=" + h.home, "PATH=" + h.path}, bytes.NewReader(input)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var says bytes.Buffer
	c.Stderr = &says
	out, err := c.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, says.String())
	}
	return out, err
}

func (h *host) at(name string) string { return filepath.Join(h.home, name) }

func (h *host) put(name, text string, mode os.FileMode) {
	h.t.Helper()
	must(h.t, os.MkdirAll(filepath.Dir(h.at(name)), 0o755))
	must(h.t, os.WriteFile(h.at(name), []byte(text), mode))
	must(h.t, os.Chmod(h.at(name), mode))
}

func (h *host) rm(name string) {
	h.t.Helper()
	must(h.t, os.Remove(h.at(name)))
}

// files are all names in the home but for what is kept, with mode and content.
func (h *host) files() string {
	h.t.Helper()
	var all []string
	must(h.t, filepath.Walk(h.home, func(p string, fi os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(h.home, p)
		if rel == ".local" {
			return filepath.SkipDir
		}
		text := ""
		if fi.Mode().IsRegular() {
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text = string(b)
		}
		if rel != "." {
			all = append(all, fmt.Sprintf("%s %v %q", rel, fi.Mode(), text))
		}
		return nil
	}))
	return strings.Join(all, "\n")
}

func (h *host) do(text, digest string, only ...string) (patch.Done, error) {
	w := patch.Wanted{Text: text, Digest: digest, Only: only, Modes: map[string]uint32{"run": 0o750}}
	return remotepatch.Do(h.t.Context(), h.run, h.seen, "a", w)
}

const everyKind = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+ONE\n" +
	"--- /dev/null\n+++ b/new/dir/\\\\c d\n@@ -0,0 +1 @@\n+made\n" +
	"--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n" +
	"diff --git a/old name b/d/new name\nsimilarity index 50%\nrename from old name\nrename to d/new name\n" +
	"--- a/old name\n+++ b/d/new name\n@@ -1 +1 @@\n-moved\n+MOVED\n"

func (h *host) everyKind() {
	h.put("f", "one\ntwo", 0o640)
	h.put("gone", "gone\n", 0o600)
	h.put("old name", "moved\n", 0o444)
	h.put("run", "x", 0o644)
	must(h.t, os.MkdirAll(h.at("d"), 0o755))
}

// Every kind of change is computed, made, listed and undone, and the undoing too; modes and attributes stay.
func TestChange(t *testing.T) {
	text := strings.ReplaceAll(everyKind, `\\`, `\`)
	for _, sh := range shells(t) {
		t.Run(filepath.Base(sh[0]), func(t *testing.T) {
			h := newHost(t, sh)
			h.everyKind()
			attr := unix.Setxattr(h.at("f"), "user.note", []byte("kept"), 0)
			before := h.files()
			shown, err := h.do(text, "")
			must(t, err)
			if len(shown.Parts) != 5 || !strings.Contains(shown.Diff, "+ONE") || !strings.Contains(shown.Diff, "mode 0644 → 0750") ||
				h.files() != before {
				t.Fatalf("%+v", shown)
			}
			if _, err := os.Stat(h.at(".local")); err == nil {
				t.Error("reading made something")
			}
			made, err := h.do(text, shown.Digest)
			must(t, err)
			after := h.files()
			for _, line := range []string{
				`f -rw-r----- "ONE\ntwo"`, `new/dir/\c d -rw-r--r-- "made\n"`, `d/new name -r--r--r-- "MOVED\n"`, `run -rwxr-x--- "x"`,
			} {
				if !strings.Contains(after, line) {
					t.Errorf("there is no %s in\n%s", line, after)
				}
			}
			if strings.Contains(after, "gone") || strings.Contains(after, "old name") || strings.Contains(after, "carrel") {
				t.Error(after)
			}
			if attr == nil {
				b := make([]byte, 10)
				if n, err := unix.Getxattr(h.at("f"), "user.note", b); err != nil || string(b[:n]) != "kept" {
					t.Errorf("its attribute is %q, %v", b, err)
				}
			}
			id := made.ID
			for i, want := range []string{before, after, before} {
				next, err := remotepatch.Undo(t.Context(), h.run, id)
				must(t, err)
				if got := h.files(); got != want {
					t.Errorf("undone %d times:\n%s\nand has to be\n%s", i+1, got, want)
				}
				if _, err := remotepatch.Undo(t.Context(), h.run, id); err == nil || !strings.Contains(err.Error(), "undone before") {
					t.Errorf("undone twice: %v", err)
				}
				id = next
			}
			all, err := remotepatch.Records(t.Context(), h.run)
			if err != nil || len(all) != 4 {
				t.Fatalf("%+v, %v", all, err)
			}
			for _, r := range all {
				if len(r.Places) != 6 || r.Undone != (r.ID != id) {
					t.Errorf("%+v", r)
				}
			}
			// A part of it has a digest of its own.
			digest := "sha256:none"
			for _, p := range shown.Parts {
				if p.Path == "f" {
					one, err := h.do(text, "", "f")
					must(t, err)
					digest = one.Digest
				}
			}
			if _, err := h.do(text, shown.Digest, "f"); err == nil {
				t.Error("a part was made for the digest of the whole")
			}
			_, err = h.do(text, digest, "f")
			must(t, err)
			if got := h.files(); got != strings.Replace(before, `"one\n`, `"ONE\n`, 1) {
				t.Error(got)
			}
		})
	}
}

// What is no file of its own, is where changes are kept, or is too large is refused, with the reason, and nothing is changed.
func TestRefusals(t *testing.T) {
	h := newHost(t, shells(t)[0])
	h.put("a", "one\n", 0o644)
	h.put("d/b", "one\n", 0o644)
	h.put("big", "one\n"+strings.Repeat("x", patch.MaxSize), 0o644)
	h.put("suid", "one\n", 0o644)
	must(t, os.Chmod(h.at("suid"), 0o755|os.ModeSetuid))
	must(t, os.Link(h.at("a"), h.at("second")))
	must(t, os.Symlink("d", h.at("l")))
	must(t, os.Symlink("d/b", h.at("link")))
	must(t, unix.Mkfifo(h.at("pipe"), 0o600))
	h.put("kept", "one\n", 0o644)
	if _, err := h.do("--- a/kept\n+++ b/kept\n@@ -1 +1 @@\n-one\n+ONE\n", ""); err == nil { // it has no file "run"
		t.Error("a mode of what is not there can be changed")
	}
	h.put("run", "x", 0o644)
	before := h.files()
	for name, why := range map[string]string{
		"second": "hard links", "a": "hard links", "l/b": "symbolic link", "link": "symbolic link", "pipe": "a pipe", "d": "directory",
		"big": "5242880", "suid": "mode 4755", "none": "not there", "a/x": "symbolic link", "/dev/full": "no file in /dev",
		"/proc/self/environ": "no file in /proc", ".local/state/carrel/remote-patches/p-0/state": "no file in",
	} {
		for i, text := range []string{
			"--- a/" + name + "\n+++ b/" + name + "\n@@ -1 +1 @@\n-one\n+ONE\n", "--- a/x\n+++ b/" + name + "\n@@ -0,0 +1 @@\n+x\n",
		} {
			if strings.HasPrefix(name, "/") {
				text = strings.NewReplacer("a//", "/", "b//", "/").Replace(text)
			}
			if i == 1 {
				text = strings.Replace(text, "--- a/x", "--- /dev/null", 1)
			}
			done, err := h.do(text, "")
			if i == 1 && name == "none" {
				continue
			}
			if err == nil || i == 0 && !strings.Contains(err.Error(), why) {
				t.Errorf("%s: %+v, %v", name, done, err)
			}
		}
	}
	if got := h.files(); got != before {
		t.Error(got)
	}
}

// What changes between the question and the answer, or while the change is made, is not overwritten: no file is changed.
func TestChangedMeanwhile(t *testing.T) {
	h := newHost(t, shells(t)[0])
	const text = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+ONE\n--- a/g\n+++ b/g\n@@ -1 +1 @@\n-one\n+ONE\n"
	for name, happens := range map[string]func(){
		"its content":   func() { h.put("g", "two\n", 0o644) },
		"it is gone":    func() { must(t, os.Remove(h.at("g"))) },
		"it is a link":  func() { must(t, os.Remove(h.at("g"))); must(t, os.Symlink("h", h.at("g"))) },
		"it is a pipe":  func() { must(t, os.Remove(h.at("g"))); must(t, unix.Mkfifo(h.at("g"), 0o600)) },
		"a second name": func() { must(t, os.Link(h.at("g"), h.at("h2"))) },
	} {
		for _, late := range []bool{false, true} { // before the files are read again, and after
			for _, n := range []string{"f", "g", "h", "h2"} {
				_ = os.Remove(h.at(n))
			}
			h.put("f", "one\n", 0o644)
			h.put("g", "one\n", 0o644)
			h.put("h", "one\n", 0o644)
			h.put("run", "x", 0o644)
			shown, err := h.do(text, "")
			must(t, err)
			var before string
			if !late {
				happens()
				before = h.files()
			}
			run := func(ctx context.Context, argv []string, input []byte) ([]byte, error) {
				if late && slices.Contains(argv, "apply") {
					happens()
					before = h.files()
				}
				return h.run(ctx, argv, input)
			}
			w := patch.Wanted{Text: text, Digest: shown.Digest, Modes: map[string]uint32{"run": 0o750}}
			done, err := remotepatch.Do(t.Context(), run, nil, "", w)
			if err == nil || done.ID != "" {
				t.Errorf("%s: %+v", name, done)
			}
			if got := h.files(); got != before {
				t.Errorf("%s:\n%s\nand was\n%s", name, got, before)
			}
		}
	}
	if left, err := filepath.Glob(h.at(".local/state/carrel/remote-patches/*")); err != nil || len(left) > 0 {
		t.Errorf("%q are left, %v", left, err)
	}
}

// A file that changes once the first one is exchanged keeps what it is, and the first one goes back. What something else did to a
// file that was exchanged already is left, and said.
func TestChangedWhileMade(t *testing.T) {
	h := newHost(t, shells(t)[0])
	bin := t.TempDir()
	const text = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+ONE\n--- a/g\n+++ b/g\n@@ -1 +1 @@\n-one\n+ONE\n"
	for does, want := range map[string][3]string{
		`echo two >"$HOME/g"`:                        {"one\n", "two\n", "it changed meanwhile"},
		`echo two >"$HOME/g"; echo three >"$HOME/f"`: {"three\n", "two\n", "was left as it is"},
		`rm "$HOME/g"; mkdir "$HOME/g"`:              {"one\n", "", "it is a directory"},
	} {
		_ = os.RemoveAll(h.at("g"))
		h.put("f", "one\n", 0o644)
		h.put("g", "one\n", 0o644)
		h.put("run", "x", 0o750)
		shown, err := h.do(text, "")
		must(t, err)
		// The first exchange of f alone: it is put back by the same program.
		wrapper := "#!/bin/sh\n/bin/mv \"$@\" || exit 1\n[ -e " + bin + "/did ] || case $* in *' ./f') : >" + bin + "/did; " + does + ";; esac\n"
		must(t, os.WriteFile(filepath.Join(bin, "mv"), []byte(wrapper), 0o755))
		_ = os.Remove(filepath.Join(bin, "did"))
		before := h.path
		h.path = bin + ":" + before
		_, err = h.do(text, shown.Digest)
		h.path = before
		if err == nil || !strings.Contains(err.Error(), want[2]) {
			t.Errorf("%s: %v", does, err)
		}
		f, _ := os.ReadFile(h.at("f"))
		g, _ := os.ReadFile(h.at("g"))
		if string(f) != want[0] || string(g) != want[1] {
			t.Errorf("%s: %q and %q", does, f, g)
		}
		if left, _ := filepath.Glob(h.at(".carrel-*")); len(left) > 0 {
			t.Errorf("%q are left", left)
		}
		all, err := remotepatch.Records(t.Context(), h.run)
		must(t, err)
		if strings.Contains(does, "three") != (len(all) == 1 && all[0].Conflict) {
			t.Errorf("%s: %+v", does, all)
		}
		must(t, os.RemoveAll(h.at(".local")))
	}
}

// Killed at every program that it starts, the next request finds all files as they were or all changed, and no temporary file.
func TestKilledAtEveryStep(t *testing.T) {
	text := strings.ReplaceAll(everyKind, `\\`, `\`)
	for _, sh := range shells(t)[:1] {
		h := newHost(t, sh)
		bin := t.TempDir()
		for _, name := range []string{"mv", "ln", "rm", "sync", "cp", "mkdir", "rmdir", "chmod"} {
			real, err := exec.LookPath(name)
			must(t, err)
			// It counts what is started, and kills everything at the number that is meant: before its work, or after it.
			wrapper := "#!/bin/sh\nn=$(($(cat " + bin + "/n)+1)); echo $n >" + bin + "/n\n" +
				"[ $n != \"$(cat " + bin + "/before)\" ] || kill -s KILL 0\n" + real + ` "$@"; s=$?` + "\n" +
				"[ $n != \"$(cat " + bin + "/behind)\" ] || kill -s KILL 0\nexit $s\n"
			must(t, os.WriteFile(filepath.Join(bin, name), []byte(wrapper), 0o755))
		}
		set := func(name string, n int) {
			must(t, os.WriteFile(filepath.Join(bin, name), fmt.Appendf(nil, "%d\n", n), 0o644))
		}
		killing := func(where string, n int) {
			set("n", 0)
			set("before", 0)
			set("behind", 0)
			set(where, n)
			h.path = bin + ":" + os.Getenv("PATH")
		}
		calm := func() { h.path = os.Getenv("PATH") }
		undo := func(id string) error { _, err := remotepatch.Undo(t.Context(), h.run, id); return err }
		outcomes := map[bool]int{}
		for where, by := range map[string]int{"before": 1, "behind": 3} { // what is behind one step is mostly what is before the next
			for n, over := 1, false; !over; n += by {
				if n > 500 {
					t.Fatal("it never ends")
				}
				must(t, os.RemoveAll(h.home))
				must(t, os.MkdirAll(h.home, 0o755))
				h.everyKind()
				before := h.files()
				shown, err := h.do(text, "")
				must(t, err)
				run := func(ctx context.Context, argv []string, input []byte) ([]byte, error) {
					if slices.Contains(argv, "apply") {
						killing(where, n)
						defer calm()
					}
					return h.run(ctx, argv, input)
				}
				w := patch.Wanted{Text: text, Digest: shown.Digest, Modes: map[string]uint32{"run": 0o750}}
				done, err := remotepatch.Do(t.Context(), run, nil, "", w)
				over = err == nil && !killed(bin, n)
				all, lerr := remotepatch.Records(t.Context(), h.run)
				must(t, lerr)
				changed := len(all) == 1
				outcomes[changed]++
				if got := h.files(); changed != strings.Contains(got, "ONE") || !changed && got != before || strings.Contains(got, "carrel") {
					t.Fatalf("%s %d: %+v, %v\n%s", where, n, done, err, got)
				}
				if !changed {
					continue
				}
				if over && where == "before" { // and so with the undoing
					for m, end := 1, false; !end; m++ {
						killing(where, m)
						uerr := undo(all[0].ID)
						calm()
						end = uerr == nil && !killed(bin, m)
						_, lerr := remotepatch.Records(t.Context(), h.run)
						must(t, lerr)
						if got := h.files(); got != before && !strings.Contains(got, "ONE") || strings.Contains(got, "carrel") {
							t.Fatalf("%s %d: %v\n%s", where, m, uerr, got)
						} else if got == before && !end {
							break // what was undone is undone: it is begun anew by the next n
						}
					}
				} else {
					must(t, undo(all[0].ID))
				}
				if got := h.files(); got != before {
					t.Fatalf("%s %d: undone:\n%s", where, n, got)
				}
			}
		}
		if outcomes[true] < 2 || outcomes[false] < 40 {
			t.Errorf("it was changed %d times and not %d times: the kills came at no step", outcomes[true], outcomes[false])
		}
	}
}

// killed reports whether the number was reached.
func killed(bin string, n int) bool {
	b, _ := os.ReadFile(filepath.Join(bin, "n"))
	var at int
	_, _ = fmt.Sscan(string(b), &at)
	return at >= n
}

// Input that was cut, and answers that are none, change nothing and are errors.
func TestCut(t *testing.T) {
	h := newHost(t, shells(t)[0])
	h.put("f", "one\n", 0o644)
	h.put("run", "x", 0o644)
	const text = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+ONE\n"
	shown, err := h.do(text, "")
	must(t, err)
	for cut := range 200 {
		run := func(ctx context.Context, argv []string, input []byte) ([]byte, error) {
			if slices.Contains(argv, "apply") {
				if cut >= len(input) {
					return nil, errors.New("all of it")
				}
				input = input[:cut]
			}
			return h.run(ctx, argv, input)
		}
		w := patch.Wanted{Text: text, Digest: shown.Digest, Modes: map[string]uint32{"run": 0o750}}
		if done, err := remotepatch.Do(t.Context(), run, nil, "", w); err == nil {
			t.Fatalf("%d: %+v", cut, done)
		}
	}
	if b, err := os.ReadFile(h.at("f")); err != nil || string(b) != "one\n" {
		t.Errorf("%q, %v", b, err)
	}
	const whole = "recovered p-0 \ndir /h\ndir /h/k\nfile 644 4\none\n\nabsent\nend\n"
	if err := remotepatch.Parse([]byte(whole), []string{"f", "g"}); err != nil {
		t.Error(err)
	}
	for i := range len(whole) {
		if err := remotepatch.Parse([]byte(whole[:i]), []string{"f", "g"}); err == nil {
			t.Errorf("%q is an answer", whole[:i])
		}
	}
	for _, text := range []string{
		whole + "x", strings.Replace(whole, "644", "4755", 1), strings.Replace(whole, " 4\n", " 5\n", 1),
		strings.Replace(whole, " 4\n", " -4\n", 1),
		strings.Replace(whole, "absent", "other", 1), strings.Replace(whole, "dir /h\n", "dir h\n", 1),
		strings.Replace(whole, "/h/k", "/h/../k", 1),
	} {
		if err := remotepatch.Parse([]byte(text), []string{"f", "g"}); err == nil {
			t.Errorf("%q is an answer", text)
		}
	}
}

// Files elsewhere than below the directory of the user and what tools read are not opened, and an error has nothing of a file.
func TestFilesElsewhereAreNotRead(t *testing.T) {
	for _, sh := range shells(t) {
		h := newHost(t, sh)
		other := newHost(t, sh)
		other.put("f", "planted-content\n", 0o644)
		h.put("f", "planted-content\n", 0o644)
		for _, name := range []string{other.at("f"), other.at("none"), "/tmp/carrel-none", "/none"} {
			_, err := h.do("--- "+name+"\n+++ "+name+"\n@@ -1 +1 @@\n-a\n+b\n", "")
			if err == nil || !strings.Contains(err.Error(), "files are changed below "+h.home) || strings.Contains(err.Error(), "planted") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := h.do("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", ""); err == nil || strings.Contains(err.Error(), "planted") {
			t.Error(err)
		}
	}
}
