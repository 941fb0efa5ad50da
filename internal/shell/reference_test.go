package shell_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carrel-dev/carrel/internal/shell"
)

// The reference is bash itself. Lines are composed of commands that do not exist, whose
// words bash hands to command_not_found_handle, and of builtins that harm nothing; the
// only files are those of an empty directory. So nothing that a line could do by
// mistake reaches the host.

// handler writes the words of a command that was not found to descriptor 9. Those whose
// name ends in 5 to 9 fail, as both outcomes are of interest.
const handler = `command_not_found_handle() { local IFS=$'\037'; builtin printf '%s\036' "$*" >&9; [[ $1 != *[5-9] ]]; }
export -f command_not_found_handle
ulimit -t 5 -f 1024 -c 0
`

// run gives the words of every command that bash ran for a line and did not know.
func run(t interface{ Fatal(...any) }, dir, path, line string) [][]string {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.CommandContext(ctx, "bash", "--norc", "-c", handler+`exec bash --norc -c "$0"`, line)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + path, "FUNCNEST=3", "LC_ALL=C.UTF-8", "HOME=" + dir}
	cmd.Path = filepath.Join(path, "bash")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for range 6 {
		cmd.ExtraFiles = append(cmd.ExtraFiles, null)
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, w) // 9
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	var log bytes.Buffer
	done := make(chan struct{})
	go func() { log.ReadFrom(r); close(done) }()
	_ = cmd.Wait()
	select {
	case <-done: // all that run in the background have ended
	case <-ctx.Done():
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-done
	}
	var out [][]string
	for s := range strings.SplitSeq(log.String(), "\x1e") {
		if s != "" {
			out = append(out, strings.Split(s, "\x1f"))
		}
	}
	return out
}

// matches says whether the words of a fact can have become those that ran.
func matches(words []shell.Word, argv []string) bool {
	if len(words) == 0 {
		return len(argv) == 0
	}
	w := words[0]
	if w.Many || w.Glob {
		for i := 0; i <= len(argv); i++ {
			if matches(words[1:], argv[i:]) {
				return true
			}
		}
		return false
	}
	return len(argv) > 0 && (w.Dynamic || w.Text == argv[0]) && matches(words[1:], argv[1:])
}

// covered says whether a command that ran is among the facts. What stands behind a word
// that passes on is a command itself.
func covered(f shell.Facts, argv []string) bool {
	// Behind a pipe time is a program, which runs what follows.
	for len(argv) > 1 && argv[0] == "time" {
		argv = argv[1:]
	}
	for _, c := range f.Commands {
		words := c.Argv
		for {
			if matches(words, argv) {
				return true
			}
			if len(words) < 2 || !passes(words[0].Text) {
				break
			}
			for words = words[1:]; len(words) > 1 && strings.HasPrefix(words[0].Text, "-"); {
				words = words[1:]
			}
		}
	}
	return false
}

// passes says whether a word runs what follows it in the same shell.
func passes(word string) bool {
	switch word {
	case "command", "exec", "builtin", "time", "coproc":
		return true
	}
	return strings.Contains(word, "=")
}

// opaque says whether the facts tell of a text that is run and not known: its commands
// cannot be among them.
func opaque(f shell.Facts) bool {
	read := map[int]bool{}
	for _, c := range f.Commands {
		// What stands in a substitution of a word is not the text that the word names.
		if c.Parent >= 0 && c.Context.Substitution == f.Commands[c.Parent].Context.Substitution {
			read[c.Parent] = read[c.Parent] || c.Context.Text
		}
	}
	for i, c := range f.Commands {
		words := c.Argv
		for len(words) > 1 && passes(words[0].Text) {
			words = words[1:]
		}
		if len(words) == 0 {
			continue
		}
		if unsure(words[:1]) {
			return true
		}
		if slices.ContainsFunc(c.Redirects, func(r shell.Redirect) bool {
			return (r.Mode == shell.Heredoc || r.Mode == shell.String) && unsure([]shell.Word{r.Target})
		}) {
			return true
		}
		switch words[0].Text {
		case "eval", "trap", "alias", "mapfile":
			if unsure(words[1:]) {
				return true
			}
		case "source", ".", "bash", "sh":
			if !read[i] || words[0].Text != "source" && unsure(words[1:]) {
				return true
			}
		}
	}
	return false
}

