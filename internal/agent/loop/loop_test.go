package loop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/carrel-dev/carrel/internal/agent/llm"
	"github.com/carrel-dev/carrel/internal/agent/loop"
	"github.com/carrel-dev/carrel/internal/agent/plan"
	"github.com/carrel-dev/carrel/internal/wire/linerpc"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// stepOf is what a scripted model does with one request.
type stepOf func(ctx context.Context, r llm.Request) (llm.Answer, error)

// scripted is a test double of a Model. It answers by its script, and keeps what it was asked.
type scripted struct {
	mu     sync.Mutex
	script []stepOf
	asked  []llm.Request
}

func model(script ...stepOf) *scripted { return &scripted{script: script} }

// Stream implements loop.Model.
func (s *scripted) Stream(ctx context.Context, r llm.Request, _ func(llm.Event) error) (llm.Answer, error) {
	s.mu.Lock()
	kept := r
	kept.Messages = slices.Clone(r.Messages)
	for i := range kept.Messages {
		kept.Messages[i].Parts = slices.Clone(kept.Messages[i].Parts)
	}
	s.asked = append(s.asked, kept)
	var next stepOf
	if len(s.script) > 0 {
		next, s.script = s.script[0], s.script[1:]
	}
	s.mu.Unlock()
	if next == nil {
		return llm.Answer{}, fmt.Errorf("the script has ended")
	}
	return next(ctx, r)
}

// requests are all that the model was asked.
func (s *scripted) requests() []llm.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// answer is a whole answer of a model.
func answer(text string) llm.Answer {
	return llm.Answer{Parts: []llm.Part{{Text: text}}, Text: text, Stop: llm.StopEnd, Usage: llm.Usage{Input: 10, Output: 5, Cached: 2}}
}

// says answers with a text.
func says(text string) stepOf {
	return func(context.Context, llm.Request) (llm.Answer, error) { return answer(text), nil }
}

// waits tells that it was asked, and answers when its request ends.
func waits(asked chan<- struct{}) stepOf {
	return func(ctx context.Context, _ llm.Request) (llm.Answer, error) {
		close(asked)
		<-ctx.Done()
		return llm.Answer{}, context.Cause(ctx)
	}
}

