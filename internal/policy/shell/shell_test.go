package shell_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

var update = flag.Bool("update", false, "write the facts of testdata/*.facts anew; look at the difference")

// TestFacts holds the facts of the lines in testdata/*.facts. There a line of a text
// begins with "$ ", what follows are its facts up to an empty line.
func TestFacts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.facts")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	rows := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var anew strings.Builder
		for block := range strings.SplitSeq(strings.TrimRight(string(b), "\n"), "\n\n") {
			var src, want, head []string
			for l := range strings.SplitSeq(block, "\n") {
				switch {
				case strings.HasPrefix(l, "$ "):
					src = append(src, l[2:])
				case strings.HasPrefix(l, "#"):
					head = append(head, l)
				case l != "":
					want = append(want, l)
				}
			}
			if len(head) > 0 {
				anew.WriteString(strings.Join(head, "\n") + "\n")
			}
			if len(src) > 0 {
				rows++
				text := strings.Join(src, "\n")
				if strings.Contains(text, "\\u{") || strings.HasPrefix(text, `"`) {
					if s, err := strconv.Unquote(text); err == nil {
						text = s
					}
				}
				facts := shell.Analyze(text, shell.Limits{})
				check(t, text, facts)
				got := render(facts)
				if !*update {
					if d := cmp.Diff(strings.Join(want, "\n"), strings.TrimRight(got, "\n")); d != "" {
						t.Errorf("%s: %s\n%s", file, text, d)
					}
				}
				anew.WriteString("$ " + strings.Join(src, "\n$ ") + "\n" + got)
			}
			anew.WriteString("\n")
		}
		if *update {
			if err := os.WriteFile(file, []byte(strings.TrimRight(anew.String(), "\n")+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if rows < 200 {
		t.Errorf("%d rows: the table was cut", rows)
	}
}

// render writes facts for a person: a command a line, its words with the marks D for
// dynamic, M for many, G for glob and H for hidden.
func render(f shell.Facts) string {
	var b strings.Builder
	for i, c := range f.Commands {
		fmt.Fprintf(&b, "%d", i)
		if c.Parent >= 0 {
			fmt.Fprintf(&b, "<%d", c.Parent)
		}
		b.WriteString(":")
		for _, a := range c.Assigns {
			op := "="
			if a.Append {
				op = "+="
			}
			if a.Export {
				b.WriteString(" export")
			}
			fmt.Fprintf(&b, " {%s%s%s}", a.Name, op, word(a.Value))
		}
		for _, w := range c.Argv {
			b.WriteString(" " + word(w))
		}
		redirects(&b, c.Redirects)
		if c.From >= 0 {
			fmt.Fprintf(&b, " from:%d", c.From)
		}
		if c.Into >= 0 {
			fmt.Fprintf(&b, " into:%d", c.Into)
		}
		x := c.Context
		for _, s := range []struct {
			is   bool
			name string
		}{
			{x.Background, "background"},
			{x.Conditional, "conditional"},
			{x.Loop, "loop"},
			{x.Subshell, "subshell"},
			{x.Substitution, "substitution"},
			{x.Function != "", "function:" + x.Function},
			{x.Trap, "trap"},
			{x.Text, "text"},
			{x.Negated, "negated"},
		} {
			if s.is {
				b.WriteString(" " + s.name)
			}
		}
		b.WriteString("\n")
	}
	if len(f.Redirects) > 0 {
		b.WriteString("redirects:")
		redirects(&b, f.Redirects)
		b.WriteString("\n")
	}
	if len(f.Functions) > 0 {
		fmt.Fprintf(&b, "functions: %s\n", strings.Join(f.Functions, " "))
	}
	for _, t := range f.Troubles {
		fmt.Fprintf(&b, "trouble: %s: %s\n", t.Kind, t.Why)
	}
	for _, o := range f.Oddities {
		fmt.Fprintf(&b, "oddity: %s %U at %d\n", o.Kind, o.Rune, o.Start)
	}
	if f.Empty {
		b.WriteString("empty\n")
	}
	return b.String()
}

func word(w shell.Word) string {
	s := w.Text
	if s == "" || strings.ContainsAny(s, " \t\n\r\"\\‹") || strconv.Quote(s) != `"`+s+`"` {
		s = strconv.Quote(s)
	}
	marks := ""
	if w.Dynamic {
		marks += "D"
	}
	if w.Many {
		marks += "M"
	}
	if w.Glob {
		marks += "G"
	}
	if w.Hidden {
		marks += "H"
	}
	if marks != "" {
		s += "‹" + marks + "›"
	}
	return s
}

func redirects(b *strings.Builder, list []shell.Redirect) {
	for _, r := range list {
		fmt.Fprintf(b, " %s", r.Mode)
		if r.FD >= 0 {
			fmt.Fprintf(b, ":%d", r.FD)
		}
		fmt.Fprintf(b, "(%s)", word(r.Target))
	}
}

// check holds what is true of the facts of any text.
func check(t *testing.T, src string, f shell.Facts) {
	t.Helper()
	last := 0
	for i, c := range f.Commands {
		if c.Start < 0 || c.End < c.Start || c.End > len(src) {
			t.Fatalf("%q: command %d is at %d to %d of %d bytes", src, i, c.Start, c.End, len(src))
		}
		if c.Start < last {
			t.Fatalf("%q: command %d begins at %d, after one at %d", src, i, c.Start, last)
		}
		last = c.Start
		if c.Parent < -1 || c.Parent >= i {
			t.Fatalf("%q: command %d has parent %d", src, i, c.Parent)
		}
		if c.From < -1 || c.From >= len(f.Commands) || c.From == i || c.Into < -1 || c.Into >= len(f.Commands) || c.Into == i {
			t.Fatalf("%q: command %d has from %d and into %d", src, i, c.From, c.Into)
		}
		if !c.Context.Text && src[c.Start:c.End] != c.Text {
			t.Fatalf("%q: the text of command %d is %q, at its place is %q", src, i, c.Text, src[c.Start:c.End])
		}
		if c.Context.Text && c.Parent < 0 {
			t.Fatalf("%q: command %d is in a text of no command", src, i)
		}
	}
	for _, o := range f.Oddities {
		if o.Start < 0 || o.Start >= len(src) || !strings.HasPrefix(src[o.Start:], string(o.Rune)) {
			t.Fatalf("%q: %U is not at %d", src, o.Rune, o.Start)
		}
	}
	if f.Empty && (len(f.Commands) > 0 || len(f.Troubles) > 0) {
		t.Fatalf("%q: empty, with %d commands", src, len(f.Commands))
	}
}

// TestTextPlaces sees that commands of a text within the text have the place of the
// word it was found in, and the others their own.
func TestTextPlaces(t *testing.T) {
	src := `ls a; sh -c 'rm x; rm y' | eval "$z" && f() { g "$(h)"; }`
	f := shell.Analyze(src, shell.Limits{})
	for i, want := range []string{"ls a", "sh -c 'rm x; rm y'", "'rm x; rm y'", "'rm x; rm y'", `eval "$z"`, `"$z"`, `g "$(h)"`, "h"} {
		if c := f.Commands[i]; src[c.Start:c.End] != want {
			t.Errorf("command %d is at %q, not %q", i, src[c.Start:c.End], want)
		}
	}
}

// TestFactsAreTheCallers sees that facts of one text are not changed by reading another.
func TestFactsAreTheCallers(t *testing.T) {
	f := shell.Analyze("a 'b c' | d > e", shell.Limits{})
	before := render(f)
	for range 100 {
		shell.Analyze("x 'y z'; q | r < s", shell.Limits{})
	}
	if after := render(f); after != before {
		t.Errorf("the facts became\n%s", after)
	}
}

// TestTogether reads texts in several goroutines, for the parsers are shared.
func TestTogether(t *testing.T) {
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 200 {
				for _, src := range []string{"a | b", "sh -c 'c; d'", "x=y; $x"} {
					if f := shell.Analyze(src, shell.Limits{}); len(f.Commands) < 2 || len(f.Troubles) > 0 {
						t.Errorf("%s: %d commands", src, len(f.Commands))
					}
				}
			}
		})
	}
	group.Wait()
}
