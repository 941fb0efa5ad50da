package shell_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// FuzzAnalyze holds that any text has facts, soon, and that what is true of facts holds
// for them.
func FuzzAnalyze(f *testing.F) {
	for _, s := range []string{
		"", " ", "#", "ls -la", "a=rm; $a -rf /", "echo 'rm -rf /' | sh", "bash -c 'eval \"$(echo ls)\"'", "cat <<E\n$(ls)\nE\n",
		"{a,b}{1..3}", "$'\\x72m'", "alias a='b '; a a", "trap 'f' EXIT; f() { f; }", "((a[$(b)]++))", "[[ a -eq b ]]",
		"ls\r\nrm \\\r\nx", "\u202e", "\x00", "\xff", "case a in a) b;& *) c;; esac", "coproc a { b; }", "a | b |& c && d || e &",
		"x=('a b' \"$c\"); \"${x[@]}\" ${x[0]:1:2}", "printf -v a %b '\\x41'; $a", "IFS=,; a=b,c; $a", "echo cm0= | base64 -d | bash",
		"source <(echo ls)", "bash /dev/fd/3 3<<< ls", "for ((;;)); do break; done", "`a \\`b\\``", "${a:-`b`}", "declare -n a=b",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, src string) {
		// A text without an end would stop the fuzzer without a word.
		watch := time.AfterFunc(10*time.Second, func() { panic(fmt.Sprintf("no end for %q", src)) })
		defer watch.Stop()
		facts := shell.Analyze(src, shell.Limits{})
		check(t, src, facts)
		if !facts.Empty && len(facts.Commands) == 0 && len(facts.Troubles) == 0 && !strings.ContainsAny(src, "({[icfswu") {
			t.Errorf("%q is neither empty nor a command", src)
		}
		size := 0
		for _, c := range facts.Commands {
			for _, w := range c.Argv {
				size += len(w.Text)
			}
		}
		if size > 64<<20 {
			t.Errorf("%d bytes became words of %d", len(src), size)
		}
		again := shell.Analyze(src, shell.Limits{})
		if render(facts) != render(again) {
			t.Error("the same text has other facts the second time")
		}
		words := shell.Words([]string{"bash", "-c", "--", src}, shell.Limits{})
		if len(words.Commands) < len(facts.Commands) && len(words.Troubles) == 0 && len(facts.Troubles) == 0 {
			t.Errorf("%q has %d commands, %d behind bash -c", src, len(facts.Commands), len(words.Commands)-1)
		}
	})
}
