package acp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/surface/acp"
	"github.com/carrel-dev/carrel/internal/wire/linerpc"
)

const patience = 20 * time.Second

// peer is an editor, as a test plays it.
type peer struct {
	t   *testing.T
	in  *io.PipeWriter
	got chan linerpc.Message
	end chan error
	id  int
}

// agent is a session that does what a test says.
type agent struct {
	prompt   func(ctx context.Context, p acp.Prompt, to *acp.Turn) error
	planOnly bool
	// replay is what a former session tells, of which the id is former.
	replay   func(next func() *acp.Turn) error
	commands []acp.Command
}

const former = "FORMER"

func (a *agent) Replay(_ context.Context, next func() *acp.Turn) error {
	if a.replay == nil {
		return nil
	}
	return a.replay(next)
}

func (a *agent) Commands() []acp.Command { return a.commands }

func (a *agent) Prompt(ctx context.Context, p acp.Prompt, to *acp.Turn) error {
	return a.prompt(ctx, p, to)
}
func (a *agent) PlanOnly() bool      { return a.planOnly }
func (a *agent) SetPlanOnly(on bool) { a.planOnly = on }

// serve begins to serve an editor whose sessions are all a.
func serve(t *testing.T, a *agent) *peer {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	p := &peer{t: t, in: inW, got: make(chan linerpc.Message, 100), end: make(chan error, 1)}
	go func() {
		n := 0
		newID := func() string { n++; return fmt.Sprint("s", n) }
		err := acp.Serve(t.Context(), "1.2.3", newID, func(_ context.Context, dir, id string, before bool) (acp.Session, error) {
			if dir != "/project" {
				return nil, fmt.Errorf("cannot work in %s", dir)
			}
			if before && id != former {
				return nil, errors.New("there is no such session")
			}
			return a, nil
		}, inR, outW)
		_ = outW.Close()
		p.end <- err
	}()
	go func() {
		defer close(p.got)
		r := linerpc.NewReader(outR)
		for {
			m, err := r.Read()
			if err != nil {
				return
			}
			p.got <- m
		}
	}()
	t.Cleanup(func() { _ = inW.Close() })
	return p
}

// send sends a request, and returns its id.
func (p *peer) send(method string, params any) string {
	p.t.Helper()
	p.id++
	b, err := json.Marshal(params)
	if err != nil {
		p.t.Fatal(err)
	}
	id := fmt.Sprintf("%d", p.id)
	if err := linerpc.Write(p.in, linerpc.Message{ID: json.RawMessage(id), Method: method, Params: b}); err != nil {
		p.t.Fatal(err)
	}
	return id
}

func (p *peer) notify(method string, params any) {
	p.t.Helper()
	b, _ := json.Marshal(params)
	if err := linerpc.Write(p.in, linerpc.Message{Method: method, Params: b}); err != nil {
		p.t.Fatal(err)
	}
}

// next is the next message that comes.
func (p *peer) next() linerpc.Message {
	p.t.Helper()
	select {
	case m, ok := <-p.got:
		if !ok {
			p.t.Fatal("carrel has ended")
		}
		return m
	case <-time.After(patience):
		p.t.Fatal("nothing comes")
	}
	return linerpc.Message{}
}

// answer is the answer to a request, without what comes before.
func (p *peer) answer(id string) (m linerpc.Message, before []linerpc.Message) {
	p.t.Helper()
	for {
		m := p.next()
		if m.Response() && string(m.ID) == id {
			return m, before
		}
		before = append(before, m)
	}
}

// begin makes a session, and returns its id.
func (p *peer) begin() string {
	p.t.Helper()
	m, _ := p.answer(p.send("initialize", map[string]any{"protocolVersion": 1}))
	if !strings.Contains(string(m.Result), `"protocolVersion":1`) {
		p.t.Fatalf("%s %v", m.Result, m.Error)
	}
	m, _ = p.answer(p.send("session/new", map[string]any{"cwd": "/project", "mcpServers": []any{}}))
	var r struct {
		ID    string `json:"sessionId"`
		Modes struct {
			Current string `json:"currentModeId"`
		} `json:"modes"`
	}
	if err := json.Unmarshal(m.Result, &r); err != nil || r.ID == "" || r.Modes.Current != "act" {
		p.t.Fatalf("%s %v", m.Result, m.Error)
	}
	return r.ID
}

func prompt(session, text string) map[string]any {
	return map[string]any{"sessionId": session, "prompt": []any{map[string]string{"type": "text", "text": text}}}
}

