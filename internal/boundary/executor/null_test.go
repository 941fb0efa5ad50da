package executor_test

import (
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// What a command does to its /dev/null, another one does not find there.
func TestNullIsOfOneCommand(t *testing.T) {
	bothRoles(t, func(t *testing.T, _ *launchtest.Workspace, c *client) {
		const flags = "; sed -n 's/^flags:[[:space:]]*//p' /proc/self/fdinfo/3"
		first := string(c.sh("exec 3<&0" + flags).Stdout)
		r := c.sh("dd iflag=nonblock,append count=0 2>/dev/null; exec 3<&0" + flags)
		if strings.TrimSpace(string(r.Stdout)) == strings.TrimSpace(first) {
			t.Fatalf("dd did not change the flags %q", r.Stdout)
		}
		if second := string(c.sh("exec 3<&0" + flags).Stdout); first == "" || second != first {
			t.Errorf("flags of stdin: %q, and then %q", first, second)
		}
	})
}

// A command that is named by its path and writes nowhere, and one that makes a pipe, run alike.
func TestIDsOfStreams(t *testing.T) {
	bothRoles(t, func(t *testing.T, _ *launchtest.Workspace, c *client) {
		const reopen = "test -r /dev/stdin && test -w /dev/stdout && : >/dev/stdout"
		for _, p := range []execapi.ExecParams{
			{Argv: []string{"/bin/sh", "-c", reopen}},
			{Argv: []string{"sh", "-c", reopen}},
			{Argv: []string{"/bin/sh", "-c", reopen}, Stdout: execapi.Pipe, Stdin: execapi.Pipe},
		} {
			n, _ := c.start(p, execapi.MethodExec)
			if s := c.wait(n); s.Code != 0 {
				t.Errorf("%v, stdout %q: %+v", p.Argv, p.Stdout, s)
			}
		}
	})
}
