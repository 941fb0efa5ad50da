package tasks

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/linerpc"
)

// beginning is what a session of an agent has before its next turn. It is kept with each prompt, so that the session goes on with it.
type beginning struct {
	// Memory are the person's notes that the agent was told when the session began. None is added later: what was read meanwhile may have
	// brought the person to write it.
	Memory []string `json:"memory,omitempty"`
	// Foreign: others wrote some of what the agent has been told, as in files and output. It is told then what to take for true.
	Foreign bool `json:"foreign,omitempty"`
	// Session is the first task of the session. What a person allows for the session is bound to it.
	Session id.Command `json:"session,omitempty"`
}

// beginning is what a task begins with: the given one, or that of the session that it goes on with. Of a session of which that is not known
// no note is told, and none taken, and nothing is remembered.
func (t *Tasks) beginning(ctx context.Context, task workspace.Task, after id.Command, given beginning) beginning {
	if !proposes(task.Protocol) {
		return beginning{}
	}
	if after == "" {
		given.Memory, given.Session = t.cfg.Redact.Texts(given.Memory), task.ID
		return given
	}
	r := t.recall(ctx, task.Workspace, after)
	if r == nil || r.begins == nil {
		return beginning{Foreign: true, Session: task.ID}
	}
	return beginning{
		Memory: r.begins.Memory, Foreign: given.Foreign || r.begins.Foreign || !r.over || r.read || len(r.goals)+len(r.steps) > 0,
		Session: cmp.Or(r.begins.Session, task.ID),
	}
}

// noted is a note that an agent proposes, as a person may be shown it: without secrets that can be seen. An error is that it is none.
func (c *conversation) noted(note string) (string, error) {
	note = c.tasks.cfg.Redact.Text(note)
	return note, workspace.CheckNote(note)
}

// offer shows a note to the person, who alone can keep it.
func (c *conversation) offer(note string) error {
	return c.note("remember", map[string]string{"text": note})
}

// remember takes a note that the agent proposes. In a session that has foreign content none is shown: it might be that content's. So is
// the second one of a turn, and what is no note.
//
//	agent → carrel   _carrel/remember   notification with {sessionId, note}
func (a *agent) remember(m linerpc.Message) error {
	var p struct {
		SessionID string `json:"sessionId"`
		Note      string `json:"note"`
	}
	if m.Request() {
		return a.c.refuse(m, linerpc.InvalidRequest, "cannot answer _carrel/remember: it is a notification")
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		return fmt.Errorf("its _carrel/remember is of another form")
	}
	if err := a.ours(p.SessionID); err != nil {
		return err
	}
	note, err := a.c.noted(p.Note)
	if a.c.begins.Foreign || a.read || err != nil {
		return nil
	}
	a.read = true // one is enough
	return a.c.offer(note)
}