// updates are the kinds of what came, with states and ids.
func updates(t *testing.T, messages []linerpc.Message) (out []string) {
	t.Helper()
	for _, m := range messages {
		var p struct {
			Update struct {
				Kind    string `json:"sessionUpdate"`
				ID      string `json:"toolCallId"`
				Status  string `json:"status"`
				Entries []struct{ Status string }
				Content json.RawMessage
			}
		}
		if err := json.Unmarshal(m.Params, &p); err != nil {
			t.Fatal(err)
		}
		s := strings.TrimSpace(p.Update.Kind + " " + p.Update.ID + " " + p.Update.Status)
		for _, e := range p.Update.Entries {
			s += " " + e.Status
		}
		out = append(out, s)
	}
	return out
}

// Of a change to a few files one alone can be let through, and the whole plan is the first answer; of many there is the whole.
func TestOneFileOfAChange(t *testing.T) {
	for files, want := range map[int]string{1: "", 2: "f1", acp.MaxFiles: "f1", acp.MaxFiles + 1: ""} {
		var names []string
		for i := range files {
			names = append(names, fmt.Sprintf("f%d", i))
		}
		a := &agent{prompt: func(ctx context.Context, _ acp.Prompt, to *acp.Turn) error {
			if err := to.Plan(acp.Plan{Digest: "d", Goal: "g", Text: "t", Steps: []string{"s"}, Asks: true}); err != nil {
				return err
			}
			yes, only, err := to.Ask(ctx, acp.Question{Digest: "d", Text: "why", Files: names})
			if !yes || err != nil || only != want {
				return fmt.Errorf("allowed %v, %q alone: %w", yes, only, err)
			}
			return nil
		}}
		p := serve(t, a)
		id := p.send("session/prompt", prompt(p.begin(), "do it"))
		for {
			m := p.next()
			if m.Method == "session/request_permission" {
				var q struct {
					Options []struct{ OptionID, Name, Kind string }
				}
				if err := json.Unmarshal(m.Params, &q); err != nil {
					t.Fatal(err)
				}
				take := q.Options[0].OptionID
				for _, o := range q.Options {
					if o.Name == "Change only f1" && o.Kind == "allow_once" {
						take = o.OptionID
					}
				}
				if n := map[bool]int{true: 2 + files, false: 2}[want != ""]; len(q.Options) != n || q.Options[0].OptionID != "allow" {
					t.Errorf("%d files: %+v", files, q.Options)
				}
				answer := linerpc.Message{ID: m.ID, Result: json.RawMessage(`{"outcome":{"outcome":"selected","optionId":"` + take + `"}}`)}
				if err := linerpc.Write(p.in, answer); err != nil {
					t.Fatal(err)
				}
			}
			if m.Response() && string(m.ID) == id {
				if m.Error != nil {
					t.Errorf("%d files: %s", files, m.Error.Message)
				}
				break
			}
		}
	}
}

// A plan is shown, asked about and carried out, and its steps are told of as they end.
func TestPlanIsApproved(t *testing.T) {
	a := &agent{prompt: func(ctx context.Context, _ acp.Prompt, to *acp.Turn) error {
		if err := to.Plan(acp.Plan{
			Digest: "d", Goal: "make it", Text: "plan 1: make it\n  1. host: a ``` b", Steps: []string{"host: a", "host: b"}, Asks: true,
		}); err != nil {
			return err
		}
		yes, _, err := to.Ask(ctx, acp.Question{Digest: "d", Text: "risk 50"})
		if err != nil || !yes {
			return fmt.Errorf("not allowed: %w", err)
		}
		return errors.Join(to.StepEnd(1, "done", false), to.StepEnd(2, "done", false), to.Words("It *is* so."))
	}}
	p := serve(t, a)
	session := p.begin()
	id := p.send("session/prompt", prompt(session, "do it"))
	var before []linerpc.Message
	var asked linerpc.Message
	for asked = p.next(); asked.Method != "session/request_permission"; asked = p.next() {
		before = append(before, asked)
	}
	if got := strings.Join(updates(t, before), "; "); got != "tool_call 1-plan-1 pending; plan pending pending" {
		t.Errorf("%s", got)
	}
	for _, want := range []string{
		`"toolCallId":"1-plan-1"`, "risk 50", "````\\nplan 1: make it", `"kind":"allow_once"`, `"kind":"reject_once"`,
	} {
		if !strings.Contains(string(asked.Params), want) {
			t.Errorf("it lacks %s: %s", want, asked.Params)
		}
	}
	if strings.Contains(string(asked.Params), "always") {
		t.Errorf("it offers an answer for later: %s", asked.Params)
	}
	if err := linerpc.Write(p.in, linerpc.Message{
		ID: asked.ID, Result: json.RawMessage(`{"outcome":{"outcome":"selected","optionId":"allow"}}`),
	}); err != nil {
		t.Fatal(err)
	}
	m, after := p.answer(id)
	if string(m.Result) != `{"stopReason":"end_turn"}` {
		t.Errorf("%s %v", m.Result, m.Error)
	}
	want := "tool_call_update 1-plan-1 in_progress; plan in_progress pending; " +
		"tool_call_update 1-plan-1 in_progress; plan completed in_progress; " +
		"tool_call_update 1-plan-1 in_progress; plan completed completed; agent_message_chunk; tool_call_update 1-plan-1 completed"
	if got := strings.Join(updates(t, after), "; "); got != want {
		t.Errorf("%s\nis not\n%s", got, want)
	}
}

