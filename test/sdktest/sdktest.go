// Package sdktest runs the tests and the examples of the clients in other languages against a daemon that a test brought up,
// with the sources of the tree and nothing installed.
//
// It must start no daemon itself: its users know for which user, and by which way, a client is to ask.
package sdktest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is how long the tests of one client may take; they take half a minute.
const patience = 4 * time.Minute

// Language is a client in another language.
type Language struct {
	Name    string // the directory below sdk/
	program string
	tests   []string
	suffix  string // of examples
	env     string
}

// Languages are all of them.
var Languages = []Language{
	{
		"python", "python3",
		[]string{"-m", "unittest", "discover", "-t", ".", "-s", "tests", "-v"},
		".py", "PYTHONPATH=.",
	},
	{"typescript", "node", []string{"--test", "--test-reporter=tap", "test/"}, ".mjs", "NODE_NO_WARNINGS=1"},
}

// Place is a copy of a client's directory that a user may read.
type Place struct {
	Language
	dir, program string
	// As is the user, nil for this process's own.
	As *syscall.Credential
	// Env is what says where the daemon is.
	Env []string
}

// Copy copies a client into a directory, which as may enter and write in. It skips the test where the language's program is
// not on this host, where every user may run it.
func (l Language) Copy(t *testing.T, dir string, as *syscall.Credential, env ...string) *Place {
	t.Helper()
	program := "/usr/bin/" + l.program
	if _, err := os.Stat(program); err != nil {
		t.Skipf("skipped: there is no %s on this host; apt-get install --no-install-recommends %s", program,
			strings.Replace(l.program, "node", "nodejs", 1))
	}
	p := &Place{l, filepath.Join(dir, "sdk-"+l.Name), program, as, env}
	if err := os.CopyFS(p.dir, os.DirFS(source(l.Name))); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "chmod", "-R", "a+rX", p.dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return p
}

func source(name string) string { return filepath.Join("..", "..", "sdk", name) }

// Tests runs the client's tests, and says which of them were skipped.
func (p *Place) Tests(t *testing.T, env ...string) {
	t.Helper()
	out, ok := p.run(t, env, p.tests)
	if !ok {
		t.Errorf("the tests of %s failed:\n%s", p.Name, out)
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, "skipped:") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// Examples runs the client's examples, each of which has to print what its last comment says.
func (p *Place) Examples(t *testing.T, env ...string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(source(p.Name), "examples", "*"+p.suffix))
	if err != nil || len(files) == 0 {
		t.Fatalf("examples %q, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, want, _ := bytes.Cut(text, []byte(" Output:\n"))
			if len(want) == 0 {
				t.Fatal("it does not say what it prints: end it with a comment \"Output:\"")
			}
			out, ok := p.run(t, env, []string{filepath.Join("examples", filepath.Base(file))})
			if lines(out) != lines(string(want)) || !ok {
				t.Errorf("it prints\n%s", out)
			}
		})
	}
}

// lines is a text without the signs of comments and the spaces around lines.
func lines(s string) string {
	all := strings.Split(strings.TrimSpace(s), "\n")
	for i := range all {
		all[i] = strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(all[i], "//"), "#"))
	}
	return strings.Join(all, "\n")
}

func (p *Place) run(t *testing.T, env, args []string) (out string, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, p.program, args...)
	c.Dir = p.dir
	c.Env = append([]string{"PATH=/usr/bin:/bin", "HOME=" + filepath.Dir(p.dir), p.env, "PYTHONDONTWRITEBYTECODE=1"}, append(p.Env, env...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: p.As, Pdeathsig: syscall.SIGKILL}
	b, err := c.CombinedOutput()
	return string(b) + errorText(err), err == nil
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return "\n" + err.Error() + "\n"
}
