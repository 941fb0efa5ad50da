package shell_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

func kinds(f shell.Facts) []shell.TroubleKind {
	var out []shell.TroubleKind
	for _, t := range f.Troubles {
		if t.Why == "" {
			out = append(out, "no reason given")
		}
		out = append(out, t.Kind)
	}
	return out
}

func TestLimits(t *testing.T) {
	nest := func(n int, open, close string) string {
		return strings.Repeat(open, n) + "c" + strings.Repeat(close, n)
	}
	quoted := "c"
	for range 6 {
		quoted = "bash -c " + quote(quoted)
	}
	for _, c := range []struct {
		name   string
		src    string
		limits shell.Limits
		want   []shell.TroubleKind
	}{
		{"at the length", strings.Repeat("a", 128<<10), shell.Limits{}, nil},
		{"past the length", strings.Repeat("a", 128<<10+1), shell.Limits{}, []shell.TroubleKind{shell.TooLong}},
		{"another length", "abc", shell.Limits{Bytes: 2}, []shell.TroubleKind{shell.TooLong}},
		{"deep blocks", nest(60, "{ ", "; }"), shell.Limits{}, nil},
		{"deeper blocks", nest(65, "{ ", "; }"), shell.Limits{}, []shell.TroubleKind{shell.TooDeep}},
		{"substitutions", nest(65, "$(", ")"), shell.Limits{}, []shell.TroubleKind{shell.TooDeep}},
		{"more than is parsed", nest(9000, "(", ")"), shell.Limits{}, []shell.TroubleKind{shell.TooDeep}},
		{"texts in texts", quoted, shell.Limits{Depth: 6}, nil},
		{"too many texts in texts", quoted, shell.Limits{Depth: 5}, []shell.TroubleKind{shell.TooDeep}},
		{"arithmetic", "((" + nest(2000, "-(", ")") + "))", shell.Limits{Depth: 2}, []shell.TroubleKind{shell.TooDeep}},
		{"commands", strings.Repeat("c\n", 4096), shell.Limits{}, nil},
		{"more commands", strings.Repeat("c\n", 4097), shell.Limits{}, []shell.TroubleKind{shell.TooMany}},
		{"few commands", "a | b $(c)", shell.Limits{Commands: 2}, []shell.TroubleKind{shell.TooMany}},
		{"a line of them", "c" + strings.Repeat("|c", 5000), shell.Limits{}, []shell.TroubleKind{shell.TooMany}},
		{"texts that grow", "eval " + strings.Repeat("eval ", 20000) + "c", shell.Limits{}, []shell.TroubleKind{shell.TooLong}},
		{
			"aliases that grow", "alias a='b;b' b='d;d' d='e;e' e='f;f' f='g;g'\n" + strings.Repeat("a\n", 200),
			shell.Limits{},
			[]shell.TroubleKind{shell.TooMany},
		},
		{"NUL", "a\x00b", shell.Limits{}, []shell.TroubleKind{shell.BadInput}},
		{"open", "(", shell.Limits{}, []shell.TroubleKind{shell.Unparseable}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := shell.Analyze(c.src, c.limits)
			check(t, c.src, f)
			if got := kinds(f); !slices.Equal(got, c.want) {
				t.Errorf("troubles are %v, not %v", f.Troubles, c.want)
			}
			if f.Empty {
				t.Error("it is empty")
			}
		})
	}
}

// TestTroubleKeepsFacts sees that what could be read is among the facts.
func TestTroubleKeepsFacts(t *testing.T) {
	for src, want := range map[string]string{
		"rm x\n(":                                "rm",
		"rm \x00x":                               "rm",
		"rm x\n" + strings.Repeat("c\n", 100000): "rm",
	} {
		f := shell.Analyze(src, shell.Limits{})
		if len(f.Troubles) == 0 || len(f.Commands) == 0 || f.Commands[0].Argv[0].Text != want {
			t.Errorf("%.10q: %d commands, troubles %v", src, len(f.Commands), f.Troubles)
		}
	}
}

// TestValuesDoNotGrow sees that variables cannot make words of any size.
func TestValuesDoNotGrow(t *testing.T) {
	src := "a=0123456789\n" + strings.Repeat("a=$a$a\n", 60) + "c $a\n"
	f := shell.Analyze(src, shell.Limits{})
	last := f.Commands[len(f.Commands)-1]
	if w := last.Argv[1]; !w.Dynamic || len(w.Text) > 1<<21 {
		t.Errorf("the word has %d bytes, dynamic is %v", len(w.Text), w.Dynamic)
	}
	size := 0
	for _, c := range f.Commands {
		for _, a := range c.Assigns {
			size += len(a.Value.Text)
		}
	}
	if size > 8<<20 {
		t.Errorf("the values have %d bytes", size)
	}
	f = shell.Analyze("c {1..1000000} {a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}", shell.Limits{})
	if argv := f.Commands[0].Argv; len(argv) != 3 || !argv[1].Many || !argv[1].Dynamic || !argv[2].Many {
		t.Errorf("%d words", len(argv))
	}
}

