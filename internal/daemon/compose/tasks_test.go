package compose_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/tasks"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// taskHouse is a house whose tasks have a program, and patience with it that a test can outlast.
func taskHouse(t *testing.T, agent func(*agentDouble) int) *house {
	t.Helper()
	return hastyHouse(t, time.Minute, agent)
}

// hastyHouse is taskHouse where a program that has closed its output has so long to end.
func hastyHouse(t *testing.T, leave time.Duration, agent func(*agentDouble) int) *house {
	t.Helper()
	h := newHouse(t)
	h.crash()
	h.tasks = tasks.Patience{
		Handshake: time.Minute, Read: time.Minute, Stop: 100 * time.Millisecond, Leave: leave, Serve: time.Minute,
	}
	h.rt.agent = agent
	h.start()
	h.create(alice, "demo")
	h.create(alice, "work") // what agents in demo work in
	return h
}

// task starts a task of alice's in demo.
func (h *house) task(protocol string) workspace.Task {
	h.t.Helper()
	task, err := h.RunTask(h.t.Context(), alice, "demo", run("agent"), workspace.TaskSpec{Protocol: protocol, Prompt: "do it"})
	if err != nil {
		h.t.Fatal(err)
	}
	return task
}

// follows returns the messages of a task after a number, as "NUMBER KIND BODY", and the task at its end.
func (h *house) follows(task workspace.Task, after int64) (all []string, end workspace.Task) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	end, err := h.FollowTask(ctx, alice, "demo", task.ID, after, false, func(m workspace.TaskMessage, lost int64) error {
		if lost > 0 {
			all = append(all, fmt.Sprintf("lost %d", lost))
		}
		all = append(all, fmt.Sprintf("%d %s %s", m.Number, m.Kind, m.Body))
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return all, end
}

func (h *house) endOf(protocol string) workspace.Task {
	h.t.Helper()
	_, end := h.follows(h.task(protocol), 0)
	return end
}

// A task from its prompt to its completion: messages in order and resumed from a number, and a record of it all.
func TestTask(t *testing.T) {
	h := taskHouse(t, func(a *agentDouble) int {
		c, err := a.read()
		if err != nil || c.Method != "execute_prompt" || c.Params["prompt"] != "do it" {
			return 1
		}
		a.say(`{"jsonrpc":"2.0","method":"report_message","params":{"text":"one"}}`)
		if c, err = a.ask(7, "report_message", `{"text":"two"}`); err != nil || c.Result["number"] != 3.0 {
			return 2
		}
		a.say(`{"jsonrpc":"2.0","id":8,"method":"report_completion","params":{"status":"completed","reason":"well"}}`)
		return 0
	})
	at := len(h.records())
	task := h.task("")
	all, end := h.follows(task, 0)
	want := []string{
		`1 prompt {"text":"do it"}`, `2 message {"text":"one"}`, `3 message {"text":"two"}`,
		`4 completion {"status":"completed","reason":"well"}`,
	}
	if !slices.Equal(all, want) || end.State != workspace.TaskCompleted || end.Reason != "well" || end.Last != 4 || end.Ended.IsZero() {
		t.Errorf("%q, %+v", all, end)
	}
	if all, _ := h.follows(task, 2); !slices.Equal(all, want[2:]) {
		t.Errorf("after 2: %q", all)
	}
	list, err := h.ListTasks(t.Context(), alice, "demo")
	if err != nil || len(list) != 1 || list[0].ID != task.ID || list[0].Argv[0] != "agent" {
		t.Errorf("%+v, %v", list, err)
	}
	h.crash()
	h.start()
	if all, end := h.follows(task, 0); !slices.Equal(all, want) || end.State != workspace.TaskCompleted {
		t.Errorf("after a restart: %q, %+v", all, end)
	}
	var kinds []string
	for _, r := range h.records()[at:] {
		if strings.Contains(string(r.Action), `"kind":"task.run"`) || strings.Contains(string(r.Action), `"kind":"command.exec"`) {
			kinds = append(kinds, string(r.Action))
		}
	}
	if len(kinds) != 2 || !strings.Contains(kinds[0], "prompt_digest") || !strings.Contains(kinds[1], string(task.ID)) {
		t.Errorf("recorded %q", kinds)
	}
}

// hostile are programs that break rules, and how their tasks end.
var hostile = map[string]struct {
	protocol string
	agent    func(a *agentDouble) int
	reason   string
}{
	"it crashes": {"", func(a *agentDouble) int {
		_, _ = a.read()
		_, _ = io.WriteString(a.errs, "a stack trace\n")
		return 3
	}, `Executor terminated unexpectedly: it exited with 3 before it said how its task ended; the end of its stderr: "a stack trace"`},
	"it closes its output": {"", func(a *agentDouble) int {
		_ = a.out.Close()
		for _, err := a.read(); err == nil; _, err = a.read() {
		}
		return 0
	}, "Executor terminated unexpectedly: it closed its output"},
	"half a line": {"", func(a *agentDouble) int {
		_, _ = io.WriteString(a.out, `{"jsonrpc":"2.0","method":"report_me`)
		return 0
	}, "Executor terminated unexpectedly: its output ended in the middle of a line"},
	"no JSON": {"", func(a *agentDouble) int { a.say("Loading model..."); return drained(a) }, "no message of JSON-RPC"},
	"a huge line": {"", func(a *agentDouble) int {
		for i, piece := 0, strings.Repeat("1", 1<<20); i < 100; i++ {
			if _, err := io.WriteString(a.out, piece); err != nil {
				break
			}
		}
		return 0
	}, "a line of more than 524288 bytes"},
	"another task": {"", func(a *agentDouble) int {
		a.say(reports(`{"task":"c-0123456789abcdef"}`))
		return drained(a)
	}, "spoke of another task"},
	"an answer to no request": {
		"", func(a *agentDouble) int { a.say(`{"jsonrpc":"2.0","id":99,"result":{}}`); return drained(a) }, "a request that was not made, 99",
	},
	"a status that there is not": {"", func(a *agentDouble) int {
		a.say(`{"jsonrpc":"2.0","method":"report_completion","params":{"status":"perfect"}}`)
		return drained(a)
	}, `with the status "perfect"`},
	"it says that it failed": {"", func(a *agentDouble) int {
		a.say(`{"jsonrpc":"2.0","method":"report_completion","params":{"status":"failed","reason":"no idea"}}`)
		return drained(a)
	}, "no idea"},
	"it refuses the prompt": {"", func(a *agentDouble) int {
		a.say(`{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"not today"}}`)
		return drained(a)
	}, "refused the prompt: not today"},
	"a permission without an id": {"", func(a *agentDouble) int {
		a.say(`{"jsonrpc":"2.0","method":"request_permission","params":{"title":"x","command":"y"}}`)
		return drained(a)
	}, "without an id"},
	"an id twice": {"", func(a *agentDouble) int {
		for range 2 {
			a.say(`{"jsonrpc":"2.0","id":5,"method":"request_permission","params":{"title":"x","command":"y"}}`)
		}
		return drained(a)
	}, "id 5 while another with that id is open"},
	"ACP: a version that there is not": {"acp", func(a *agentDouble) int {
		_, _ = a.ask(1, "x", "{}")
		a.say(`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":9}}`)
		return drained(a)
	}, "speaks version 9 of ACP"},
	"ACP: answers out of order": {"acp", func(a *agentDouble) int {
		a.say(`{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}`)
		return drained(a)
	}, "a request that was not made or was answered before, 3"},
	"ACP: an answer twice": {"acp", func(a *agentDouble) int {
		for range 2 {
			a.say(`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}`)
		}
		return drained(a)
	}, "a request that was not made or was answered before, 1"},
	"ACP: a session that there is not": {"acp", func(a *agentDouble) int {
		acpBegins(a, "s1")
		a.say(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s2","update":{"sessionUpdate":"plan"}}}`)
		return drained(a)
	}, `a session that it does not have, "s2"`},
	"ACP: it has to log in": {"acp", func(a *agentDouble) int {
		a.say(`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}`)
		a.say(`{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"Authentication required"}}`)
		return drained(a)
	}, "the agent refused session/new: Authentication required"},
	"ACP: it refuses to go on": {"acp", func(a *agentDouble) int {
		acpBegins(a, "s1")
		a.say(`{"jsonrpc":"2.0","id":3,"result":{"stopReason":"refusal"}}`)
		return drained(a)
	}, `ended its turn before it was done: "refusal"`},
}

func reports(params string) string {
	return `{"jsonrpc":"2.0","method":"report_message","params":` + params + `}`
}

// drained reads until its input ends.
func drained(a *agentDouble) int {
	for _, err := a.read(); err == nil; _, err = a.read() {
	}
	return 0
}

// acpBegins is an agent until it has the prompt.
func acpBegins(a *agentDouble, session string) {
	a.say(`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{}}}`)
	a.say(`{"jsonrpc":"2.0","id":2,"result":{"sessionId":%q}}`, session)
	for c, err := a.read(); err == nil && c.Method != "session/prompt"; c, err = a.read() {
	}
}

// A program that breaks a rule fails its task, with the reason, and another task goes on.
func TestHostileTasks(t *testing.T) {
	for name, x := range hostile {
		t.Run(name, func(t *testing.T) {
			leave := time.Minute
			if name == "it closes its output" { // and does not end
				leave = 50 * time.Millisecond
			}
			h := hastyHouse(t, leave, x.agent)
			end := h.endOf(x.protocol)
			if end.State != workspace.TaskFailed || !strings.Contains(end.Reason, x.reason) {
				t.Errorf("%s: %s", end.State, end.Reason)
			}
			failed := slices.ContainsFunc(h.records(), func(r audit.Record) bool {
				return r.Type == audit.Outcome && r.Status == audit.StatusFailed && strings.Contains(string(r.Data), string(end.ID))
			})
			if !failed {
				t.Error("the failure is not recorded")
			}
			h.rt.mu.Lock()
			h.rt.agent = func(a *agentDouble) int {
				a.say(`{"jsonrpc":"2.0","id":1,"result":{}}`)
				return drained(a)
			}
			h.rt.mu.Unlock()
			if end := h.endOf(""); end.State != workspace.TaskCompleted {
				t.Errorf("the next task: %+v", end)
			}
		})
	}
}

// An agent that answers nothing fails its task after its time, and one that reads nothing too.
func TestTaskSilence(t *testing.T) {
	h := newHouse(t)
	h.crash()
	h.tasks = tasks.Patience{Handshake: 50 * time.Millisecond, Read: 50 * time.Millisecond, Stop: time.Second, Leave: 50 * time.Millisecond}
	h.rt.agent = drained
	h.start()
	h.create(alice, "demo")
	if end := h.endOf("acp"); end.State != workspace.TaskFailed || !strings.Contains(end.Reason, "has not answered initialize for 50ms") {
		t.Errorf("%+v", end)
	}
	h.rt.agent = func(a *agentDouble) int {
		for n := 2; n < 10_000; n++ { // the answers fill its stdin
			a.say(`{"jsonrpc":"2.0","id":%d,"method":"unknown","params":{}}`, n)
		}
		<-a.done
		return 0
	}
	if end := h.endOf(""); end.State != workspace.TaskFailed || !strings.Contains(end.Reason, "has read nothing of what it was sent") {
		t.Errorf("%+v", end)
	}
}

// A flood is stored as it comes, the oldest messages go, and a follower is told how many.
func TestTaskFlood(t *testing.T) {
	const n = 6000
	h := taskHouse(t, func(a *agentDouble) int {
		for i := range n {
			a.say(reports(fmt.Sprintf(`{"n":%d,"text":%q}`, i, strings.Repeat("x", 500))))
		}
		a.say(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		return drained(a)
	})
	task := h.task("")
	_, end := h.follows(task, 0)
	if end.State != workspace.TaskCompleted || end.Last != n+2 || end.Lost == 0 {
		t.Fatalf("%+v", end)
	}
	all, _ := h.follows(task, 0)
	if all[0] != fmt.Sprintf("lost %d", end.Lost) || len(all) != int(end.Last-end.Lost)+1 || len(all) > 4097 {
		t.Errorf("%d messages, the first %.80q, of %+v", len(all), all[0], end)
	}
	bytes := 0
	for i, m := range all[1:] {
		bytes += len(m)
		if !strings.HasPrefix(m, fmt.Sprintf("%d ", end.Lost+int64(i)+1)) {
			t.Fatalf("message %d is %.40q", end.Lost+int64(i)+1, m)
		}
	}
	if bytes > 3<<20 {
		t.Errorf("%d bytes are kept", bytes)
	}
}

// A task that is asked to stop ends; one that does not listen is hung up.
func TestStopTask(t *testing.T) {
	for name, agent := range map[string]func(a *agentDouble) int{
		"it listens": func(a *agentDouble) int {
			for c, err := a.read(); err == nil; c, err = a.read() {
				if c.Method == "stop_task" {
					a.say(`{"jsonrpc":"2.0","id":1,"result":{}}`)
				}
			}
			return 0
		},
		"it does not": drained,
		"it asks": func(a *agentDouble) int {
			a.say(`{"jsonrpc":"2.0","id":5,"method":"request_permission","params":{"title":"x","command":"y"}}`)
			return drained(a)
		},
	} {
		h := taskHouse(t, agent)
		task := h.task("")
		end, err := h.StopTask(t.Context(), alice, "demo", task.ID)
		if err != nil || end.State != workspace.TaskStopped || end.Reason != "stopped by uid:1000" {
			t.Errorf("%s: %+v, %v", name, end, err)
		}
		if again, err := h.StopTask(t.Context(), alice, "demo", task.ID); err != nil || again.State != workspace.TaskStopped {
			t.Errorf("%s, a second time: %+v, %v", name, again, err)
		}
	}
}

// The daemon ends in the middle: the task has failed when it is there again, with what it reported.
func TestTaskOfAnEarlierDaemon(t *testing.T) {
	h := taskHouse(t, func(a *agentDouble) int {
		a.say(reports(`{"text":"one"}`))
		return drained(a)
	})
	task := h.task("")
	_, err := h.FollowTask(t.Context(), alice, "demo", task.ID, 0, false, func(m workspace.TaskMessage, _ int64) error {
		if m.Number == 2 {
			return io.EOF
		}
		return nil
	})
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	// As after kill -9: the end of the task is not kept.
	h.inDatabase(`CREATE TRIGGER lost BEFORE UPDATE OF state ON tasks BEGIN SELECT RAISE(IGNORE); END`)
	h.start()
	h.inDatabase(`DROP TRIGGER lost`)
	h.start()
	all, end := h.follows(task, 0)
	if end.State != workspace.TaskFailed || !strings.HasPrefix(end.Reason, workspace.TaskUnexpected) || len(all) != 2 {
		t.Errorf("%q, %+v", all, end)
	}
}

// Nobody reaches a task of another tenant, by any method, and who may only look starts and stops none.
func TestTasksOfOthers(t *testing.T) {
	h := taskHouse(t, drained)
	task := h.task("")
	ctx := t.Context()
	methods := func(p principal.Principal, ref string) map[string]error {
		all := map[string]error{}
		_, all["run"] = h.RunTask(ctx, p, ref, run("agent"), workspace.TaskSpec{Prompt: "do it"})
		_, all["list"] = h.ListTasks(ctx, p, ref)
		_, all["show"] = h.Task(ctx, p, ref, task.ID)
		_, all["follow"] = h.FollowTask(ctx, p, ref, task.ID, 0, true, func(workspace.TaskMessage, int64) error { return nil })
		_, all["stop"] = h.StopTask(ctx, p, ref, task.ID)
		return all
	}
	for name, err := range methods(bob, "demo") {
		if !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s of another's task: %v", name, err)
		}
	}
	h.create(bob, "his")
	for name, err := range methods(bob, "his") {
		if name == "show" || name == "follow" || name == "stop" {
			if !errdefs.IsNotFound(err) {
				t.Errorf("%s of another's task in one's own workspace: %v", name, err)
			}
		}
	}
	looks, _ := h.issue(alice, principal.Wanted{Roles: principal.Approver})
	for name, err := range methods(looks, "demo") {
		if may := name == "list" || name == "show" || name == "follow"; may != (err == nil) || !may && !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s by who may look: %v", name, err)
		}
	}
	if now, err := h.Task(ctx, alice, "demo", task.ID); err != nil || now.State != workspace.TaskRunning {
		t.Errorf("%+v, %v", now, err)
	}
	if _, err := h.StopTask(ctx, alice, "demo", id.Command("c-0123456789abcdef")); !errdefs.IsNotFound(err) {
		t.Errorf("one that there is not: %v", err)
	}
}

// An owner runs so many tasks at once, and others theirs.
func TestTasksAreBounded(t *testing.T) {
	h := taskHouse(t, drained)
	for range 32 {
		h.task("")
	}
	_, err := h.RunTask(t.Context(), alice, "demo", run("agent"), workspace.TaskSpec{Prompt: "do it"})
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "carrel task stop") {
		t.Errorf("one more: %v", err)
	}
	h.create(bob, "his")
	if _, err := h.RunTask(t.Context(), bob, "his", run("agent"), workspace.TaskSpec{Prompt: "do it"}); err != nil {
		t.Errorf("of another: %v", err)
	}
	for _, p := range []string{"", strings.Repeat("x", tasks.MaxPrompt+1), "\xff"} {
		if _, err := h.RunTask(t.Context(), bob, "his", run("agent"), workspace.TaskSpec{Prompt: p}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("a prompt of %d bytes: %v", len(p), err)
		}
	}
	other := workspace.TaskSpec{Protocol: "other", Prompt: "p"}
	if _, err := h.RunTask(t.Context(), bob, "his", run("agent"), other); !errdefs.IsInvalidArgument(err) {
		t.Errorf("another protocol: %v", err)
	}
}