func object(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func direct(t *testing.T, text string) string {
	return object(t, map[string]any{"type": "direct_answer", "answer": text})
}

// planOf is a plan of one command on this machine.
func planOf(t *testing.T, command string) string {
	return object(t, map[string]any{
		"type": "command_plan", "goal": "g", "risk_summary": "", "preflight_checks": []any{}, "verification_commands": []any{},
		"rollback_commands": []any{}, "requires_root": false, "expected_side_effects": []any{},
		"commands": []any{map[string]any{"command": command, "purpose": "p", "read_only": true, "target": "host"}},
	})
}

// carrel is the daemon's side of a conversation with an agent.
type carrel struct {
	t    *testing.T
	in   *io.PipeWriter
	out  *io.PipeReader
	r    *linerpc.Reader
	last int
	over chan error
	once sync.Once
	err  error
}

// dial runs an agent. Nothing has been said yet.
func dial(t *testing.T, cfg loop.Config) *carrel {
	t.Helper()
	in, feed := io.Pipe()
	from, out := io.Pipe()
	c := &carrel{t: t, in: feed, out: from, r: linerpc.NewReader(from), last: 100, over: make(chan error, 1)}
	go func() {
		err := loop.Run(t.Context(), cfg, in, out)
		in.Close()
		out.Close()
		c.over <- err
	}()
	t.Cleanup(func() { _ = c.end() })
	return c
}

// begin runs an agent up to its session.
func begin(t *testing.T, m loop.Model, about loop.Context, change ...func(*loop.Config)) *carrel {
	t.Helper()
	cfg := loop.Config{Model: m, Name: "small"}
	for _, f := range change {
		f(&cfg)
	}
	c := dial(t, cfg)
	var hello struct {
		Version int `json:"protocolVersion"`
		Info    struct {
			Name string `json:"name"`
		} `json:"agentInfo"`
	}
	c.result(c.ask("initialize", map[string]any{"protocolVersion": 1}), &hello)
	if hello.Version != 1 || hello.Info.Name != "carrel-agent" {
		t.Errorf("it says it is %+v", hello)
	}
	var session struct {
		ID string `json:"sessionId"`
	}
	c.result(c.ask("session/new", map[string]any{"_meta": map[string]any{"carrel": about}}), &session)
	if session.ID != "main" {
		t.Fatalf("its session is %q", session.ID)
	}
	return c
}

// end ends the agent's input, reads what it still says, and returns what Run did.
func (c *carrel) end() error {
	c.once.Do(func() {
		c.in.Close()
		_, _ = io.Copy(io.Discard, c.out)
		c.err = <-c.over
	})
	return c.err
}

// line sends a text as it is. Run may have ended before it was read.
func (c *carrel) line(text string) { _, _ = io.WriteString(c.in, text+"\n") }

// say sends a message.
func (c *carrel) say(m linerpc.Message) {
	c.t.Helper()
	if err := linerpc.Write(c.in, m); err != nil {
		c.t.Fatalf("it reads no more: %v", err)
	}
}

// ask sends a request, and returns its id.
func (c *carrel) ask(method string, params any) string {
	c.t.Helper()
	c.last++
	id := fmt.Sprint(c.last)
	c.say(linerpc.Message{ID: json.RawMessage(id), Method: method, Params: json.RawMessage(object(c.t, params))})
	return id
}

// prompt begins a turn, and returns the id of its request.
func (c *carrel) prompt(text string) string {
	c.t.Helper()
	return c.ask("session/prompt", map[string]any{"sessionId": "main", "prompt": []any{map[string]string{"type": "text", "text": text}}})
}

func (c *carrel) read() linerpc.Message {
	c.t.Helper()
	m, err := c.r.Read()
	if err != nil {
		c.t.Fatalf("it says no more: %v", err)
	}
	return m
}

// result reads the answer to a request.
func (c *carrel) result(id string, to any) {
	c.t.Helper()
	m := c.read()
	if !m.Response() || string(m.ID) != id || m.Error != nil {
		c.t.Fatalf("no answer to %s: %+v %+v", id, m, m.Error)
	}
	if err := json.Unmarshal(m.Result, to); err != nil {
		c.t.Fatal(err)
	}
}

// refused reads the refusal of a request, and returns why.
func (c *carrel) refused(id string, code int) string {
	c.t.Helper()
	m := c.read()
	if !m.Response() || string(m.ID) != id || m.Error == nil || m.Error.Code != code {
		c.t.Fatalf("%s is not refused by %d: %+v %+v", id, code, m, m.Error)
	}
	return m.Error.Message
}

// told reads what the agent says to the person.
func (c *carrel) told() string {
	c.t.Helper()
	m := c.read()
	var p struct {
		Session string `json:"sessionId"`
		Update  struct {
			Kind    string `json:"sessionUpdate"`
			Content struct {
				Type string `json:"type"`
				Text string `json:"text"`
			} `json:"content"`
		} `json:"update"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil || m.Method != "session/update" || m.ID != nil || p.Session != "main" ||
		p.Update.Kind != "agent_message_chunk" || p.Update.Content.Type != "text" {
		c.t.Fatalf("it tells nothing: %+v %+v", m, m.Error)
	}
	return p.Update.Content.Text
}

// ended is the answer to a prompt.
type ended struct {
	Reason string `json:"stopReason"`
	Meta   struct {
		Carrel struct {
			Model    string `json:"model"`
			Requests int    `json:"requests"`
			Plans    int    `json:"plans"`
			Input    int    `json:"input_tokens"`
			Output   int    `json:"output_tokens"`
			Cached   int    `json:"cached_tokens"`
		} `json:"carrel"`
	} `json:"_meta"`
}

// ended reads the end of a turn.
func (c *carrel) ended(id string) (e ended) {
	c.t.Helper()
	c.result(id, &e)
	return e
}

// proposed reads a proposal, and returns its plan and the id of the request.
func (c *carrel) proposed() (text, id string) {
	c.t.Helper()
	m := c.read()
	var p struct {
		Session string `json:"sessionId"`
		Plan    string `json:"plan"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil || m.Method != "_carrel/propose" || !m.Request() || p.Session != "main" {
		c.t.Fatalf("it proposes nothing: %+v %+v", m, m.Error)
	}
	return p.Plan, string(m.ID)
}

// answered answers a proposal.
func (c *carrel) answered(id string, result any) {
	c.t.Helper()
	c.say(linerpc.Message{ID: json.RawMessage(id), Result: json.RawMessage(object(c.t, result))})
}

// printed is the answer to a plan of one step that has printed something.
func printed(stdout, stderr string) map[string]any {
	return map[string]any{"outcome": "done", "steps": []any{map[string]any{
		"step": 1, "part": "command", "target": "host", "command": "x", "exit_code": 0, "stdout": stdout, "stderr": stderr,
	}}}
}

// textOf is the text of a message.
func textOf(m llm.Message) string {
	var b strings.Builder
	for _, p := range m.Parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// What is out of place is refused with an answer, and the conversation goes on.
func TestOutOfPlace(t *testing.T) {
	m := model(says(direct(t, "well")))
	c := dial(t, loop.Config{Model: m, Name: "small"})
	c.refused(c.prompt("too early"), linerpc.InvalidRequest)
	c.refused(c.ask("session/new", map[string]any{"_meta": 1}), linerpc.InvalidParams)
	var session map[string]string
	c.result(c.ask("session/new", map[string]any{}), &session)
	c.refused(c.ask("session/new", map[string]any{}), linerpc.InvalidRequest)
	for _, method := range []string{"session/load", "fs/read_text_file", "_carrel/propose"} {
		c.refused(c.ask(method, map[string]any{}), linerpc.MethodNotFound)
	}
	c.say(linerpc.Message{Method: "nobody/knows", Params: json.RawMessage("{}")}) // is passed over
	c.say(linerpc.Message{ID: json.RawMessage("7"), Result: json.RawMessage("{}")})
	c.say(linerpc.Message{Method: "session/cancel"}) // nothing runs
	c.refused(c.ask("session/prompt", map[string]any{"sessionId": "other", "prompt": []any{}}), linerpc.InvalidRequest)
	c.refused(c.ask("session/prompt", map[string]any{"sessionId": 1}), linerpc.InvalidParams)
	why := c.refused(c.ask("session/prompt", map[string]any{
		"sessionId": "main", "prompt": []any{map[string]string{"type": "image"}},
	}), linerpc.InvalidParams)
	if !strings.Contains(why, "image") {
		t.Errorf("refused with %q", why)
	}
	id := c.prompt("now")
	if got := c.told(); got != "well" {
		t.Errorf("told %q", got)
	}
	if e := c.ended(id); e.Reason != "end_turn" {
		t.Errorf("%+v", e)
	}
	if err := c.end(); err != nil || len(m.requests()) != 1 {
		t.Errorf("%v, %d requests", err, len(m.requests()))
	}
}

// A prompt that wants no answer begins no turn: nothing could be said of its end.
func TestPromptWithoutID(t *testing.T) {
	m := model(says(direct(t, "well")))
	c := begin(t, m, loop.Context{})
	c.say(linerpc.Message{Method: "session/prompt", Params: json.RawMessage(
		`{"sessionId":"main","prompt":[{"type":"text","text":"hear me"}]}`)})
	c.refused(c.ask("nothing/known", map[string]any{}), linerpc.MethodNotFound)
	if err := c.end(); err != nil || len(m.requests()) != 0 { // turns have ended
		t.Errorf("%v, %d requests", err, len(m.requests()))
	}
}

// What is no message of JSON-RPC ends the conversation, and the turn that runs.
func TestNoJSONRPC(t *testing.T) {
	for name, line := range map[string]string{
		"prose": "hello", "a list": "[]", "another version": `{"jsonrpc":"1.0","id":1,"method":"m"}`, "half a line": "",
		"a name twice": `{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}`,
		"too long":     `{"jsonrpc":"2.0","method":"` + strings.Repeat("x", linerpc.MaxLine) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan struct{})
			c := begin(t, model(waits(asked)), loop.Context{})
			c.prompt("wait")
			<-asked
			if line == "" {
				_, _ = io.WriteString(c.in, `{"jsonrpc"`)
			} else {
				c.line(line)
			}
			if err := c.end(); err == nil || !strings.Contains(err.Error(), "cannot read what carrel says") {
				t.Errorf("it goes on: %v", err)
			}
		})
	}
}

