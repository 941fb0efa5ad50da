package staged_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/files/staged"
)

func (l *lab) diff(t testing.TB, o staged.DiffOptions) (string, staged.Stat) {
	t.Helper()
	var b bytes.Buffer
	stat, err := staged.Diff(t.Context(), &b, l.copy(t), l.changes(t), o)
	must(t, err)
	return b.String(), stat
}

func git(t testing.TB, dir string, in string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	c := exec.CommandContext(t.Context(), "git", args...)
	c.Dir, c.Stdin = dir, strings.NewReader(in)
	c.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+dir, "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	out, err := c.CombinedOutput()
	if err != nil && args[0] == "apply" {
		t.Errorf("git %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func TestDiff(t *testing.T) {
	l := newLab(t, map[string]string{
		"a": "1\n2\n3\n4\n5\n6\n7\n8\n9\n", "bin": "x\x00y", "cut": "no end", "gone": "gone\n", "link": "-> a", "sp ace": "x\n", "turned": "t\n",
	})
	lay(t, l.upper, map[string]string{
		"a": "1\n2\n3\n4\nV\n6\n7\n8\n9\n", "bin": "x\x00yz", "cut": "no end\n", "link": "-> bin", "new\n\"\\": "n", "sp ace": "y\n",
		"turned": "-> a",
		"esc":    "\x1b[31m\u202e\n", "empty": "", "d/": "",
	})
	must(t, os.Chmod(l.upper+"/a", 0o755))
	got, stat := l.diff(t, staged.DiffOptions{Visible: true})
	want := `diff --git a/a b/a
old mode 100644
new mode 100755
--- a/a
+++ b/a
@@ -2,7 +2,7 @@
 2
 3
 4
-5
+V
 6
 7
 8
diff --git a/bin b/bin
Binary files a/bin and b/bin differ
# 3 -> 4 bytes
diff --git a/cut b/cut
--- a/cut
+++ b/cut
@@ -1 +1 @@
-no end
\ No newline at end of file
+no end
# d: nothing -> directory 0755
diff --git a/empty b/empty
new file mode 100644
diff --git a/esc b/esc
new file mode 100644
--- /dev/null
+++ b/esc
@@ -0,0 +1 @@
+\x1b[31m\u{202e}
diff --git a/link b/link
--- a/link
+++ b/link
@@ -1 +1 @@
-a
\ No newline at end of file
+bin
\ No newline at end of file
diff --git "a/new\n\"\\" "b/new\n\"\\"
new file mode 100644
--- /dev/null
+++ "b/new\n\"\\"
@@ -0,0 +1 @@
+n
\ No newline at end of file
diff --git a/sp ace b/sp ace
--- a/sp ace	` + `
+++ b/sp ace	` + `
@@ -1 +1 @@
-x
+y
diff --git a/turned b/turned
deleted file mode 100644
--- a/turned
+++ /dev/null
@@ -1 +0,0 @@
-t
diff --git a/turned b/turned
new file mode 120000
--- /dev/null
+++ b/turned
@@ -0,0 +1 @@
+a
\ No newline at end of file
`
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if stat.String() != "9 files changed, 7 insertions(+), 5 deletions(-)" || !stat.Files[1].Binary {
		t.Errorf("%v %+v", stat, stat)
	}
	if raw, _ := l.diff(t, staged.DiffOptions{}); !strings.Contains(raw, "+\x1b[31m\u202e\n") {
		t.Errorf("not as it is: %q", raw)
	}
}

// git apply makes of the lower directory what the staged copy shows.
func TestGitAppliesTheDiff(t *testing.T) {
	l := newLab(t, project())
	var merged map[string]string
	l.run(t, func(m string) error {
		err := errors.Join(everything(m), os.RemoveAll(m+"/new/abs"), os.Chmod(m+"/empty", 0o755), os.Remove(m+"/file/in/it"),
			os.WriteFile(m+"/file/in/it", []byte("it\n"), 0o644), os.Chmod(m+"/new/dir/file", 0o644), os.Chmod(m+"/file/in", 0o755),
			os.Chmod(m+"/file", 0o755))
		merged = tree(t, m)
		return err
	})
	text, _ := l.diff(t, staged.DiffOptions{})
	git(t, l.lower, text, "apply", "-")
	got := tree(t, l.lower)
	for _, name := range []string{"empty", "dir/sub"} { // Git has no empty directories
		delete(merged, name)
		delete(got, name)
	}
	equalTrees(t, "applied", got, merged)
}

// What is compared by lines leads from the one text to the other, also where too much differs.
func TestGitAppliesRandomDiffs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	before, after := map[string]string{}, map[string]string{}
	for i := range 60 {
		var a, b strings.Builder
		lines := r.IntN(60)
		if i == 0 {
			lines = 9000
		}
		for n := range lines {
			line := fmt.Sprintf("%d\n", r.IntN(8))
			if i == 0 {
				line = fmt.Sprintf("%d\n", n)
			}
			if n == lines-1 && r.IntN(2) == 0 {
				line = "end"
			}
			if r.IntN(6) > 0 {
				a.WriteString(line)
			}
			if i > 0 && r.IntN(6) > 0 {
				b.WriteString(line)
			} else if i == 0 && n > 0 {
				b.WriteString("x" + line)
			}
		}
		before[fmt.Sprint(i)], after[fmt.Sprint(i)] = a.String(), b.String()
	}
	l := newLab(t, before)
	lay(t, l.upper, after)
	text, _ := l.diff(t, staged.DiffOptions{})
	git(t, l.lower, text, "apply", "--unidiff-zero", "-")
	equalTrees(t, "applied", tree(t, l.lower), tree(t, l.upper))
}

func TestDiffBounds(t *testing.T) {
	l := newLab(t, map[string]string{"big": "x"})
	lay(t, l.upper, map[string]string{"big": "x"})
	must(t, os.Truncate(l.upper+"/big", 1<<40))
	got, stat := l.diff(t, staged.DiffOptions{})
	want := "diff --git a/big b/big\nBinary files a/big and b/big differ\n# 1 -> 1099511627776 bytes, too large to be shown\n"
	if got != want || !stat.Files[0].Binary {
		t.Errorf("%q", got)
	}
	all := l.changes(t)
	ctx, end := context.WithCancel(t.Context())
	end()
	if _, err := staged.Diff(ctx, &bytes.Buffer{}, l.copy(t), all, staged.DiffOptions{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// What became a link meanwhile is not followed.
	l = newLab(t, map[string]string{"f": "x\n", "secret": "s\n"})
	lay(t, l.upper, map[string]string{"f": "y\n"})
	all = l.changes(t)
	must(t, os.Remove(l.lower+"/f"))
	must(t, os.Symlink("secret", l.lower+"/f"))
	if _, err := staged.Diff(t.Context(), &bytes.Buffer{}, l.copy(t), all, staged.DiffOptions{}); err == nil {
		t.Error("a link is followed")
	}
	must(t, os.Remove(l.lower+"/f"))
	must(t, os.WriteFile(l.lower+"/f", []byte("longer\n"), 0o600))
	if _, err := staged.Diff(t.Context(), &bytes.Buffer{}, l.copy(t), all, staged.DiffOptions{}); err == nil {
		t.Error("a file that changed is shown")
	}
}

// thousand are files of 40 lines, of which the upper directory changes one line each.
func thousand(t testing.TB, n int) *lab {
	t.Helper()
	before, after := map[string]string{}, map[string]string{}
	text := strings.Repeat("a line of some length, as in a program\n", 40)
	for i := range n {
		name := fmt.Sprintf("dir%d/file%d", i%37, i)
		before[name], after[name] = text, strings.Replace(text, "some length", "another length", 1)
	}
	l := newLab(t, before)
	lay(t, l.upper, after)
	return l
}

func BenchmarkDiff1000(b *testing.B) {
	l := thousand(b, 1000)
	for b.Loop() {
		if _, stat := l.diff(b, staged.DiffOptions{}); stat.Added != 1000 {
			b.Fatal(stat)
		}
	}
}
