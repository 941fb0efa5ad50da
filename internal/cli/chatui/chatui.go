// Package chatui is the terminal interface of "carrel chat": what was said, plans with what becomes of them, the questions
// that a person answers, and the line that they type.
//
// It must not know the daemon, run anything or decide what may be done: it draws what a Session tells it. It takes no answer
// to a question of which not all was on the screen, and nothing that a model or a program wrote reaches the terminal but
// through package termtext.
package chatui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/carrel-dev/carrel/internal/agent/messages"
)

// Session is a chat with an agent. Prepare, Ask, Command and Shell are called one at a time; Answer and Complete at any time.
type Session interface {
	// Prepare has everything ready for questions. It is called again if it failed. emit is that of Ask.
	Prepare(ctx context.Context, emit func(Event)) (Status, error)
	// Ask asks a question, calls emit with what happens, and returns once the turn has ended. It ends when ctx does. emit may
	// be called from any goroutine, also later.
	Ask(ctx context.Context, question string, emit func(Event)) error
	// Answer answers a question of the turn that runs. files are those of the kind Files.
	Answer(ctx context.Context, id string, kind Kind, reason string, files ...string) error
	// Command carries out a line that begins with a slash, and returns what there is to say.
	Command(ctx context.Context, line string) (Result, error)
	// Shell runs a command of the person's own, outside of everything, and returns what it printed. tell: the agent is told
	// with the next question. Without a command it tells of the last one.
	Shell(ctx context.Context, command string, tell bool) (output string, err error)
	// Complete returns what a word at the cursor may become, or a line /undo up to the cursor.
	Complete(word string) []string
}

// Kind is an answer, in the words of the API.
type Kind string

// The kinds of answers.
const (
	Once   Kind = "once"
	Steps  Kind = "steps"
	Thread Kind = "thread"
	Files  Kind = "files"
	Always Kind = "always"
	Deny   Kind = "deny"
)

// Status is what the last line shows.
type Status struct {
	Workspace, Model, Targets string
	PlanOnly                  bool
	// Requests and Tokens are what the last turn took.
	Requests, Tokens int64
}

// Result is what a command says.
type Result struct {
	Text   string
	Status Status
	// Leave: the chat is over.
	Leave bool
}

// Event is something that happens in a turn.
type Event interface{ event() }

// The events.
type (
	// Words are a part of the agent's answer, in Markdown.
	Words struct{ Text string }
	// Thought is a part of what the agent thinks, in whole lines. It is a detail.
	Thought struct{ Text string }
	// Plan is what the agent proposes, and carrel has judged.
	Plan struct {
		Number       int
		Digest, Goal string
		// Note stands behind the number.
		Note     string
		Steps    []Step
		Rollback []string
		// Diff shows the change of a patch, as package patch draws it.
		Diff string
	}
	// StepEnd is what became of a step of the last plan. Code is nil if it did not end by itself, and Error says why.
	StepEnd struct {
		Step          int
		Target, Error string
		Code          *int
		// NotBegun says why it was not begun.
		NotBegun string
		// Job is what it goes on as in the background.
		Job string
		// Merged are the files that had changed elsewhere since the plan was shown.
		Merged string
		// Stderr, Held and Undo are details.
		Stderr, Held, Undo string
	}
	// Refusal is a plan, or an answer that is none, that is not carried out.
	Refusal struct{ Outcome, Why string }
	// Question waits for the person.
	Question struct {
		ID string
		// Digest is that of the plan that it is about.
		Digest string
		Risk   int
		Rule   string
		// Reasons say why the person is asked.
		Reasons []string
		// Details are everything that decides about it, for a question whose plan is not shown.
		Details, Until string
		// Always: an answer for later is possible.
		Always bool
		// Session: its commands can be let pass for the session.
		Session bool
		// Steps: the plan can be let pass one step at a time.
		Steps bool
		// Files are those of which the plan can be let pass for some alone.
		Files []string
	}
	// Settled is a question that is no longer open, and how that came.
	Settled struct{ ID, How string }
	// Note is a line of carrel's own.
	Note struct{ Text string }
	// Changed is another status.
	Changed struct{ Status Status }
)

// Step is one command of a plan.
type Step struct {
	Target, Command, Purpose, Level string
	Risk                            int
	ReadOnly, FirstRun              bool
	// Profile is what holds it on the person's machine, "" elsewhere.
	Profile string
	// As is as whom and where it runs on a host.
	As string
	// Together is how many steps, from this one on, are run in Order; 0 for one that is run by itself.
	Together int
	Order    string
	// Background is how long it may go on in the background; 0 if it is waited for.
	Background time.Duration
}

func (Words) event()    {}
func (Thought) event()  {}
func (Plan) event()     {}
func (StepEnd) event()  {}
func (Refusal) event()  {}
func (Question) event() {}
func (Settled) event()  {}
func (Note) event()     {}
func (Changed) event()  {}

// Run shows the interface until the person leaves or ctx ends. It returns what was said, as lines to leave on the terminal.
func Run(ctx context.Context, s Session, lang messages.Language, in io.Reader, out io.Writer) (said []string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait() // a turn that runs is stopped, and its task with it
	defer cancel()
	var p *tea.Program
	m := NewModel(ctx, s, lang, func(msg tea.Msg) { p.Send(msg) })
	m.work = &work
	p = tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out))
	_, err = p.Run()
	cancel()
	said = m.leave()
	switch {
	case errors.Is(err, tea.ErrInterrupted):
		return said, nil
	case err != nil:
		if p := m.panicked.Load(); p != nil {
			err = fmt.Errorf("%s: %w", *p, err)
		}
		return said, fmt.Errorf("cannot show the chat: %w; \"carrel chat --plain\" shows it line by line", err)
	}
	return said, nil
}
