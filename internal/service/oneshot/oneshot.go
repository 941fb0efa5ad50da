// Package oneshot makes a workspace for one command, runs the command in it and ends both. It
// is what "carrel run" does without a daemon.
//
// It must not decide or isolate anything itself: the gate and the runtime do.
package oneshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Workspace is a workspace for one command.
type Workspace struct {
	// Name is one that no other has had.
	Name   id.Workspace
	Limits workspace.Limits
	// Mounts are those that the runtime was given, for the record.
	Mounts []workspace.Mount
	// Allow is what the command may do beyond what others may.
	Allow []workspace.Opening
	// Accept are the controls that it may run without.
	Accept []string
	// Reach are the rules of what it may reach, for the record.
	Reach []string
	// Command is what runs in it, on a terminal if TTY.
	Command execapi.ExecParams
	TTY     bool
	// Keep: its home stays when it ends.
	Keep bool
	// Prepare is called once the workspace is proved, before its command starts. Optional.
	Prepare func(ctx context.Context, rt runtime.Runtime, p permit.Permit) error
}

// outcome is what the outcome says of a workspace for one command.
type outcome struct {
	Status   *execapi.Status                `json:"status,omitempty"`
	Controls map[workspace.ControlState]int `json:"controls"`
	// Weaker are the controls that it ran without because it was asked to.
	Weaker []string `json:"weaker,omitempty"`
	// Retained is where its home was kept.
	Retained string `json:"retained,omitempty"`
}

// Run makes a workspace, starts a command in it, and ends it when the command has. It is one
// operation: its intent is on disk before anything is made, and Gate.Settle waits for its
// outcome.
func Run(ctx context.Context, g *gate.Gate, rt runtime.Runtime, p principal.Principal, w Workspace) (*Running, error) {
	e := w.Command
	op, err := operation.NewOnce(operation.Command{
		Command: workspace.Command{Argv: e.Argv, Env: e.Env, Cwd: e.Cwd, TimeoutMS: e.TimeoutMS, GraceMS: e.GraceMS},
		TTY:     w.TTY, Source: string(judge.Origin(p, rules.Origin(e.Asked.Source))),
	}, w.Mounts, w.Allow, w.Accept, w.Reach, !w.Keep)
	if err != nil {
		return nil, err
	}
	op.ID = id.NewCommand()
	e.ID = op.ID
	run := &Running{gate: g, rt: rt, by: p, on: target(p, w.Name), command: op.ID}
	// The command is not started unless all that is required was verified; what was accepted
	// as missing was not.
	r := operation.Request{By: p, Op: op, On: run.on, Verified: len(w.Accept) == 0}
	for _, place := range workspace.Writable(w.Mounts) {
		r.Mounted = append(r.Mounted, workspace.Mount{Destination: place}.AtHome().Destination)
	}
	if err := g.Do(ctx, r, func(ctx context.Context, p permit.Permit) (any, error) { return run.start(ctx, p, w, e) }); err != nil {
		return nil, err
	}
	return run, nil
}

// target is the workspace of one command, which belongs to its caller.
func target(p principal.Principal, name id.Workspace) operation.Target {
	k := workspace.Spec()
	return operation.Target{Kind: operation.Workspace, Name: name, Owner: p.String(), Boundary: k.Boundary, Root: k.Root}
}

// Running is a command that Run started.
type Running struct {
	runtime.Process
	Report workspace.Report
	// Retained is where the home was kept, once Gate.Settle has returned.
	Retained string

	gate    *gate.Gate
	rt      runtime.Runtime
	by      principal.Principal
	on      operation.Target
	command id.Command
}

