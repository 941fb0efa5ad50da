// Package commands runs commands in workspaces, and reaches those that run.
//
// It must not decide who may do what: the gate does. Bytes of a command do not pass it.
package commands

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/record"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Config holds the dependencies of New. Redact is optional.
type Config struct {
	Gate      *gate.Gate
	Lifecycle *lifecycle.Lifecycle
	Redact    *redact.Redactor
}

// Commands are the commands of all workspaces. Its methods may be called from any goroutine.
type Commands struct{ cfg Config }

// New returns the commands of the workspaces of a lifecycle.
func New(cfg Config) *Commands { return &Commands{cfg} }

// Ended is what the outcome of a command says.
type Ended struct {
	Status *execapi.Status `json:"status,omitempty"`
	// StdoutLost and StderrLost are the bytes over the capture limit.
	StdoutLost int64 `json:"stdout_lost,omitempty"`
	StderrLost int64 `json:"stderr_lost,omitempty"`
}

// Run runs a command to its end in the workspace that ref names, which is started if it does
// not run. Errors about the command itself begin with "cannot run".
func (c *Commands) Run(
	ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams,
) (id.Command, execapi.ExecResult, error) {
	var res execapi.ExecResult
	cmd, err := c.exec(ctx, p, ref, &e, false, func(ctx context.Context, rt runtime.Runtime, p permit.Permit) (_ any, err error) {
		res, err = rt.Run(ctx, p, e)
		return Ended{res.Status, res.StdoutLost, res.StderrLost}, err
	})
	return cmd, res, err
}

// Spawn starts an attached command, on a terminal if tty, with fds for its FD streams. Its
// outcome is recorded when it ends.
func (c *Commands) Spawn(ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams, tty bool,
	fds ...*os.File,
) (id.Command, runtime.Process, error) {
	var s spawned
	cmd, err := c.exec(ctx, p, ref, &e, tty, func(ctx context.Context, rt runtime.Runtime, p permit.Permit) (_ any, err error) {
		proc, err := rt.Spawn(ctx, p, e, tty, fds...)
		if err != nil {
			return nil, err
		}
		s = spawned{proc, &gate.Pending{Wait: func() (any, error) {
			// It ends: with the command, its executor, or the end of the runtime.
			status, err := proc.Wait(context.Background())
			if err != nil {
				return nil, err
			}
			return Ended{Status: &status}, nil
		}}}
		return s.outcome, nil
	})
	if err != nil {
		return "", nil, err
	}
	return cmd, s, nil
}

// spawned is a command whose end is recorded before anybody is told of it.
type spawned struct {
	runtime.Process
	outcome *gate.Pending
}

func (s spawned) Wait(ctx context.Context) (execapi.Status, error) {
	status, err := s.Process.Wait(ctx)
	if err == nil {
		s.outcome.Recorded()
	}
	return status, err
}

// Detach starts a command that outlives its client and the daemon. Its outcome is that it was
// started; the executor keeps how it ended.
func (c *Commands) Detach(ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams, tty bool) (id.Command, error) {
	e.Detach = true
	return c.exec(ctx, p, ref, &e, tty, func(ctx context.Context, rt runtime.Runtime, p permit.Permit) (any, error) {
		return nil, rt.Detach(ctx, p, e, tty)
	})
}

// effect starts a command that may be started.
type effect func(context.Context, runtime.Runtime, permit.Permit) (any, error)

// exec is what Run, Spawn and Detach have in common. It gives the command its id.
func (c *Commands) exec(ctx context.Context, p principal.Principal, ref string, e *execapi.ExecParams, tty bool,
	start effect,
) (id.Command, error) {
	op, err := asked(p, e, tty)
	if err != nil {
		return "", err
	}
	op.ID = id.NewCommand()
	life := c.cfg.Lifecycle
	authorised, err := c.cfg.Gate.Authorise(ctx, operation.Request{
		By: p, Op: op, Trace: e.Asked.Trace, Thread: e.Asked.Thread, Wait: time.Duration(e.Asked.WaitMS) * time.Millisecond,
	}, func() (operation.Target, error) { return life.Find(ref) })
	if err != nil {
		return "", err
	}
	if err := life.Ready(ctx, authorised); err != nil {
		return "", err
	}
	a, err := authorised.Admit(ctx)
	if err != nil {
		return "", err
	}
	rt, err := life.Runtime(a.Request().On.Boundary)
	if err != nil {
		return "", err
	}
	e.ID, e.Shown = op.ID, listed(op.Argv, a.Argv())
	if own := life.Variables(a.Request().On.Name); len(own) > 0 {
		e.Env = append(own, e.Env...) // in front: what the caller gives holds
	}
	return op.ID, a.Do(ctx, func(ctx context.Context, p permit.Permit) (any, error) {
		data, err := start(ctx, rt, p)
		if !errors.Is(err, runtime.ErrNotRunning) {
			return data, err
		}
		// No executor was there, so nothing was carried out: start one and try once more.
		if err := life.Again(ctx, authorised); err != nil {
			return nil, err
		}
		return start(ctx, rt, p)
	})
}

// Operation is the operation that Run carries out for p with e. It has no id yet.
func (c *Commands) Operation(p principal.Principal, e *execapi.ExecParams) (operation.Exec, error) {
	return asked(p, e, false)
}

