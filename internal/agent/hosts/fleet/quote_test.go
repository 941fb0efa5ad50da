package fleet_test

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
)

// shells read what Quote writes.
var shells = [][]string{{"sh"}, {"dash"}, {"bash", "-p"}, {"bash", "--posix"}, {"busybox", "sh"}}

// arrives has a shell read argv as a script on standard input, as a host does, and as the text of -c within another.
func arrives(argv []string) func(shell []string, env ...string) (string, error) {
	text := "printf '%s\\0' " + fleet.QuoteAll(argv) + "\n"
	script := "{ c=" + fleet.Quote(text) + "\n" + text + "exec /bin/sh -c \"$c\"\n}\n"
	return func(shell []string, env ...string) (string, error) {
		cmd := exec.Command(shell[0], shell[1:]...)
		cmd.Stdin, cmd.Env = strings.NewReader(script), append(env, "PATH=/usr/bin:/bin")
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		err := cmd.Run()
		return out.String() + said.String(), err
	}
}

func checkArrives(t interface{ Errorf(string, ...any) }, argv []string, shells [][]string) {
	want := strings.Repeat(strings.Join(argv, "\x00")+"\x00", 2)
	f := arrives(argv)
	for _, sh := range shells {
		for _, env := range []string{"LC_ALL=C", "LC_ALL=C.UTF-8"} {
			if got, err := f(sh, env); err != nil || got != want {
				t.Errorf("%v, %s: %q arrives as %q: %v", sh, env, argv, got, err)
			}
		}
	}
}

func present(t *testing.T) (list [][]string) {
	for _, sh := range shells {
		if _, err := exec.LookPath(sh[0]); err != nil {
			t.Logf("skipped %v: it is not here", sh)
			continue
		}
		list = append(list, sh)
	}
	if len(list) == 0 {
		t.Fatal("no shell is here")
	}
	return list
}

// Every byte but NUL arrives in every shell, each alone, and all of them together.
func TestQuoteBytes(t *testing.T) {
	var argv []string
	all := make([]byte, 0, 255)
	for b := 1; b < 256; b++ {
		argv = append(argv, string([]byte{byte(b)}), "a"+string([]byte{byte(b), byte(b)})+"z", "'"+string([]byte{byte(b)}))
		all = append(all, byte(b))
	}
	checkArrives(t, append(argv, string(all), ""), present(t))
}

func TestQuote(t *testing.T) {
	list := present(t)
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.OneOf(
			rapid.Map(rapid.SliceOfN(rapid.ByteRange(1, 255), 0, 40), func(b []byte) string { return string(b) }),
			rapid.StringMatching("[ '\"\\\\$`\n!*?{}~#=()<>|&;-]{0,20}"),
			rapid.String().Filter(func(s string) bool { return !strings.Contains(s, "\x00") }),
		)
		checkArrives(t, rapid.SliceOfN(word, 1, 8).Draw(t, "argv"), list[:1+rapid.IntRange(0, len(list)-1).Draw(t, "shell")])
	})
}

func FuzzQuote(f *testing.F) {
	for _, s := range []string{"", "a", "'", `'\''`, "$(id)", "\n", "\xff\x81", "-n", "a b", "!x", "~", "{a,b}", "\\"} {
		f.Add(s)
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.Contains(s, "\x00") || len(s) > 10000 {
			return
		}
		checkArrives(t, []string{s, "x" + s}, [][]string{{filepath.Clean(sh)}})
	})
}
