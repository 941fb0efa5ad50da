package acp

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
)

// Turn shows an editor what happens in one turn. Its methods may be called from several goroutines, in the order in which things
// happen. Texts are shown as they are given.
type Turn struct {
	s               *server
	session, prefix string

	mu    sync.Mutex
	cards map[string]*card
	last  *card
	reads int
}

// card is one plan as the editor shows it: a call of a tool.
type card struct {
	id, title, kind string
	text            string
	entries         []entry
	// failed: a step did not end well. over: nothing more comes of it. wish: it is no plan, and has no steps.
	failed, over, wish bool
}

// entry is a step of a plan, in the words of the protocol.
type entry struct {
	Content  string `json:"content"`
	Priority string `json:"priority"`
	Status   string `json:"status"`
}

// The states of a card and of an entry.
const (
	pending    = "pending"
	inProgress = "in_progress"
	completed  = "completed"
	failedCard = "failed"
)

// Plan is what the agent proposes, and carrel has judged.
type Plan struct {
	Digest, Goal string
	// Text is all of it, as a person reads it.
	Text string
	// Steps are what the editor's list of tasks shows.
	Steps []string
	// Edits: it changes files, and runs nothing. Asks: it waits for an answer. Shown: it is not carried out.
	Edits, Asks, Shown bool
}

// Question is about a plan that was shown.
type Question struct {
	Digest string
	// Text says why a person is asked, and until when.
	Text string
	// Files are those of a change, of which one alone may be let through; none if the plan is let through as a whole or not.
	// They must be plain text, each another one.
	Files []string
}

// MaxFiles is how many files a question may have of which one alone is offered. An editor shows each as an answer.
const MaxFiles = 8

// Words are a part of the agent's answer, in Markdown.
func (t *Turn) Words(text string) error { return t.chunk("agent_message_chunk", text) }

// Thought is a piece of what the agent thinks.
func (t *Turn) Thought(text string) error { return t.chunk("agent_thought_chunk", text) }

// Asked is what the person asked, where a former turn is told again.
func (t *Turn) Asked(text string) error { return t.chunk("user_message_chunk", text) }

// Note is a line of carrel's own.
func (t *Turn) Note(text string) error {
	return t.chunk("agent_message_chunk", "\n> carrel: "+text+"\n\n")
}

func (t *Turn) chunk(kind, text string) error {
	return t.update(map[string]any{"sessionUpdate": kind, "content": textOf(text)})
}

// Plan shows a plan. The one before is over.
func (t *Turn) Plan(p Plan) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.end(t.last, false); err != nil {
		return err
	}
	c := &card{id: fmt.Sprintf("%s-plan-%d", t.prefix, len(t.cards)+1), title: p.Goal, kind: "execute", text: fenced(p.Text)}
	if p.Edits {
		c.kind = "edit"
	}
	for _, s := range p.Steps {
		c.entries = append(c.entries, entry{Content: s, Priority: "medium", Status: pending})
	}
	t.cards[p.Digest], t.last = c, c
	status := pending
	switch {
	case p.Shown:
		status, c.over = completed, true
	case !p.Asks:
		status = inProgress
		c.begin()
	}
	if err := t.update(map[string]any{
		"sessionUpdate": "tool_call", "toolCallId": c.id, "title": c.title, "kind": c.kind, "status": status, "content": contentOf(c.text),
	}); err != nil {
		return err
	}
	return t.list(c)
}

// Wish shows something that the agent's program asks for, which is no plan. A question about it follows.
func (t *Turn) Wish(digest, title string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := &card{id: fmt.Sprintf("%s-wish-%d", t.prefix, len(t.cards)+1), title: title, kind: "other", wish: true}
	t.cards[digest] = c
	return t.update(map[string]any{
		"sessionUpdate": "tool_call", "toolCallId": c.id, "title": c.title, "kind": c.kind, "status": pending, "content": []any{},
	})
}

// begin has the first step that has not begun be under way.
func (c *card) begin() {
	for i := range c.entries {
		if c.entries[i].Status == pending {
			c.entries[i].Status = inProgress
			return
		}
	}
}

// list sends the steps of a plan.
func (t *Turn) list(c *card) error {
	return t.update(map[string]any{"sessionUpdate": "plan", "entries": c.entries})
}

// StepEnd says what became of a step of the last plan, counted from 1, on one of its targets.
func (t *Turn) StepEnd(step int, text string, failed bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.last
	if c == nil || step < 1 || step > len(c.entries) {
		return t.Words("\n" + text + "\n\n")
	}
	e := &c.entries[step-1]
	switch {
	case failed:
		e.Status, c.failed = completed, true // the protocol has no step that failed: its card has
	case e.Status != completed:
		e.Status = completed
		c.begin()
	}
	c.text += fenced(text)
	if err := t.update(map[string]any{
		"sessionUpdate": "tool_call_update", "toolCallId": c.id, "status": inProgress, "content": contentOf(c.text),
	}); err != nil {
		return err
	}
	return t.list(c)
}

// Read shows something that was read without a question.
func (t *Turn) Read(text string, failed bool) error {
	t.mu.Lock()
	t.reads++
	id := fmt.Sprintf("%s-read-%d", t.prefix, t.reads)
	t.mu.Unlock()
	status := completed
	if failed {
		status = failedCard
	}
	return t.update(map[string]any{"sessionUpdate": "tool_call", "toolCallId": id, "title": text, "kind": "read", "status": status})
}

