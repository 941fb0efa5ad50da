package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/cli/chatui"
	"github.com/carrel-dev/carrel/internal/spec/approval"
)

// chatSession gives package chatui an asker, and shows its turns as events.
type chatSession struct {
	k         *asker
	connected bool
	status    chatui.Status
	requests  int64
	tokens    int64

	mu    sync.Mutex
	hosts []string
	// workspaces are the names of workspaces, as they were when the chat was made ready.
	workspaces []string
	emit       func(chatui.Event)
	// open are the questions that wait, by their ids.
	open map[string]chan<- reply
}

var (
	_ chatui.Session = (*chatSession)(nil)
	_ teller         = (*chatSession)(nil)
)

func newChatSession(k *asker) *chatSession {
	s := &chatSession{k: k, open: map[string]chan<- reply{}}
	k.to, k.attended = s, true
	return s
}

// Prepare implements chatui.Session.
func (s *chatSession) Prepare(ctx context.Context, emit func(chatui.Event)) (chatui.Status, error) {
	s.mu.Lock()
	s.emit = emit
	s.mu.Unlock()
	if !s.connected {
		if err := s.k.connect(ctx); err != nil {
			return s.status, plainly(err)
		}
		s.connected = true
		m, err := askOf(ctx, s.k.client, workspaces.List, &carrelv1.ListRequest{})
		if err != nil {
			return s.status, plainly(err)
		}
		s.mu.Lock()
		s.hosts = s.k.served.Remotes
		for _, w := range m.GetWorkspaces() {
			s.workspaces = append(s.workspaces, w.GetKey())
		}
		s.mu.Unlock()
	}
	if err := s.k.ready(ctx); err != nil {
		return s.status, plainly(err)
	}
	s.k.resume = false // it has, and goes on from there
	s.used(ctx)
	s.status = chatui.Status{Workspace: s.k.agent, Model: s.k.llm, Targets: s.targets(), PlanOnly: s.k.planOnly}
	return s.status, nil
}

// targets says in few words where commands may run.
func (s *chatSession) targets() string {
	where := []string{}
	if s.k.served.Local != nil {
		where = append(where, s.k.lang.Say(messages.ShortHost))
	}
	if n := len(s.k.served.Remotes); n > 0 {
		where = append(where, manyOf(s.k.lang, n, messages.ShortOneRemote, messages.ShortRemotes))
	}
	return strings.Join(append(where, s.k.lang.Say(messages.ShortWorkspaces)), s.k.lang.Say(messages.And))
}

// used returns what the agent's workspace has used of its model since the last call; nothing if that is not known.
func (s *chatSession) used(ctx context.Context) (requests, tokens int64) {
	m, err := askOf(ctx, s.k.client, models.ModelUsage, &carrelv1.ModelUsageRequest{Workspace: s.k.ws})
	if err != nil {
		return 0, 0
	}
	for _, u := range m.GetUsage() {
		requests += u.GetWhole().GetRequests()
		tokens += u.GetWhole().GetTokens()
	}
	requests, s.requests = requests-s.requests, requests
	tokens, s.tokens = tokens-s.tokens, tokens
	return requests, tokens
}

// plainly is an error as a person reads it.
func plainly(err error) error {
	if err == nil {
		return nil
	}
	return &plainError{err}
}

// plainError has the text that a person reads.
type plainError struct{ error }

func (e *plainError) Error() string { return errorText(e.error) }
func (e *plainError) Unwrap() error { return e.error }

// Ask implements chatui.Session.
func (s *chatSession) Ask(ctx context.Context, question string, emit func(chatui.Event)) error {
	text, err := s.k.question(question)
	if err != nil {
		return plainly(err)
	}
	s.mu.Lock()
	s.emit = emit
	s.mu.Unlock()
	err = s.k.turn(ctx, text)
	s.k.code = 0 // of a turn without an answer, which was said
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.status.Requests, s.status.Tokens = s.used(ctx)
	emit(chatui.Changed{Status: s.status})
	return plainly(err)
}