func unsure(words []shell.Word) bool {
	return slices.ContainsFunc(words, func(w shell.Word) bool { return w.Dynamic || w.Many || w.Glob })
}

// reference is a place to run bash in, where there is one.
func reference(t *testing.T) (dir, path string) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash to compare with")
	}
	path = t.TempDir()
	for _, name := range []string{"bash", "sh"} {
		if err := os.Symlink(bash, filepath.Join(path, name)); err != nil {
			t.Fatal(err)
		}
	}
	return t.TempDir(), path
}

// TestHarness sees the comparison catch what is left out, and the handler work.
func TestHarness(t *testing.T) {
	dir, path := reference(t)
	got := run(t, dir, path, `c1 "a b" $(c2) & c3 | bash -c 'c4 x'; sh -c 'c5; c6 "$0"' y; wait`)
	names := map[string]bool{}
	for _, argv := range got {
		names[strings.Join(argv, " ")] = true
	}
	for _, want := range []string{"c1 a b", "c2", "c3", "c4 x", "c5", "c6 y"} {
		if !names[want] {
			t.Errorf("bash ran %v, without %q", got, want)
		}
	}
	f := shell.Analyze("c1 $x; c2 *", shell.Limits{})
	for argv, want := range map[string]bool{"c1": true, "c1 a b": true, "c2": true, "c2 a": true, "c3": false, "c1x": false} {
		if covered(f, strings.Split(argv, " ")) != want {
			t.Errorf("%s is covered: %v", argv, !want)
		}
	}
	f = shell.Analyze("c1 a", shell.Limits{})
	if covered(f, []string{"c1", "b"}) || covered(f, []string{"c1"}) {
		t.Error("other words are covered")
	}
}

// TestAgainstBash compares the facts of composed lines with what bash runs: nothing that
// ran is missing, and no word that was said to be known was another. Run longer with
// -rapid.checks=20000.
func TestAgainstBash(t *testing.T) {
	dir, path := reference(t)
	lines, troubled, opaques, ran := 0, 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		g := generator{T: rt}
		line := g.script(3)
		f := shell.Analyze(line, shell.Limits{})
		check(t, line, f)
		lines++
		if len(f.Troubles) > 0 {
			troubled++
			return // denied
		}
		got := run(rt, dir, path, line)
		ran += len(got)
		if opaque(f) {
			opaques++
			return
		}
		for _, argv := range got {
			if !covered(f, argv) {
				rt.Fatalf("bash ran %q for\n%s\nwhich is not among\n%s", argv, line, render(f))
			}
		}
		if !g.repeats && len(got) > len(f.Commands) {
			rt.Fatalf("bash ran %d commands for\n%s\nof which there are\n%s", len(got), line, render(f))
		}
	})
	t.Logf("%d lines, %d troubles, %d with texts that are not known, %d commands run", lines, troubled, opaques, ran)
	if troubled+opaques > lines*3/4 {
		t.Errorf("%d of %d lines were troubles and %d not known: hardly anything was compared", troubled, lines, opaques)
	}
	if ran < lines {
		t.Errorf("bash ran %d commands for %d lines", ran, lines)
	}
}

