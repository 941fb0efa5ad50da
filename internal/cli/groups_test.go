package cli_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// A word that is none of a group's commands is told which there are, as its help does.
func TestGroupsNameTheirCommands(t *testing.T) {
	groups := 0
	for _, line := range [][]string{
		{"egress"},
		{"secret"},
		{"model"},
		{"archive"},
		{"files"},
		{"task"},
		{"job"},
		{"agent"},
		{"agent", "memory"},
		{"runbook"},
		{"approvals"},
		{"token"},
		{"context"},
		{"audit"},
		{"policy"},
		{"completion"},
	} {
		help := run(t, "", append(line, "--help")...).out
		_, below, ok := strings.Cut(help, "Available Commands:\n")
		if !ok {
			t.Errorf("%v has no commands", line)
			continue
		}
		groups++
		below, _, _ = strings.Cut(below, "\n\n")
		r := run(t, "", append(line, "no-such-command")...)
		for _, m := range regexp.MustCompile(`(?m)^  (\S+)`).FindAllStringSubmatch(below, -1) {
			if r.code == 0 || !strings.Contains(r.err, m[1]) {
				t.Errorf("%v does not name %s: %+v", line, m[1], r)
			}
		}
	}
	if groups < 15 {
		t.Errorf("only %d groups were looked at", groups)
	}
}

// What is no id says where ids of its kind are listed.
func TestWhatIsNoIDSaysWhereIDsAre(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for line, want := range map[string]string{
		"job show x":     `cannot use "x" as the id of a job: it must look like "c-0123456789abcdef"; "carrel job ls" lists them`,
		"job output x":   `"carrel job ls" lists them`,
		"job stop x":     `"carrel job ls" lists them`,
		"job rm x":       `"carrel job ls" lists them`,
		"runbook show x": `cannot find the runbook "x": there is none; "carrel runbook ls" lists them` + "\n",
	} {
		if r := run(t, "", strings.Fields(line)...); r.code == 0 || !strings.Contains(r.err, want) {
			t.Errorf("%s: %+v", line, r)
		}
	}
}

// The first word is completed by commands and their other names, and not by what completes by itself.
func TestFirstWordsThatAreOffered(t *testing.T) {
	r := run(t, "", "__complete", "")
	if !strings.Contains(r.out, "exec\t") || !strings.Contains(r.out, "rm\t") || strings.Contains(r.out, "__complete") {
		t.Errorf("offered: %s", r.out)
	}
}

// A command whose output has no place says that, and that it may have done what was asked for.
func TestOutputThatHasNoPlace(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	c := exec.CommandContext(t.Context(), self, "runbook", "ls")
	c.Env = append(os.Environ(), asCLI+"=1")
	c.Stdout, c.Stderr = full, &said
	const want = "carrel: cannot write the output: no space left on device; "
	if err := c.Run(); c.ProcessState.ExitCode() != 1 || !strings.HasPrefix(said.String(), want) {
		t.Errorf("it ends with %v and says %q", err, said.String())
	}
}
