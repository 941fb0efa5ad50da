package patch_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

// Whatever another process puts in the place of a file between Read and the exchange is not written through, and is there
// afterwards.
func TestReplacedMeanwhile(t *testing.T) {
	join := errors.Join
	for name, c := range map[string]struct {
		change func(in, out string) error
		// look returns what must be as the change left it.
		look func(in string) (string, error)
	}{
		"content": {
			func(in, _ string) error { return os.WriteFile(filepath.Join(in, "sub/f"), []byte("mine\n"), 0o644) },
			func(in string) (string, error) {
				b, err := os.ReadFile(filepath.Join(in, "sub/f"))
				return string(b), err
			},
		},
		"another file": {
			func(in, _ string) error {
				x := filepath.Join(in, "x")
				return join(os.WriteFile(x, []byte("mine\n"), 0o600), os.Rename(x, filepath.Join(in, "sub/f")))
			},
			func(in string) (string, error) {
				b, err := os.ReadFile(filepath.Join(in, "sub/f"))
				return string(b), err
			},
		},
		"symbolic link": {
			func(in, out string) error {
				return join(os.Remove(filepath.Join(in, "sub/f")), os.Symlink(filepath.Join(out, "f"), filepath.Join(in, "sub/f")))
			},
			func(in string) (string, error) { return os.Readlink(filepath.Join(in, "sub/f")) },
		},
		"hard link": {
			func(in, _ string) error {
				return os.Link(filepath.Join(in, "sub/f"), filepath.Join(in, "second"))
			},
			func(in string) (string, error) {
				b, err := os.ReadFile(filepath.Join(in, "second"))
				return string(b), err
			},
		},
		"removed": {
			func(in, _ string) error { return os.Remove(filepath.Join(in, "sub/f")) },
			func(in string) (string, error) {
				_, err := os.Lstat(filepath.Join(in, "sub/f"))
				if errors.Is(err, os.ErrNotExist) {
					return "gone", nil
				}
				return "there", err
			},
		},
	} {
		for _, at := range []string{"make the transaction", "exchange a", "exchange sub/f"} {
			t.Run(name+" at "+at, func(t *testing.T) {
				dir, journals := lay(t, map[string]string{"in/a": "a\n", "in/sub/f": "a\n", "out/f": "a\n"}), private(t)
				in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
				p, err := read(t, in, "--- a\n+++ a\n@@ -1 +1 @@\n-a\n+b\n--- sub/f\n+++ sub/f\n@@ -1 +1 @@\n-a\n+b\n")
				must(t, err)
				want := ""
				defer patch.OnStep(func(op string) error {
					if op != at || want != "" {
						return nil
					}
					if err := c.change(in, out); err != nil {
						return err
					}
					var err error
					want, err = c.look(in)
					return err
				})()
				if _, err := p.Apply(t.Context(), journals); err == nil {
					t.Error("it is applied")
				}
				if got, err := c.look(in); err != nil || got != want || want == "" {
					t.Errorf("%q, %v; want %q", got, err, want)
				}
				now := tree(t, dir)
				if now["in/a"] != "a\n" || now["out/f"] != "a\n" {
					t.Errorf("%q", now)
				}
				for name := range now {
					if strings.Contains(name, ".carrel-") {
						t.Errorf("left: %q", now)
					}
				}
				if left, err := os.ReadDir(journals); err != nil || len(left) > 0 {
					t.Errorf("left: %v, %v", left, err)
				}
			})
		}
	}
}

// A directory on the way that becomes a link between Read and Apply leads nowhere.
func TestDirectoryReplaced(t *testing.T) {
	for _, text := range []string{
		"--- sub/f\n+++ sub/f\n@@ -1 +1 @@\n-a\n+b\n", "--- /dev/null\n+++ sub/new\n@@ -0,0 +1 @@\n+b\n",
		"--- /dev/null\n+++ sub/new/new\n@@ -0,0 +1 @@\n+b\n", "--- sub/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
	} {
		dir, journals := lay(t, map[string]string{"in/sub/f": "a\n", "out/f": "a\n"}), private(t)
		in := filepath.Join(dir, "in")
		p, err := read(t, in, text)
		must(t, err)
		must(t, os.Rename(filepath.Join(in, "sub"), filepath.Join(in, "was")))
		must(t, os.Symlink("../out", filepath.Join(in, "sub")))
		if _, err := p.Apply(t.Context(), journals); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%q: %v", text, err)
		}
		same(t, text, dir, map[string]string{"in/was/f": "a\n", "out/f": "a\n", "in/sub Lrwxrwxrwx": ""})
	}
}

// A root that is another directory than it was when the patch was read is not written to.
func TestRootReplaced(t *testing.T) {
	dir, journals := lay(t, map[string]string{"in/f": "a\n", "out/f": "a\n"}), private(t)
	in := filepath.Join(dir, "in")
	p, err := read(t, in, "--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n")
	must(t, err)
	must(t, os.Rename(in, filepath.Join(dir, "was")))
	must(t, os.Rename(filepath.Join(dir, "out"), in))
	if _, err := p.Apply(t.Context(), journals); !errdefs.IsFailedPrecondition(err) {
		t.Error(err)
	}
	same(t, "replaced", dir, map[string]string{"was/f": "a\n", "in/f": "a\n"})
}

// The directory of journals is the caller's alone, and two changes do not run at once.
func TestJournals(t *testing.T) {
	dir, journals := lay(t, map[string]string{"f": "a\n"}), private(t)
	p, err := read(t, dir, "--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n")
	must(t, err)
	must(t, os.Chmod(journals, 0o750))
	if _, err := p.Apply(t.Context(), journals); !errdefs.IsPermissionDenied(err) {
		t.Errorf("open to others: %v", err)
	}
	must(t, os.Chmod(journals, 0o700))
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(journals, link))
	for _, bad := range []string{link, filepath.Join(journals, "none"), filepath.Join(dir, "f")} {
		if _, err := p.Apply(t.Context(), bad); err == nil {
			t.Errorf("%s is used", bad)
		}
	}
	var second error
	defer patch.DoNotWait()()
	undo := patch.OnStep(func(op string) error {
		if op == "exchange f" {
			_, second = patch.Recover(t.Context(), journals)
		}
		return nil
	})
	_, err = p.Apply(t.Context(), journals)
	undo()
	must(t, err)
	if !errdefs.IsUnavailable(second) {
		t.Errorf("while a change is under way: %v", second)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(b) != "b\n" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := (&patch.Prepared{}).Apply(t.Context(), journals); !errdefs.IsInvalidArgument(err) {
		t.Errorf("nothing is applied: %v", err)
	}
	// What was not finished comes first.
	at := killed(t, "apply", lay(t, everyBefore()), journals, "", 30)
	if at == "" {
		t.Fatal("it was not killed")
	}
	again, err := read(t, dir, "--- f\n+++ f\n@@ -1 +1 @@\n-b\n+c\n")
	must(t, err)
	if _, err := again.Apply(t.Context(), journals); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "recover it first") {
		t.Errorf("beside an unfinished one: %v", err)
	}
}
