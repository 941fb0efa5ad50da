package apitest

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// start runs a command in the workspace that ref names.
func (g *Gate) start(p principal.Principal, ref string, e execapi.ExecParams, tty bool) (*process, error) {
	command := workspace.Command{Argv: e.Argv, Env: e.Env, Cwd: e.Cwd, TimeoutMS: e.TimeoutMS, GraceMS: e.GraceMS}
	if _, err := operation.NewExec(operation.Command{Command: command, TTY: tty, Detach: e.Detach}); err != nil {
		return nil, err
	}
	var c *process
	_, err := g.with(p, ref, "command.exec", func(d *entry) (err error) {
		if d.State != workspace.StateRunning {
			d.run()
		}
		e.ID = id.NewCommand()
		g.last = e
		g.notify()
		if c, err = startProcess(e, tty); err == nil {
			d.commands = append(d.commands, c)
		}
		return err
	})
	return c, err
}

// Run implements api.Gate.
func (g *Gate) Run(ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams) (id.Command, execapi.ExecResult, error) {
	if err := g.permit(p, operation.ExecCommand); err != nil {
		return "", execapi.ExecResult{}, err
	}
	e.Wait = true
	c, err := g.start(p, ref, e, false)
	if err != nil {
		return "", execapi.ExecResult{}, err
	}
	s, err := c.Wait(ctx)
	if err != nil {
		c.Close()
		return c.params.ID, execapi.ExecResult{}, err
	}
	return c.params.ID, execapi.ExecResult{
		PID: c.PID(), Status: &s, Stdout: c.stdout.kept(), Stderr: c.stderr.kept(),
		StdoutLost: c.stdout.lost(), StderrLost: c.stderr.lost(),
	}, nil
}

// Spawn implements api.Gate.
func (g *Gate) Spawn(
	_ context.Context, p principal.Principal, ref string, e execapi.ExecParams, tty bool, _ ...*os.File,
) (id.Command, runtime.Process, error) {
	if err := g.permit(p, operation.ExecCommand); err != nil {
		return "", nil, err
	}
	c, err := g.start(p, ref, e, tty)
	if err != nil {
		return "", nil, err
	}
	return c.params.ID, c, nil
}

// Detach implements api.Gate.
func (g *Gate) Detach(_ context.Context, p principal.Principal, ref string, e execapi.ExecParams, tty bool) (id.Command, error) {
	if err := g.permit(p, operation.ExecCommand); err != nil {
		return "", err
	}
	e.Detach, e.Stdout, e.Stderr = true, execapi.Capture, execapi.Capture
	c, err := g.start(p, ref, e, tty)
	if err != nil {
		return "", err
	}
	return c.params.ID, nil
}

// Explain implements api.Gate: it judges by the built-in rules.
func (g *Gate) Explain(_ context.Context, p principal.Principal, ref string, e execapi.ExecParams) (
	d rules.Decision, verified, assumed bool, err error,
) {
	if err := g.permit(p, operation.ExplainCommand); err != nil {
		return d, false, false, err
	}
	_, err = g.with(p, ref, "", func(*entry) error {
		engine, err := rules.New(rules.Config{})
		if err == nil {
			d = engine.Decide(rules.Question{
				Argv: e.Argv, Dir: e.Cwd, Env: e.Env, Profile: rules.Workspace, Source: rules.Origin(e.Asked.Source), Verified: true,
			})
		}
		return err
	})
	return d, true, false, err
}

// ListCommands implements api.Gate.
func (g *Gate) ListCommands(_ context.Context, p principal.Principal, ref string) ([]execapi.Command, error) {
	if err := g.permit(p, operation.ListCommands); err != nil {
		return nil, err
	}
	var out []execapi.Command
	_, err := g.with(p, ref, "", func(d *entry) error {
		for _, c := range d.commands {
			s := c.ended()
			if s != nil && !c.params.Detach {
				continue
			}
			out = append(out, execapi.Command{
				ID: c.params.ID, PID: c.PID(), Argv: c.params.Argv, Detached: c.params.Detach,
				TTY: c.tty, StartedNS: c.started.UnixNano(), Processes: 1, Status: s,
			})
		}
		return nil
	})
	return out, err
}

func (g *Gate) command(p principal.Principal, ref, what string, cmd id.Command) (*process, error) {
	var c *process
	_, err := g.with(p, ref, what, func(d *entry) error {
		for _, o := range d.commands {
			if o.params.ID == cmd {
				c = o
				return nil
			}
		}
		return fmt.Errorf("cannot find command %s: it has ended or never was; \"carrel ps\" lists those there are: %w", cmd, errdefs.ErrNotFound)
	})
	return c, err
}

// Output implements api.Gate.
func (g *Gate) Output(_ context.Context, p principal.Principal, ref string, o execapi.OutputParams,
	attach bool,
) (execapi.OutputResult, []*os.File, error) {
	op := operation.ReadOutput
	if attach {
		op = operation.AttachCommand
	}
	if err := g.permit(p, op); err != nil {
		return execapi.OutputResult{}, nil, err
	}
	c, err := g.command(p, ref, "command.attach", o.ID)
	if err != nil {
		return execapi.OutputResult{}, nil, err
	}
	if !c.params.Detach {
		return execapi.OutputResult{}, nil, fmt.Errorf("cannot read the output of %s: it is attached to the client that started it: %w",
			o.ID, errdefs.ErrFailedPrecondition)
	}
	res := execapi.OutputResult{TTY: c.tty && attach, Lost: c.stdout.lost(), Status: c.ended()}
	f, err := c.stdout.open(o.Follow)
	if err != nil {
		return res, nil, err
	}
	return res, []*os.File{f}, nil
}

// Wait implements api.Gate.
func (g *Gate) Wait(ctx context.Context, p principal.Principal, ref string, cmd id.Command) (*execapi.Status, workspace.State, error) {
	if err := g.permit(p, operation.WaitForEnd); err != nil {
		return nil, "", err
	}
	if cmd == "" {
		w, err := g.with(p, ref, "", func(*entry) error { return nil })
		if err == nil && w.State.Live() {
			<-ctx.Done()
			err = context.Cause(ctx)
		}
		return nil, w.State, err
	}
	c, err := g.command(p, ref, "", cmd)
	if err != nil {
		return nil, "", err
	}
	status, err := c.Wait(ctx)
	return &status, "", err
}

// Signal implements api.Gate.
func (g *Gate) Signal(_ context.Context, p principal.Principal, ref string, s execapi.StopTaskParams) error {
	if err := g.permit(p, operation.SignalCommand); err != nil {
		return err
	}
	c, err := g.command(p, ref, "command.signal", s.ID)
	if err != nil {
		return err
	}
	return c.signal(s.Signal)
}

// Resize implements api.Gate.
func (g *Gate) Resize(_ context.Context, p principal.Principal, ref string, r execapi.ResizeParams) error {
	if err := g.permit(p, operation.ResizeCommand); err != nil {
		return err
	}
	c, err := g.command(p, ref, "", r.ID)
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.resized = r
	g.notify()
	g.mu.Unlock()
	return c.resize(r.Rows, r.Cols)
}
