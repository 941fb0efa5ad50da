package script_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// The pages of docs/guide are run as scripts. The blocks marked sh are commands, and each line of a block
// marked text that follows is in what they print, where … stands for anything. A page says in its first line
// who runs it.
func TestGuide(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to bring carrel up")
	}
	pages, err := filepath.Glob("../../docs/guide/[a-z]*.md")
	if err != nil || len(pages) < 4 {
		t.Fatalf("the pages: %v, %v", pages, err)
	}
	// What a page makes outside of its directory, should it fail before it removes that.
	t.Cleanup(func() { _ = os.RemoveAll("/srv/carrel-guide"); _ = os.Remove("/srv/carrel-guide.yaml") })
	dir := t.TempDir()
	for _, page := range pages {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		script, err := scriptOf(string(b))
		if err != nil {
			t.Fatalf("%s: %v", page, err)
		}
		name := strings.TrimSuffix(filepath.Base(page), ".md") + ".txtar"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	testscript.Run(t, testscript.Params{
		Dir: dir, Setup: setup, RequireUniqueNames: true,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"block": block},
	})
}

// block USER FILE runs a file of commands by bash, in the directory and with the home of the page. For root,
// sudo is nothing, and up, down and doctor are about the instance of the script.
func block(ts *testscript.TestScript, _ bool, args []string) {
	home := filepath.Join(ts.Getenv("BASE"), "home")
	uid := 0
	if args[0] == "user" {
		uid = int(actors["alice"])
	}
	if err := os.Mkdir(home, 0o700); err == nil {
		ts.Check(os.Chown(home, uid, uid))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", "-eu", "-c", `
sudo() { "$@"; }
[[ -v DATA ]] && carrel() {
	case $1 in up|down|doctor) command carrel "$@" --data "$DATA" --runtime-dir "$RUN" ;; *) command carrel "$@" ;; esac
}
`+ts.ReadFile(args[1]))
	c.Dir = home
	for _, name := range []string{"PATH", "DATA", "RUN", "CARREL_HOST"} {
		c.Env = append(c.Env, name+"="+ts.Getenv(name))
	}
	c.Env = append(c.Env, "HOME="+home)
	if uid != 0 {
		c.Env = []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + home}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), Groups: []uint32{}}}
	}
	c.Stdout, c.Stderr = ts.Stdout(), ts.Stdout()
	if err := c.Run(); err != nil {
		ts.Fatalf("%s: %v", args[1], err)
	}
}

// scriptOf is the script of a page.
func scriptOf(page string) (string, error) {
	first, rest, _ := strings.Cut(page, "\n")
	who := map[string]string{"<!-- run by root -->": "root", "<!-- run by an ordinary user -->": "user"}[first]
	if who == "" {
		return "", fmt.Errorf("the first line does not say who runs it: %q", first)
	}
	var steps, files strings.Builder
	blocks := 0
	for _, m := range regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$").FindAllStringSubmatch(rest, -1) {
		kind, text := m[1], m[2]
		if kind == "sh" {
			blocks++
			fmt.Fprintf(&steps, "block %s block-%d\n", who, blocks)
			fmt.Fprintf(&files, "-- block-%d --\n%s", blocks, text)
			continue
		}
		for line := range strings.Lines(text) {
			want := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(line)), "…", ".*")
			fmt.Fprintf(&steps, "stdout '%s'\n", strings.ReplaceAll(want, "'", "''"))
		}
	}
	if blocks == 0 {
		return "", errors.New("there is no command")
	}
	return steps.String() + files.String(), nil
}

func TestScriptOf(t *testing.T) {
	got, err := scriptOf("<!-- run by root -->\n# A\n```sh\na 'b'\n```\nThen\n```text\nit's … (1)\n```\n```\nnot run\n```\n")
	want := "block root block-1\nstdout 'it''s .* \\(1\\)'\n-- block-1 --\na 'b'\n"
	if err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	for _, page := range []string{"# A\n```sh\na\n```\n", "<!-- run by root -->\nnothing\n"} {
		if _, err := scriptOf(page); err == nil {
			t.Errorf("%q passes", page)
		}
	}
}
