// Package acp serves carrel's agent to an editor, by the Agent Client Protocol (https://agentclientprotocol.com) on the
// streams with which the editor started this process.
//
//	editor → carrel   initialize, session/new, session/load, session/set_mode   requests
//	editor → carrel   session/prompt    request, answered when the turn has ended
//	editor → carrel   session/cancel    notification
//	carrel → editor   session/update    what is said, plans, and what becomes of their steps
//	carrel → editor   session/request_permission   a question about a plan
//
// It must not know the daemon, and it decides nothing: a Session carries out the turns, and says which questions the editor
// may answer. Of the editor it uses no file and no terminal, and it starts none of the servers that the editor names.
package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/wire/linerpc"
)

// protocolVersion is the version of the protocol that is spoken.
const protocolVersion = 1

// Bounds of one editor.
const (
	// maxSessions is how many sessions it may have.
	maxSessions = 16
	// settling is how long turns that were ended may take.
	settling = 5 * time.Second
)

// The modes of a session.
const (
	modeAct  = "act"
	modePlan = "plan"
)

// Session is a conversation with the agent.
type Session interface {
	// Prompt asks the agent, tells to what happens, and returns once the turn has ended. It ends when ctx does. It is called
	// once at a time.
	Prompt(ctx context.Context, p Prompt, to *Turn) error
	// Commands are what a prompt may begin with that is for carrel and not for the agent.
	Commands() []Command
	// PlanOnly reports whether plans are judged and shown, and nothing is run.
	PlanOnly() bool
	// SetPlanOnly has it so for the prompts that follow. It may be called while one is answered.
	SetPlanOnly(on bool)
	// Replay tells what was said and done in it so far, the oldest turn first, each to a Turn that next returns. No prompt is
	// answered meanwhile.
	Replay(ctx context.Context, next func() *Turn) error
}

// Command is a line for carrel: a slash, its name, and what Hint says.
type Command struct{ Name, Description, Hint string }

// Open makes a session for the directory that the editor works in. former: it is one that there was before, maybe with another
// process, and an error if it is not known.
type Open func(ctx context.Context, dir, id string, former bool) (Session, error)

// server serves one editor.
type server struct {
	version string
	newID   func() string
	open    Open
	turns   sync.WaitGroup

	peer *linerpc.Peer

	mu       sync.Mutex
	sessions map[string]*session
}

// session is what the server keeps of one.
type session struct {
	id, dir string
	Session
	// cancel ends the turn that runs; nil if none does. It is guarded by server.mu.
	cancel context.CancelFunc
	// turn numbers the turns.
	turn int
}

