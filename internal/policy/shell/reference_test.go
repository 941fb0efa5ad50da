package shell_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/carrel-dev/carrel/internal/policy/shell"
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
	"c1", "c2", "c3", "a", "a=", "$a", "${a", ":-", "}", "${a:-", "$(", ")", "`", "$((", "))", "((", "[[ ", " ]]",
	"[", "]", "{ ", "; }", "{", ",", "(",
	" ", " ", " ", "\n", "\n", "\t", ";", "&", "|", "&&", "||", ";;", "!", "\"", "\"", "'", "'", "$'", "\\", "\\",
	"#", " #", "<<E\n", "<<'E'\n", "\nE\n", "E", "<<-E\n",
	"<", ">", "<<<", "<(", ">&", "=", "*", "?", "~", "if ", "then ", "else ", "fi", "for a in ", "do ", "done",
	"case a in ", "a)", "esac", "time ", "function ",
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
