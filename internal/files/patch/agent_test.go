package patch_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

// The apply_patch grammar of coding agents.
func TestAgentGrammar(t *testing.T) {
	files := map[string]string{
		"src/a.py": "class A:\n    def f(self):\n        return 1\n\nclass B:\n    def f(self):\n        return 1\n",
		"gone":     "x\n", "old": "1\n2\n3\n", "moved only": "m", "crlf": "a\r\nb\r\n", "bare": "a\nb", "end": "x\nx\n", "blank": "a\n\nb\n",
	}
	dir, journals := lay(t, files), private(t)
	p, err := read(t, dir, `*** Begin Patch
*** Update File: src/a.py
@@ class B:
@@     def f(self):
-        return 1
+        return 2
*** Add File: new/b.txt
+one
+
+--- three
*** Delete File: gone
*** Update File: old
*** Move to: renamed
@@
 1
-2
+two
*** Update File: moved only
*** Move to: there
*** Update File: crlf
@@
 a
-b
+c
+d
*** Update File: bare
@@
-b
+c
+d
*** Update File: end
@@
-x
+y
*** End of File
*** Update File: blank
 a

-b
+c
*** End Patch
`)
	must(t, err)
	_, err = p.Apply(t.Context(), journals)
	must(t, err)
	same(t, "applied", dir, map[string]string{
		"src/a.py":  "class A:\n    def f(self):\n        return 1\n\nclass B:\n    def f(self):\n        return 2\n",
		"new/b.txt": "one\n\n--- three\n", "renamed": "1\ntwo\n3\n", "there": "m", "crlf": "a\r\nc\r\nd\r\n", "bare": "a\nc\nd", "end": "x\ny\n",
		"blank": "a\n\nc\n",
	})
}

// A file without a newline at its end has none afterwards.
func TestAgentEnds(t *testing.T) {
	for _, c := range []struct{ before, hunk, after string }{
		{"a\nb", "-b\n+c\n", "a\nc"},
		{"a\nb", "-a\n+c\n", "c\nb"},
		{"a\nb", " b\n+c\n", "a\nb\nc"},
		{"a\nb", " a\n+c\n b\n", "a\nc\nb"},
		{"a\nb", "+c\n*** End of File\n", "a\nb\nc"},
		{"a\nb\n", "+c\n*** End of File\n", "a\nb\nc\n"},
		{"a\r\nb", " b\n+c\n", "a\r\nb\r\nc"},
		{"a\nb", " a\n-b\n", "a\n"},
		{"b", "-b\n", ""},
		{"a\nb", " b\n+\n", "a\nb\n"},
		{"", "+b\n", "b\n"},
	} {
		dir := lay(t, map[string]string{"f": c.before})
		p, err := read(t, dir, "*** Begin Patch\n*** Update File: f\n@@\n"+c.hunk+"*** End Patch")
		if err != nil {
			t.Errorf("%q, %q: %v", c.before, c.hunk, err)
		} else if got := patch.New(p)["f"]; got != c.after {
			t.Errorf("%q, %q: %q, want %q", c.before, c.hunk, got, c.after)
		}
	}
}

func TestAgentRefusals(t *testing.T) {
	files := map[string]string{"f": "x\nsame\nx\nsame\n", "mixed": "a\r\nb\n", "exists": ""}
	dir := lay(t, files)
	in := func(s string) string { return "*** Begin Patch\n" + s + "*** End Patch\n" }
	for _, c := range []struct{ text, says string }{
		{in("*** Update File: f\n@@\n-same\n+other\n"), "several times, as at lines 2 and 4"},
		{in("*** Update File: f\n@@ x\n-same\n+other\n"), "after @@ is there 2 times, not once"},
		{in("*** Update File: f\n@@ none\n-same\n+other\n"), "after @@ is there 0 times, not once"},
		{in("*** Update File: f\n@@\n-none\n+other\n"), "not in the file"},
		{in("*** Update File: f\n@@\n+other\n"), "its place is not certain"},
		{in("*** Update File: f\n@@\n-x\n+other\n*** End of File\n"), "not the last of the file"},
		{in("*** Update File: mixed\n@@\n-a\n+other\n"), "not in the file"},
		{in("*** Update File: f\n@@\n-same\n same\n"), "not in the file"},
		{in("*** Update File: f\n@@x\n-same\n+other\n"), "has a space and a line of the file"},
		{in("*** Update File: f\n@@\n same\n"), "changes nothing"},
		{in("*** Update File: f\n@@\nsame\n"), "begins with a space, - or +"},
		{in("*** Update File: f\n"), "has no hunk"},
		{in("*** Update File: f\n*** Move to: ../g\n"), `has ".."`},
		{in("*** Update File: f\n*** Move to: exists\n"), "something is there already"},
		{in("*** Update File: f\n" + strings.Repeat("@@ x\n", 17) + "-same\n"), "more than 16 lines"},
		{in("*** Update File: none\n@@\n-a\n+b\n"), "it is not there"},
		{in("*** Add File: f\n+a\n"), "something is there already"},
		{in("*** Add File: g\na\n"), "begins with +"},
		{in("*** Add File: /etc/x\n+a\n"), "not in a directory in which files may be changed"},
		{in("*** Delete File: none\n"), "it is not there"},
		{in("*** Delete File: f\n-x\n"), "is not expected here"},
		{in("*** Rename File: f\n"), "is not expected here"},
		{in("*** Delete File: f\n*** Delete File: f\n"), "changed twice"},
		{in(""), "changes no file"},
		{in("*** Delete File: f\n") + "more\n", "something follows"},
		{"*** Begin Patch\n*** Delete File: f\n", "does not end with"},
		{"*** Begin Patch now\n*** Delete File: f\n*** End Patch\n", "does not begin with"},
		{"*** Begin Patch\n*** Delete File: f\n*** End Patch\n" + in("*** Delete File: f\n"), "something follows"},
		{"apply_patch <<EOF\n" + in("*** Delete File: f\n") + "EOF\n", "no part of a unified diff"},
	} {
		p, err := read(t, dir, c.text)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q is %+v, %v\nwant %s", c.text, p, err, c.says)
		}
	}
	if now := tree(t, dir); !maps.Equal(now, files) {
		t.Errorf("%q", now)
	}
}