// end says that nothing more comes of a plan. t.mu is held.
func (t *Turn) end(c *card, cancelled bool) error {
	if c == nil || c.over {
		return nil
	}
	c.over = true
	status := completed
	for _, e := range c.entries {
		if c.failed || cancelled || e.Status != completed {
			status = failedCard
		}
	}
	return t.update(map[string]any{"sessionUpdate": "tool_call_update", "toolCallId": c.id, "status": status})
}

// over ends what the turn has shown.
func (t *Turn) over(cancelled bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.end(t.last, cancelled) // its reader has gone, and the input ends too
}

// The answers that the editor is offered. Each is for one time.
const (
	allow  = "allow"
	reject = "reject"
)

// Ask has the editor ask its user about a plan. only is the file of a change that alone is let through, "" for the whole plan. It
// is an error if there is no answer, or none that was offered.
func (t *Turn) Ask(ctx context.Context, q Question) (allowed bool, only string, err error) {
	call, err := t.asked(q, "")
	if err != nil {
		return false, "", err
	}
	// The whole plan is the first answer: an editor that is set to allow everything takes the first of its kind.
	options := []map[string]string{{"optionId": allow, "name": "Run it", "kind": "allow_once"}}
	offered := map[string]string{}
	if len(q.Files) > 1 && len(q.Files) <= MaxFiles {
		for i, f := range q.Files {
			id := fmt.Sprintf("only-%d", i+1)
			offered[id] = f
			options = append(options, map[string]string{"optionId": id, "name": "Change only " + f, "kind": "allow_once"})
		}
	}
	options = append(options, map[string]string{"optionId": reject, "name": "Do not run it", "kind": "reject_once"})
	m, err := t.s.peer.Call(ctx, "session/request_permission", map[string]any{
		"sessionId": t.session, "toolCall": call, "options": options,
	})
	if err != nil {
		return false, "", err
	}
	if m.Error != nil {
		return false, "", fmt.Errorf("the editor cannot ask: %.200s", m.Error.Message)
	}
	var r struct {
		Outcome struct {
			Outcome string `json:"outcome"`
			Option  string `json:"optionId"`
		} `json:"outcome"`
	}
	if err := json.Unmarshal(m.Result, &r); err != nil {
		return false, "", fmt.Errorf("the editor's answer is of another form: %w", err)
	}
	switch {
	case r.Outcome.Outcome == "selected" && r.Outcome.Option == allow:
		return true, "", t.started(q.Digest)
	case r.Outcome.Outcome == "selected" && offered[r.Outcome.Option] != "":
		return true, offered[r.Outcome.Option], t.started(q.Digest)
	case r.Outcome.Outcome == "selected" && r.Outcome.Option == reject:
		return false, "", nil
	case r.Outcome.Outcome == "cancelled":
		return false, "", fmt.Errorf("the editor has ended the question")
	}
	return false, "", fmt.Errorf("the editor gave an answer that it was not offered, %.40q", r.Outcome.Option)
}

// Elsewhere shows a question that the editor may not answer, and how says who may.
func (t *Turn) Elsewhere(q Question, how string) error {
	call, err := t.asked(q, how)
	if err != nil {
		return err
	}
	call["sessionUpdate"] = "tool_call_update"
	return t.update(call)
}

// Settled says that a question is over without the editor's answer. What comes of the plan is told as of any.
func (t *Turn) Settled(digest string) error { return t.started(digest) }

// asked is the card of a plan with the question behind it.
func (t *Turn) asked(q Question, how string) (map[string]any, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := cmp.Or(t.cards[q.Digest], t.last) // that about one step of a plan has a digest of its own
	if c == nil {
		return nil, fmt.Errorf("a plan that was not shown cannot be asked about")
	}
	content := contentOf(c.text + fenced(q.Text))
	if how != "" {
		content = contentOf(c.text + fenced(q.Text) + "\n" + how + "\n")
	}
	return map[string]any{"toolCallId": c.id, "title": c.title, "kind": c.kind, "status": pending, "content": content}, nil
}

// started says that a question is over.
func (t *Turn) started(digest string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := cmp.Or(t.cards[digest], t.last)
	if c == nil || c.over {
		return nil
	}
	if c.wish { // what comes of it is the program's own
		c.over = true
		return t.update(map[string]any{"sessionUpdate": "tool_call_update", "toolCallId": c.id, "status": completed})
	}
	c.begin()
	if err := t.update(map[string]any{
		"sessionUpdate": "tool_call_update", "toolCallId": c.id, "status": inProgress, "content": contentOf(c.text),
	}); err != nil {
		return err
	}
	return t.list(c)
}

func (t *Turn) update(u map[string]any) error {
	return t.s.peer.Notify("session/update", map[string]any{"sessionId": t.session, "update": u})
}

func textOf(text string) map[string]string { return map[string]string{"type": "text", "text": text} }

func contentOf(text string) []any {
	return []any{map[string]any{"type": "content", "content": textOf(text)}}
}

// fenced is a text that Markdown leaves as it is: its fence is longer than any in it.
func fenced(text string) string {
	if text = strings.TrimRight(text, "\n"); text == "" {
		return ""
	}
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	return "\n" + fence + "\n" + text + "\n" + fence + "\n"
}
