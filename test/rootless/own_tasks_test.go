package rootless_test

import (
	"net"
	"os"
	"strings"
	"testing"
)

// A user's own carrel runs tasks, also where executor and commands share one id.
func TestOwnTasks(t *testing.T) { eachOwner(t, ownTasks) }

func ownTasks(t *testing.T, u *user) {
	u.must("create", "one")
	run := func(script string) result {
		t.Helper()
		return u.carrel("task", "run", "-p", "say hello", "one", "--", "sh", "-c", script)
	}
	r := run(`read -r prompt; echo '{"jsonrpc":"2.0","method":"report_message","params":{"text":"hello"}}'
		echo '{"jsonrpc":"2.0","method":"report_completion","params":{}}'`)
	if r.code != 0 || !strings.Contains(r.out, "2 message {\"text\":\"hello\"}\n3 completion {}\n") {
		t.Errorf("%+v", r)
	}
	if r := run(`exit 4`); r.code != 1 || !strings.Contains(r.err, "Executor terminated unexpectedly: it exited with 4") {
		t.Errorf("%+v", r)
	}
	onFD := func(script string) result {
		t.Helper()
		return u.carrel("task", "run", "--fd", "3", "-p", "say hello", "one", "--", "sh", "-c", script)
	}
	r = onFD(`read -r prompt <&3; echo printed; echo '{"jsonrpc":"2.0","method":"report_completion","params":{"fd":'$CARREL_TASK_FD'}}' >&3`)
	if r.code != 0 || !strings.Contains(r.out, "2 completion {\"fd\":3}\n") {
		t.Errorf("on a descriptor: %+v", r)
	}
	id := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(r.err), "carrel: this is task "))
	if out := u.must("logs", "-f", "one", id); strings.TrimSpace(out) != "printed" {
		t.Errorf("it printed %q", out)
	}
	if r := onFD(`kill -9 $$`); r.code != 1 || !strings.Contains(r.err, "Executor terminated unexpectedly: it was ended by signal 9") {
		t.Errorf("on a descriptor: %+v", r)
	}
	if out := u.must("task", "ls", "one"); !strings.Contains(out, "completed") || !strings.Contains(out, "failed") {
		t.Errorf("listed are\n%s", out)
	}
}

// An agent in a workspace of a user's own carrel works by carrel's tools, also where executor, commands and daemon share one id.
func TestOwnTaskTools(t *testing.T) { eachOwner(t, ownTaskTools) }

func ownTaskTools(t *testing.T, u *user) {
	agent, err := os.ReadFile("../root/testdata/acp-tools.py")
	if err != nil {
		t.Fatal(err)
	}
	u.must("create", "one")
	u.must("create", "two")
	u.sh("cat > agent.py <<'E'\n" + string(agent) + "E")
	u.must("cp", "agent.py", "one:agent.py")
	prompt := `{"calls": [["tools/list", {}], ["tools/call", {"name": "exec", "arguments": {"command": "echo by-a-tool > made"}}], ` +
		`["tools/call", {"name": "read_file", "arguments": {"path": "made"}}], ["wait", {"file": "go-on"}]]}`
	id := strings.TrimSpace(u.must("task", "run", "-d", "--acp", "-p", prompt, "one", "--", "/usr/bin/python3", "agent.py"))
	followed := make(chan result, 1)
	go func() { followed <- u.carrel("task", "follow", "one", id) }()
	knock := func(where string) string {
		return u.carrel("exec", where, "--", "/usr/bin/python3", "-c", "import socket, sys\n"+
			"try:\n    socket.socket(socket.AF_UNIX).connect('\\0' + sys.argv[1])\n    print('connected')\n"+
			"except OSError as e:\n    print(e.strerror)", "carrel-mcp-"+id).out
	}
	if got := knock("one"); got != "connected\n" {
		t.Errorf("from inside: %s", got)
	}
	if got := knock("two"); got != "Connection refused\n" {
		t.Errorf("from another workspace: %s", got)
	}
	if c, err := new(net.Dialer).DialContext(t.Context(), "unix", "@carrel-mcp-"+id); err == nil {
		c.Close()
		t.Error("it is reached from the host")
	}
	u.must("exec", "one", "--", "touch", "go-on")
	if r := <-followed; r.code != 0 || !strings.Contains(r.out, `"name":"exec"`) || !strings.Contains(r.out, "by-a-tool") {
		t.Errorf("%+v", r)
	}
	if got := u.must("exec", "one", "--", "cat", "made"); got != "by-a-tool" {
		t.Errorf("made: %q", got)
	}
	if got := knock("one"); got != "Connection refused\n" {
		t.Errorf("after the end: %s", got)
	}
}