// Serve speaks with an editor until its input ends, or ctx does. version is the release that it is told, and newID names a session.
func Serve(ctx context.Context, version string, newID func() string, open Open, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &server{version: version, newID: newID, open: open, peer: linerpc.NewPeer(out), sessions: map[string]*session{}}
	defer s.settle()
	defer cancel() // before the wait
	messages, failed := make(chan linerpc.Message), make(chan error, 1)
	go func() { // it ends with the input, which cannot be ended otherwise
		r := linerpc.NewReader(in)
		for {
			m, err := r.Read()
			if err != nil {
				failed <- err
				return
			}
			select {
			case messages <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case m := <-messages:
			if err := s.take(ctx, m); err != nil {
				return err
			}
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("cannot read what the editor says: %w", err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// settle waits for the turns to end, and no longer than settling takes: an editor that reads nothing holds them.
func (s *server) settle() {
	ended := make(chan struct{})
	go func() {
		s.turns.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(settling):
	}
}

// take carries out a message of the editor's.
func (s *server) take(ctx context.Context, m linerpc.Message) error {
	if m.Response() {
		s.peer.Answered(m)
		return nil
	}
	switch m.Method {
	case "initialize":
		return s.peer.Reply(m, map[string]any{
			"protocolVersion": protocolVersion,
			"agentCapabilities": map[string]any{
				"loadSession": true, "promptCapabilities": map[string]bool{"image": false, "audio": false, "embeddedContext": true},
			},
			"agentInfo":   map[string]string{"name": "carrel", "title": "Carrel", "version": s.version},
			"authMethods": []any{},
		})
	case "session/new":
		return s.begin(ctx, m, false)
	case "session/load":
		return s.begin(ctx, m, true)
	case "session/set_mode":
		return s.setMode(m)
	case "session/prompt":
		if !m.Request() { // nothing could be said of its end
			return nil
		}
		return s.prompt(ctx, m)
	case "session/cancel":
		var p struct {
			SessionID string `json:"sessionId"`
		}
		if err := json.Unmarshal(m.Params, &p); err != nil {
			return nil // nobody waits for an answer
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if x := s.sessions[p.SessionID]; x != nil && x.cancel != nil {
			x.cancel()
		}
		return nil
	}
	return s.peer.Refuse(m, linerpc.MethodNotFound, fmt.Sprintf("cannot do %.64q: carrel has sessions, prompts and modes", m.Method))
}

// begin makes a session. former: it is one that there was before, and is told again.
func (s *server) begin(ctx context.Context, m linerpc.Message, former bool) error {
	var p struct {
		Dir string `json:"cwd"`
		ID  string `json:"sessionId"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		return s.peer.Refuse(m, linerpc.InvalidParams, "cannot begin: "+err.Error())
	}
	if !filepath.IsAbs(p.Dir) {
		return s.peer.Refuse(m, linerpc.InvalidParams, "cannot begin: cwd is not an absolute path")
	}
	x, err := s.session(ctx, filepath.Clean(p.Dir), p.ID, former)
	if err == nil && former {
		err = s.replay(ctx, x)
	}
	if err != nil {
		return s.peer.Refuse(m, linerpc.Refused, err.Error())
	}
	current := modeAct
	if x.PlanOnly() {
		current = modePlan
	}
	modes := []map[string]string{
		{"id": modeAct, "name": "Act", "description": "plans are carried out once they are approved"},
		{"id": modePlan, "name": "Plan only", "description": "plans are judged and shown, and nothing is run"},
	}
	answer := map[string]any{"modes": map[string]any{"currentModeId": current, "availableModes": modes}}
	if !former {
		answer["sessionId"] = x.id
	}
	if err := s.peer.Reply(m, answer); err != nil {
		return err
	}
	return s.offer(x)
}

// session makes a session, or finds one that there was before.
func (s *server) session(ctx context.Context, dir, id string, former bool) (*session, error) {
	s.mu.Lock()
	x, runs := s.sessions[id], false
	if x != nil {
		runs = x.cancel != nil
	}
	s.mu.Unlock()
	switch {
	case former && runs:
		return nil, errors.New("cannot load the session: a turn of it runs; wait for its end, or cancel it")
	case former && x != nil && x.dir != dir:
		return nil, fmt.Errorf("cannot load the session in %s: it works in %s", dir, x.dir)
	case former && x != nil:
		return x, nil
	case len(s.sessions) >= maxSessions:
		return nil, fmt.Errorf("cannot begin: this carrel has %d sessions, which is all that it may have; start another one", maxSessions)
	}
	if !former {
		id = s.newID()
	}
	opened, err := s.open(ctx, dir, id, former)
	if err != nil {
		return nil, err
	}
	x = &session{id: id, dir: dir, Session: opened}
	s.mu.Lock()
	s.sessions[id] = x
	s.mu.Unlock()
	return x, nil
}

// replay tells the editor what there was in a session.
func (s *server) replay(ctx context.Context, x *session) error {
	var t *Turn
	defer func() {
		if t != nil {
			t.over(false)
		}
	}()
	return x.Replay(ctx, func() *Turn {
		if t != nil {
			t.over(false)
		}
		t = s.turnOf(x)
		return t
	})
}

// turnOf is the next turn of a session. Its number is in the names of what it shows.
func (s *server) turnOf(x *session) *Turn {
	x.turn++
	return &Turn{s: s, session: x.id, prefix: strconv.Itoa(x.turn), cards: map[string]*card{}}
}

// offer tells the editor which lines are for carrel. It knows the session by then.
func (s *server) offer(x *session) error {
	var all []map[string]any
	for _, c := range x.Commands() {
		one := map[string]any{"name": c.Name, "description": c.Description}
		if c.Hint != "" {
			one["input"] = map[string]string{"hint": c.Hint}
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		return nil
	}
	return s.peer.Notify("session/update", map[string]any{
		"sessionId": x.id, "update": map[string]any{"sessionUpdate": "available_commands_update", "availableCommands": all},
	})
}

func (s *server) setMode(m linerpc.Message) error {
	var p struct {
		SessionID string `json:"sessionId"`
		Mode      string `json:"modeId"`
	}
	err := json.Unmarshal(m.Params, &p)
	x := s.sessions[p.SessionID]
	if err != nil || x == nil || p.Mode != modeAct && p.Mode != modePlan {
		return s.peer.Refuse(m, linerpc.InvalidParams, "cannot set the mode: there is no such session, or no such mode; there are act and plan")
	}
	x.SetPlanOnly(p.Mode == modePlan)
	return s.peer.Reply(m, struct{}{})
}

// prompt begins a turn. One runs in a session at a time.
func (s *server) prompt(ctx context.Context, m linerpc.Message) error {
	id, p, err := readPrompt(m.Params)
	if err != nil {
		return s.peer.Refuse(m, linerpc.InvalidParams, "cannot take the prompt: "+err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.sessions[id]
	if x == nil || x.cancel != nil {
		return s.peer.Refuse(m, linerpc.InvalidRequest, "cannot take the prompt: there is no such session, or a turn of it runs")
	}
	ctx, x.cancel = context.WithCancel(ctx)
	t := s.turnOf(x)
	s.turns.Go(func() {
		err := x.Prompt(ctx, p, t)
		cancelled := ctx.Err() != nil
		t.over(cancelled)
		s.mu.Lock()
		x.cancel()
		x.cancel = nil
		s.mu.Unlock()
		switch {
		case cancelled:
			err = s.peer.Reply(m, map[string]string{"stopReason": "cancelled"})
		case err != nil:
			err = s.peer.Refuse(m, linerpc.Refused, err.Error())
		default:
			err = s.peer.Reply(m, map[string]string{"stopReason": "end_turn"})
		}
		_ = err // its reader has gone, and the input ends too
	})
	return nil
}
