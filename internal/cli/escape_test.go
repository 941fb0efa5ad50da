package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/carrel-dev/carrel/internal/cli"
)

// Whatever an answer has in its fields, a terminal is told nothing by it.
func TestNothingReachesTheTerminalRaw(t *testing.T) {
	for _, hostile := range []string{
		"\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "\u009b31m", "\x00", "\r", "\x7f", "a\u202eb", "\u2066", "\x1bP+q\x1b\\", "\x08\x08",
	} {
		path := filepath.Join(t.TempDir(), "out")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := cli.Render(f, []string{"x" + hostile, hostile + "y"}, "a "+hostile+"\nb\n"); err != nil {
			t.Fatal(err)
		}
		f.Close()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexFunc(string(b), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%q prints %q", hostile, b)
		}
		if n := strings.Count(string(b), "\n"); n != 4 {
			t.Errorf("%q makes %d lines:\n%s", hostile, n, b)
		}
	}
}

// JSON on a terminal means what it meant, and has nothing in it that the terminal obeys.
func TestJSONOnATerminal(t *testing.T) {
	for _, text := range []string{"a\u009b31mb", "\x7f", "\u202e", "\U000e0041 tag", "plain ü 😀", "\x1b[2J", "\u2028", "line\nline"} {
		b, err := json.MarshalIndent(map[string]string{text: text}, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		got := cli.EscapeJSON(append(b, '\n'))
		if i := strings.IndexFunc(string(got), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%q prints %q", text, got)
		}
		var back map[string]string
		if err := json.Unmarshal(got, &back); err != nil || back[text] != text {
			t.Errorf("%q reads as %q: %v", text, back, err)
		}
	}
	if got := cli.EscapeJSON([]byte("\"\x9b\"")); string(got) != `"\ufffd"` {
		t.Errorf("%q", got)
	}
}