// Answer implements chatui.Session.
func (s *chatSession) Answer(ctx context.Context, id string, kind chatui.Kind, reason string, files ...string) error {
	s.mu.Lock()
	to := s.open[id]
	delete(s.open, id)
	s.mu.Unlock()
	if to == nil {
		return fmt.Errorf("cannot answer: the question is over: %w", errdefs.ErrFailedPrecondition)
	}
	sent := make(chan error, 1)
	to <- reply{kind: approval.Kind(kind), reason: reason, files: files, sent: sent}
	select {
	case err := <-sent:
		return plainly(err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Command implements chatui.Session.
func (s *chatSession) Command(ctx context.Context, line string) (chatui.Result, error) {
	text, leave, err := s.k.command(ctx, line)
	s.status.PlanOnly = s.k.planOnly
	return chatui.Result{Text: text, Status: s.status, Leave: leave}, plainly(err)
}

// Shell implements chatui.Session.
func (s *chatSession) Shell(ctx context.Context, command string, tell bool) (string, error) {
	out, err := s.k.shell(ctx, command, tell)
	return out, plainly(err)
}

// Complete implements chatui.Session.
func (s *chatSession) Complete(word string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if strings.HasPrefix(word, "/undo ") {
		return completeUndo(word, s.workspaces, s.hosts)
	}
	return completeWord(word, s.hosts)
}

// tell emits an event.
func (s *chatSession) tell(e chatui.Event) error {
	s.mu.Lock()
	emit := s.emit
	s.mu.Unlock()
	if emit != nil {
		emit(e)
	}
	return nil
}

func (s *chatSession) words(text string) error { return s.tell(chatui.Words{Text: text}) }

func (s *chatSession) thought(text string) error { return s.tell(chatui.Thought{Text: text}) }

func (s *chatSession) over() error { return nil }

func (s *chatSession) plan(p *planShown) error {
	e := chatui.Plan{Number: p.Number, Note: undoing(s.k.lang, p.Undoes), Digest: p.Digest, Goal: p.Goal, Rollback: p.Rollback, Diff: p.Diff}
	for i, x := range p.Steps {
		step := chatui.Step{
			Target: x.Target, Command: x.Command, Level: x.Level, Risk: x.Risk, ReadOnly: x.ReadOnly, FirstRun: x.FirstRun,
			Profile: x.Profile, As: x.As, Together: x.Together, Order: x.Order,
		}
		if x.Job {
			step.Background = time.Duration(x.LimitMS) * time.Millisecond
		}
		if len(p.Purposes) == len(p.Steps) {
			step.Purpose = p.Purposes[i]
		}
		e.Steps = append(e.Steps, step)
	}
	return s.tell(e)
}

func (s *chatSession) step(x *stepShown) error {
	return s.tell(chatui.StepEnd{
		Step: x.Step, Target: x.Target, Error: x.Error, Code: x.Code, Stderr: x.Stderr, Held: x.Held, Undo: x.Undo, Job: x.Job,
		Merged: strings.Join(x.Merged, ", "),
	})
}

func (s *chatSession) notBegun(n *notBegunShown) error {
	for _, x := range n.Steps {
		if err := s.tell(chatui.StepEnd{Step: x.Step, Target: x.Target, NotBegun: x.Why}); err != nil {
			return err
		}
	}
	return nil
}

func (s *chatSession) tool(x *stepShown) error {
	return s.note(s.k.lang.Say(messages.Read, toolText(s.k.lang, x)))
}

func (s *chatSession) refusal(outcome, why string) error {
	return s.tell(chatui.Refusal{Outcome: outcome, Why: why})
}

func (s *chatSession) note(text string) error { return s.tell(chatui.Note{Text: text}) }

// ask implements teller: the question is shown, and answered by Answer.
func (s *chatSession) ask(ctx context.Context, m *carrelv1.Approval, steps bool) reply {
	answer := make(chan reply, 1)
	s.mu.Lock()
	s.open[m.GetId()] = answer
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, m.GetId())
	}()
	_ = s.tell(chatui.Question{
		ID: m.GetId(), Digest: m.GetActionDigest(), Risk: int(m.GetRiskScore()), Rule: m.GetRule(), Reasons: m.GetReasons(),
		Details: approvalText(s.k.lang, m), Until: untilText(m), Steps: steps, Session: threaded(m),
		Files: m.GetFiles(),
	})
	select {
	case r := <-answer:
		return r
	case <-ctx.Done():
		return reply{err: context.Cause(ctx)}
	}
}

func (s *chatSession) settled(m *carrelv1.Approval) error {
	return s.tell(chatui.Settled{ID: m.GetId(), How: s.k.lang.Say(messages.Settled)})
}

// quietly has everything that is printed meanwhile become notes: a line on the terminal would break the screen.
func (s *chatSession) quietly(f func() error) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	var read sync.WaitGroup
	read.Go(func() {
		for lines := bufio.NewScanner(r); lines.Scan(); {
			_ = s.note(strings.TrimPrefix(lines.Text(), "carrel: "))
		}
	})
	out, stderr := s.k.Out, s.k.Err
	s.k.Out, s.k.Err = w, w
	err = f()
	s.k.Out, s.k.Err = out, stderr
	_ = w.Close()
	read.Wait()
	_ = r.Close()
	return err
}