// The end of the input ends a turn, whether the model is asked or a proposal is open. Run returns after it.
func TestEndOfInput(t *testing.T) {
	t.Run("the model is asked", func(t *testing.T) {
		asked, left := make(chan struct{}), false
		c := begin(t, model(func(ctx context.Context, r llm.Request) (llm.Answer, error) {
			defer func() { left = true }()
			return waits(asked)(ctx, r)
		}), loop.Context{})
		c.prompt("wait")
		<-asked
		if err := c.end(); err != nil || !left {
			t.Errorf("%v, the request has ended: %v", err, left)
		}
	})
	t.Run("a proposal is open", func(t *testing.T) {
		m := model(says(planOf(t, "id")))
		c := begin(t, m, loop.Context{})
		c.prompt("wait")
		c.proposed()
		if err := c.end(); err != nil || len(m.requests()) != 1 {
			t.Errorf("%v, %d requests", err, len(m.requests()))
		}
	})
}

// One turn runs at a time, and another may follow it.
func TestSecondPrompt(t *testing.T) {
	m := model(says(planOf(t, "id")), says(direct(t, "one")), says(direct(t, "two")))
	c := begin(t, m, loop.Context{})
	first := c.prompt("first")
	_, proposal := c.proposed()
	if why := c.refused(c.prompt("second"), linerpc.InvalidRequest); !strings.Contains(why, "a turn of it runs") {
		t.Errorf("refused with %q", why)
	}
	c.answered(proposal, printed("", ""))
	if got := c.told(); got != "one" {
		t.Errorf("told %q", got)
	}
	c.ended(first)
	again := c.prompt("third")
	if got := c.told(); got != "two" {
		t.Errorf("told %q", got)
	}
	if e := c.ended(again); e.Meta.Carrel.Requests != 1 || e.Meta.Carrel.Plans != 0 {
		t.Errorf("the second turn counts those of the first: %+v", e)
	}
	for i, r := range m.requests() {
		if strings.Contains(textOf(r.Messages[0]), "second") {
			t.Errorf("request %d has the prompt that was refused", i)
		}
	}
}