// asked is the operation that p asks for with e.
func asked(p principal.Principal, e *execapi.ExecParams, tty bool) (operation.Exec, error) {
	return operation.NewExec(operation.Command{
		Command: workspace.Command{Argv: e.Argv, Env: e.Env, Cwd: e.Cwd, TimeoutMS: e.TimeoutMS, GraceMS: e.GraceMS},
		TTY:     tty, Detach: e.Detach, Session: e.Session, Record: e.Record,
		Source: string(judge.Origin(p, rules.Origin(e.Asked.Source))),
	})
}

// Explain says how a command of p's would be judged in the workspace that ref names, by the rules in
// force. It runs and starts nothing, and asks nobody. verified says that the isolation was seen to hold, or
// that this is assumed, because the workspace does not run.
func (c *Commands) Explain(ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams) (
	d rules.Decision, verified, assumed bool, err error,
) {
	a, err := c.cfg.Lifecycle.Authorise(ctx, p, ref, operation.Simple(operation.ExplainCommand))
	if err != nil {
		return d, false, false, err
	}
	op, err := asked(p, &e, false)
	if err != nil {
		return d, false, false, err
	}
	if verified, assumed, err = c.cfg.Lifecycle.Seen(ctx, a); err != nil {
		return d, false, false, err
	}
	j, err := a.Judge(op)
	if err != nil {
		return d, false, false, err
	}
	return j.Decision, verified, assumed, nil
}

// listed is what is listed of a command's words if there are secrets among them, also those of
// its variables, which nobody here knows any more when it is listed; nil if there are none.
func listed(argv, clean []string) []string {
	if len(argv) == 0 || len(clean) > 0 && &clean[0] == &argv[0] {
		return nil
	}
	return record.FirstBytes(clean, execapi.MaxShown-1)
}

// ListCommands lists the commands of a workspace, without the secrets among their words; one that
// does not run has none.
func (c *Commands) ListCommands(ctx context.Context, p principal.Principal, ref string) ([]execapi.Command, error) {
	on, rt, err := c.look(ctx, p, ref, operation.Simple(operation.ListCommands))
	if err != nil {
		return nil, err
	}
	list, err := rt.Commands(ctx, on.Name)
	if errors.Is(err, runtime.ErrNotRunning) {
		return nil, nil
	}
	for i := range list {
		list[i].Argv = c.cfg.Redact.Argv(list[i].Argv)
	}
	return list, err
}

// look authorises an operation that changes nothing, and returns its target with the runtime
// of that.
func (c *Commands) look(
	ctx context.Context, p principal.Principal, ref string, op operation.Operation,
) (operation.Target, runtime.Runtime, error) {
	a, err := c.cfg.Lifecycle.Authorise(ctx, p, ref, op)
	if err != nil {
		return operation.Target{}, nil, err
	}
	rt, err := c.cfg.Lifecycle.Runtime(a.On().Boundary)
	return a.On(), rt, err
}

// do carries out an operation on a command of the workspace that ref names.
func (c *Commands) do(ctx context.Context, p principal.Principal, ref string, op operation.Operation,
	f func(context.Context, runtime.Runtime, permit.Permit) error,
) error {
	authorised, err := c.cfg.Lifecycle.Authorise(ctx, p, ref, op)
	if err != nil {
		return err
	}
	a, err := authorised.Admit(ctx)
	if err != nil {
		return err
	}
	rt, err := c.cfg.Lifecycle.Runtime(authorised.On().Boundary)
	if err != nil {
		return err
	}
	return a.Do(ctx, func(ctx context.Context, p permit.Permit) (any, error) { return nil, f(ctx, rt, p) })
}

// Output opens the output of a detached command, or joins a session. Attaching to its terminal also
// gives the right to type, and so is a change; joining a session without it is reading its output.
func (c *Commands) Output(ctx context.Context, p principal.Principal, ref string, o execapi.OutputParams,
	attach bool,
) (res execapi.OutputResult, files []*os.File, err error) {
	if !attach {
		err = c.do(ctx, p, ref, operation.OnCommand(operation.ReadOutput, o.ID), func(ctx context.Context, rt runtime.Runtime,
			p permit.Permit,
		) error {
			name, err := p.Workspace()
			if err == nil {
				res, files, err = rt.Output(ctx, name, o)
			}
			return err
		})
		return res, files, err
	}
	err = c.do(ctx, p, ref, operation.OnCommand(operation.AttachCommand, o.ID), func(ctx context.Context, rt runtime.Runtime,
		p permit.Permit,
	) (err error) {
		res, files, err = rt.Attach(ctx, p, o)
		return err
	})
	return res, files, err
}

// Signal sends a signal to a command, or ends it.
func (c *Commands) Signal(ctx context.Context, p principal.Principal, ref string, s execapi.StopTaskParams) error {
	return c.do(ctx, p, ref, operation.Signal(s.ID, s.Signal, s.Hangup), func(ctx context.Context, rt runtime.Runtime, p permit.Permit) error {
		return rt.Signal(ctx, p, s)
	})
}

// Resize sets the size of a command's terminal.
func (c *Commands) Resize(ctx context.Context, p principal.Principal, ref string, r execapi.ResizeParams) error {
	return c.do(ctx, p, ref, operation.OnCommand(operation.ResizeCommand, r.ID), func(ctx context.Context, rt runtime.Runtime,
		p permit.Permit,
	) error {
		return rt.Resize(ctx, p, r)
	})
}
