// Package loop is carrel's own agent: a loop that asks a model, proposes what it answers, and tells it what came of that.
//
// It runs in a workspace, holds no key and has no tools of its own. It speaks ACP on stdin and stdout with the daemon, which
// reads, judges, shows and carries out what is proposed; nothing that happens here changes anything elsewhere. So it must not
// be trusted, and nothing may rest on what it checks: its checks spare the user a refusal.
package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/carrel-dev/carrel/internal/agent/llm"
	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/wire/linerpc"
)

// Model is what the loop needs of a language model; an llm.Client is one.
type Model interface {
	Stream(ctx context.Context, r llm.Request, emit func(llm.Event) error) (llm.Answer, error)
}

// Config holds the dependencies of Run. Model and Name are required.
type Config struct {
	Model Model
	// Name is the model's name, as its provider has it.
	Name string
	// MaxTokens bounds one answer, in tokens; 0 is the provider's own bound.
	MaxTokens int
	// Requests and Tokens bound one turn; 0 is DefaultRequests, and no bound.
	Requests, Tokens int64
}

// DefaultRequests is how many requests a turn may make.
const DefaultRequests = 32

// protocolVersion is that of ACP.
const protocolVersion = 1

// session is the one conversation that there is. id and context are set once, before its first turn.
type session struct {
	cfg     Config
	id      string
	context Context

	peer *linerpc.Peer

	mu     sync.Mutex
	cancel context.CancelFunc // of the turn that runs
}

// Context is what carrel tells the agent beside the prompt, in session/new's _meta.carrel.
type Context struct {
	// Targets are where steps can run: "host", "workspace NAME", "remote NAME".
	Targets []string `json:"targets,omitempty"`
	// HostFiles and RemoteFiles: patches change files of the host, and of remote hosts. Those of workspaces they always do.
	HostFiles   bool `json:"host_files,omitempty"`
	RemoteFiles bool `json:"remote_files,omitempty"`
	// Heard: others wrote some of what was said before, so that no note is taken any more.
	Heard bool `json:"heard,omitempty"`
	// Notes are facts about the targets, for the model.
	Notes []string `json:"notes,omitempty"`
	// Runbooks are names of what is written down, and titles, in lines.
	Runbooks string `json:"runbooks,omitempty"`
	// Memory are notes that the person keeps for later sessions.
	Memory []string `json:"memory,omitempty"`
	// History is what was said before, the oldest first.
	History []Said `json:"history,omitempty"`
}

// Said is one message of an earlier turn.
type Said struct {
	Role llm.Role `json:"role"` // user or assistant
	Text string   `json:"text"`
}

// Run speaks with carrel until its input ends.
func Run(ctx context.Context, cfg Config, in io.Reader, out io.Writer) error {
	if cfg.Requests == 0 {
		cfg.Requests = DefaultRequests
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &session{cfg: cfg, peer: linerpc.NewPeer(out)}
	var turns sync.WaitGroup
	defer turns.Wait()
	defer cancel() // before the wait
	r := linerpc.NewReader(in)
	for {
		m, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read what carrel says: %w", err)
		}
		if m.Response() {
			s.peer.Answered(m)
			continue
		}
		if err := s.take(ctx, &turns, m); err != nil {
			return err
		}
	}
}

// take carries out a request of carrel's.
func (s *session) take(ctx context.Context, turns *sync.WaitGroup, m linerpc.Message) error {
	switch m.Method {
	case "initialize":
		return s.peer.Reply(m, map[string]any{
			"protocolVersion":   protocolVersion,
			"agentCapabilities": map[string]any{"loadSession": false},
			"agentInfo":         map[string]string{"name": "carrel-agent", "title": "Carrel", "version": build.Version()},
		})
	case "session/new":
		var p struct {
			Meta struct {
				Carrel Context `json:"carrel"`
			} `json:"_meta"`
		}
		if err := json.Unmarshal(m.Params, &p); err != nil {
			return s.peer.Refuse(m, linerpc.InvalidParams, "cannot begin: "+err.Error())
		}
		if s.id != "" { // turns read it without a lock
			return s.peer.Refuse(m, linerpc.InvalidRequest, "cannot begin a second session: this agent has one; start another agent")
		}
		s.id, s.context = "main", p.Meta.Carrel
		return s.peer.Reply(m, map[string]string{"sessionId": s.id})
	case "session/prompt":
		if !m.Request() { // nothing could be said of its end
			return nil
		}
		return s.prompt(ctx, turns, m)
	case "session/cancel":
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.cancel != nil {
			s.cancel()
		}
		return nil
	}
	return s.peer.Refuse(m, linerpc.MethodNotFound, fmt.Sprintf("cannot do %.64q: this agent has prompts alone", m.Method))
}

// prompt begins a turn. One runs at a time.
func (s *session) prompt(ctx context.Context, turns *sync.WaitGroup, m linerpc.Message) error {
	var p struct {
		SessionID string `json:"sessionId"`
		Prompt    []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		} `json:"prompt"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		return s.peer.Refuse(m, linerpc.InvalidParams, "cannot take the prompt: "+err.Error())
	}
	var text strings.Builder
	for _, part := range p.Prompt {
		if part.Type != "text" {
			return s.peer.Refuse(m, linerpc.InvalidParams, fmt.Sprintf("cannot take a prompt with a part of type %.20q: send text", part.Type))
		}
		text.WriteString(part.Text)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id == "" || p.SessionID != s.id || s.cancel != nil {
		return s.peer.Refuse(m, linerpc.InvalidRequest, "cannot take the prompt: there is no such session, or a turn of it runs")
	}
	ctx, s.cancel = context.WithCancel(ctx)
	turns.Go(func() {
		t := turn{s: s, budget: &llm.Budget{Requests: s.cfg.Requests, Tokens: s.cfg.Tokens}}
		reason, err := t.run(ctx, text.String())
		cancelled := ctx.Err() != nil
		s.mu.Lock()
		s.cancel()
		s.cancel = nil
		s.mu.Unlock()
		switch {
		case cancelled:
			err = s.peer.Reply(m, t.ended("cancelled"))
		case err != nil:
			err = s.peer.Refuse(m, linerpc.Refused, err.Error())
		default:
			err = s.peer.Reply(m, t.ended(reason))
		}
		_ = err // its reader has gone, and the input ends too
	})
	return nil
}

// tell sends what the agent says to the person.
func (s *session) tell(text string) error {
	return s.peer.Notify("session/update", map[string]any{
		"sessionId": s.id,
		"update":    map[string]any{"sessionUpdate": "agent_message_chunk", "content": map[string]string{"type": "text", "text": text}},
	})
}

// call sends a request and waits for its answer.
func (s *session) call(ctx context.Context, method string, params, result any) error {
	m, err := s.peer.Call(ctx, method, params)
	if err != nil {
		return err
	}
	if m.Error != nil {
		return fmt.Errorf("carrel refused %s: %s", method, m.Error.Message)
	}
	return json.Unmarshal(m.Result, result)
}
