package root_test

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// socketOf is the name of a task's socket.
func socketOf(task string) string { return execapi.Listening(id.Command(task)) }

// knock is a script that tries to connect to the socket in its argument, and says what becomes of it.
const knock = `import socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(20)
try:
    s.connect("\0" + sys.argv[1][1:])
    print("connected")
except OSError as e:
    print(e.strerror)`

// knocks tries to connect from a workspace.
func (d *desk) knocks(t testing.TB, task string) string {
	t.Helper()
	return strings.TrimSpace(d.try("/usr/bin/python3", "-c", knock, socketOf(task)).out)
}

// running reports whether a command line runs in the workspace.
func (d *desk) running(t testing.TB, what string) bool {
	t.Helper()
	return d.sh(t, "ps -e -o args | grep -c '["+what[:1]+"]"+what[1:]+"' || true") != "0"
}

// The socket of a task is its workspace's: no other workspace and nobody on the host reaches it. It ends with the task, and so does
// what was called: a command that runs, and one that waits for a person.
func TestTaskToolsEndWithTheTask(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d, other := shared.desk(t), shared.desk(t)
	id := d.toolTask(t, false, tool("exec", map[string]any{"command": "touch began; exec sleep 4711"}))
	until(t, "a command by a tool", func() bool { return d.try("test", "-e", "began").code == 0 })
	if got := d.knocks(t, id); got != "connected" {
		t.Fatalf("from inside: %s", got)
	}
	if got := other.knocks(t, id); got != "Connection refused" {
		t.Errorf("from another workspace: %s", got)
	}
	if c, err := new(net.Dialer).DialContext(t.Context(), "unix", socketOf(id)); err == nil {
		c.Close()
		t.Error("it is reached from the host")
	}
	d.h.carrel(t, "task", "stop", d.Key, id)
	if got := d.knocks(t, id); got != "Connection refused" {
		t.Errorf("after the end of the task: %s", got)
	}
	until(t, "the end of the command", func() bool { return !d.running(t, "sleep 4711") })
	if left := d.sh(t, "find /run /tmp -type s | wc -l"); left != "0" {
		t.Errorf("%s sockets are left", left)
	}
	d.h.carrel(t, "audit", "verify")
}

