package cli

import (
	"context"
	"strings"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

// teller shows a person what happens in a turn, and asks them. Its methods may be called from several goroutines.
type teller interface {
	words(text string) error
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
}

var _ teller = (*lineTeller)(nil)

func (l *lineTeller) words(text string) error {
	return say(l.a.Out, "%s\n", strings.TrimRight(text, "\n"))
}

func (l *lineTeller) plan(p *planShown) error { return say(l.a.Err, "%s", planText(p)) }

func (l *lineTeller) step(s *stepShown) error {
	var b strings.Builder
	b.WriteString(stepText(s))
	for _, d := range [][2]string{{"held", s.Held}, {"stderr", strings.TrimSpace(s.Stderr)}, {"carrel undo", s.Undo}} {
		if l.trace && d[1] != "" {
			b.WriteString("     " + d[0] + " " + strings.ReplaceAll(d[1], "\n", "\n       ") + "\n")
		}
	}
	return say(l.a.Err, "%s", b.String())
}

func (l *lineTeller) notBegun(n *notBegunShown) error { return say(l.a.Err, "%s", notBegunText(n)) }

func (l *lineTeller) tool(s *stepShown) error { return say(l.a.Err, "  %s\n", toolText(s)) }

func (l *lineTeller) refusal(outcome, why string) error {
	return say(l.a.Err, "  %s: %s\n", outcome, cut(printable(why), 400))
}

func (l *lineTeller) note(text string) error { return say(l.a.Err, "carrel: %s\n", text) }

func (l *lineTeller) ask(ctx context.Context, m *carrelv1.Approval, steps bool) reply {
	return l.a.prompt(ctx, m, false, steps)
}

func (l *lineTeller) settled(*carrelv1.Approval) error {
	return say(l.a.Err, "\ncarrel: somebody else has answered, or its time is over\n")
}
