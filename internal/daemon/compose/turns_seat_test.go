package compose_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/agent/tasks"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// seatTools stands for the server of tools: it hands on what tools propose by.
type seatTools struct{ opened chan tasks.Opening }

func (s *seatTools) Open(_ context.Context, o tasks.Opening) (argv []string, end func(), err error) {
	s.opened <- o
	return []string{"/bridge", "mcp", "@x"}, func() {}, nil
}

// seatHouse is a house for an agent in the place of carrel's own. What it does once it has the prompt is act, which is given the texts of
// that and what its tools propose by.
func seatHouse(t *testing.T, rules string, act func(a *agentDouble, prompt []string, by tasks.Seat)) *house {
	t.Helper()
	return seatHouseBefore(t, rules, func(by tasks.Seat) {
		// It may have begun: then it is an answer.
		if _, err := by.Read(t.Context(), []byte("{}")); err != nil && !strings.Contains(err.Error(), "has not begun") {
			t.Errorf("before the turn: %v", err)
		}
	}, act)
}

// seatHouseBefore is seatHouse with something that is done before the agent says anything.
func seatHouseBefore(
	t *testing.T, rules string, before func(by tasks.Seat), act func(a *agentDouble, prompt []string, by tasks.Seat),
) *house {
	t.Helper()
	tools := &seatTools{opened: make(chan tasks.Opening, 4)}
	h := taskHouse(t, func(a *agentDouble) int {
		o := <-tools.opened
		before(o.Seat)
		a.say(`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{}}}`)
		a.say(`{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s1"}}`)
		var c call
		for err := error(nil); c.Method != "session/prompt"; {
			if c, err = a.read(); err != nil {
				return 1
			}
		}
		var prompt []string
		all, _ := c.Params["prompt"].([]any)
		for _, p := range all {
			text, _ := p.(map[string]any)["text"].(string)
			prompt = append(prompt, text)
		}
		act(a, prompt, o.Seat)
		a.say(`{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}`)
		return drained(a)
	})
	h.crash()
	h.tools, h.policy = tools, rulesOf(rules)
	h.tasks.Call = time.Minute
	h.redact = redact.New([]byte("k"))
	h.redact.Know("files", toldSecret)
	h.start()
	return h
}

// seatTurn runs a turn to its end.
func (h *house) seatTurn(d *hostsDouble) (all []string, end workspace.Task) {
	h.t.Helper()
	task, err := h.RunTask(h.t.Context(), alice, "demo", run("agent"),
		workspace.TaskSpec{Protocol: "agent-acp", Prompt: "do it", Serve: true, Memory: []string{"a note of alice's"}})
	if err != nil {
		h.t.Fatal(err)
	}
	leave, _, err := h.ServeHosts(h.t.Context(), alice, "demo", task.ID, d)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(leave)
	return h.follows(task, 0)
}

// replyOf is what came of a proposal.
func replyOf(t *testing.T, told tasks.Told, err error) (r answerTo) {
	t.Helper()
	if err != nil {
		t.Errorf("nothing was taken: %v", err)
		return r
	}
	if err := json.Unmarshal(told.Reply, &r); err != nil {
		t.Errorf("%v: %s", err, told.Reply)
	}
	if well := r.Outcome == "done" || r.Outcome == "failed" || r.Outcome == "waiting"; well != told.Well {
		t.Errorf("%s is well: %v", told.Reply, told.Well)
	}
	return r
}