// What a person approves after the task was stopped is not run by it.
func TestTaskToolsAskAndEnd(t *testing.T) {
	h := newHostWith(t, func(string) string { return "idle_timeout: 0s\n" }) // with the rules that are built in
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	d := h.desk(t)
	ask := tool("exec", map[string]any{"argv": []string{"git", "push", "--force", "origin", "main"}})
	id := d.toolTask(t, true, ask)
	var name string
	until(t, "the question", func() bool {
		var list []struct{ ID, Workspace, Requester string }
		if err := json.Unmarshal([]byte(h.carrel(t, "approvals", "list", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			if a.Workspace == d.Name {
				name = a.ID
			}
		}
		return name != ""
	})
	until(t, "the answer", func() bool { return len(d.answers(t, id)) == 1 })
	if got := d.answers(t, id)[0]; !got.Answer.Result.IsError || !strings.Contains(got.text(), name) ||
		!strings.Contains(got.text(), "You cannot approve") && !strings.Contains(got.text(), "carrel approvals approve") {
		t.Errorf("%s", got.text())
	}
	h.carrel(t, "task", "stop", d.Key, id)
	// Another waits for its answer when its task is stopped.
	waits := d.toolTask(t, false, tool("wait_approval", map[string]any{"approval": name, "wait_s": 600}))
	until(t, "the session", func() bool { return d.try("test", "-e", "servers.json").code == 0 })
	h.carrel(t, "task", "stop", d.Key, waits)
	mark := h.mark(t)
	h.carrel(t, "approvals", "approve", name)
	h.settled(t)
	for _, r := range h.since(t, mark) {
		if strings.Contains(r.raw, "command.exec") && strings.Contains(r.raw, `"--force"`) && r.Type == "intent" {
			t.Errorf("it was run: %s", r.raw)
		}
	}
}

// flood is a script that does to a socket what no client would.
const flood = `import socket, sys, os, resource, time
name, how = "\0" + sys.argv[1][1:], sys.argv[2]
hello = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},' \
    b'"clientInfo":{"name":"x","version":"1"}}}\n{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
def connect():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(60)
    s.connect(name)
    return s
if how == "many":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    all, n = [], 0
    until = time.time() + 8
    for i in range(1000):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(max(0.01, until - time.time()))
        try:
            s.connect(name)
            n += 1
        except OSError:
            pass
        all.append(s)
    print(n)
    sys.stdout.flush()
    os.close(1)
    time.sleep(1000)
s = connect()
s.sendall(hello)
n = 0
try:
    while True:
        if how == "line":
            n += s.send(b"x" * 65536)
        else:
            n += s.send(b'{"jsonrpc":"2.0","id":%d,"method":"tools/list"}\n' % (n + 1))
except OSError as e:
    print(n)`

// Connections without end, an endless line and a client that never reads, while an honest agent works by the same socket: it is
// served, the others are cut, and the daemon is well.
func TestTaskToolsFlood(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shared.desk(t)
	id := d.toolTask(
		t, false, mcpCall{"tools/list", map[string]any{}}, mcpCall{"wait", map[string]any{"file": "go-on"}},
		tool("exec", map[string]any{"command": "echo still served", "workspace": d.Name}),
		tool("exec", map[string]any{"command": "echo still served"}),
		tool("list_workspaces", map[string]any{}),
	)
	until(t, "the session", func() bool { return len(d.answers(t, id)) == 1 })
	daemon := d.h.part(t, "daemon")
	before := descriptors(t, daemon)
	for _, how := range []string{"line", "reads"} {
		r := d.try("/usr/bin/python3", "-c", flood, socketOf(id), how)
		var n int
		if _, err := fmt.Sscan(r.out, &n); err != nil || n == 0 || n > 4<<20 {
			t.Errorf("%s: %d bytes were taken: %+v", how, n, r)
		}
	}
	d.detach(t, "/bin/sh", "-c", `/usr/bin/python3 -c "$0" "$1" many > many; touch many-ended`, flood, socketOf(id))
	until(t, "the connections", func() bool { return d.try("test", "-s", "many").code == 0 })
	if n := descriptors(t, daemon); n > before+64 {
		t.Errorf("the daemon has %d files open, and had %d", n, before)
	}
	began := d.h.try(nil, "", "ls")
	if began.code != 0 || began.took > patience/3 {
		t.Errorf("the daemon is not well: %+v", began)
	}
	d.sh(t, "touch go-on")
	until(t, "the end", func() bool { return d.task(t, id).State != "running" })
	all := d.answers(t, id)
	if len(all) != 4 || !strings.Contains(all[1].text(), "cannot use the argument workspace") || !strings.Contains(all[2].text(), "still served") ||
		all[3].Answer.Error == nil {
		t.Errorf("%+v", all)
	}
}

// A token that is revoked in the middle, and one that does not reach the workspace by its new key: the session is cut, and nothing
// more is done.
func TestTaskToolsOfATokenThatEnds(t *testing.T) {
	h := newHostFor(t)
	for what, end := range map[string]func(d *desk, token string){
		"revoked": func(_ *desk, token string) { h.carrel(t, "token", "revoke", token) },
		"renamed": func(d *desk, _ string) {
			h.carrel(t, "update", "--key", d.Key+" moved", d.Key)
			d.Key += " moved"
		},
	} {
		t.Run(what, func(t *testing.T) {
			d := h.desk(t)
			var token struct {
				Token string
				About struct{ ID string }
			}
			said := h.carrel(t, "token", "create", "-o", "json", "--role", "agent", "--workspace", d.Key)
			if err := json.Unmarshal([]byte(said), &token); err != nil {
				t.Fatalf("%v: %s", err, said)
			}
			id := d.toolTaskOf(
				t, []string{"CARREL_TOKEN=" + token.Token}, true, tool("exec", map[string]any{"command": "echo one; touch one"}),
				mcpCall{"wait", map[string]any{"file": "go-on"}}, tool("exec", map[string]any{"command": "touch two"}),
			)
			until(t, "the first call", func() bool { return len(d.answers(t, id)) == 1 })
			if got := d.answers(t, id)[0].text(); !strings.Contains(got, "exit code 0") {
				t.Fatalf("the first call: %s", got)
			}
			end(d, token.About.ID)
			d.sh(t, "touch go-on")
			until(t, "the second call", func() bool { return len(d.answers(t, id)) == 2 })
			if got := d.answers(t, id)[1]; !strings.Contains(got.Answer.Closed, "carrel has ended the session") {
				t.Errorf("the second call: %+v", got)
			}
			if d.try("test", "-e", "two").code == 0 {
				t.Error("it was run")
			}
			if got := strings.TrimSpace(d.try("/usr/bin/python3", "-c", flood, socketOf(id), "reads").out); got == "" {
				t.Error("the socket is not there any more")
			}
			h.carrel(t, "task", "stop", d.Key, id)
		})
	}
	h.carrel(t, "audit", "verify")
}

// Agent, daemon and executor are killed: no socket is left that somebody could take for one, and another task is served.
func TestTaskToolsOfWhatIsKilled(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	begin := func() string {
		t.Helper()
		d.sh(t, "rm -f began")
		id := d.toolTask(t, true, tool("exec", map[string]any{"command": "touch began; exec sleep 4712"}))
		until(t, "a command by a tool", func() bool { return d.try("test", "-e", "began").code == 0 })
		return id
	}
	gone := func(what, id string) {
		t.Helper()
		if got := d.knocks(t, id); got != "Connection refused" {
			t.Errorf("the %s was killed: %s", what, got)
		}
		until(t, "the end of its command", func() bool { return !d.running(t, "sleep 4712") })
	}
	id := begin()
	d.sh(t, "kill -9 $(pgrep -f '[a]gent.py')")
	until(t, "the end of the task", func() bool { return d.task(t, id).State == "failed" })
	gone("agent", id)

	id = begin()
	kill(t, h.part(t, "daemon"))
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	gone("daemon", id)

	id = begin()
	kill(t, d.ExecutorPID)
	until(t, "the end of the task", func() bool { return d.task(t, id).State == "failed" })
	gone("executor", id)
	d.h.carrel(t, "task", "stop", d.Key, begin())
	h.carrel(t, "audit", "verify")
}
