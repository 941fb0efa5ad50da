package patch_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

func program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("skipped: %s is not here: install it to compare with it", name)
	}
	return path
}

func temporary(t *rapid.T) string {
	dir, err := os.MkdirTemp("", "patch")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *rapid.T, dir, name, text string) {
	if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Diffs of GNU diff make what they were made from. Where the file was changed before, git apply and patch make what Read
// makes, wherever both find the place.
func TestDiffsAsOthersApplyThem(t *testing.T) {
	diff, git, gnu := program(t, "diff"), program(t, "git"), program(t, "patch")
	clean, moved := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		_, before, after := texts(rt, 3, true)
		dir := temporary(rt)
		defer os.RemoveAll(dir)
		write(rt, dir, "before", before)
		write(rt, dir, "after", after)
		context := fmt.Sprint("-U", rapid.IntRange(1, 4).Draw(rt, "context"))
		// Its status is 1 where they differ.
		out, _ := exec.CommandContext(t.Context(), diff, "-a", context, "--label", "f", "--label", "f", filepath.Join(dir, "before"),
			filepath.Join(dir, "after")).Output()
		if len(out) == 0 {
			return
		}
		parsed, err := patch.Parse(out)
		if err != nil {
			rt.Fatalf("%q: %v", out, err)
		}
		write(rt, dir, "f", before)
		p, err := patch.Read(t.Context(), patch.Roots{Dir: dir}, parsed)
		if err != nil {
			rt.Fatalf("%q of %q: %v", out, before, err)
		}
		if got := patch.New(p)["f"]; got != after {
			rt.Fatalf("%q of %q gives %q, want %q", out, before, got, after)
		}
		clean++
		// Something stands before or behind it now.
		filler := strings.Repeat("new\n", rapid.IntRange(0, 3).Draw(rt, "filler"))
		changed := filler + before
		if strings.HasSuffix(before, "\n") {
			changed += strings.Repeat("more\n", rapid.IntRange(0, 3).Draw(rt, "more"))
		}
		write(rt, dir, "f", changed)
		p, err = patch.Read(t.Context(), patch.Roots{Dir: dir}, parsed)
		if err != nil {
			return
		}
		ours := patch.New(p)["f"]
		for _, c := range [][]string{{git, "apply", "-p0"}, {gnu, "-s", "-p0", "-F0", "--binary"}} {
			write(rt, dir, "f", changed)
			run := exec.CommandContext(t.Context(), c[0], c[1:]...)
			run.Dir, run.Stdin = dir, strings.NewReader(string(out))
			run.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
			if run.Run() != nil {
				continue
			}
			moved++
			if theirs, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(theirs) != ours {
				rt.Errorf("%s: %q of %q\ngives %q,\nours  %q, %v", c, out, changed, theirs, ours, err)
			}
		}
	})
	if clean < 10 || moved < 10 {
		t.Errorf("%d clean, %d moved", clean, moved)
	}
}

