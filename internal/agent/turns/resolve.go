package turns

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/plan"
	"github.com/carrel-dev/carrel/internal/base/fanout"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// step is one command on one target.
type step struct {
	shown operation.PlanStep
	asks  bool
	// hosts is how many hosts the plan's step names.
	hosts int
	// key is what an answer for the session remembers of it; "" if none may.
	key  string
	on   operation.Target
	exec execapi.ExecParams
	op   operation.Exec
	look *gate.Authorised
	// patch is the change to files that it is, nil if it is a command; then op and exec are empty.
	patch *patched
	// call is the call of a tool that it carries out, nil if it is a plan's. followed: its path was another one at first.
	call     *plan.ToolCall
	followed bool
	// written is what answers a call that reads nothing.
	written string
}

// The parts of a plan, in the order in which they are run.
const (
	preflight    = "preflight"
	command      = "command"
	verification = "verification"
	rollback     = "rollback"
)

// resolve finds the target of every step, also of those that would only be run if another fails. A target that there is
// not, or that the user does not reach, is an error, and nothing stands for it.
func (t *Turns) resolve(ctx context.Context, turn *Turn, p *proposal) ([]step, error) {
	var all []step
	if p.patch != nil {
		s, err := t.resolvePatch(ctx, turn, p.patch)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	for _, part := range []struct {
		name string
		list []plan.Step
	}{{preflight, p.PreflightChecks}, {command, p.Commands}, {verification, p.Verification}} {
		for i, s := range part.list {
			steps, err := t.resolveStep(ctx, turn, part.name, s)
			if err != nil {
				return nil, fmt.Errorf("%s %d: %w", part.name, i+1, err)
			}
			all = append(all, steps...)
		}
	}
	for i, s := range p.Rollback {
		if _, err := t.resolveStep(ctx, turn, rollback, s); err != nil {
			return nil, fmt.Errorf("rollback %d: %w", i+1, err)
		}
	}
	if len(all) > maxSteps {
		return nil, fmt.Errorf("cannot run a plan of %d commands, each host counted: at most %d are allowed: %w", len(all), maxSteps,
			errdefs.ErrInvalidArgument)
	}
	return all, nil
}

func (t *Turns) resolveStep(ctx context.Context, turn *Turn, part string, s plan.Step) ([]step, error) {
	if s.Background && part != command {
		return nil, fmt.Errorf("cannot run it in the background: the plan waits for what it says; have only steps of commands run there: %w",
			errdefs.ErrInvalidArgument)
	}
	names, err := t.names(turn, s.Target)
	if err != nil {
		return nil, err
	}
	var out []step
	for _, name := range names {
		x := step{shown: operation.PlanStep{Part: part, Command: s.Command, ReadOnly: s.ReadOnly}}
		if err := t.place(ctx, turn, &x, s.Target.Kind, name); err != nil {
			return nil, err
		}
		if x.on.Kind == operation.Host {
			x.shown.Profile = operation.Inspecting
			if hosts := turn.Hosts(); !s.ReadOnly && hosts != nil {
				x.shown.Profile = hosts.Profile()
			}
		}
		timeout := DefaultTimeout
		if s.Background {
			timeout = BackgroundTimeout
		}
		if s.TimeoutSeconds > 0 {
			timeout = time.Duration(s.TimeoutSeconds) * time.Second
		}
		x.exec = execapi.ExecParams{
			Argv: []string{"/bin/sh", "-c", s.Command}, TimeoutMS: timeout.Milliseconds(), OutputLimit: MaxOutput,
			Stdout: execapi.Capture, Stderr: execapi.Capture,
			// What the plan's answer does not cover is not asked about once more, step by step.
			Asked: execapi.Asked{Source: string(rules.LLM), WaitMS: -1, Trace: turn.Trace},
		}
		if s.Background {
			x.shown.Background, x.shown.LimitMS, x.exec.Detach = true, timeout.Milliseconds(), true
			x.exec.OutputLimit = 0 // what its executor keeps of a detached command
		}
		if x.op, err = t.cfg.Commands.Operation(turn.By, &x.exec); err != nil {
			return nil, err
		}
		if x.shown.Digest, err = operation.Same(x.op, x.on); err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, turn.fan(out)
}

// fan has the steps be one step of the plan on several hosts.
func (turn *Turn) fan(steps []step) error {
	for i := range steps {
		steps[i].hosts = len(steps)
	}
	if len(steps) < 2 {
		return nil
	}
	way, err := turn.wayOf(steps)
	steps[0].shown.Together, steps[0].shown.Order = len(steps), way.String()
	return err
}

// wayOf is how steps that are one step of the plan reach their hosts.
func (turn *Turn) wayOf(steps []step) (fanout.Way, error) {
	names := make([]string, len(steps))
	for i, s := range steps {
		if s.on.Kind == operation.Remote { // a workspace of the same name is another thing
			names[i] = string(s.on.Name)
		}
	}
	return turn.Orders.Of(names)
}

// place finds what a step runs on.
func (t *Turns) place(ctx context.Context, turn *Turn, x *step, kind operation.TargetKind, name string) (err error) {
	request := operation.Request{By: turn.By, Op: operation.Simple(operation.ExplainCommand)}
	if kind == operation.Workspace {
		x.look, err = t.cfg.Lifecycle.Authorise(ctx, turn.By, name, request.Op)
	} else {
		request.On = operation.Target{Kind: kind, Name: id.Workspace(name), Owner: turn.By.Owner()}
		x.look, err = t.cfg.Gate.Authorise(ctx, request, nil)
	}
	if err != nil {
		return err
	}
	x.on = x.look.On()
	if x.on.Kind == operation.Workspace && x.on.Name == turn.On.Name {
		// What is changed there could speak in the agent's name from then on.
		return fmt.Errorf("cannot work in workspace %s: the agent's own program is in it; name another workspace: %w", name,
			errdefs.ErrPermissionDenied)
	}
	shown := string(x.on.Name)
	if x.on.Key != "" && x.on.Owner == turn.By.Owner() {
		shown = string(x.on.Key) // their own, by the name that they gave it; the digest has the other one too
	}
	x.shown.Target = strings.TrimSpace(string(x.on.Kind) + " " + shown)
	if hosts := turn.Hosts(); x.on.Kind != operation.Workspace && hosts != nil {
		x.shown.As = oneLine(hosts.As(name))
	}
	return nil
}

// maxNamed is how many hosts an error names.
const maxNamed = 16

// names are the things that a target means, one for each command.
func (t *Turns) names(turn *Turn, target plan.Target) ([]string, error) {
	if target.Kind == operation.Workspace {
		return target.Names, nil
	}
	if turn.By.Kind != principal.User {
		return nil, fmt.Errorf("cannot run a step on %s for %s: hosts are for users of this machine, and not for tokens: %w", target, turn.By,
			errdefs.ErrPermissionDenied)
	}
	hosts := turn.Hosts()
	if hosts == nil {
		return nil, fmt.Errorf("cannot run a step on %s: nobody serves hosts in this turn; use a workspace, or have the user ask with "+
			"\"carrel ask\" on the machine itself: %w", target, errdefs.ErrFailedPrecondition)
	}
	if target.Kind == operation.Host {
		if !hosts.Local() {
			return nil, fmt.Errorf("cannot run a step on the host: the user did not offer it; use a workspace: %w", errdefs.ErrPermissionDenied)
		}
		return []string{""}, nil
	}
	known := hosts.Remotes()
	if len(target.Names) == 1 && target.Names[0] == plan.All {
		if len(known) == 0 {
			return nil, fmt.Errorf("cannot run a step on all remote hosts: the user offered none: %w", errdefs.ErrNotFound)
		}
		return known, nil
	}
	for _, n := range target.Names {
		if !slices.Contains(known, n) {
			return nil, unknown(n, known)
		}
	}
	return target.Names, nil
}

// unknown is the error for a remote host that there is not.
func unknown(name string, known []string) error {
	if len(known) == 0 {
		return fmt.Errorf("cannot find the remote host %q: the user offered none; use another target: %w", name, errdefs.ErrNotFound)
	}
	there := strings.Join(known[:min(len(known), maxNamed)], ", ")
	if n := len(known) - maxNamed; n > 0 {
		there += fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("cannot find the remote host %q: there are %s: %w", name, there, errdefs.ErrNotFound)
}

// judge has every step judged. The error is why the plan is refused as a whole, for the step at.
func (t *Turns) judge(ctx context.Context, turn *Turn, steps []step) (at int, err error) {
	for i := range steps {
		s := &steps[i]
		// What an earlier policy said of it counts no more.
		s.asks, s.key, s.shown.FirstRun, s.shown.Why = false, "", false, nil
		if s.hosts == 1 {
			s.shown.Together, s.shown.Order = 0, ""
		}
		if s.patch != nil {
			j, err := s.look.Judge(s.patch.op)
			if err != nil {
				return i, err
			}
			s.shown.Level, s.shown.Risk, s.asks = j.Level.String(), j.RiskScore, true
			continue
		}
		if s.on.Kind == operation.Workspace {
			if _, _, err := t.cfg.Lifecycle.Seen(ctx, s.look); err != nil {
				return i, err
			}
		}
		j, err := s.look.Judge(s.op)
		if err != nil {
			return i, err
		}
		s.shown.Level, s.shown.Risk = j.Level.String(), j.RiskScore
		switch {
		case j.Level == rules.Block:
			return i, fmt.Errorf("step %d, %s: %s: %w", i+1, s.shown.Target, s.shown.Command, j.Refusal("run it"))
		case s.shown.ReadOnly && rules.Changes(j.Capabilities):
			return i, fmt.Errorf("step %d, %s: %s: it says that it only reads, and the policy sees that it does more (%s); propose it with "+
				"read_only false: %w", i+1, s.shown.Target, s.shown.Command, strings.Join(j.Capabilities, ", "), errdefs.ErrPermissionDenied)
		}
		// Several hosts at once are always shown to a person.
		s.asks = j.Level == rules.Confirm || s.hosts > 1
		if s.asks && s.hosts == 1 && !j.NeverWhitelist {
			if s.key, err = turn.keyOf(s, []any{j.Level.String(), j.RiskScore, j.MatchedRules, j.Capabilities, j.Policy}); err != nil {
				return i, err
			}
		}
		if j.Level == rules.Confirm {
			typed := *s.op.Full()
			typed.Source = string(rules.User)
			op, err := operation.NewExec(typed)
			if err != nil {
				return i, err
			}
			if j, err = s.look.Judge(op); err != nil {
				return i, err
			}
			if s.shown.FirstRun = j.Level == rules.Safe; !s.shown.FirstRun {
				s.shown.Why = j.Reasons
			}
		}
	}
	return 0, nil
}
