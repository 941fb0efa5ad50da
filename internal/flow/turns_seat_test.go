package flow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/redact"
	"github.com/carrel-dev/carrel/internal/runtime"
	"github.com/carrel-dev/carrel/internal/tasks"
	"github.com/carrel-dev/carrel/internal/workspace"
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
	tools := &seatTools{opened: make(chan tasks.Opening, 4)}
	h := taskHouse(t, func(a *agentDouble) int {
		o := <-tools.opened
		if _, err := o.Seat.Read(t.Context(), []byte("{}")); err == nil || !strings.Contains(err.Error(), "has not begun") {
			// It may have begun: then it is no answer.
			if err != nil {
				t.Errorf("before the turn: %v", err)
			}
		}
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
