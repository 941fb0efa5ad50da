package patch_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

// As many hunks as are taken, each somewhere else than its number says.
func TestManyHunks(t *testing.T) {
	var file, text, want strings.Builder
	text.WriteString("--- f\n+++ f\n")
	for i := range patch.MaxHunks {
		fmt.Fprintf(&file, "line %d\nkept\n", i)
		fmt.Fprintf(&want, "LINE %d\nkept\n", i)
		fmt.Fprintf(&text, "@@ -%d +%d @@\n-line %d\n+LINE %d\n", 2*i+2, 2*i+2, i, i)
	}
	p, err := read(t, lay(t, map[string]string{"f": file.String()}), text.String())
	must(t, err)
	if f := p.Files()[0]; f.Relocated != patch.MaxHunks || f.Added != patch.MaxHunks || patch.New(p)["f"] != want.String() {
		t.Errorf("%+v", f)
	}
}

// A patch cannot have the search for its places go on for long. Here each of 100,000 lines could be the first of 4,000,
// of which only the last is not there, and each of 32 lines is looked for in all others.
func TestHardToFind(t *testing.T) {
	file := strings.Repeat("a\nb\n", 100_000)
	text := "--- f\n+++ f\n@@ -1,4002 +1,4002 @@\n" + strings.Repeat(" a\n b\n", 2000) + " a\n-a\n+c\n"
	if _, err := read(t, lay(t, map[string]string{"f": file}), text); err == nil || !strings.Contains(err.Error(), "too hard to find") {
		t.Error(err)
	}
	var unlike, hunks strings.Builder
	for i := range 32 {
		fmt.Fprintf(&unlike, "line %d\n", i)
		fmt.Fprintf(&hunks, "@@ line %d\n", i)
		if i%16 == 15 {
			hunks.WriteString(" a\n+b\n")
		}
	}
	text = "*** Begin Patch\n*** Update File: f\n" + hunks.String() + "*** End Patch\n"
	file = unlike.String() + strings.Repeat("a\n", 1_000_000)
	if _, err := read(t, lay(t, map[string]string{"f": file}), text); err == nil || !strings.Contains(err.Error(), "too hard to find") {
		t.Error(err)
	}
}

// All files together have a bound in number and in bytes.
func TestTogether(t *testing.T) {
	dir := t.TempDir()
	var text strings.Builder
	for i := range 7 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), slices.Concat([]byte("a\n"), make([]byte, patch.MaxSize-10)), 0o644))
		fmt.Fprintf(&text, "--- %d\n+++ %d\n@@ -1 +1 @@\n-a\n+b\n", i, i)
	}
	_, err := read(t, dir, text.String())
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "together they have more than") {
		t.Error(err)
	}
	text.Reset()
	for i := range patch.MaxFiles {
		fmt.Fprintf(&text, "--- /dev/null\n+++ n%d\n@@ -0,0 +1 @@\n+b\n", i)
	}
	p, err := patch.Parse([]byte(text.String()))
	must(t, err)
	_, err = patch.Read(t.Context(), patch.Roots{Dir: dir}, p)
	must(t, err)
	_, err = patch.Read(t.Context(), patch.Roots{Dir: dir, Modes: map[string]fs.FileMode{"0": 0o600}}, p)
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "cannot change 65 files") {
		t.Error(err)
	}
}

// A path that reaches further than its file is named as such. Nothing is changed.
func TestRisks(t *testing.T) {
	p, err := patch.Parse([]byte("--- /dev/null\n+++ carrel-test/none\n@@ -0,0 +1 @@\n+b\n"))
	must(t, err)
	for dir, want := range map[string][]string{
		"/etc": {"/etc: configuration of the system"}, "/usr": {"/usr: programs of the system"}, "/": nil, t.TempDir(): nil,
	} {
		got, err := patch.Read(t.Context(), patch.Roots{Dir: dir}, p)
		must(t, err)
		if f := got.Files()[0]; !slices.Equal(f.Risks, want) || f.Place != filepath.Join(dir, "carrel-test/none") {
			t.Errorf("%s: %+v", dir, f)
		}
	}
	for name, risky := range map[string]bool{
		"a/.git/hooks/pre-commit": true, ".github/workflows/x.yml": true, ".github/other": false, ".bashrc": true, "x.bashrc": false,
		".config/systemd/user/x.service": true, ".gitignore": false, "etc/passwd": false, ".ssh/authorized_keys": true,
	} {
		p, err := patch.Parse([]byte("--- /dev/null\n+++ " + name + "\n@@ -0,0 +1 @@\n+b\n"))
		must(t, err)
		got, err := patch.Read(t.Context(), patch.Roots{Dir: t.TempDir()}, p)
		must(t, err)
		if f := got.Files()[0]; (len(f.Risks) > 0) != risky {
			t.Errorf("%s: %q", name, f.Risks)
		}
	}
}

// A file is in a root by its path, also where the root itself was reached by a link.
func TestRoots(t *testing.T) {
	dir := lay(t, map[string]string{"one/f": "a\n", "two/f": "a\n", "two/sub/f": "a\n"})
	must(t, os.Symlink("two", filepath.Join(dir, "link")))
	one, link := filepath.Join(dir, "one"), filepath.Join(dir, "link")
	in := patch.Roots{Dir: one, Allow: []string{one, link}}
	for name, place := range map[string]string{
		"f": "one/f", one + "/f": "one/f", link + "/f": "two/f", link + "/sub/f": "two/sub/f", dir + "/two/f": "two/f",
		dir + "/twofold/f": "", dir + "/f": "",
	} {
		p, err := patch.Parse([]byte("--- " + name + "\n+++ " + name + "\n@@ -1 +1 @@\n-a\n+b\n"))
		must(t, err)
		got, err := patch.Read(t.Context(), in, p)
		if place == "" {
			if !errdefs.IsPermissionDenied(err) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		must(t, err)
		if f := got.Files()[0]; f.Place != filepath.Join(dir, place) {
			t.Errorf("%s is at %s", name, f.Place)
		}
	}
	for _, bad := range []patch.Roots{{}, {Dir: "rel"}, {Dir: one + "/"}, {Dir: one + "/.."}, {Dir: dir + "/none"}, {Dir: one + "/f"}} {
		if _, err := patch.Read(t.Context(), bad, patch.Patch{}); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
