package cli_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/cli"
)

// What a question names by @ is added as data, once, and nothing that is no text of a bounded size.
func TestFilesOfAQuestion(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.txt", "the content of a\n")
	write("big", strings.Repeat("x", 64<<10+1))
	write("most", strings.Repeat("x", 64<<10))
	write("binary", "\xff\xfe")
	write("web-1.conf", "conf")
	if err := unix.Mkfifo("fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	many := ""
	for n := range strings.SplitSeq("123456789", "") {
		write("f"+n, "content-"+n)
		many += "@f" + n + " "
	}
	for in, want := range map[string]string{
		"plain @nobody text":      "plain @nobody text",
		"mail me@example.org":     "mail me@example.org",
		"on @web-1 and @web-10":   "on remote web-1 and @web-10",
		"is @host:web-1, up?":     "is remote web-1, up?",
		"look at @a.txt.":         "look at @a.txt.\n\nThe file \"a.txt\" follows.",
		"twice @a.txt\n\t@a.txt ": "twice @a.txt\n\t@a.txt \n\nThe file \"a.txt\" follows.",
		"@web-1.conf":             "@web-1.conf\n\nThe file \"web-1.conf\" follows.",
	} {
		got, err := cli.WithFiles(in, "web-1")
		if err != nil || !strings.HasPrefix(got, want) || !strings.Contains(want, "follows") && got != want ||
			strings.Count(got, "the content of a") > 1 {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	if got, err := cli.WithFiles("@most"); err != nil || strings.Count(got, "x") < 64<<10 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := cli.WithFiles(strings.TrimSuffix(many, "@f9 ")); err != nil {
		t.Error(err)
	}
	for in, want := range map[string]string{
		"@big": "more than 64 KiB", "@binary": "not UTF-8", "@fifo": "no regular file", "@.": "no regular file", many: "8 files",
		"@/dev/zero": "no regular file",
	} {
		if got, err := cli.WithFiles(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d bytes, %v", in, len(got), err)
		}
	}
}

// A mark that a file cannot know ends it: what it says cannot be taken for the person's words.
func TestDataIsMarked(t *testing.T) {
	one, two := cli.AsData("file", "x"), cli.AsData("file", "x")
	if one == two || strings.Count(one, "\nx\n") != 1 {
		t.Errorf("%q, %q", one, two)
	}
}

// A person's own command is bounded, ends with its context, and has no terminal or input.
func TestShell(t *testing.T) {
	t.Setenv("SHELL", "/bin/sh")
	out, err := cli.Shell(t.Context(), "head -c 300000 /dev/zero | tr '\\0' z; cat; exit 4")
	if err != nil || strings.Count(out, "z") != 20_000 || !strings.Contains(out, "280000 bytes more") ||
		!strings.HasSuffix(out, "(exit code 4)") {
		t.Errorf("%d bytes that end with %q, %v", len(out), out[max(len(out)-100, 0):], err)
	}
	if out, err := cli.Shell(t.Context(), `printf 'a\377b'`); err != nil || out != "a\uFFFDb" {
		t.Errorf("%q, %v", out, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if out, err := cli.Shell(ctx, "sleep 4218"); err != nil || !strings.Contains(out, "(ended)") {
		t.Errorf("%q, %v", out, err)
	}
}

// The model's name comes from the flag, the environment or the settings; without any, all three are named.
func TestNameOfTheModel(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("CARREL_HOST", "unix://"+dir+"/none.sock")
	t.Setenv("CARREL_LLM", "")
	const nameless = "without its name"
	if r := run(t, "", "ask", "why?"); r.code == 0 || !strings.Contains(r.err, nameless) || !strings.Contains(r.err, "llm: NAME") {
		t.Errorf("no name: %+v", r)
	}
	for what, args := range map[string][]string{
		"flag":     {"ask", "--on", "none", "--llm", "m1", "why?"},
		"settings": {"ask", "--on", "none", "why?"},
	} {
		if what == "settings" {
			if err := errors.Join(os.Mkdir(filepath.Join(dir, "carrel"), 0o700),
				os.WriteFile(filepath.Join(dir, "carrel", "agent.yaml"), []byte("llm: m1\n"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if r := run(t, "", args...); r.code == 0 || strings.Contains(r.err, nameless) || !strings.Contains(r.err, "none.sock") {
			t.Errorf("%s: %+v", what, r)
		}
	}
}