// An agent in the seat is told in front of its prompt what carrel's own is told beside it, gets the same replies, and what it says is told
// in whole lines without secrets, also where they come in pieces.
func TestSeat(t *testing.T) {
	h := seatHouse(t, judged, func(a *agentDouble, prompt []string, by tasks.Seat) {
		if len(prompt) != 2 || prompt[1] != "do it" {
			t.Errorf("the prompt is %q", prompt)
		}
		for _, part := range []string{"- host\n", "- remote web-1\n", "- a note of alice's\n", "propose_plan"} {
			if len(prompt) < 1 || !strings.Contains(prompt[0], part) {
				t.Errorf("it is not told %q: %q", part, prompt)
			}
		}
		told, err := by.Read(t.Context(), []byte(callsOf(readOf("host", "/etc/hosts"))))
		if r := replyOf(t, told, err); r.Outcome != "done" || r.Steps[0].Stdout != "well\n" {
			t.Errorf("read: %+v", r)
		}
		if _, err := by.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "no plan was proposed") {
			t.Errorf("it waits for no plan: %v", err)
		}
		told, err = by.Plan(t.Context(), []byte(planText(onTarget("host", "uptime"))))
		if r := replyOf(t, told, err); r.Outcome != "done" || r.Steps[0].Stdout != "well\n" {
			t.Errorf("plan: %+v", r)
		}
		if again, err := by.Wait(t.Context()); err != nil || string(again.Reply) != string(told.Reply) {
			t.Errorf("it waits for the last plan: %s, %v", again.Reply, err)
		}
		half := len(toldSecret) / 2
		for _, piece := range []string{"It is " + toldSecret[:half], toldSecret[half:] + ".\nAnd", " more", "."} {
			text, _ := json.Marshal(piece)
			a.say(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"agent_message_chunk",` +
				`"content":{"type":"text","text":` + string(text) + `}}}}`)
		}
	})
	d := &hostsDouble{local: true, remotes: []string{"web-1"}}
	all, end := h.seatTurn(d)
	kept := strings.Join(all, "\n")
	if end.State != workspace.TaskCompleted {
		t.Errorf("%s: %s\n%s", end.State, end.Reason, kept)
	}
	if strings.Contains(kept, toldSecret[:len(toldSecret)/2]) || !strings.Contains(kept, `[redacted:`) ||
		!strings.Contains(kept, `"And more."`) {
		t.Errorf("it is told so: %s", kept)
	}
	for _, kind := range []string{" tool {", " plan {", " step {"} {
		if strings.Count(kept, kind) != 1 {
			t.Errorf("%q is there %d times", kind, strings.Count(kept, kind))
		}
	}
}

// Calls are counted one by one, a second plan is refused, a plan goes on when its call has ended, and after the turn nothing is
// taken.
func TestSeatIsBounded(t *testing.T) {
	var late tasks.Seat
	hold, begun := make(chan struct{}), make(chan struct{}, 1)
	h := seatHouse(t, judged, func(_ *agentDouble, _ []string, by tasks.Seat) {
		late = by
		for i := range 25 {
			told, err := by.Read(t.Context(), []byte(callsOf(readOf("host", "/etc/hosts"))))
			if r := replyOf(t, told, err); (r.Outcome == "done") != (i < 24) || i == 24 && !strings.Contains(r.Why, "called 24 times") {
				t.Errorf("call %d: %+v", i, r)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() {
			_, err := by.Plan(ctx, []byte(planText(onTarget("host", "uptime"))))
			first <- err
		}()
		<-begun
		if _, err := by.Plan(t.Context(), []byte(planText(onTarget("host", "touch f")))); err == nil ||
			!strings.Contains(err.Error(), "cannot take a second plan") {
			t.Errorf("a second plan: %v", err)
		}
		if _, err := by.Read(t.Context(), []byte(callsOf(readOf("host", "/etc/hosts")))); err == nil ||
			!strings.Contains(err.Error(), "a plan is being carried out") {
			t.Errorf("a call meanwhile: %v", err)
		}
		cancel()
		if err := <-first; err == nil {
			t.Error("the call of the plan goes on")
		}
		close(hold)
		told, err := by.Wait(t.Context())
		if r := replyOf(t, told, err); r.Outcome != "done" || len(r.Steps) != 1 {
			t.Errorf("the plan whose call has ended: %+v", r)
		}
	})
	d := &hostsDouble{local: true}
	d.run = func(_ context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
		if c.Argv[2] == "uptime" {
			begun <- struct{}{}
			<-hold
		}
		return runtime.HostResult{Status: &execapi.Status{}}, nil
	}
	if all, end := h.seatTurn(d); end.State != workspace.TaskCompleted {
		t.Errorf("%s: %s\n%s", end.State, end.Reason, strings.Join(all, "\n"))
	}
	ran := len(d.all())
	for range 20 { // what waits for its turn might be let in by chance
		_, err := late.Plan(t.Context(), []byte(planText(onTarget("host", "touch late"))))
		if err == nil || !strings.Contains(err.Error(), "the turn is over") {
			t.Errorf("after the turn: %v", err)
		}
	}
	if n := len(d.all()); n != ran || ran != 25 {
		t.Errorf("%d were run, and %d", ran, n)
	}
}

// A plan that takes longer than its call is waiting, and one that a person has denied ends what is taken.
func TestSeatWaits(t *testing.T) {
	asked, answer := make(chan *approval.View, 4), make(chan struct{})
	h := seatHouse(t, "rules: []\n", func(_ *agentDouble, _ []string, by tasks.Seat) {
		told, err := by.Plan(t.Context(), []byte(planText(onTarget("host", "touch f"))))
		if r := replyOf(t, told, err); r.Outcome != "waiting" || !strings.Contains(r.Why, "wait_plan") {
			t.Errorf("while it is asked about: %+v", r)
		}
		close(answer)
		var r answerTo
		for r.Outcome = "waiting"; r.Outcome == "waiting"; {
			told, err = by.Wait(t.Context())
			r = replyOf(t, told, err)
		}
		if r.Outcome != "denied" {
			t.Errorf("denied: %+v", r)
		}
		for i, text := range []string{planText(onTarget("host", "touch f")), callsOf(readOf("host", "/etc/hosts"))} {
			if i == 0 {
				told, err = by.Plan(t.Context(), []byte(text))
			} else {
				told, err = by.Read(t.Context(), []byte(text))
			}
			if r := replyOf(t, told, err); r.Outcome != "blocked" || !strings.Contains(r.Why, "was not approved") {
				t.Errorf("after that: %+v", r)
			}
		}
	})
	h.crash()
	h.tasks.Call = 50 * time.Millisecond
	h.start()
	h.person(func(a *approval.View) approval.Kind {
		if a.Keep == nil || a.Keep.Thread == "" || len(a.Keep.Steps) != 1 { // as of carrel's own agent
			t.Errorf("an answer cannot hold for the session: %+v", a.Keep)
		}
		asked <- a
		<-answer
		return approval.Deny
	})
	d := &hostsDouble{local: true}
	if all, end := h.seatTurn(d); end.State != workspace.TaskCompleted {
		t.Errorf("%s: %s\n%s", end.State, end.Reason, strings.Join(all, "\n"))
	}
	if len(asked) != 1 || len(d.all()) > 0 {
		t.Errorf("%d questions, and %q were run", len(asked), d.all())
	}
}

// A program that goes on after nothing is taken any more fails its task.
func TestSeatThatGoesOn(t *testing.T) {
	taken := 0
	h := seatHouse(t, judged, func(_ *agentDouble, _ []string, by tasks.Seat) {
		for i := range 10_000 {
			told, err := by.Read(t.Context(), fmt.Appendf(nil, "no plan %d", i))
			if err != nil {
				return
			}
			replyOf(t, told, err)
			taken++
		}
	})
	all, end := h.seatTurn(&hostsDouble{local: true})
	if end.State != workspace.TaskFailed || !strings.Contains(end.Reason, "goes on calling tools") || taken > 80 {
		t.Errorf("%s: %s, after %d", end.State, end.Reason, taken)
	}
	if n := strings.Count(strings.Join(all, "\n"), " refusal "); n != 3 {
		t.Errorf("%d refusals are kept", n)
	}
}

// An agent in the seat proposes a note by a tool, with the rules of carrel's own: one, without secrets, and none once it may have read
// something. What it reads by tools of its own counts, also when it says so only after the call, and in the turns behind.
func TestSeatRemembers(t *testing.T) {
	update := func(a *agentDouble, body string) {
		a.say(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":` + body + `}}`)
	}
	type by = tasks.Seat
	var act func(a *agentDouble, by by)
	h := seatHouseBefore(t, judged, func(by) {}, func(a *agentDouble, _ []string, to tasks.Seat) { act(a, to) }) // nothing is read before
	d := &hostsDouble{local: true}
	propose := func(to by, note, outcome, why string) {
		t.Helper()
		told, err := to.Remember(t.Context(), note)
		if r := replyOf(t, told, err); r.Outcome != outcome || !strings.Contains(r.Why, why) {
			t.Errorf("%.40q: %+v", note, r)
		}
	}
	// turn runs one and returns what the person is shown of notes.
	turn := func(after id.Command, brings bool, does func(a *agentDouble, to by)) (id.Command, []string) {
		t.Helper()
		act = does
		task, err := h.RunTask(t.Context(), alice, "demo", run("agent"), workspace.TaskSpec{
			Protocol: "agent-acp", Prompt: "do it", Serve: true, After: after, BringsData: brings,
		})
		if err != nil {
			t.Fatal(err)
		}
		leave, _, err := h.ServeHosts(t.Context(), alice, "demo", task.ID, d)
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		all, end := h.follows(task, 0)
		if end.State != workspace.TaskCompleted {
			t.Fatalf("%+v", end)
		}
		var offered []string
		for _, m := range all {
			if _, text, ok := strings.Cut(m, " remember "); ok {
				offered = append(offered, text)
			}
		}
		return task.ID, offered
	}
	first, offered := turn("", false, func(_ *agentDouble, to by) {
		propose(to, "a\nb", "invalid", "one line")
		propose(to, strings.Repeat("x", 501), "invalid", "500")
		propose(to, " ", "invalid", "empty")
		propose(to, "the primary is db-1, and "+toldSecret, "done", "may keep it")
		propose(to, "a second one", "refused", "one note")
	})
	if len(offered) != 1 || !strings.HasPrefix(offered[0], `{"text":"the primary is db-1, and [redacted:`) {
		t.Errorf("offered %q", offered)
	}
	note := func(to by) { propose(to, "it is a note", "done", "not if anything is read") }
	late := func(to by) { propose(to, "it is a note", "refused", "has read anything") }
	const memo = `{"sessionUpdate":"tool_call","toolCallId":"t1","title":"mcp__carrel__remember","kind":"other"}`
	for name, x := range map[string]struct {
		does  func(a *agentDouble, to by)
		shown int
	}{
		"in the next turn": {func(_ *agentDouble, to by) { note(to) }, 1},
		"a call that it tells of": {func(a *agentDouble, to by) {
			update(a, memo)
			note(to)
			update(a, `{"sessionUpdate":"tool_call_update","toolCallId":"t1","status":"completed"}`)
		}, 1},
		"behind a tool": {func(_ *agentDouble, to by) {
			told, err := to.Read(t.Context(), []byte(callsOf(readOf("host", "/etc/hosts"))))
			replyOf(t, told, err)
			late(to)
		}, 0},
		"before a plan": {func(_ *agentDouble, to by) {
			note(to)
			told, err := to.Plan(t.Context(), []byte(planText(onTarget("host", "uptime"))))
			replyOf(t, told, err)
		}, 0},
		"a tool of its own": {func(a *agentDouble, to by) {
			note(to)
			update(a, `{"sessionUpdate":"tool_call","toolCallId":"t2","title":"cat README","kind":"execute"}`)
		}, 0},
		"one that looks alike": {func(a *agentDouble, to by) {
			note(to)
			update(a, `{"sessionUpdate":"tool_call","toolCallId":"t2","title":"carrel_remember","kind":"execute"}`)
		}, 0},
		"one under its name": {func(a *agentDouble, to by) {
			note(to)
			update(a, memo)
			update(a, `{"sessionUpdate":"tool_call_update","toolCallId":"t1","title":"cat README"}`)
		}, 0},
		"two": {func(a *agentDouble, to by) {
			note(to)
			update(a, memo)
			update(a, memo)
		}, 0},
	} {
		task, offered := turn(first, false, x.does)
		if len(offered) != x.shown {
			t.Errorf("%s: offered %q", name, offered)
		}
		// And in the turn behind.
		_, offered = turn(task, false, func(_ *agentDouble, to by) {
			if x.shown == 1 {
				note(to)
			} else {
				late(to)
			}
		})
		if len(offered) != x.shown {
			t.Errorf("behind %s: offered %q", name, offered)
		}
	}
	if _, offered := turn("", true, func(_ *agentDouble, to by) { late(to) }); len(offered) > 0 {
		t.Errorf("with files: offered %q", offered)
	}
}