// TestLinesAgainstBash does the same with the lines of testdata/bash.lines, of which
// each is there for one thing that shells do.
func TestLinesAgainstBash(t *testing.T) {
	dir, path := reference(t)
	b, err := os.ReadFile("testdata/bash.lines")
	if err != nil {
		t.Fatal(err)
	}
	unescape := strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\t`, "\t")
	ran, troubled := 0, 0
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "# Lines") {
			continue
		}
		src := unescape.Replace(strings.TrimSuffix(line, "\n"))
		f := shell.Analyze(src, shell.Limits{})
		check(t, src, f)
		got := run(t, dir, path, src)
		ran += len(got)
		if len(f.Troubles) > 0 {
			troubled++
			if testing.Verbose() {
				t.Logf("%s\n%v", src, f.Troubles)
			}
			continue
		}
		for _, argv := range got {
			if !covered(f, argv) && !opaque(f) {
				t.Errorf("bash ran %q for\n%s\nwhich is not among\n%s", argv, src, render(f))
			}
		}
	}
	if ran < 300 || troubled > 20 {
		t.Errorf("bash ran %d commands, and %d lines were troubles", ran, troubled)
	}
}

// soup are the tokens of TestSoupAgainstBash: none that harms, and none that has no end.
var soup = []string{
	"c1", "c2", "c3", "a", "a=", "$a", "${a", ":-", "}", "${a:-", "$(", ")", "`", "$((", "))", "((", "[[ ", " ]]", "[", "]", "{ ", "; }", "{", ",", "(",
	" ", " ", " ", "\n", "\n", "\t", ";", "&", "|", "&&", "||", ";;", "!", "\"", "\"", "'", "'", "$'", "\\", "\\", "#", " #", "<<E\n", "<<'E'\n", "\nE\n", "E", "<<-E\n",
	"<", ">", "<<<", "<(", ">&", "=", "*", "?", "~", "if ", "then ", "else ", "fi", "for a in ", "do ", "done", "case a in ", "a)", "esac", "time ", "function ",
	"c4()", "coproc ", "x41", "\\\n", "\r", "..", "@", "+", "-", "1", "%",
}

// TestSoupAgainstBash compares texts that nobody would write, of which most are errors:
// where the parser and bash tell words, comments and quotes apart.
func TestSoupAgainstBash(t *testing.T) {
	dir, path := reference(t)
	texts, ran := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		var src string
		var f shell.Facts
		for range 40 {
			src = strings.Join(rapid.SliceOfN(rapid.SampledFrom(soup), 2, 14).Draw(rt, "soup"), "")
			f = shell.Analyze(src, shell.Limits{})
			if len(f.Troubles) == 0 && !f.Empty {
				break
			}
		}
		check(t, src, f)
		if len(f.Troubles) > 0 {
			return
		}
		texts++
		got := run(rt, dir, path, src)
		ran += len(got)
		if opaque(f) {
			return
		}
		for _, argv := range got {
			if !covered(f, argv) {
				rt.Fatalf("bash ran %q for %q\n%s\nwhich is not among\n%s", argv, src, src, render(f))
			}
		}
	})
	if texts < 20 || ran < 20 {
		t.Errorf("bash ran %d commands of %d texts", ran, texts)
	}
}

// generator composes lines.
type generator struct {
	*rapid.T
	// repeats says that something may run more often than it is written.
	repeats bool
	// called says that it is for a body that calls no function: two calls of itself, and
	// there would be no end of processes.
	called bool
}

func (g *generator) pick(label string, of ...string) string {
	return rapid.SampledFrom(of).Draw(g.T, label)
}

func (g *generator) upTo(n int) int { return rapid.IntRange(0, n).Draw(g.T, "n") }

func (g *generator) script(depth int) string {
	var lines []string
	for range 1 + g.upTo(3) {
		lines = append(lines, g.stmt(depth))
	}
	return g.seq(lines)
}

func (g *generator) seq(list []string) string {
	var b strings.Builder
	for i, s := range list {
		if i > 0 {
			switch {
			case strings.Contains(list[i-1], "\n") || strings.HasSuffix(list[i-1], "&"):
				b.WriteString("\n")
			default:
				b.WriteString(g.pick("sep", "; ", "\n", " ;"))
			}
		}
		b.WriteString(s)
	}
	return b.String()
}

// group makes one command of what may have several lines.
func (g *generator) group(s string) string {
	if strings.Contains(s, "\n") || strings.HasSuffix(s, "&") {
		return "{ " + s + "\n}"
	}
	return s
}

func (g *generator) block(depth int) string {
	var lines []string
	for range 1 + g.upTo(1) {
		lines = append(lines, g.stmt(depth))
	}
	return g.seq(lines) + "\n"
}

func (g *generator) name() string { return fmt.Sprintf("c%d", g.upTo(9)) }

func (g *generator) variable() string { return g.pick("variable", "a", "b", "v", "x") }

func (g *generator) function() string { return g.pick("function", "f", "g") }

// stmt is one statement, which ends without a separator.
func (g *generator) stmt(depth int) string {
	kind := g.upTo(35)
	if depth <= 0 {
		kind %= 9
	}
	d := depth - 1
	switch kind {
	default:
		return g.simple(depth)
	case 4, 5:
		return g.assignment(depth)
	case 6:
		return g.pick("builtin", "read a <<< ", "printf -v a %s ", "read -r x y <<< ", "printf -v x '%s%s' c ", "export a=", "readonly b=", "declare x=", "typeset v=",
			"declare -i a=", "declare -u b=") + g.word(0)
	case 7:
		return g.pick("set", "IFS=,", "IFS=1", "IFS=:", "unset a", "set -f", "set +B", "unset IFS", "set -- c1 c2", "shift", ": ${a:=c1}", ": $((a=1))", "shopt -s lastpipe",
			"((x=2))", "let b=3", "mapfile v <<< c1", "declare -n a=b", "getopts ab x -a")
	case 8:
		if !g.called && g.upTo(3) == 0 {
			return g.pick("calls", "f", "g c1")
		}
		return g.pick("uses", "$a", "\"$x\" c2", "$a$b", "${a}1 c3", "$v $b", "${x:-c7}", "c$b", "\"${a[@]}\"", "${v[0]} c4", "${a:1}", "${a#c}c5", "${b/c/c}", "${b^^}")
	case 9:
		return g.group(g.stmt(d)) + g.pick("op", " && ", " || ") + g.group(g.stmt(d))
	case 10, 11:
		return g.group(g.stmt(d)) + g.pick("pipe", " | ", " |& ") + g.group(g.stmt(d))
	case 12:
		return "( " + g.block(d) + ")" + g.redirect()
	case 13:
		return "{ " + g.block(d) + "}" + g.redirect()
	case 14:
		return "if " + g.block(d) + "then " + g.block(d) + g.pick("else", "", "else "+g.block(d), "elif "+g.block(d)+"then "+g.block(d)) + "fi"
	case 15:
		g.repeats = true
		return "for " + g.variable() + " in " + g.words(depth) + "; do " + g.block(d) + "done" + g.redirect()
	case 16:
		g.repeats = true
		return g.pick("while", "while ", "until ") + g.group(g.stmt(d)) + "; do " + g.block(d) + "break; done"
	case 17:
		return "case " + g.word(d) + " in " + g.pick("pattern", "c1", "*", "c*", "$a") + ") " + g.block(d) + g.pick("end", ";;", ";&", ";;&") + " *) " + g.block(d) + ";; esac"
	case 18:
		g.repeats = true
		inner := generator{T: g.T, called: true}
		body := inner.block(d)
		return g.function() + "() " + g.pick("body", "{ "+body+"}", "( "+body+")")
	case 19:
		return g.simple(d) + " &"
	case 20, 21:
		g.repeats = true
		return "eval " + g.text(d)
	case 22:
		g.repeats = true
		return "trap " + g.text(d) + g.pick("signal", " EXIT", " ERR", " USR1", " 0")
	case 23, 24:
		return g.pick("shell", "bash -c ", "sh -c ", "bash -ec ", "bash -s <<< ", "bash <<< ", "sh -e -c ", "exec bash -c ", "command bash -c ") + g.text(d)
	case 25:
		return g.pick("writer", "echo ", "printf '%s\\n' ", "echo -e ", "echo -n ", "printf ") + g.text(d) + g.pick("reader", " | bash", " | sh -s", " | cat | bash", " | while read -r x; do $x; done", " | { bash; }")
	case 26:
		return g.pick("reader", "bash", "sh -s", "source /dev/stdin", "c1") + " <<E\n" + g.body(d, false) + "\nE"
	case 27:
		return g.pick("reader", "bash", "sh", ". /dev/stdin", "c1", "read a") + " <<-'E'\n" + g.body(d, true) + "\nE"
	case 28:
		return "source <(echo " + g.text(d) + ")"
	case 29:
		return "[[ " + g.word(d) + g.pick("test", " == ", " != ", " < ", " -eq ") + g.word(0) + " ]]"
	case 30:
		return "shopt -s expand_aliases\nalias " + g.pick("alias", "c1", "k", "k") + "=" + g.text(d) + "\n" + g.pick("use", "c1", "k", "k c2")
	case 31:
		// Of a simple one within $(…) bash makes another: it writes a name before it.
		return "coproc { " + g.block(d) + "}"
	case 32:
		return g.variable() + "=(" + g.words(d) + ")"
	case 33:
		return "! " + g.group(g.stmt(d))
	case 34:
		return "time " + g.group(g.stmt(d))
	case 35:
		g.repeats = true
		return "for ((i=0; i<2; i++)); do " + g.block(d) + "done"
	}
}

func (g *generator) assignment(depth int) string {
	return g.variable() + g.pick("assign", "=", "=", "=", "+=") + g.word(depth-1)
}

func (g *generator) redirect() string {
	return g.pick("redirect", "", "", "", " > f1", " 2>&1", " < /dev/null", " >> f2", " <<< c1", " &> f1", " {v}> f1")
}

// simple is a simple command.
func (g *generator) simple(depth int) string {
	s := g.pick("prefix", "", "", "", "", "a=c1 ", "command ", "IFS=: ", "exec ", "> f3 ")
	if g.upTo(2) > 0 {
		s += g.name()
	} else {
		s += g.word(depth - 1)
	}
	for range g.upTo(2) {
		s += " " + g.word(depth-1)
	}
	return s + g.redirect()
}

func (g *generator) words(depth int) string {
	s := g.word(depth - 1)
	for range g.upTo(2) {
		s += " " + g.word(depth-1)
	}
	return s
}

// word is one word.
func (g *generator) word(depth int) string {
	kind := g.upTo(29)
	if depth <= 0 {
		kind %= 20
	}
	n := g.name()
	switch kind {
	default:
		return n
	case 5:
		return n[:1] + g.pick("quotes", "''", `""`, `\`) + n[1:]
	case 6:
		return `$'\x63'` + n[1:]
	case 7:
		return `"` + n + `"`
	case 8:
		return "$" + g.variable()
	case 9:
		return `"$` + g.variable() + `"`
	case 10:
		return "${" + g.variable() + g.pick("operator", "}", ":-"+n+"}", ":+"+n+"}", "#c}", "%1}", ":1}", "/c/k}", "^^}", "[0]}", "[@]}", "[*]}", ":0:2}", "-}", "@Q}", ",}")
	case 11:
		return g.pick("brace", "{c1,c2}", "c{1,2}", "{c1,c2", "c{1..3}", "{a,b}{1,2}", "{c1,}", "c{1..3..2}", "{01..03}", "{c..a}", "{}", "c{1,{2,3}}")
	case 12:
		return g.pick("glob", "*", "c?", "[a-c]1", "~", "~/c1", "f*", "c1=~", "[", "a\\*", "'*'")
	case 13:
		return g.pick("quoted", `'c1 c2'`, `"c1  c2"`, `c1\ c2`, `$'c1\tc2'`, `'a"b'`, `"a'b"`, `a\$b`, `"\$a"`, `'$a'`, "''", `$'c\0x'1`, `"c1\
c2"`, `c\
1`)
	case 14:
		return g.pick("special", `"$@"`, "$@", "$#", "$?", "$0", "$1", "$*", "\"${a[@]}\"", "${#a}", "$((1+1))", "$[2]", "\"${v[*]}\"")
	case 15:
		return n + "$" + g.variable()
	case 16:
		return "$" + g.variable() + n
	case 17:
		return g.pick("list", "c1,c2", "c1:c2", "--opt=c1", "-x", "--", "x1y")
	case 20, 21:
		return "$(" + g.inner(depth-1) + ")"
	case 22:
		return `"$(` + g.inner(depth-1) + `)"`
	case 23:
		return "$(echo " + g.word(0) + ")"
	case 24:
		return "`" + g.name() + " " + g.name() + "`"
	case 25:
		return "<(" + g.inner(depth-1) + ")"
	case 26:
		return "${" + g.variable() + ":-$(" + g.inner(depth-1) + ")}"
	case 27:
		return "$(( $(" + g.name() + ") + 1 ))"
	case 28:
		return "$(printf '%s%s' c " + g.pick("digit", "1", "2") + ")"
	case 29:
		return `"` + g.word(0)[:1] + "$(" + g.name() + ")`" + g.name() + "`\""
	}
}

// inner is what stands in a substitution.
func (g *generator) inner(depth int) string {
	s := g.stmt(depth)
	if strings.Contains(s, "\n") {
		return s + "\n"
	}
	return s
}

// text is a word that is read as shell text.
func (g *generator) text(depth int) string {
	s := g.script(min(depth, 1))
	switch g.upTo(9) {
	case 0:
		return `"$` + g.variable() + `"`
	case 1, 4:
		return "$'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`).Replace(s) + "'"
	case 2, 3:
		if !strings.ContainsAny(s, "\"`!") {
			return `"` + s + `"` // what expands does so before
		}
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (g *generator) body(depth int, quoted bool) string {
	s := g.script(min(depth, 1))
	if strings.Contains(s, "\nE\n") || strings.HasPrefix(s, "E\n") || strings.Contains(s, "<<") {
		return g.name()
	}
	_ = quoted
	return s
}
