package gate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/policy"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/runtime"
	"github.com/carrel-dev/carrel/internal/store"
)

// ended is the Data of a command's outcome.
type ended struct {
	Status *execapi.Status `json:"status,omitempty"`
	// StdoutLost and StderrLost are the bytes over the capture limit.
	StdoutLost int64 `json:"stdout_lost,omitempty"`
	StderrLost int64 `json:"stderr_lost,omitempty"`
}

// Run runs a command to its end in the workspace that ref names, which is started
// if it does not run. Errors about the command itself begin with "cannot run".
func (g *Gate) Run(ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams) (id.Command, execapi.ExecResult, error) {
	var res execapi.ExecResult
	cmd, err := g.exec(ctx, p, ref, &e, false, func(ctx context.Context, name id.Workspace) (_ any, err error) {
		res, err = g.cfg.Runtime.Run(ctx, name, e)
		return ended{res.Status, res.StdoutLost, res.StderrLost}, err
	})
	return cmd, res, err
}

// Spawn starts an attached command, on a terminal if tty, with fds for its FD
// streams. Its outcome is recorded when it ends.
func (g *Gate) Spawn(ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams, tty bool, fds ...*os.File) (id.Command, runtime.Process, error) {
	var proc runtime.Process
	cmd, err := g.exec(ctx, p, ref, &e, tty, func(ctx context.Context, name id.Workspace) (_ any, err error) {
		if proc, err = g.cfg.Runtime.Spawn(ctx, name, e, tty, fds...); err != nil {
			return nil, err
		}
		return pending(func() (any, error) {
			// It ends: with the command, its executor, or the gate's Close.
			status, err := proc.Wait(context.Background())
			if err != nil {
				return nil, err
			}
			return ended{Status: &status}, nil
		}), nil
	})
	if err != nil {
		return "", nil, err
	}
	return cmd, proc, nil
}

// Detach starts a command that outlives its client and the daemon. Its outcome
// is that it was started; the executor keeps how it ended.
func (g *Gate) Detach(ctx context.Context, p principal.Principal, ref string, e execapi.ExecParams, tty bool) (id.Command, error) {
	e.Detach = true
	return g.exec(ctx, p, ref, &e, tty, func(ctx context.Context, name id.Workspace) (any, error) {
		return nil, g.cfg.Runtime.Detach(ctx, name, e, tty)
	})
}

// exec is what Run, Spawn and Detach have in common. It gives the command its id.
func (g *Gate) exec(ctx context.Context, p principal.Principal, ref string, e *execapi.ExecParams, tty bool,
	start func(context.Context, id.Workspace) (any, error),
) (id.Command, error) {
	a := action.Action{
		Kind: action.Exec, Argv: e.Argv, Cwd: e.Cwd, TTY: tty, Detach: e.Detach, TimeoutMS: e.TimeoutMS,
		Source: string(origin(p, policy.Origin(e.Asked.Source))),
	}
	if err := recordable(e); err != nil {
		return "", err
	}
	setEnv(&a, e.Env)
	a.Secrets = g.secretsOf(e.Env)
	w, err := g.reach(ctx, p, ref, a)
	if err != nil {
		return "", err
	}
	a.Workspace = w.Name
	r := request{
		by: p, trace: id.NewTrace(), on: w, action: a, env: e.Env,
		thread: e.Asked.Thread, wait: time.Duration(e.Asked.WaitMS) * time.Millisecond,
	}
	for again := true; ; again = false {
		if err := g.ensureRunning(ctx, p, r.trace, w.Name); err != nil {
			return "", err
		}
		if err := g.clear(ctx, &r); err != nil {
			return "", err
		}
		e.ID = id.NewCommand()
		r.action.Command = e.ID
		e.Shown = g.listedOf(&r)
		err = g.do(ctx, r, func(ctx context.Context) (any, error) {
			return start(ctx, w.Name)
		})
		// No executor was there, so nothing was carried out: start one and try
		// once more, with an intent of its own.
		if !again || !errors.Is(err, runtime.ErrNotRunning) {
			return e.ID, err
		}
		if err := g.lost(ctx, w.Name); err != nil {
			return "", err
		}
	}
}