func TestWords(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{"rm", "-rf", "/"}, "0: rm -rf /\n"},
		{[]string{"echo", "$HOME", "*", "a b", ""}, "0: echo $HOME * \"a b\" \"\"\n"},
		{[]string{"bash", "-c", "rm $x | sh"}, "0: bash -c \"rm $x | sh\"\n1<0: rm $x‹DM› into:2 text\n2<0: sh from:1 text\n"},
		{[]string{"/bin/sh", "-ec", "--", "ls"}, "0: /bin/sh -ec -- ls\n1<0: ls text\n"},
		{[]string{"eval", "rm x"}, "0: eval \"rm x\"\n"},
		{[]string{"a=b", "c"}, "0: a=b c\n"},
		{[]string{"bash", "-c", "("}, "0: bash -c (\ntrouble: parse-error: line 1, column 1: `(` must be followed by a statement list\n"},
		{[]string{"a\x00"}, "0: \"a\\x00\"\ntrouble: bad-input: byte 1 is NUL, at which programs disagree\noddity: control U+0000 at 2\n"},
		{nil, "empty\n"},
	} {
		f := shell.Words(c.argv, shell.Limits{})
		if got := render(f); got != c.want {
			t.Errorf("%q:\n%swant\n%s", c.argv, got, c.want)
		}
	}
	f := shell.Words([]string{"x", "it's"}, shell.Limits{})
	if got := f.Commands[0].Text; got != `x 'it'\''s'` {
		t.Errorf("the text is %s", got)
	}
	f = shell.Words([]string{strings.Repeat("a", 200<<10)}, shell.Limits{})
	if got := kinds(f); !slices.Equal(got, []shell.TroubleKind{shell.TooLong}) {
		t.Errorf("a long argument: %v", got)
	}
}

// TestNested sees the level count, and the dialect.
func TestNested(t *testing.T) {
	if f := shell.Nested("a", shell.POSIX, 64, shell.Limits{}); len(f.Troubles) != 0 || len(f.Commands) != 1 {
		t.Errorf("at the limit: %v", f.Troubles)
	}
	if f := shell.Nested("a", shell.POSIX, 65, shell.Limits{}); !slices.Equal(kinds(f), []shell.TroubleKind{shell.TooDeep}) {
		t.Errorf("past the limit: %v", f.Troubles)
	}
	for _, src := range []string{"{a,b} c", "$'a' c"} {
		f := shell.Nested(src, shell.POSIX, 0, shell.Limits{})
		if len(f.Commands) != 1 || !f.Commands[0].Argv[0].Dynamic {
			t.Errorf("%s is read in one way by all shells:\n%s", src, render(f))
		}
	}
}

func TestShell(t *testing.T) {
	for _, c := range []struct {
		line string
		want string
	}{
		{"bash", "stdin"},
		{"bash -c x", "text:2"},
		{"bash -ec x y", "text:2"},
		{"bash -c -e x", "text:3"},
		{"bash -o pipefail -c x", "text:4"},
		{"bash -oc pipefail x", "text:3"},
		{"bash -co pipefail x", "text:3"},
		{"bash -O extglob -c x", "text:4"},
		{"bash --norc --rcfile f -c x", "text:5"},
		{"bash --posix x -c y", "script:2"},
		{"bash -c", "nothing"},
		{"bash -s x", "stdin"},
		{"bash -- x", "script:2"},
		{"bash -", "stdin"},
		{"sh -c -- x", "posix text:3"},
		{"/usr/bin/dash x", "posix script:1"},
		{"bash +x -c y", "text:3"},
		{"bash $a -c x", "unclear"},
		{"bash -$a x", "unclear"},
		{"bash -c $a", "text:2"},
		{`bash "./$a"`, "script:1"},
		{"bash ./$a", "unclear"},
		{"bash /tmp/*", "unclear"},
		{"ls -c x", "no"},
		{"$a -c x", "no"},
		{"$a/bash -c x", "text:2"},
	} {
		f := shell.Analyze(c.line, shell.Limits{})
		inv, ok := shell.Shell(f.Commands[0].Argv)
		got := describe(inv)
		if !ok {
			got = "no"
		}
		if got != c.want {
			t.Errorf("%s: %s, not %s", c.line, got, c.want)
		}
	}
}

func describe(v shell.Invocation) string {
	s := ""
	if v.Dialect == shell.POSIX {
		s = "posix "
	}
	switch {
	case v.Unclear && v.Text < 0 && v.Script < 0 && !v.Stdin:
		return s + "unclear"
	case v.Text >= 0:
		return fmt.Sprintf("%stext:%d", s, v.Text)
	case v.Script >= 0:
		return fmt.Sprintf("%sscript:%d", s, v.Script)
	case v.Stdin:
		return s + "stdin"
	}
	return s + "nothing"
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
