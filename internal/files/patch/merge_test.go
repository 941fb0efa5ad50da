package patch_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"pgregory.net/rapid"

	"github.com/carrel-dev/carrel/internal/files/patch"
)

func TestMerge(t *testing.T) {
	const change = "--- f\n+++ f\n@@ -5 +5 @@\n-e\n+E\n"
	for name, c := range map[string]struct{ now, after, says string }{
		"same":         {abc, "a\nb\nc\nd\nE\nf\ng\nh\n", ""},
		"before":       {"0\n" + abc, "0\na\nb\nc\nd\nE\nf\ng\nh\n", ""},
		"first line":   {"A\nb\nc\nd\ne\nf\ng\nh\n", "A\nb\nc\nd\nE\nf\ng\nh\n", ""},
		"at its edges": {"a\n1\nb\nc\nd\ne\nf\ng\nh\n2\n", "a\n1\nb\nc\nd\nE\nf\ng\nh\n2\n", ""},
		"shown before": {"a\nB\nc\nd\ne\nf\ng\nh\n", "", "lines 2 to 2 changed meanwhile, and the patch changes lines 5 to 5"},
		"shown behind": {"a\nb\nc\nd\ne\nf\ng\nH\n", "", "lines 8 to 8 changed meanwhile"},
		"shown, new":   {"a\nb\nc\n1\nd\ne\nf\ng\nh\n", "", "changed meanwhile"},
		"context gone": {"d\ne\nf\n", "", "changed meanwhile"},
		"adjacent":     {"a\nb\nc\nD\ne\nf\ng\nh\n", "", "lines 4 to 4 changed meanwhile, and the patch changes lines 5 to 5"},
		"behind":       {"a\nb\nc\nd\ne\nF\ng\nh\n", "", "lines 6 to 6 changed meanwhile"},
		"the line":     {"a\nb\nc\nd\nX\nf\ng\nh\n", "", "changed meanwhile"},
		"removed":      {"a\nb\nc\nd\nf\ng\nh\n", "", "changed meanwhile"},
		"there":        {"a\nb\nc\nd\nE\nf\ng\nh\n", "", "changed meanwhile"},
		"twice":        {abc + abc, "", "2 times now, and their place is not certain"},
		"all else":     {"1\n2\n3\n", "", "changed meanwhile"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, journals := lay(t, map[string]string{"f": abc}), private(t)
			f := filepath.Join(dir, "f")
			p, err := read(t, dir, change)
			must(t, err)
			must(t, os.WriteFile(f, []byte(c.now), 0o644))
			if c.now != abc {
				if _, err := p.Apply(t.Context(), journals); !errdefs.IsFailedPrecondition(err) {
					t.Errorf("applied as it was: %v", err)
				}
			}
			m, err := p.Merge(t.Context())
			if c.says != "" {
				if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v", err)
				}
				return
			}
			must(t, err)
			if (m.Digest() == p.Digest()) != (c.now == abc) {
				t.Errorf("%s and %s", m.Digest(), p.Digest())
			}
			id, err := m.Apply(t.Context(), journals)
			must(t, err)
			same(t, "merged", dir, map[string]string{"f": c.after})
			_, err = patch.Undo(t.Context(), journals, id)
			must(t, err)
			same(t, "undone", dir, map[string]string{"f": c.now})
		})
	}
}

// Of other files the change is merged only if nothing is in its way.
func TestMergeOthers(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"deleted":  func(dir string) error { return os.Remove(filepath.Join(dir, "one")) },
		"to go":    func(dir string) error { return os.WriteFile(filepath.Join(dir, "gone"), []byte("y\n"), 0o644) },
		"made":     func(dir string) error { return os.WriteFile(filepath.Join(dir, "to"), nil, 0o644) },
		"its mode": func(dir string) error { return os.Chmod(filepath.Join(dir, "mode"), 0o600) },
	} {
		dir := lay(t, everyBefore())
		p, err := read(t, dir, everyKind)
		must(t, err)
		m, err := p.Merge(t.Context())
		must(t, err)
		if m.Digest() != p.Digest() {
			t.Error("unchanged files are merged to something else")
		}
		must(t, change(dir))
		if m, err := p.Merge(t.Context()); err == nil {
			t.Errorf("%s: %s", name, m.Diff(false))
		}
	}
}

func join(lines []string) string { return strings.Join(lines, "") }

