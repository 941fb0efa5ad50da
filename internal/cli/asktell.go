package cli

import (
	"context"
	"strings"
	"sync"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/agent/messages"
)

// teller shows a person what happens in a turn, and asks them. Its methods may be called from several goroutines.
type teller interface {
	// words are the next piece of the agent's answer.
	words(text string) error
	// thought is the next piece of what it thinks, which is a detail: whole lines.
	thought(text string) error
	// over says that the turn has ended.
	over() error
	plan(p *planShown) error
	step(s *stepShown) error
	notBegun(n *notBegunShown) error
	tool(s *stepShown) error
	refusal(outcome, why string) error
	note(text string) error
	// ask returns the answer to a question, to a plan of several steps also one for a step at a time, or an error once ctx has ended.
	ask(ctx context.Context, m *carrelv1.Approval, steps bool) reply
	// settled says that a question is over without the person's answer.
	settled(m *carrelv1.Approval) error
}

// lineTeller shows a turn line by line: the agent's words on stdout, and what happens on stderr.
type lineTeller struct {
	a *app
	// trace: details are shown.
	trace bool

	mu sync.Mutex
	// open: the last line of the answer has no end yet.
	open bool
}

var _ teller = (*lineTeller)(nil)

func (l *lineTeller) words(text string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = !strings.HasSuffix(text, "\n")
	return say(l.a.Out, "%s", text)
}

func (l *lineTeller) thought(text string) error {
	if !l.trace {
		return nil
	}
	var b strings.Builder
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		b.WriteString("  " + l.a.lang.Say(messages.Thinks) + printable(line) + "\n")
	}
	return l.beside("%s", b.String())
}

// over ends the line of the answer.
func (l *lineTeller) over() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open {
		return nil
	}
	l.open = false
	return say(l.a.Out, "\n")
}

// beside says something that is no part of the answer.
func (l *lineTeller) beside(format string, v ...any) error {
	if err := l.over(); err != nil {
		return err
	}
	return say(l.a.Err, format, v...)
}

func (l *lineTeller) plan(p *planShown) error { return l.beside("%s", planText(l.a.lang, p)) }

func (l *lineTeller) step(s *stepShown) error {
	var b strings.Builder
	b.WriteString(stepText(l.a.lang, s))
	for _, d := range [][2]string{{"held", s.Held}, {"stderr", strings.TrimSpace(s.Stderr)}, {"carrel undo", s.Undo}} {
		if l.trace && d[1] != "" {
			b.WriteString("     " + d[0] + " " + strings.ReplaceAll(d[1], "\n", "\n       ") + "\n")
		}
	}
	return l.beside("%s", b.String())
}

func (l *lineTeller) notBegun(n *notBegunShown) error {
	return l.beside("%s", notBegunText(l.a.lang, n))
}

func (l *lineTeller) tool(s *stepShown) error { return l.beside("  %s\n", toolText(l.a.lang, s)) }

func (l *lineTeller) refusal(outcome, why string) error {
	return l.beside("  %s: %s\n", l.a.lang.Known(outcome), cut(printable(l.a.lang.Known(why)), 400))
}

func (l *lineTeller) note(text string) error { return l.beside("carrel: %s\n", text) }

func (l *lineTeller) ask(ctx context.Context, m *carrelv1.Approval, steps bool) reply {
	return l.a.prompt(ctx, m, threaded(m), steps)
}

func (l *lineTeller) settled(*carrelv1.Approval) error {
	return l.beside("\ncarrel: %s\n", l.a.lang.Say(messages.Settled))
}
