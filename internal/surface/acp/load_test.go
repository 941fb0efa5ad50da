package acp_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/surface/acp"
	"github.com/carrel-dev/carrel/internal/wire/linerpc"
)

// A former session is told again before the answer, turn by turn, and goes on; one that is open is told again as well, but not while a
// turn of it runs; one that there is not is refused.
func TestLoad(t *testing.T) {
	hold := make(chan struct{})
	a := &agent{
		prompt: func(_ context.Context, _ acp.Prompt, to *acp.Turn) error {
			err := to.Words("now")
			<-hold
			return err
		},
		replay: func(next func() *acp.Turn) error {
			one := next()
			code := errors.Join(one.Asked("the first question"), one.Plan(acp.Plan{Digest: "d", Goal: "g", Steps: []string{"host: true"}}),
				one.StepEnd(1, "done", false))
			two := next()
			return errors.Join(code, two.Asked("the second question"), two.Words("an answer"))
		},
	}
	p := serve(t, a)
	load := func(id, dir string) (linerpc.Message, []linerpc.Message) {
		return p.answer(p.send("session/load", map[string]any{"sessionId": id, "cwd": dir, "mcpServers": []any{}}))
	}
	if m, _ := load("ANOTHER", "/project"); m.Error == nil || m.Error.Message != "there is no such session" {
		t.Errorf("an unknown one: %+v", m)
	}
	m, before := load(former, "/project")
	var told []string
	for _, u := range before {
		told = append(told, string(u.Params))
	}
	all := strings.Join(told, "\n")
	for _, want := range []string{
		`"sessionId":"FORMER"`, "the first question", `"toolCallId":"1-plan-1"`, `"status":"completed"`, "an answer",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("it lacks %s: %s", want, all)
		}
	}
	if strings.Count(all, `"sessionUpdate":"user_message_chunk"`) != 2 ||
		strings.Index(all, "first question") > strings.Index(all, "second question") {
		t.Errorf("it is told so: %s", all)
	}
	if m.Error != nil || !strings.Contains(string(m.Result), `"currentModeId":"act"`) || strings.Contains(string(m.Result), "sessionId") {
		t.Errorf("%s, %+v", m.Result, m.Error)
	}
	if m, _ := load(former, "/elsewhere"); m.Error == nil || !strings.Contains(m.Error.Message, "it works in /project") {
		t.Errorf("in another directory: %+v", m)
	}
	id := p.send("session/prompt", prompt(former, "go on"))
	for m := range p.got { // the turn has begun
		if strings.Contains(string(m.Params), "now") {
			break
		}
	}
	if m, _ := load(former, "/project"); m.Error == nil || !strings.Contains(m.Error.Message, "a turn of it runs") {
		t.Errorf("while a turn runs: %+v", m)
	}
	close(hold)
	if m, _ := p.answer(id); string(m.Result) != `{"stopReason":"end_turn"}` {
		t.Errorf("%s, %+v", m.Result, m.Error)
	}
	if m, again := load(former, "/project"); m.Error != nil || len(again) != len(before) {
		t.Errorf("once more: %+v, %d updates and not %d", m, len(again), len(before))
	}
}

// What the agent's program asks for is shown by itself, asked about and over with the answer; the plan stays as it is.
func TestWish(t *testing.T) {
	var allowed bool
	p := serve(t, &agent{prompt: func(ctx context.Context, _ acp.Prompt, to *acp.Turn) (err error) {
		if err := to.Plan(acp.Plan{Digest: "d", Goal: "g", Steps: []string{"host: true"}}); err != nil {
			return err
		}
		if err := to.Wish("w", "a wish"); err != nil {
			return err
		}
		allowed, _, err = to.Ask(ctx, acp.Question{Digest: "w", Text: "echo x"})
		return err
	}})
	session := p.begin()
	id := p.send("session/prompt", prompt(session, "x"))
	for m := range p.got {
		if m.Method == "session/request_permission" {
			if !strings.Contains(string(m.Params), "1-wish-") || !strings.Contains(string(m.Params), "echo x") {
				t.Errorf("asked %s", m.Params)
			}
			yes := linerpc.Message{ID: m.ID, Result: []byte(`{"outcome":{"outcome":"selected","optionId":"allow"}}`)}
			if err := linerpc.Write(p.in, yes); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	m, before := p.answer(id)
	if !allowed || string(m.Result) != `{"stopReason":"end_turn"}` {
		t.Errorf("%v, %s %+v", allowed, m.Result, m.Error)
	}
	if len(before) == 0 || !strings.Contains(string(before[0].Params), `"status":"completed","toolCallId":"1-wish-`) {
		t.Errorf("after the answer: %v", updates(t, before))
	}
}
