package record

import (
	"fmt"
	"strings"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/policy/shell"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// ShownCommand is shell text that a model wrote, as a person is shown it: whole, but for secrets that are one plain word. hidden is
// what a mask would hide beyond that, or the name of a program or a file that is written to which only a mask has; "" if nothing is
// hidden. Ask nobody about a text of which something is.
func ShownCommand(r *redact.Redactor, text string) (shown, hidden string) {
	shown, hidden = r.Plain(text)
	if hidden == "" && shown != text {
		facts := shell.Analyze(text, shell.Limits{})
		hidden = behind(&facts, shown)
	}
	return shown, hidden
}

// ShownWords is ShownCommand for a command line.
func ShownWords(r *redact.Redactor, argv []string) (shown []string, hidden string) {
	shown, hidden = r.PlainArgv(argv)
	if hidden == "" && len(argv) > 0 && &shown[0] != &argv[0] {
		facts := shell.Words(argv, shell.Limits{})
		hidden = behind(&facts, strings.Join(shown, "\n"))
	}
	return shown, hidden
}

// behind is a program that runs, or a file that is written to, and is not among what a person sees.
func behind(facts *shell.Facts, shown string) string {
	unseen := func(w shell.Word) bool {
		return w.Text != "" && !strings.Contains(shown, w.Text) && (strings.ContainsAny(w.Source, "$`") || !strings.Contains(shown, w.Source))
	}
	for i := range facts.Commands {
		c := &facts.Commands[i]
		if len(c.Argv) > 0 && unseen(c.Argv[0]) {
			return c.Argv[0].Text
		}
		for _, to := range c.Redirects {
			if to.Mode != shell.Heredoc && to.Mode != shell.String && unseen(to.Target) {
				return to.Target.Text
			}
		}
	}
	return ""
}

// Veiled says why something is not asked about of which a mask would hide a part. It does not name the part: it may be a secret.
func Veiled(hidden string) string {
	return fmt.Sprintf("%d bytes of it would be masked as a secret and are not one plain word, so nobody could see what they do; write no "+
		"password, token or key there, or one of letters, digits and _./+=- alone", len(hidden))
}

// ShownPlan is a plan as a person is shown it, and what would be hidden of it, as ShownCommand says.
func ShownPlan(r *redact.Redactor, p operation.Plan) (shown operation.Plan, hidden string) {
	if r == nil {
		return p, ""
	}
	note := func(text, h string) string {
		if hidden == "" {
			hidden = h
		}
		return text
	}
	shown = p
	shown.Goal, _ = r.Plain(p.Goal)
	shown.Says = ShownTexts(r, p.Says)
	shown.Steps = make([]operation.PlanStep, len(p.Steps))
	for i, s := range p.Steps {
		s.Command = note(ShownCommand(r, s.Command))
		s.Diff = note(r.PlainDiff(s.Diff))
		s.Why = ShownTexts(r, s.Why)
		shown.Steps[i] = s
	}
	return shown, hidden
}

// ShownTexts are texts about what a model wrote, in which nothing is hidden but secrets that are one plain word.
func ShownTexts(r *redact.Redactor, list []string) []string {
	if len(list) == 0 {
		return nil
	}
	out := make([]string, len(list))
	for i, s := range list {
		out[i], _ = r.Plain(s)
	}
	return out
}