// recordable refuses what the record could not hold faithfully. The executor checks
// the rest.
func recordable(e *execapi.ExecParams) error {
	if len(e.Cwd) > 4096 || !utf8.ValidString(e.Cwd) {
		return fmt.Errorf("cannot run the command: its directory is longer than 4096 bytes or not valid UTF-8: %w", errdefs.ErrInvalidArgument)
	}
	for _, list := range [][]string{e.Argv, e.Env} {
		if len(list) > execapi.MaxArgs {
			return fmt.Errorf("cannot run the command: it has %d arguments or variables, at most %d are taken: %w", len(list), execapi.MaxArgs, errdefs.ErrInvalidArgument)
		}
		for _, s := range list {
			if !utf8.ValidString(s) {
				return fmt.Errorf("cannot run the command: an argument or variable is not valid UTF-8; pass such data on stdin: %w", errdefs.ErrInvalidArgument)
			}
		}
	}
	if n := bytesOf(e.Argv) + bytesOf(e.Env); n > execapi.MaxArgBytes {
		return fmt.Errorf("cannot run the command: arguments and variables are %d bytes long, at most %d are taken; pass more on stdin: %w", n, execapi.MaxArgBytes, errdefs.ErrInvalidArgument)
	}
	return nil
}

// listedOf is what is listed of a command's words if there are secrets among them, also those
// of its variables, which nobody here knows any more when it is listed; nil if there are none.
func (g *Gate) listedOf(r *request) []string {
	argv := r.action.Argv
	clean := g.argvOf(r)
	if len(argv) == 0 || &clean[0] == &argv[0] {
		return nil
	}
	return firstBytes(clean, execapi.MaxShown-1)
}

// Commands lists the commands of a workspace, without the secrets among their words; one that
// does not run has none.
func (g *Gate) Commands(ctx context.Context, p principal.Principal, ref string) ([]execapi.Command, error) {
	w, err := g.reach(ctx, p, ref, action.Action{Kind: action.Commands})
	if err != nil {
		return nil, err
	}
	list, err := g.cfg.Runtime.Commands(ctx, w.Name)
	if errors.Is(err, runtime.ErrNotRunning) {
		return nil, nil
	}
	for i := range list {
		list[i].Argv = g.cfg.Redact.Argv(list[i].Argv)
	}
	return list, err
}

// Output opens the output of a detached command. Attaching to its terminal also
// gives the right to type, and so is recorded.
func (g *Gate) Output(ctx context.Context, p principal.Principal, ref string, o execapi.OutputParams, attach bool) (execapi.OutputResult, []*os.File, error) {
	a := action.Action{Kind: action.Logs, Command: o.ID}
	if attach {
		a.Kind = action.Attach
	}
	w, err := g.reach(ctx, p, ref, a)
	if err != nil {
		return execapi.OutputResult{}, nil, err
	}
	if !attach {
		return g.cfg.Runtime.Output(ctx, w.Name, o, false)
	}
	var res execapi.OutputResult
	var files []*os.File
	err = g.on(ctx, p, w, a, func(ctx context.Context) (_ any, err error) {
		res, files, err = g.cfg.Runtime.Output(ctx, w.Name, o, true)
		return nil, err
	})
	return res, files, err
}

// Signal sends a signal to a command, or ends it.
func (g *Gate) Signal(ctx context.Context, p principal.Principal, ref string, s execapi.StopTaskParams) error {
	a := action.Action{Kind: action.Signal, Command: s.ID, Signal: signalName(s)}
	w, err := g.reach(ctx, p, ref, a)
	if err != nil {
		return err
	}
	return g.on(ctx, p, w, a, func(ctx context.Context) (any, error) {
		return nil, g.cfg.Runtime.Signal(ctx, w.Name, s)
	})
}

// signalName is a signal in an action: its number, "hangup" or "end".
func signalName(s execapi.StopTaskParams) string {
	switch {
	case s.Hangup:
		return "hangup"
	case s.Signal == 0:
		return "end"
	}
	return fmt.Sprint(s.Signal)
}

// Resize sets the size of a command's terminal. It is authorised, but not
// recorded: whoever has the terminal could do the same through it.
func (g *Gate) Resize(ctx context.Context, p principal.Principal, ref string, r execapi.ResizeParams) error {
	w, err := g.reach(ctx, p, ref, action.Action{Kind: action.Resize, Command: r.ID})
	if err != nil {
		return err
	}
	return g.cfg.Runtime.Resize(ctx, w.Name, r)
}

// on does a to w.
func (g *Gate) on(ctx context.Context, p principal.Principal, w store.Workspace, a action.Action, effect func(context.Context) (any, error)) error {
	a.Workspace = w.Name
	return g.do(ctx, request{by: p, trace: id.NewTrace(), on: w, action: a}, effect)
}
