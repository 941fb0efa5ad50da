package turns

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/plan"
	"github.com/carrel-dev/carrel/internal/agent/runbooks"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/base/fanout"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/tools"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

const (
	// toolPart is the part of a step that carries out a call of a tool.
	toolPart = "tool"
	// maxErrors bounds what is kept of what a call prints on its standard error, in bytes.
	maxErrors = 2_000
)

// leads is that the path of a call leads elsewhere, by symbolic links. The call was not carried out.
type leads struct{ from, to string }

func (l *leads) Error() string { return fmt.Sprintf("it was not run: %s leads to %s", l.from, l.to) }

// path is the file or directory that the step reads by a tool, "" if it is for none.
func (s *step) path() string {
	if s.call == nil {
		return ""
	}
	return s.call.Path
}

// readAll carries out calls of tools, at the same time. All of them are judged before any is, and nobody is asked.
func (t *Turns) readAll(ctx context.Context, turn *Turn, calls []plan.ToolCall) (Reply, error) {
	count, most := 1, tools.MaxRounds
	if turn.Singly {
		count, most = len(calls), tools.MaxRounds*tools.MaxCalls
	}
	if turn.rounds+count > most {
		return Reply{Outcome: Invalid, Why: fmt.Sprintf("tools were called %d times without a plan in between, which is all that is allowed; "+
			"propose a plan, or answer with what you know", turn.rounds)}, nil
	}
	turn.rounds += count
	if turn.read >= tools.MaxTurn {
		return Reply{Outcome: Refused, Why: fmt.Sprintf("the tools of this turn have printed %d characters, which is all that is allowed; "+
			"propose a plan, or answer with what you know", tools.MaxTurn)}, nil
	}
	steps := make([]step, len(calls))
	for i := range calls {
		s, err := t.resolveCall(ctx, turn, &calls[i])
		if err != nil {
			return Reply{Outcome: Invalid, Why: fmt.Sprintf("call %d: %s", i+1, errtext.Text(err))}, nil
		}
		steps[i] = s
	}
	for i := range steps {
		if err := t.judgeCall(ctx, &steps[i]); err != nil {
			return Reply{Outcome: Refused, Why: fmt.Sprintf("no tool was called, because of call %d: %s", i+1, errtext.Text(err))}, nil
		}
	}
	ctx, cancel := turn.while(ctx)
	defer cancel()
	reply := Reply{Outcome: Done}
	way, err := fanout.Order{NoCanary: true, MaxFailures: "100%"}.Of(len(steps)) // one that fails stops no other
	if err != nil {
		return reply, err
	}
	f := fan{t: t, turn: turn, way: way, inOrder: true}
	f.note = func(r *StepResult) error {
		turn.fitCall(r)
		return turn.Note(toolPart, *r)
	}
	for i := range steps {
		f.steps, f.numbers = append(f.steps, &steps[i]), append(f.numbers, i+1)
	}
	results, err := f.run(ctx)
	for i, r := range results {
		if r == nil {
			s := steps[i].shown
			r = &StepResult{Step: i + 1, Part: toolPart, Target: s.Target, Command: s.Command, Error: "it was not called: " + f.why}
		}
		reply.Steps = append(reply.Steps, *r)
	}
	if err != nil {
		return reply, err
	}
	return reply, nil
}

// resolveCall finds the target of a call, and makes its command.
func (t *Turns) resolveCall(ctx context.Context, turn *Turn, c *plan.ToolCall) (x step, err error) {
	names, err := t.names(turn, c.Target)
	if err != nil {
		return x, err
	}
	if len(names) != 1 { // parsing sees to it
		return x, fmt.Errorf("cannot read on %d places in one call: name one: %w", len(names), errdefs.ErrInvalidArgument)
	}
	x = step{shown: operation.PlanStep{Part: toolPart, Command: c.String(), ReadOnly: true}, hosts: 1, call: c}
	if err := t.place(ctx, turn, &x, c.Target.Kind, names[0]); err != nil {
		return x, err
	}
	if tools.Find(c.Tool).Written {
		x.written, err = t.runbook(c)
		return x, err
	}
	x.exec = execapi.ExecParams{
		Argv: c.Argv(), TimeoutMS: tools.Timeout.Milliseconds(), OutputLimit: MaxOutput, Stdout: execapi.Capture, Stderr: execapi.Capture,
		// The command is carrel's own, and a model chose its parameters alone.
		Asked: execapi.Asked{Source: string(rules.User), WaitMS: -1, Trace: turn.Trace},
	}
	x.op, err = t.cfg.Commands.Operation(turn.By, &x.exec)
	return x, err
}