// start is the effect of Run.
func (r *Running) start(ctx context.Context, p permit.Permit, w Workspace, e execapi.ExecParams) (any, error) {
	sum := sha256.Sum256([]byte(w.Name))
	_, rep, err := r.rt.Create(ctx, p, runtime.Plan{KeyDigest: hex.EncodeToString(sum[:]), Limits: w.Limits, Allow: w.Allow, Start: true})
	if err != nil {
		return nil, canceled(ctx, err)
	}
	r.Report = rep
	end := func(purge bool) (string, error) {
		real, err := r.rt.Destroy(context.WithoutCancel(ctx), p, purge)
		r.Retained = real.Retained
		return real.Retained, err
	}
	data := outcomeOf(rep, w.Accept)
	err = rep.Err()
	if err == nil && w.Prepare != nil {
		err = w.Prepare(ctx, r.rt, p)
	}
	if err == nil {
		r.Process, err = r.rt.Spawn(ctx, p, e, w.TTY)
	}
	if err != nil { // also when what it was judged by does not hold
		_, derr := end(!w.Keep || ctx.Err() != nil)
		return data, canceled(ctx, errors.Join(err, derr))
	}
	return &gate.Pending{Wait: func() (any, error) {
		status, err := r.Wait(context.Background()) // the executor's end ends it too
		if err == nil {
			data.Status = &status
		}
		var derr error
		data.Retained, derr = end(!w.Keep)
		return data, errors.Join(err, derr)
	}}, nil
}

// canceled returns err, why a command was not started, as a cancelation if ctx has ended: what failed then failed because of that.
func canceled(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("cannot run the command: its start was canceled (%s): %w; %s",
		context.Cause(ctx).Error(), context.Canceled, err.Error())
}

// Signal sends a signal to the command's process group.
func (r *Running) Signal(ctx context.Context, signal int) error {
	s := execapi.StopTaskParams{ID: r.command, Signal: signal}
	return r.do(ctx, operation.Signal(r.command, signal, false), func(ctx context.Context, p permit.Permit) error {
		return r.rt.Signal(ctx, p, s)
	})
}

// Resize sets the size of its terminal.
func (r *Running) Resize(ctx context.Context, rows, cols uint16) error {
	return r.do(ctx, operation.OnCommand(operation.ResizeCommand, r.command), func(ctx context.Context, p permit.Permit) error {
		return r.rt.Resize(ctx, p, execapi.ResizeParams{ID: r.command, Rows: rows, Cols: cols})
	})
}

// OpenPort says that ports of its loopback are to be reached, which is judged and recorded. Dial connects to one.
func (r *Running) OpenPort(ctx context.Context, port int) error {
	return r.do(ctx, operation.OnPort(operation.OpenPort, port), func(context.Context, permit.Permit) error { return nil })
}

// DialPort connects to a TCP port of its loopback. The connection is the caller's to close.
func (r *Running) DialPort(ctx context.Context, port int) (c *net.TCPConn, err error) {
	return c, r.do(ctx, operation.OnPort(operation.ConnectPort, port), func(ctx context.Context, p permit.Permit) error {
		c, err = r.rt.Dial(ctx, p, port)
		return err
	})
}

func (r *Running) do(ctx context.Context, op operation.Operation, f func(context.Context, permit.Permit) error) error {
	return r.gate.Do(ctx, operation.Request{By: r.by, Op: op, On: r.on}, func(ctx context.Context, p permit.Permit) (any, error) {
		return nil, f(ctx, p)
	})
}

func outcomeOf(rep workspace.Report, accept []string) *outcome {
	d := &outcome{Controls: map[workspace.ControlState]int{}}
	for _, c := range rep.Controls {
		d.Controls[c.State]++
		if c.Opened != "" || slices.Contains(accept, c.ID) && c.State != workspace.Verified {
			d.Weaker = append(d.Weaker, c.ID)
		}
	}
	return d
}

// CloseBroken closes the intents of workspaces whose process was ended before it could: what it
// ran ended with it.
func CloseBroken(ctx context.Context, shared *audit.Shared, records *record.Writer, names []id.Workspace) error {
	open, err := shared.Unfinished(ctx)
	if err != nil {
		return fmt.Errorf("cannot find what was not finished: %w: %w", err, errdefs.ErrUnavailable)
	}
	for _, r := range open {
		if !slices.Contains(names, r.Workspace) {
			continue
		}
		if _, err := records.Append(ctx, audit.Record{
			Type: audit.Outcome, Trace: r.Trace, Principal: principal.OwnerOf(uint32(os.Geteuid())), Workspace: r.Workspace, Intent: r.Seq,
			Status: audit.StatusInterrupted, Error: "carrel run was ended before the outcome was recorded; what ran ended with it",
		}); err != nil {
			return err
		}
	}
	return nil
}