// The system prompt names the targets that carrel named, each once, and no other; it has the schema of the answers, which
// is asked for too.
func TestSystemPrompt(t *testing.T) {
	const head = "Targets that there are; others are refused:\n"
	for name, c := range map[string]struct {
		about loop.Context
		tail  string
	}{
		"three": {
			loop.Context{Targets: []string{"host", "remote web-1", "workspace demo"}, Notes: []string{"There are 2 more."}},
			"- host\n- remote web-1\n- workspace demo\nThere are 2 more.\n",
		},
		"none": {loop.Context{}, "- none: answer from what you know\n"},
	} {
		t.Run(name, func(t *testing.T) {
			m := model(says(direct(t, "well")))
			side := begin(t, m, c.about, func(cfg *loop.Config) { cfg.MaxTokens = 321 })
			id := side.prompt("hello")
			side.told()
			side.ended(id)
			r := m.requests()[0]
			before, after, found := strings.Cut(r.System, head)
			if !found || after != c.tail {
				t.Errorf("the targets are %q", after)
			}
			if strings.Contains(before, "\n- host") || strings.Contains(before, "web-1") || strings.Contains(before, "demo") {
				t.Errorf("targets stand elsewhere: %s", before)
			}
			if strings.Count(r.System, plan.Shape(plan.DirectAnswerType)) != 1 || !r.Object || r.Schema != nil {
				t.Error("it is not told the forms of the answers")
			}
			if r.Model != "small" || r.MaxTokens != 321 || len(r.Tools) != 0 {
				t.Errorf("asked %s with %d tokens and %d tools", r.Model, r.MaxTokens, len(r.Tools))
			}
		})
	}
}