// Whatever is no clear yes is none.
func TestOnlyOneAnswerAllows(t *testing.T) {
	for name, x := range map[string]struct {
		answer linerpc.Message
		denied bool // clearly
	}{
		"no":        {linerpc.Message{Result: json.RawMessage(`{"outcome":{"outcome":"selected","optionId":"reject"}}`)}, true},
		"cancelled": {linerpc.Message{Result: json.RawMessage(`{"outcome":{"outcome":"cancelled"}}`)}, false},
		"other":     {linerpc.Message{Result: json.RawMessage(`{"outcome":{"outcome":"selected","optionId":"allow_always"}}`)}, false},
		"no file":   {linerpc.Message{Result: json.RawMessage(`{"outcome":{"outcome":"selected","optionId":"only-3"}}`)}, false},
		"none":      {linerpc.Message{Result: json.RawMessage(`{}`)}, false},
		"no option": {linerpc.Message{Result: json.RawMessage(`{"outcome":{"outcome":"allow","optionId":"allow"}}`)}, false},
		"form":      {linerpc.Message{Result: json.RawMessage(`[1]`)}, false},
		"null":      {linerpc.Message{Result: json.RawMessage(`null`)}, false},
		"error":     {linerpc.Message{Error: &linerpc.Error{Code: linerpc.MethodNotFound, Message: "what"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := &agent{prompt: func(ctx context.Context, _ acp.Prompt, to *acp.Turn) error {
				if err := to.Plan(acp.Plan{Digest: "d", Goal: "g", Text: "t", Steps: []string{"s"}, Asks: true}); err != nil {
					return err
				}
				yes, _, err := to.Ask(ctx, acp.Question{Digest: "d", Text: "why", Files: []string{"a", "b"}})
				if yes || (err == nil) != x.denied {
					return fmt.Errorf("allowed %v: %w", yes, err)
				}
				return nil
			}}
			p := serve(t, a)
			id := p.send("session/prompt", prompt(p.begin(), "do it"))
			for {
				m := p.next()
				if m.Method == "session/request_permission" {
					x.answer.ID = m.ID
					if err := linerpc.Write(p.in, x.answer); err != nil {
						t.Fatal(err)
					}
				}
				if m.Response() && string(m.ID) == id {
					if m.Error != nil {
						t.Error(m.Error.Message)
					}
					return
				}
			}
		})
	}
}

// A prompt brings texts and files of this machine, and nothing else.
func TestPrompts(t *testing.T) {
	var got acp.Prompt
	a := &agent{prompt: func(_ context.Context, p acp.Prompt, _ *acp.Turn) error { got = p; return nil }}
	p := serve(t, a)
	session := p.begin()
	m, _ := p.answer(p.send("session/prompt", map[string]any{"sessionId": session, "prompt": []any{
		map[string]any{"type": "text", "text": "what is "},
		map[string]any{"type": "resource_link", "name": "a file.go", "uri": "file:///project/a%20file.go"},
		map[string]any{"type": "text", "text": " for?"},
		map[string]any{"type": "resource", "resource": map[string]any{"uri": "file:///project/b.go", "text": "package b"}},
		map[string]any{"type": "resource", "resource": map[string]any{"uri": "untitled:1", "text": "x"}},
	}}))
	want := "{what is a file.go for? [{/project/b.go package b} {untitled:1 x}] [/project/a file.go]}"
	if m.Error != nil || fmt.Sprint(got) != want {
		t.Errorf("%v %+v", m.Error, got)
	}
	for _, part := range []map[string]any{
		{"type": "image", "data": "AA==", "mimeType": "image/png"},
		{"type": "resource_link", "name": "x", "uri": "https://example.org/x"},
		{"type": "resource_link", "name": "x", "uri": "file://elsewhere/etc/passwd"},
		{"type": "resource_link", "name": "x", "uri": "file:relative"},
		{"type": "resource", "resource": map[string]any{"uri": "file:///x", "blob": "AA=="}},
		{},
	} {
		if m, _ := p.answer(p.send("session/prompt", map[string]any{"sessionId": session, "prompt": []any{part}})); m.Error == nil {
			t.Errorf("it takes %v", part)
		}
	}
}

// A turn that the editor ends is over, and another one can begin.
func TestCancel(t *testing.T) {
	begun := make(chan struct{}, 2)
	a := &agent{prompt: func(ctx context.Context, _ acp.Prompt, to *acp.Turn) error {
		if err := to.Plan(acp.Plan{Digest: "d", Goal: "g", Text: "t", Steps: []string{"s"}}); err != nil {
			return err
		}
		begun <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}}
	p := serve(t, a)
	session := p.begin()
	for range 2 {
		id := p.send("session/prompt", prompt(session, "do it"))
		<-begun
		if m, _ := p.answer(p.send("session/prompt", prompt(session, "beside it"))); m.Error == nil {
			t.Error("two turns run in one session")
		}
		p.notify("session/cancel", map[string]string{"sessionId": "another"})
		p.notify("session/cancel", map[string]string{"sessionId": session})
		m, before := p.answer(id)
		got := updates(t, before)
		if string(m.Result) != `{"stopReason":"cancelled"}` || !strings.HasSuffix(got[len(got)-1], " failed") {
			t.Errorf("%s %v %v", m.Result, m.Error, got)
		}
	}
}

// What an editor does wrong is refused, and the others go on.
func TestRefused(t *testing.T) {
	p := serve(t, &agent{prompt: func(context.Context, acp.Prompt, *acp.Turn) error { return errors.New("the disk is full") }})
	for method, params := range map[string]any{
		"session/load":     map[string]any{"sessionId": "x", "cwd": "/project", "mcpServers": []any{}},
		"fs/read":          map[string]any{},
		"session/prompt":   prompt("unknown", "x"),
		"session/new":      map[string]any{"cwd": "project"},
		"session/set_mode": map[string]any{"sessionId": "unknown", "modeId": "plan"},
	} {
		if m, _ := p.answer(p.send(method, params)); m.Error == nil {
			t.Errorf("%s is taken", method)
		}
	}
	m, _ := p.answer(p.send("session/new", map[string]any{"cwd": "/elsewhere"}))
	if m.Error == nil || m.Error.Message != "cannot work in /elsewhere" {
		t.Errorf("%+v", m)
	}
	session := p.begin()
	if m, _ := p.answer(p.send("session/set_mode", map[string]any{"sessionId": session, "modeId": "yolo"})); m.Error == nil {
		t.Error("it has a mode that there is not")
	}
	if m, _ := p.answer(p.send("session/prompt", prompt(session, "x"))); m.Error == nil || m.Error.Message != "the disk is full" {
		t.Errorf("%+v", m)
	}
	for n := 1; ; n++ {
		m, _ := p.answer(p.send("session/new", map[string]any{"cwd": "/project"}))
		if m.Error != nil {
			if n != 16 {
				t.Errorf("session %d is refused: %s", n+1, m.Error.Message)
			}
			break
		}
		if n > 100 {
			t.Fatal("it makes sessions without end")
		}
	}
	if _, err := io.WriteString(p.in, "no JSON\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.end:
		if err == nil || !strings.Contains(err.Error(), "no message of JSON-RPC") {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("it goes on")
	}
}

// The mode is that of the session.
func TestModes(t *testing.T) {
	a := &agent{prompt: func(context.Context, acp.Prompt, *acp.Turn) error { return nil }}
	p := serve(t, a)
	session := p.begin()
	for _, mode := range []string{"plan", "act"} {
		m, _ := p.answer(p.send("session/set_mode", map[string]any{"sessionId": session, "modeId": mode}))
		if m.Error != nil || a.planOnly != (mode == "plan") {
			t.Errorf("%s: %v %v", mode, m.Error, a.planOnly)
		}
	}
}