// What an agent in the seat thinks is told in whole lines without secrets, as what it says, apart from it and up to a bound.
func TestSeatThinks(t *testing.T) {
	h := seatHouse(t, judged, func(a *agentDouble, _ []string, _ tasks.Seat) {
		piece := func(kind, text string) {
			b, _ := json.Marshal(text)
			a.say(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":"` + kind +
				`","content":{"type":"text","text":` + string(b) + `}}}}`)
		}
		half := len(toldSecret) / 2
		piece("agent_thought_chunk", "The key is "+toldSecret[:half])
		piece("agent_thought_chunk", toldSecret[half:]+".\nSo")
		piece("agent_message_chunk", "It is ")
		piece("agent_thought_chunk", " then")
		piece("agent_message_chunk", "well.")
		for range 64 {
			piece("agent_thought_chunk", strings.Repeat("words ", 512)+"\n")
		}
		piece("agent_message_chunk", "Over.")
	})
	all, end := h.seatTurn(&hostsDouble{local: true})
	if end.State != workspace.TaskCompleted {
		t.Fatalf("%s: %s", end.State, end.Reason)
	}
	thoughts, words := "", ""
	for _, m := range all {
		var u struct {
			Update  string                `json:"sessionUpdate"`
			Content struct{ Text string } `json:"content"`
		}
		_, body, _ := strings.Cut(m, " message ")
		if json.Unmarshal([]byte(body), &u) != nil {
			continue
		}
		switch u.Update {
		case "agent_thought_chunk":
			thoughts += u.Content.Text
		case "agent_message_chunk":
			words += u.Content.Text
		}
	}
	if strings.Contains(thoughts, toldSecret[:len(toldSecret)/2]) || !strings.HasPrefix(thoughts, "The key is [redacted:") ||
		!strings.Contains(thoughts, ".\nSo then") {
		t.Errorf("it thinks %.200q", thoughts)
	}
	if words != "It is well.Over." {
		t.Errorf("it says %q", words)
	}
	if n := len(thoughts); n < 60<<10 || n > 65<<10 {
		t.Errorf("%d bytes of thoughts are told", n)
	}
}
