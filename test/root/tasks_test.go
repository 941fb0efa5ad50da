package root_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// aTask is what "carrel task show -o json" prints.
type aTask struct{ ID, State, Reason string }

func (d *desk) task(t testing.TB, id string) (x aTask) {
	t.Helper()
	if err := json.Unmarshal([]byte(d.h.carrel(t, "task", "show", "-o", "json", d.Key, id)), &x); err != nil {
		t.Fatal(err)
	}
	return x
}

// begin starts a task whose program is a shell script, and returns its id.
func (d *desk) begin(t testing.TB, script string, flags ...string) string {
	t.Helper()
	args := append([]string{"task", "run", "-d", "-p", "say hello"}, flags...)
	return strings.TrimSpace(d.h.carrel(t, append(args, d.Key, "--", "/bin/sh", "-c", script)...))
}

const (
	says     = `say() { printf '%s\n' "$1"; }; `
	complete = `say '{"jsonrpc":"2.0","id":1,"result":{"text":"done"}}'; `
)

// A task over the real wire: the prompt arrives, messages are printed in order, and the exit code is the task's.
func TestTasks(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shared.desk(t)
	r := d.h.try(nil, "", "task", "run", "-p", "say hello", d.Key, "--", "/bin/sh", "-c", says+
		`read -r line; case $line in *execute_prompt*'say hello'*) ;; *) exit 9;; esac
		say '{"jsonrpc":"2.0","method":"report_message","params":{"text":"one"}}'
		say '{"jsonrpc":"2.0","method":"report_message","params":{"text":"two"}}'; `+complete)
	want := "1 prompt {\"text\":\"say hello\"}\n2 message {\"text\":\"one\"}\n3 message {\"text\":\"two\"}\n4 completion {\"text\":\"done\"}\n"
	if r.code != 0 || r.out != want {
		t.Fatalf("%+v", r)
	}
	id := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(r.err), "carrel: this is task "))
	if x := d.task(t, id); x.State != "completed" || x.ID != id {
		t.Errorf("%+v", x)
	}
	if out := d.h.carrel(t, "task", "follow", "--after", "2", d.Key, id); out != strings.Join(strings.SplitAfter(want, "\n")[2:], "") {
		t.Errorf("from 2 on: %q", out)
	}
	if out := d.h.carrel(t, "task", "ls", d.Key); !strings.Contains(out, id) {
		t.Errorf("ls: %s", out)
	}
}