// judgeCall says why a call is not carried out: it is if the policy answers it with SAFE and sees that it only reads.
func (t *Turns) judgeCall(ctx context.Context, s *step) error {
	if s.written != "" {
		return nil
	}
	if s.on.Kind == operation.Workspace {
		if _, _, err := t.cfg.Lifecycle.Seen(ctx, s.look); err != nil {
			return err
		}
	}
	j, err := s.look.Judge(s.op)
	if err != nil {
		return err
	}
	s.shown.Level, s.shown.Risk = j.Level.String(), j.RiskScore
	switch {
	case j.Level == rules.Block:
		return fmt.Errorf("%s on %s: %w", s.shown.Command, s.shown.Target, j.Refusal("read it"))
	case j.Level != rules.Safe || rules.Changes(j.Capabilities):
		return fmt.Errorf("%s on %s: the policy does not let tools read it without a question: %s; propose a command, about which a person is "+
			"asked: %w", s.shown.Command, s.shown.Target, strings.Join(j.Reasons, "; "), errdefs.ErrPermissionDenied)
	}
	return nil
}

// runbook is the text of the runbook that a call names.
func (t *Turns) runbook(c *plan.ToolCall) (string, error) {
	all := t.runbooks()
	r := runbooks.Find(all, c.Name)
	if r == nil {
		var names []string
		for _, r := range all {
			names = append(names, r.Name)
		}
		return "", fmt.Errorf("cannot find the runbook %q: there are %s: %w", c.Name, strings.Join(names, ", "), errdefs.ErrNotFound)
	}
	values := map[string]string{}
	for _, p := range c.Parameters {
		name, value, ok := strings.Cut(p, "=")
		if _, twice := values[name]; !ok || twice {
			return "", fmt.Errorf("cannot use the parameter %.80q: write each once, as NAME=VALUE: %w", p, errdefs.ErrInvalidArgument)
		}
		values[name] = value
	}
	return r.Text(values)
}

func (t *Turns) runbooks() []*runbooks.Runbook {
	if t.cfg.Runbooks == nil {
		return nil
	}
	return t.cfg.Runbooks()
}

// Titles are the names and titles of the runbooks that there are, a line each.
func (t *Turns) Titles() string { return runbooks.Titles(t.runbooks()) }

// follow carries out a call whose path leads elsewhere: there, if the policy lets it. It is done once, because the second
// path has no links.
func (t *Turns) follow(ctx context.Context, turn *Turn, s *step, to *leads) StepResult {
	out := StepResult{Part: toolPart, Target: s.shown.Target, Command: s.shown.Command}
	c := *s.call
	c.Path = to.to
	next, err := step{}, error(nil)
	switch {
	case s.followed || len(c.Problems()) > 0:
		err = to
	default:
		if next, err = t.resolveCall(ctx, turn, &c); err == nil {
			err = t.judgeCall(ctx, &next)
		}
	}
	if err != nil {
		out.Error = t.cfg.Redact.Text(errtext.Text(err))
		return out
	}
	next.followed = true
	return t.run(ctx, turn, &next)
}

// readable is what a call printed without lines of files that the policy does not let tools read: a search finds files that
// nobody has named. What has another form than a line of a search is left out too.
func (s *step) readable(stdout []byte) []byte {
	if tool := tools.Find(s.call.Tool); tool == nil || !tool.Searches {
		return stdout
	}
	known, missing := map[string]bool{}, 0
	var out []byte
	for line := range bytes.Lines(stdout) {
		paths := tools.PathsOf(string(line))
		if len(paths) > 0 && !slices.ContainsFunc(paths, func(p string) bool {
			if _, ok := known[p]; !ok {
				known[p] = s.reads(p)
			}
			return !known[p]
		}) {
			out = append(out, line...)
		} else {
			missing++
		}
	}
	if missing > 0 {
		out = fmt.Appendf(out, "… %d lines are left out: they are of files that hold secrets, or were cut\n", missing)
	}
	return out
}

// reads reports whether the policy lets tools read a file where the step runs.
func (s *step) reads(path string) bool {
	cat := *s.op.Full()
	cat.Argv = []string{"cat", "--", path}
	op, err := operation.NewExec(cat)
	if err != nil {
		return false
	}
	j, err := s.look.Judge(op)
	return err == nil && j.Level == rules.Safe && !rules.Changes(j.Capabilities)
}

// fitCall shortens what a call printed to what a call, and all calls of a turn, may print.
func (turn *Turn) fitCall(r *StepResult) {
	left := min(tools.MaxOutput, tools.MaxTurn-turn.read)
	for _, x := range []struct {
		text *string
		most int
	}{{&r.Stderr, min(left, maxErrors)}, {&r.Stdout, left}} {
		if cut := shorten(*x.text, min(x.most, left)); len(cut) < len(*x.text) {
			r.Lost += int64(len(*x.text) - len(cut))
			*x.text = cut
		}
		left -= len(*x.text)
		turn.read += len(*x.text)
	}
}