// texts draws a text and two changed ones. If no line is there twice, and none that is added was there, there is one
// shortest way from one to another.
func texts(t *rapid.T, changes int, twice bool) (base, one, two string) {
	line := rapid.SampledFrom([]string{"a\n", "b\n", "c\n", "\n", "{\n", "}\n", "long line\n", "x\r\n", "ü\n"})
	var lines []string
	for i := range rapid.IntRange(0, 40).Draw(t, "lines") {
		l := line.Draw(t, "line")
		if !twice || rapid.Bool().Draw(t, "unlike") {
			l = string(rune('A'+i%26)) + strings.Repeat("'", i/26) + l
		}
		lines = append(lines, l)
	}
	change := func() string {
		out := slices.Clone(lines)
		for range rapid.IntRange(1, changes).Draw(t, "changes") {
			at := rapid.IntRange(0, len(out)).Draw(t, "at")
			end := min(at+rapid.IntRange(0, 3).Draw(t, "removed"), len(out))
			added := rapid.SliceOfN(line, 0, 3).Draw(t, "added")
			out = slices.Concat(out[:at], added, out[end:])
		}
		text := join(out)
		if rapid.IntRange(0, 4).Draw(t, "end") == 0 {
			text = strings.TrimSuffix(text, "\n")
		}
		return text
	}
	return join(lines), change(), change()
}

// The blocks of a comparison make the new text of the old one, and no fewer lines would do.
func TestCompare(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		some := rapid.SliceOfN(rapid.SampledFrom([]string{"a\n", "b\n", "c\n"}), 0, 14)
		old, now := some.Draw(rt, "old"), some.Draw(rt, "now")
		blocks, ok := patch.Compare(t.Context(), join(old), join(now))
		if !ok {
			rt.Fatal("it gave up")
		}
		var got []string
		i, steps := 0, 0
		for n, b := range blocks {
			if b[0] < i || n > 0 && b[0] == i || b[1] < b[0] || b[3] < b[2] || b[2] != len(got)+b[0]-i {
				rt.Fatalf("%q and %q: %v", old, now, blocks)
			}
			got = slices.Concat(got, old[i:b[0]], now[b[2]:b[3]])
			i = b[1]
			steps += b[1] - b[0] + b[3] - b[2]
		}
		got = slices.Concat(got, old[i:])
		if !slices.Equal(got, now) {
			rt.Fatalf("%q and %q: %v makes %q", old, now, blocks, got)
		}
		// The longest common subsequence, by its definition.
		most := make([][]int, len(old)+1)
		for i := range most {
			most[i] = make([]int, len(now)+1)
		}
		for i, a := range old {
			for j, b := range now {
				if most[i+1][j+1] = max(most[i][j+1], most[i+1][j]); a == b {
					most[i+1][j+1] = most[i][j] + 1
				}
			}
		}
		if want := len(old) + len(now) - 2*most[len(old)][len(now)]; steps != want {
			rt.Fatalf("%q and %q: %d lines differ, and %d would do", old, now, steps, want)
		}
	})
	// What differs too much is given up.
	var old, now strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&old, "old %d\n", i)
		fmt.Fprintf(&now, "new %d\n", i)
	}
	if _, ok := patch.Compare(t.Context(), old.String(), now.String()); ok {
		t.Error("6,000 lines differ, and it goes on")
	}
}

// What Merge makes is what git merge-file makes, wherever both find a result.
func TestMergeIsGits(t *testing.T) {
	git := program(t, "git")
	diff := program(t, "diff")
	both := 0
	property := func(rt *rapid.T) {
		base, ours, theirs := texts(rt, 3, false)
		dir := temporary(rt)
		defer os.RemoveAll(dir)
		write(rt, dir, "base", base)
		write(rt, dir, "f", base)
		write(rt, dir, "theirs", theirs)
		// Its status is 1 where they differ.
		out, _ := exec.CommandContext(t.Context(), diff, "-ua", "--label", "f", "--label", "f", filepath.Join(dir, "base"),
			filepath.Join(dir, "theirs")).Output()
		if len(out) == 0 {
			return
		}
		parsed, err := patch.Parse(out)
		if err != nil {
			rt.Fatalf("%q: %v", out, err)
		}
		p, err := patch.Read(t.Context(), patch.Roots{Dir: dir}, parsed)
		if err != nil {
			return // an empty context: see TestDiffsAsOthersApplyThem
		}
		write(rt, dir, "f", ours)
		m, err := p.Merge(t.Context())
		if err != nil {
			return
		}
		c := exec.CommandContext(t.Context(), git, "merge-file", "-p", "f", "base", "theirs")
		c.Dir = dir
		want, err := c.Output()
		if err != nil {
			return // what git calls a conflict may be none for us: it joins changes that are near each other
		}
		both++
		if got := patch.New(m)["f"]; got != string(want) {
			rt.Errorf("base %q\nours %q\ntheirs %q\nmerged %q\ngit    %q", base, ours, theirs, got, want)
		}
	}
	// One run of texts at random may have few that both merge.
	for range 10 {
		if rapid.Check(t, property); both >= 10 || t.Failed() || testing.Short() {
			break
		}
	}
	if both < 10 && !testing.Short() {
		t.Errorf("both merged only %d times", both)
	}
}