// Programs that crash, flood or break a rule: each task fails by itself, with the reason, and nothing else is harmed.
func TestTasksThatBreakRules(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shared.desk(t)
	for name, x := range map[string]struct {
		script, reason string
		flags          []string
	}{
		"it is killed":      {`kill -9 $$`, "Executor terminated unexpectedly: it was ended by signal 9", nil},
		"it exits":          {`echo why >&2; exit 7`, `it exited with 7 before it said how its task ended; the end of its stderr: "why"`, nil},
		"it closes stdout":  {`exec >&-; sleep 1000`, "it closed its output without saying how its task ended", nil},
		"it speaks no JSON": {`echo hello; sleep 1000`, "no message of JSON-RPC", nil},
		"a line of 100 MB":  {`head -c 100000000 /dev/zero | tr '\0' x; sleep 1000`, "a line of more than 524288 bytes", nil},
		"half a line":       {`printf '{"jsonrpc"'; exit 0`, "ended in the middle of a line", nil},
		"it lies about ids": {says + `say '{"jsonrpc":"2.0","id":77,"result":{}}'; sleep 1000`, "a request that was not made, 77", nil},
		"it never answers":  {`sleep 1000`, "it ran out of its time", []string{"--timeout", "1s"}},
		"ACP: it floods": {
			`while :; do echo '{"jsonrpc":"2.0","method":"session/update","params":{}}'; done`,
			"of another form",
			[]string{"--acp"},
		},
		"there is no such":   {`exec /no/such`, "it exited with 127", nil},
		"it leaves a writer": {`sleep 1000 & exit 3`, "it exited with 3", nil},
	} {
		r := d.h.try(nil, "", append(append([]string{"task", "run", "-p", "hello"}, x.flags...), d.Key, "--", "/bin/sh", "-c", x.script)...)
		if r.code != 1 || !strings.Contains(r.err, x.reason) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	until(t, "nothing is left of them", func() bool {
		return strings.TrimSpace(d.h.carrel(t, "ps", "-o", "json", d.Key)) == "[]"
	})
	d.well(t)
	d.h.carrel(t, "audit", "verify")
}

// A flood that keeps to the rules is slowed and does not harm another task.
func TestTasksFlood(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shared.desk(t)
	flood := d.begin(t, `while :; do echo '{"jsonrpc":"2.0","method":"report_message","params":{"text":"flood"}}'; done`)
	r := d.h.try(nil, "", "task", "run", "-p", "hello", d.Key, "--", "/bin/sh", "-c", says+complete)
	if r.code != 0 {
		t.Errorf("another task: %+v", r)
	}
	d.h.carrel(t, "task", "stop", d.Key, flood)
	if x := d.task(t, flood); x.State != "stopped" || x.Reason != "stopped by uid:0" {
		t.Errorf("%+v", x)
	}
}

// What a task asks for waits for a person with its full command, and the answer is told to the task.
func TestTasksAsk(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shared.desk(t)
	id := d.begin(t, says+`read -r prompt
		say '{"jsonrpc":"2.0","id":5,"method":"request_permission","params":{"title":"publish","command":["git","push","origin"]}}'
		read -r answer; printf '%s' "$answer" > answer; `+complete)
	var list []struct {
		ID, State, Workspace string
		Argv                 []string
	}
	name := ""
	until(t, "the question", func() bool {
		if err := json.Unmarshal([]byte(d.h.carrel(t, "approvals", "list", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			if strings.Join(a.Argv, " ") == "git push origin" && a.Workspace == d.Name {
				name = a.ID
			}
		}
		return name != ""
	})
	shown := d.h.carrel(t, "approvals", "show", name)
	if !strings.Contains(shown, "git push origin") || !strings.Contains(shown, "publish") || !strings.Contains(shown, id) {
		t.Errorf("it shows %s", shown)
	}
	d.h.carrel(t, "approvals", "approve", name)
	until(t, "the end", func() bool { return d.task(t, id).State == "completed" })
	if out := d.sh(t, "cat answer"); !strings.Contains(out, `"allowed":true`) {
		t.Errorf("the task was told %s", out)
	}
}

// The daemon is killed in the middle of a task: the task has failed when it is there again, its messages are kept, its
// program has ended, and another can be run. A workspace that is stopped ends its tasks.
func TestTasksOfADaemonThatIsKilled(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	id := d.begin(t, says+`say '{"jsonrpc":"2.0","method":"report_message","params":{"text":"one"}}'; touch began; sleep 1000`)
	until(t, "a message", func() bool { return strings.Contains(h.carrel(t, "task", "follow", "--now", d.Key, id), "2 message") })
	mark := h.mark(t)
	kill(t, h.part(t, "daemon"))
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	if x := d.task(t, id); x.State != "failed" || !strings.HasPrefix(x.Reason, "Executor terminated unexpectedly: the daemon ended") {
		t.Errorf("%+v", x)
	}
	if out := h.try(nil, "", "task", "follow", d.Key, id); out.code != 1 || !strings.Contains(out.out, `2 message {"text":"one"}`) {
		t.Errorf("%+v", out)
	}
	h.recorded(t, mark, `"type":"outcome"`, `"status":"interrupted"`)
	until(t, "its program has ended", func() bool { return d.sh(t, "ps -e -o args | grep -c '[s]leep 1000' || true") == "0" })
	if r := h.try(nil, "", "task", "run", "-p", "hello", d.Key, "--", "/bin/sh", "-c", says+complete); r.code != 0 {
		t.Errorf("another task: %+v", r)
	}
	other := d.begin(t, `sleep 1000`)
	h.carrel(t, "stop", d.Key)
	until(t, "the end of a task in a stopped workspace", func() bool { return d.task(t, other).State == "failed" })
	if x := d.task(t, other); !strings.HasPrefix(x.Reason, "Executor terminated unexpectedly") {
		t.Errorf("%+v", x)
	}
	h.carrel(t, "audit", "verify")
}

// A task whose program speaks on a descriptor: what it prints is ordinary output, which is kept; it has no other descriptor; and
// one that crashes has failed its task.
func TestTasksOnADescriptor(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shared.desk(t)
	run := func(script string) result {
		return d.h.try(nil, "", "task", "run", "--fd", "3", "-p", "say hello", d.Key, "--", "/usr/bin/perl", "-e",
			`$| = 1; open S, "+<&=$ENV{CARREL_TASK_FD}" or die; sub say { syswrite S, "$_[0]\n" } `+script)
	}
	r := run(`$_ = <S>; /execute_prompt.*say hello/ or exit 9; print "no message\n"; print STDERR "nor this\n";
		say join '', '{"jsonrpc":"2.0","method":"report_message","params":{"open":"',
			(map { readlink "/proc/self/fd/$_" ? "$_ " : "" } 0..99), '"}}';
		say '{"jsonrpc":"2.0","id":1,"result":{"text":"done"}}'`)
	want := "1 prompt {\"text\":\"say hello\"}\n2 message {\"open\":\"0 1 2 3 \"}\n3 completion {\"text\":\"done\"}\n"
	if r.code != 0 || r.out != want {
		t.Fatalf("%+v", r)
	}
	id := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(r.err), "carrel: this is task "))
	until(t, "its output", func() bool { return d.h.carrel(t, "logs", d.Key, id) == "no message\nnor this\n" })
	for script, reason := range map[string]string{
		`print "why\n"; kill 9, $$`: "Executor terminated unexpectedly: it was ended by signal 9; \"carrel logs ",
		`close S; exit 7`:           "Executor terminated unexpectedly: it exited with 7",
		`<S>; say "hello"; sleep`:   "no message of JSON-RPC",
	} {
		if r := run(script); r.code != 1 || !strings.Contains(r.err, reason) {
			t.Errorf("%s: %+v", script, r)
		}
	}
	if r := d.h.try(nil, "", "task", "run", "--fd", "64", "-p", "x", d.Key, "--", "true"); r.code != 125 {
		t.Errorf("--fd 64: %+v", r)
	}
	d.well(t)
}

// Another user reaches a task by no method, and does not learn whether there is one.
func TestTasksOfAnotherUser(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shared.desk(t)
	id := d.begin(t, "sleep 1000")
	who := user(t, "crt-task")
	for _, args := range [][]string{
		{"task", "run", "-p", "hello", d.Key, "--", "true"},
		{"task", "ls", d.Key},
		{"task", "show", d.Key, id},
		{"task", "stop", d.Key, id},
		{"task", "follow", d.Key, id},
	} {
		if r := d.h.try(who, "", args...); r.code == 0 || !strings.Contains(r.err, "it belongs to another user") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if x := d.task(t, id); x.State != "running" {
		t.Errorf("%+v", x)
	}
	began := time.Now()
	d.h.carrel(t, "task", "stop", d.Key, id)
	if x := d.task(t, id); x.State != "stopped" {
		t.Errorf("after %v: %+v", time.Since(began), x)
	}
}