// What git writes about a tree, with new, deleted, renamed and empty files, odd names and modes, makes that tree.
func TestTreesOfGit(t *testing.T) {
	git := program(t, "git")
	kinds := map[patch.Op]int{}
	rapid.Check(t, func(rt *rapid.T) {
		dir := temporary(rt)
		defer os.RemoveAll(dir)
		repo, work := filepath.Join(dir, "b"), filepath.Join(dir, "work")
		name := rapid.SampledFrom([]string{"a", "b c", "d/e", "d/é", `q"uote`, `back\slash`, "b/x", "a b/c", "tab-less", "x/y/z"})
		names := rapid.SliceOfNDistinct(name, 1, 6, rapid.ID).Draw(rt, "names")
		for _, n := range names {
			base, _, _ := texts(rt, 1, true)
			write(rt, filepath.Join(dir, "a"), n, base)
			write(rt, repo, n, base)
		}
		before := files(rt, repo)
		for _, n := range names {
			path := filepath.Join(repo, n)
			b, err := os.ReadFile(path)
			if err != nil {
				rt.Fatal(err)
			}
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0:
				if err := os.Remove(path); err != nil {
					rt.Fatal(err)
				}
			case 1:
				_, text, _ := texts(rt, 2, true)
				write(rt, repo, n+".new", text)
			case 2:
				if err := os.Rename(path, path+" moved"); err != nil {
					rt.Fatal(err)
				}
			case 3:
				if err := os.Chmod(path, 0o755); err != nil {
					rt.Fatal(err)
				}
			default:
				write(rt, repo, n, "first\n"+string(b))
			}
		}
		// The directories are called as the prefixes that git gives to paths.
		c := exec.CommandContext(t.Context(), git, "diff", "--no-index", "-M", "--no-color", "--no-prefix", "a", "b")
		c.Dir = dir
		c.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		b, _ := c.Output() // its status is 1 where they differ
		out := strings.NewReplacer("rename from a/", "rename from ", "rename from \"a/", "rename from \"", "rename to b/", "rename to ",
			"rename to \"b/", "rename to \"").Replace(string(b))
		out = prefixed(out)
		if out == "" {
			return
		}
		for n, text := range before {
			write(rt, work, n, text)
		}
		parsed, err := patch.Parse([]byte(out))
		if err != nil {
			rt.Fatalf("%s\n%v", out, err)
		}
		p, err := patch.Read(t.Context(), patch.Roots{Dir: work}, parsed)
		if err != nil {
			rt.Fatalf("%s\n%v", out, err)
		}
		for _, f := range p.Files() {
			kinds[f.Op]++
		}
		journals := filepath.Join(dir, "journals")
		if err := os.Mkdir(journals, 0o700); err != nil {
			rt.Fatal(err)
		}
		id, err := p.Apply(t.Context(), journals)
		if err != nil {
			rt.Fatalf("%s\n%v", out, err)
		}
		if got, want := files(rt, work), files(rt, repo); !maps.Equal(got, want) {
			rt.Fatalf("%s\ngives %q\nwant  %q", out, got, want)
		}
		if _, err := patch.Undo(t.Context(), journals, id); err != nil {
			rt.Fatal(err)
		}
		if got := files(rt, work); !maps.Equal(got, before) {
			rt.Fatalf("%s\nundone %q\nwant   %q", out, got, before)
		}
	})
	for _, op := range []patch.Op{patch.Create, patch.Update, patch.Delete, patch.Move, patch.Mode} {
		if kinds[op] < 3 {
			t.Errorf("only %d times %s", kinds[op], op)
		}
	}
}

// prefixed gives both paths of a line "diff --git" their prefixes: between two directories, git gives those of a file that
// only one of them has the same.
func prefixed(out string) string {
	lines := strings.Split(out, "\n")
	for i, l := range lines {
		rest, ok := strings.CutPrefix(l, "diff --git ")
		if n := len(rest) / 2; ok && rest[:n] == rest[n+1:] {
			quote, name := "", rest[:n]
			if strings.HasPrefix(name, `"`) {
				quote, name = `"`, name[1:]
			}
			lines[i] = "diff --git " + quote + "a" + name[1:] + " " + quote + "b" + name[1:]
		}
	}
	return strings.Join(lines, "\n")
}

