package patch_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lay writes files into a new directory.
func lay(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	return dir
}

// tree is every file below a directory, with its mode where that is not 0644.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		st, err := e.Info()
		if err != nil {
			return err
		}
		if m := st.Mode(); m != 0o644 {
			name += " " + m.String()
		}
		if !e.Type().IsRegular() {
			all[name] = ""
			return nil
		}
		b, err := os.ReadFile(path)
		all[name] = string(b)
		return err
	}))
	return all
}

func read(t testing.TB, dir, text string) (*patch.Prepared, error) {
	t.Helper()
	p, err := patch.Parse([]byte(text))
	if err != nil {
		return nil, err
	}
	return patch.Read(t.Context(), patch.Roots{Dir: dir}, p)
}

const abc = "a\nb\nc\nd\ne\nf\ng\nh\n"

// Read says what would be done and changes nothing.
func TestRead(t *testing.T) {
	files := map[string]string{"a.txt": abc, "sub/gone": "x\ny", "old": "1\n2\n3\n4\n5\n", "exec": "#!\n"}
	dir := lay(t, files)
	p, err := read(t, dir, `diff --git a/a.txt b/a.txt
index 1234..5678 100644
--- a/a.txt
+++ b/a.txt
@@ -1,3 +1,4 @@ heading
 a
-b
+B
+B2
 c
@@ -8 +9 @@
-h
+H
diff --git a/sub/gone b/sub/gone
deleted file mode 100644
--- a/sub/gone
+++ /dev/null
@@ -1,2 +0,0 @@
-x
-y
\ No newline at end of file
diff --git a/new/.ssh/config b/new/.ssh/config
new file mode 100644
--- /dev/null
+++ b/new/.ssh/config
@@ -0,0 +1,2 @@
+one
+two
\ No newline at end of file
diff --git a/old b/renamed
similarity index 80%
rename from old
rename to renamed
--- a/old
+++ b/renamed
@@ -2,3 +2,3 @@
 2
-3
+three
 4
diff --git a/exec b/exec
old mode 100644
new mode 100755
`)
	must(t, err)
	if now := tree(t, dir); !maps.Equal(now, files) {
		t.Errorf("Read changed files: %q", now)
	}
	var got []string
	for _, f := range p.Files() {
		got = append(got, fmt.Sprintf("%s %s %s +%d -%d %o %q", f.Op, f.Path, f.To, f.Added, f.Removed, uint32(f.Mode), f.Risks))
		if f.Place != filepath.Join(dir, f.Path) || (f.Before == "") != (f.Op == patch.Create) || (f.After == "") != (f.Op == patch.Delete) {
			t.Errorf("%+v", f)
		}
	}
	if want := []string{
		`update a.txt  +3 -2 644 []`, `delete sub/gone  +0 -2 0 []`,
		`create new/.ssh/config  +2 -0 0 [".ssh: who may log in, and with which keys"]`,
		`move old renamed +1 -1 644 []`, `mode exec  +0 -0 755 ["it may be run as a program"]`,
	}; !slices.Equal(got, want) {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
	want := `update a.txt  +3 −2
@@ -1,8 +1,9 @@
 a
-b
+B
+B2
 c
 d
 e
 f
 g
-h
+H
delete sub/gone  +0 −2
@@ -1,2 +0,0 @@
-x
-y
\ No newline at end of file
create new/.ssh/config  +2 −0
careful: .ssh: who may log in, and with which keys
@@ -0,0 +1,2 @@
+one
+two
\ No newline at end of file
move old → renamed  +1 −1
@@ -1,5 +1,5 @@
 1
 2
-3
+three
 4
 5
mode exec  +0 −0
mode 0644 → 0755
careful: it may be run as a program
`
	if d := p.Diff(false); d != want {
		t.Errorf("%s", d)
	}
	if d := p.Diff(true); !strings.Contains(d, "\x1b[32m+B\x1b[0m\n") || !strings.Contains(d, "\x1b[31m-b\x1b[0m\n") {
		t.Errorf("%q", d)
	}
	// The digest follows what is chosen.
	some, err := p.Only("a.txt", "renamed")
	must(t, err)
	if n := len(some.Files()); n != 2 || some.Digest() == p.Digest() || !strings.HasPrefix(p.Digest(), "sha256:") {
		t.Errorf("%d files, %s and %s", n, some.Digest(), p.Digest())
	}
	if _, err := p.Only("a.txt", "other"); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
}

// A file's text decides where a hunk stands, and its place is certain or refused.
func TestPlaces(t *testing.T) {
	lines := func(from, to int) string {
		var b strings.Builder
		for i := from; i <= to; i++ {
			fmt.Fprintf(&b, "line %d\n", i)
		}
		return b.String()
	}
	twice := "x\nsame\ny\n" + lines(1, 5) + "x\nsame\ny\n"
	diff := func(hunks string) string { return "--- a/f\n+++ b/f\n" + hunks }
	for name, c := range map[string]struct{ before, patch, after, says string }{
		"exact":      {twice, diff("@@ -9,3 +9,3 @@\n x\n-same\n+other\n y\n"), "x\nsame\ny\n" + lines(1, 5) + "x\nother\ny\n", ""},
		"relocated":  {lines(1, 9), diff("@@ -1,2 +1,2 @@\n line 4\n-line 5\n+5\n"), lines(1, 4) + "5\n" + lines(6, 9), ""},
		"ambiguous":  {twice, diff("@@ -5,3 +5,3 @@\n x\n-same\n+other\n y\n"), "", "several times, as at lines 1 and 9"},
		"absent":     {lines(1, 9), diff("@@ -1,2 +1,2 @@\n line 1\n-line 3\n+x\n"), "", "line 2 is not what the hunk has there"},
		"no context": {lines(1, 9), diff("@@ -3,0 +4 @@\n+x\n"), "", "its place is not certain"},
		"behind": {
			"a\n" + twice, diff("@@ -3 +3 @@\n-line 1\n+1\n@@ -10 +10 @@\n-same\n+other\n"),
			"a\nx\nsame\ny\n1\n" + lines(2, 5) + "x\nother\ny\n", "",
		},
		// The first number was wrong, so the second proves nothing.
		"stale": {
			"a\n" + lines(1, 2) + "same\nsame\n" + lines(3, 4), diff("@@ -1 +1 @@\n-line 1\n+1\n@@ -4 +4 @@\n-same\n+other\n"),
			"", "the number of an earlier hunk was wrong",
		},
		"order":      {lines(1, 9), diff("@@ -5 +5 @@\n-line 5\n+5\n@@ -2 +2 @@\n-line 2\n+2\n"), "", "in their order"},
		"overlap":    {lines(1, 9), diff("@@ -2,2 +2 @@\n-line 2\n line 3\n@@ -3 +2 @@\n-line 3\n+3\n"), "", "without overlap"},
		"too few":    {lines(1, 9), diff("@@ -2,3 +2 @@\n-line 2\n line 3\n"), "", "does not have the lines that its header counts"},
		"too many":   {lines(1, 9), diff("@@ -2 +2 @@\n-line 2\n+2\n line 3\n"), "", "is no part of a unified diff here"},
		"more old":   {lines(1, 9), diff("@@ -2 +2,2 @@\n-line 2\n-line 3\n+2\n+3\n"), "", "does not have the lines that its header counts"},
		"crlf":       {"a\r\nb\r\n", diff("@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n"), "a\r\nc\r\n", ""},
		"not crlf":   {"a\r\nb\r\n", diff("@@ -1,2 +1,2 @@\n a\n-b\n+c\n"), "", `lines of one end with \r\n`},
		"mixed":      {"a\r\nb\nc\r\n", diff("@@ -2 +2 @@\n-b\n+B\n"), "a\r\nB\nc\r\n", ""},
		"bare end":   {"a\nb", diff("@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"), "a\nc", ""},
		"gets end":   {"a\nb", diff("@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n"), "a\nb\n", ""},
		"loses end":  {"a\nb\n", diff("@@ -1,2 +1,2 @@\n a\n-b\n+b\n\\ No newline at end of file\n"), "a\nb", ""},
		"end unsaid": {"a\nb", diff("@@ -1,2 +1,2 @@\n a\n-b\n+c\n"), "", `"\ No newline at end of file" follows`},
		"end first":  {"a", diff("@@ -1 +1,2 @@\n a\n\\ No newline at end of file\n+b\n"), "", "another follows"},
		"two ends":   {"a", diff("@@ -1,2 +1 @@\n-a\n\\ No newline at end of file\n-b\n+c\n"), "", "another follows"},
		"end inside": {"a\nb\n", diff("@@ -1 +1 @@\n-a\n+c\n\\ No newline at end of file\n"), "", "not the last of the file"},
		"separators": {"a\u2028b\u0085c\x0bd\re\nz\n", diff("@@ -2 +2 @@\n-z\n+y\n"), "a\u2028b\u0085c\x0bd\re\ny\n", ""},
		"latin-1":    {"\xe9\xff\x00\nz\n", diff("@@ -2 +2 @@\n-z\n+y\n"), "\xe9\xff\x00\ny\n", ""},
		"in latin-1": {"\xe9\nz\n", diff("@@ -1,2 +1,2 @@\n \xe9\n-z\n+\xe8\n"), "\xe9\n\xe8\n", ""},
		"empty file": {"", diff("@@ -0,0 +1 @@\n+x\n"), "x\n", ""},
		"emptied":    {"x\n", diff("@@ -1 +0,0 @@\n-x\n"), "", ""},
		"blank line": {"a\n\nb\n", diff("@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n"), "a\n\nc\n", ""},
		"cut off":    {"a\nb\n", diff("@@ -1,2 +1,2 @@\n a\n-b\n+c"), "a\nc\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := lay(t, map[string]string{"f": c.before})
			p, err := read(t, dir, c.patch)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) || !errdefs.IsFailedPrecondition(err) && !errdefs.IsInvalidArgument(err) {
					t.Fatalf("%v", err)
				}
				return
			}
			must(t, err)
			if got := patch.New(p)["f"]; got != c.after {
				t.Errorf("%q", got)
			}
		})
	}
}

