package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/turns"
)

// Remember implements Seat. The note waits for the turn's end: what the program reads by tools of its own it tells on another way, which
// may be slower than the call.
func (p *proposals) Remember(_ context.Context, note string) (Told, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.c == nil || p.over || p.c.ending() != nil || p.c.hushed() {
		return Told{}, fmt.Errorf("cannot take a note: there is no turn: %w", errdefs.ErrFailedPrecondition)
	}
	note, err := p.c.noted(note)
	switch {
	case p.c.begins.Foreign || p.read:
		return told(turns.Reply{Outcome: turns.Refused, Why: "nothing is taken in a session that has read anything"})
	case p.memo != "":
		return told(turns.Reply{Outcome: turns.Refused, Why: "one note was proposed in this turn, which is all that is taken"})
	case err != nil:
		return told(turns.Reply{Outcome: turns.Invalid, Why: err.Error()})
	}
	p.memo = note
	return told(turns.Reply{
		Outcome: turns.Done, Why: "the person sees it when the turn ends, and may keep it; not if anything is read by then",
	})
}

// reads notes that the program has read something by a tool of its own.
func (p *proposals) reads() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read = true
}

// note is what a person is shown of the note of the turn, "" for nothing.
func (p *proposals) note() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.read || p.c == nil || p.c.begins.Foreign {
		return ""
	}
	return p.memo
}

// ownTools finds in the updates of a turn whether its program used a tool of its own. What such a tool told it others may have written. A
// program tells of its calls of carrel's tools as well; of these, only the proposal of a note is none.
type ownTools struct {
	used bool
	// memo is the call that proposes a note.
	memo string
}

// memoTitle is how programs name that tool: mcp__carrel__remember, carrel_remember, Tool: carrel/remember.
var memoTitle = regexp.MustCompile(`^(Tool: )?(mcp__)?carrel(__|[/_.:-])remember$`)

// take looks at an update.
func (o *ownTools) take(update json.RawMessage) {
	var u struct {
		Update string `json:"sessionUpdate"`
		ID     string `json:"toolCallId"`
		Title  string `json:"title"`
		Kind   string `json:"kind"`
	}
	if json.Unmarshal(update, &u) != nil || !strings.HasPrefix(u.Update, "tool_call") {
		return
	}
	named := memoTitle.MatchString(u.Title) && (u.Kind == "" || u.Kind == "other")
	switch {
	case u.Update == "tool_call" && named && o.memo == "" && u.ID != "":
		o.memo = u.ID
	case u.Update != "tool_call" && u.ID == o.memo && o.memo != "" && (u.Title == "" || named):
	default:
		o.used = true
	}
}
