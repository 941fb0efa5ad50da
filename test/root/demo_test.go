package root_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// demo runs the demo with an expectation turned around, if plant names one, and returns
// its exit code and what it said.
func demo(t *testing.T, plant, interruptAt string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	c := exec.CommandContext(ctx, "./demo")
	c.Dir = filepath.Join("..", "..", "scripts")
	c.Env = append(os.Environ(), "CARREL_DEMO_BIN="+bin, "CARREL_DEMO_PLANT="+plant)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as a shell starts it
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = c.Stdout
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if interruptAt != "" && strings.HasPrefix(lines.Text(), interruptAt) {
			// Ctrl-C goes to all that the terminal has in the foreground.
			if err := syscall.Kill(-c.Process.Pid, syscall.SIGINT); err != nil {
				t.Error(err)
			}
		}
	}
	err = c.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	dir := regexp.MustCompile(`/var/tmp/carrel-demo\.\w+`).FindString(said.String())
	if dir == "" {
		t.Fatalf("it names no directory:\n%s", said.String())
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left", dir)
	}
	users, err := os.ReadFile("/etc/passwd")
	if err != nil || strings.Contains(string(users), dir) {
		t.Errorf("users are left: %v", err)
	}
	return c.ProcessState.ExitCode(), said.String()
}

func TestDemo(t *testing.T) {
	needRoot(t)
	t.Parallel()
	script, err := os.ReadFile(filepath.Join("..", "..", "scripts", "demo"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^(?:\w+=(?:"[^"]*"|\S+) )*(?:check|answers) ([a-z-]+) `).FindAllStringSubmatch(string(script),
		-1) {
		names = append(names, m[1])
	}
	if len(names) < 30 {
		t.Fatalf("the demo makes only these checks: %q", names)
	}
	slices.Sort(names)
	if unique := slices.Compact(slices.Clone(names)); len(unique) != len(names) {
		t.Errorf("two checks have one name: %q", names)
	}
	code, said := demo(t, "", "")
	if code != 0 || !strings.Contains(said, "All as expected") {
		t.Fatalf("exit code %d:\n%s", code, said)
	}
	// It can fail: of each kind of check one is turned around.
	for _, plant := range []string{"list", "diary", "forks", "edited", "left"} {
		if !slices.Contains(names, plant) {
			t.Errorf("there is no check %s", plant)
			continue
		}
		code, said := demo(t, plant, "")
		if code != 1 || !strings.Contains(said, "not as expected") || strings.Contains(said, "All as expected") {
			t.Errorf("with a wrong expectation of %q: exit code %d:\n%s", plant, code, said)
		}
	}
	for _, at := range []string{"1.", "2.", "4."} {
		if code, said := demo(t, "", at); code != 130 {
			t.Errorf("interrupted at %s: exit code %d:\n%s", at, code, said)
		}
	}
}