// files are those of a tree without .git; a name with "*" is that of a program.
func files(t *rapid.T, dir string) map[string]string {
	all := map[string]string{}
	err := filepath.Walk(dir, func(path string, st os.FileInfo, err error) error {
		if err != nil || st.IsDir() {
			if err == nil && st.Name() == ".git" {
				return filepath.SkipDir
			}
			return err
		}
		name, _ := filepath.Rel(dir, path)
		if st.Mode()&0o100 != 0 {
			name += "*"
		}
		b, err := os.ReadFile(path)
		all[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func FuzzRead(f *testing.F) {
	for _, s := range []string{
		everyKind, "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n",
		"--- f\n+++ f\n@@ -2 +2 @@\n-b\n+c\n@@ -7 +7 @@\n-g\n+G\n",
		"*** Begin Patch\n*** Update File: f\n@@ a\n-b\n+c\n*** End of File\n*** End Patch",
		"*** Begin Patch\n*** Add File: g\n+x\n*** End Patch\n",
		"diff --git \"a/\\303\\274\" \"b/\\303\\274\"\nnew file mode 100644\n", "--- ../f\n+++ ../f\n@@ -1 +1 @@\n-a\n+b\n",
		"*** Begin Patch\n*** Update File: f\n*** Move to: /g\n*** End Patch\n", "--- f\n+++ f\n@@ -0,0 +1,9999999 @@\n+a\n",
	} {
		f.Add(abc, s)
	}
	f.Add("a\nb", "*** Begin Patch\n*** Update File: f\n b\n+c\n*** End Patch\n")
	f.Add("a\r\nb\r\n", "--- f\n+++ f\n@@ -1 +1 @@\n-a\r\n+b\r\n")
	dir := f.TempDir()
	in := filepath.Join(dir, "in")
	must(f, os.Mkdir(in, 0o755))
	f.Fuzz(func(t *testing.T, file, text string) {
		must(t, os.WriteFile(filepath.Join(in, "f"), []byte(file), 0o644))
		parsed, err := patch.Parse([]byte(text))
		if err != nil {
			return
		}
		for _, name := range parsed.Paths() {
			if slices.Contains(strings.Split(name, "/"), "..") || strings.ContainsAny(name, "\x00\n\x1b\u202e") || name == "" {
				t.Errorf("%q names %q", text, name)
			}
		}
		p, err := patch.Read(t.Context(), patch.Roots{Dir: in}, parsed)
		if b, _ := os.ReadFile(filepath.Join(in, "f")); string(b) != file {
			t.Fatalf("%q: the file is changed", text)
		}
		if err != nil {
			return
		}
		if d := p.Diff(false); strings.ContainsAny(d, "\x1b\x00\r\u202e") {
			t.Errorf("%q is shown as %q", text, d)
		}
		count := func(s string) int {
			return len(strings.SplitAfter(s, "\n")) - b2i(strings.HasSuffix(s, "\n") || s == "")
		}
		for i, c := range p.Files() {
			if !strings.HasPrefix(c.Place, in+"/") || c.ToPlace != "" && !strings.HasPrefix(c.ToPlace, in+"/") {
				t.Errorf("%q reaches %q and %q", text, c.Place, c.ToPlace)
			}
			if c.Path != "f" || c.Op == patch.Delete || i > 0 {
				continue
			}
			after := patch.New(p)["f"]
			if c.To != "" {
				after = patch.New(p)[c.To]
			}
			if count(after)-count(file) != c.Added-c.Removed {
				t.Errorf("%q of %q gives %q: +%d −%d", text, file, after, c.Added, c.Removed)
			}
			// No more lines are gone or new than the hunks name.
			if gone, made := lacks(file, after), lacks(after, file); gone > c.Removed || made > c.Added {
				t.Errorf("%q of %q gives %q: %d lines are gone, %d are new", text, file, after, gone, made)
			}
		}
	})
}

// lacks counts the lines of a that b does not have, each as often as it is there.
func lacks(a, b string) (n int) {
	have := map[string]int{}
	for l := range strings.SplitAfterSeq(b, "\n") {
		have[l]++
	}
	for l := range strings.SplitAfterSeq(a, "\n") {
		if have[l]--; have[l] < 0 && l != "" {
			n++
		}
	}
	return n
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// BenchmarkRead is a dry run of a patch with 1,000 hunks for a file of 5 MiB: first as its numbers say, then with all of
// them one line off.
func BenchmarkRead(b *testing.B) {
	for _, off := range []int{0, 1} {
		b.Run(fmt.Sprint("off by ", off), func(b *testing.B) {
			const lines, hunks = 100_000, 1000
			var file, text strings.Builder
			line := func(i int) string { return fmt.Sprintf("line %06d of a file that has very many of them\n", i) }
			for i := range lines {
				file.WriteString(line(i))
			}
			text.WriteString("--- f\n+++ f\n")
			for h := range hunks {
				i := h*(lines/hunks) + 10
				fmt.Fprintf(&text, "@@ -%d,7 +%d,7 @@\n", i-2+off, i-2+off)
				for j := i - 3; j <= i+3; j++ {
					if j == i {
						text.WriteString("-" + line(j) + "+" + strings.ToUpper(line(j)))
					} else {
						text.WriteString(" " + line(j))
					}
				}
			}
			dir := lay(b, map[string]string{"f": file.String()})
			for b.Loop() {
				p, err := read(b, dir, text.String())
				must(b, err)
				if f := p.Files()[0]; f.Added != hunks || f.Relocated != hunks*off {
					b.Fatalf("%+v", f)
				}
			}
		})
	}
}