// What a hostile patch names is not reached.
func TestHostile(t *testing.T) {
	dir := lay(t, map[string]string{"in/f": "a\n", "out/f": "a\n", "in/sub/f": "a\n"})
	in := filepath.Join(dir, "in")
	must(t, os.Symlink("../out", filepath.Join(in, "link")))
	must(t, os.Symlink("f", filepath.Join(in, "flink")))
	must(t, os.WriteFile(filepath.Join(in, "hard1"), []byte("a\n"), 0o644))
	must(t, os.Link(filepath.Join(in, "hard1"), filepath.Join(in, "hard2")))
	fifo(t, filepath.Join(in, "fifo"))
	must(t, os.WriteFile(filepath.Join(in, "suid"), []byte("a\n"), 0o644))
	must(t, os.Chmod(filepath.Join(in, "suid"), 0o755|fs.ModeSetuid))
	must(t, os.WriteFile(filepath.Join(in, "big"), make([]byte, patch.MaxSize+1), 0o644))
	change := func(name string) string { return "--- " + name + "\n+++ " + name + "\n@@ -1 +1 @@\n-a\n+b\n" }
	add := func(name string) string { return "--- /dev/null\n+++ " + name + "\n@@ -0,0 +1 @@\n+b\n" }
	for _, c := range []struct {
		text, says string
	}{
		{change("../out/f"), `has ".."`},
		{change("sub/../f"), "empty parts"},
		{change("/" + strings.TrimPrefix(dir, "/") + "/out/f"), "not in a directory in which files may be changed"},
		{change("/etc/passwd"), "not in a directory in which files may be changed"},
		{change("//etc/passwd"), "empty parts"},
		{change("~/f"), "~ is not expanded"},
		{change("./f"), "empty parts"},
		{change("link/f"), "symbolic link"},
		{change("flink"), "symbolic link"},
		{add("link/new"), "symbolic link"},
		{add("flink/new"), "cannot"},
		{change("hard1"), "2 names"},
		{change("fifo"), "a device, a pipe or a socket"},
		{change("sub"), "it is a directory"},
		{change("suid"), "rights of its owner"},
		{change("big"), "bytes"},
		{change("none"), "it is not there"},
		{change("none/f"), "it is not there"},
		{add("f"), "something is there already"},
		{add("f/f"), "cannot make"},
		{add("fifo"), "something is there already"},
		{add(""), "no path"},
		{add("\"a\\0b\""), "no path"},
		{add("a\x00b"), "is NUL"},
		{add("a\u202eb"), "U+202E"},
		{add("a\x1bb"), "U+001B"},
		{add("\xffb"), "not UTF-8"},
		{add(strings.Repeat("a", 256)), "more than 255 bytes"},
		{add(strings.Repeat("a/", 2048) + "a"), "more than 4095 bytes"},
		{change("f") + change("f"), "changed twice"},
		{change("f") + change(filepath.Join(in, "f")), "the same file"},
		{add("n") + add(filepath.Join(in, "n")), "the same file"},
		{add("n") + add("n/m"), "would be a directory"},
		{"--- a\n+++ b\n@@ -1 +1 @@\n-a\n+b\n", "differ"},
		{"--- /dev/null\n+++ /dev/null\n@@ -0,0 +1 @@\n+b\n", "both paths"},
		{"diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n", `mode "120000" is not taken`},
		{"diff --git a/l b/l\nnew file mode 104755\n", `mode "104755" is not taken`},
		{"diff --git a/f b/f\nnew file mode 100644\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", "its paths say otherwise"},
		{"diff --git a/f b/f\ndeleted file mode 100644\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", "its paths say otherwise"},
		{"diff --git a/f b/g\nrename from f\n", "the rename is not whole"},
		{"diff --git a/l b/l\nGIT binary patch\n", "is not taken"},
		{"diff --git a/f b/g\ncopy from f\ncopy to g\n", "is not taken"},
		{"diff --git a/f b/../g\nrename from f\nrename to ../g\n", `has ".."`},
		{"diff --git a/f b/g\nrename from f\nrename to g\n--- a/f\n+++ b/h\n@@ -1 +1 @@\n-a\n+b\n", "renames"},
		{"Here is the patch:\n" + change("f"), "no part of a unified diff"},
		{"```diff\n" + change("f") + "```\n", "no part of a unified diff"},
		{"--- a/f\r\n+++ b/f\r\n@@ -1 +1 @@\r\n-a\r\n+b\r\n", "carriage return"},
		{"--- f\n", "\"+++\" is missing"},
		{"--- f\n+++ f\n", "has no hunk"},
		{"--- f\n+++ f\n@@ -1 +1 @@\n a\n", "changes nothing"},
		{"--- f\n+++ f\n@@ -1,99999999999 +1 @@\n-a\n", "is no header of a hunk"},
		{"--- f\n+++ f\n@@ -0 +1 @@\n-a\n", "is no header of a hunk"},
		{"--- f\n+++ f\n@@ -+1 +1 @@\n-a\n", "is no header of a hunk"},
		{"--- f\n+++ f\n@@@ -1 -1 +1 @@@\n-a\n", "is no header of a hunk"},
		{"--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n\\ No\n\\ No\n", "no part of a unified diff"},
		{"diff --git a/sub/f b/sub/f\ndeleted file mode 100644\n--- a/sub/f\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "the patch removes"},
		{"", "it is empty"},
		{" \n", "it is empty"},
		{strings.Repeat("x", patch.MaxText+1), "bytes, and at most"},
		{"--- f\n+++ f\n" + strings.Repeat("@@ -1 +1 @@\n-a\n+b\n", 2), "in their order"},
		{"--- f\n+++ f\n@@ -1 +1,2 @@\n-a\n+" + strings.Repeat("x", patch.MaxSize) + "\n+b\n", "it would have"},
	} {
		before := tree(t, dir)
		p, err := read(t, in, c.text)
		if err == nil || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 1000 {
			t.Errorf("%.200q is %+v, %.1000v\nwant %s", c.text, p, err, c.says)
		}
		if !maps.Equal(before, tree(t, dir)) {
			t.Errorf("%.200q changed files", c.text)
		}
	}
	var many strings.Builder
	for i := range patch.MaxFiles + 1 {
		many.WriteString(add(fmt.Sprint("n", i)))
	}
	if _, err := read(t, in, many.String()); err == nil || !strings.Contains(err.Error(), "more than 64 files") {
		t.Error(err)
	}
	many.Reset()
	many.WriteString("--- f\n+++ f\n")
	for i := range patch.MaxHunks + 1 {
		fmt.Fprintf(&many, "@@ -%d +%d @@\n-a\n+b\n", 2*i+1, 2*i+1)
	}
	if _, err := read(t, in, many.String()); err == nil || !strings.Contains(err.Error(), "more than 10000 hunks") {
		t.Error(err)
	}
}

func TestDiffShowsWhatIsHidden(t *testing.T) {
	dir := lay(t, map[string]string{"f": "a\n"})
	p, err := read(t, dir, "--- f\n+++ f\n@@ -1 +1,2 @@\n-a\n+\x1b[2Jb\u202ec\u200b\xff\td\r\n+привет ❤️\n")
	must(t, err)
	want := "update f  +2 −1\n@@ -1 +1,2 @@\n-a\n+\\x1b[2Jb\\u{202e}c\\u{200b}\\xff\td\\r\n+привет ❤️\n"
	if d := p.Diff(false); d != want {
		t.Errorf("%q", d)
	}
	if d := p.Diff(true); strings.Contains(d, "\x1b[2J") {
		t.Errorf("%q", d)
	}
}

// Permission changes are nine bits of files that are there.
func TestModes(t *testing.T) {
	dir := lay(t, map[string]string{"f": "a\n", "g": "a\n"})
	p, err := patch.Parse([]byte("--- f\n+++ f\n@@ -1 +1 @@\n-a\n+b\n"))
	must(t, err)
	got, err := patch.Read(t.Context(), patch.Roots{Dir: dir, Modes: map[string]fs.FileMode{"f": 0o600, "g": 0o757}}, p)
	must(t, err)
	all := got.Files()
	if len(all) != 2 || all[0].Mode != 0o600 || all[1].Op != patch.Mode || all[1].Mode != 0o757 ||
		!slices.Equal(all[1].Risks, []string{"everybody may write to it", "it may be run as a program"}) {
		t.Errorf("%+v", all)
	}
	for name, mode := range map[string]fs.FileMode{
		"none": 0o600, "../f": 0o600, "g": fs.ModeSetuid | 0o755, "f": 0o4755, "/etc/passwd": 0o666,
	} {
		if _, err := patch.Read(t.Context(), patch.Roots{Dir: dir, Modes: map[string]fs.FileMode{name: mode}}, p); err == nil {
			t.Errorf("%s may have %o", name, uint32(mode))
		}
	}
}
