package gate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/policy"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/runtime"
	"github.com/carrel-dev/carrel/internal/store"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Single is a workspace for one command.
type Single struct {
	// Name is one that no other has had.
	Name   id.Workspace
	Limits workspace.Limits
	// Mounts are those that the runtime was given, for the record.
	Mounts []workspace.Mount
	// Allow is what the command may do beyond what others may.
	Allow []workspace.Opening
	// Accept are the controls that it may run without.
	Accept []string
	// Command is what runs in it, on a terminal if TTY.
	Command execapi.ExecParams
	TTY     bool
	// Keep: its home stays when it ends.
	Keep bool
}

// singleOutcome is the Data of the outcome of a workspace for one command.
type singleOutcome struct {
	Status   *execapi.Status                `json:"status,omitempty"`
	Controls map[workspace.ControlState]int `json:"controls"`
	// Weaker are the controls that it ran without because it was asked to.
	Weaker []string `json:"weaker,omitempty"`
	// Retained is where its home was kept.
	Retained string `json:"retained,omitempty"`
}

// Once makes a workspace, starts a command in it, and ends it when the command has. It is
// one action: its intent is on disk before anything is made, and Settle waits for its outcome.
func (g *Gate) Once(ctx context.Context, p principal.Principal, s Single) (*Running, error) {
	if err := errors.Join(recordable(&s.Command), workspace.CheckOpenings(s.Allow, s.Mounts)); err != nil {
		return nil, err
	}
	e := s.Command
	e.ID = id.NewCommand()
	a := action.Action{
		Kind: action.RunOnce, Workspace: s.Name, Command: e.ID, Argv: e.Argv, Cwd: e.Cwd, TTY: s.TTY, TimeoutMS: e.TimeoutMS,
		Source: string(origin(p, policy.Origin(e.Asked.Source))), Purge: !s.Keep, Allow: s.Allow, Accept: slices.Sorted(slices.Values(s.Accept)),
	}
	setEnv(&a, e.Env)
	a.Secrets = g.secretsOf(e.Env)
	var err error
	if len(s.Mounts) > 0 {
		if a.Mounts, err = json.Marshal(s.Mounts); err != nil {
			return nil, fmt.Errorf("cannot read the mounts: %w", err)
		}
	}
	on := store.Workspace{Name: s.Name, Owner: p.String(), Boundary: workspace.BoundaryNamespace, Root: workspace.RootSystem}
	run := &Running{g: g, by: p, on: on, command: e.ID}
	r := request{by: p, trace: id.NewTrace(), on: on, action: a, env: e.Env}
	err = g.do(ctx, r, func(ctx context.Context) (any, error) {
		sum := sha256.Sum256([]byte(s.Name))
		_, rep, err := g.cfg.Runtime.Create(ctx, s.Name, runtime.Plan{KeyDigest: hex.EncodeToString(sum[:]), Limits: s.Limits, Allow: s.Allow, Start: true})
		if err != nil {
			return nil, err
		}
		run.Report = rep
		end := func() (string, error) {
			w, err := g.cfg.Runtime.Destroy(context.WithoutCancel(ctx), s.Name, !s.Keep)
			run.Retained = w.Retained
			return w.Retained, err
		}
		data := outcomeOnce(rep, s.Accept)
		if err := rep.Err(); err != nil { // what it was judged by does not hold
			_, derr := end()
			return data, errors.Join(err, derr)
		}
		if run.Process, err = g.cfg.Runtime.Spawn(ctx, s.Name, e, s.TTY); err != nil {
			_, derr := end()
			return data, errors.Join(err, derr)
		}
		return pending(func() (any, error) {
			status, err := run.Wait(context.Background()) // the executor's end ends it too
			if err == nil {
				data.Status = &status
			}
			var derr error
			data.Retained, derr = end()
			return data, errors.Join(err, derr)
		}), nil
	})
	if err != nil {
		return nil, err
	}
	return run, nil
}

// Running is a command that Once started.
type Running struct {
	runtime.Process
	Report workspace.Report
	// Retained is where the home was kept, once Settle has returned.
	Retained string

	g       *Gate
	by      principal.Principal
	on      store.Workspace
	command id.Command
}

// Signal sends a signal to the command's process group.
func (r *Running) Signal(ctx context.Context, signal int) error {
	s := execapi.StopTaskParams{ID: r.command, Signal: signal}
	return r.g.on(ctx, r.by, r.on, action.Action{Kind: action.Signal, Command: r.command, Signal: signalName(s)}, func(ctx context.Context) (any, error) {
		return nil, r.g.cfg.Runtime.Signal(ctx, r.on.Name, s)
	})
}

// Resize sets the size of its terminal. It is not recorded, as Gate.Resize is not.
func (r *Running) Resize(ctx context.Context, rows, cols uint16) error {
	return r.g.cfg.Runtime.Resize(ctx, r.on.Name, execapi.ResizeParams{ID: r.command, Rows: rows, Cols: cols})
}

func outcomeOnce(rep workspace.Report, accept []string) *singleOutcome {
	d := &singleOutcome{Controls: map[workspace.ControlState]int{}}
	for _, c := range rep.Controls {
		d.Controls[c.State]++
		if c.Opened != "" || slices.Contains(accept, c.ID) && c.State != workspace.Verified {
			d.Weaker = append(d.Weaker, c.ID)
		}
	}
	return d
}

// Settle returns when what was begun by Once has ended and is recorded.
func (g *Gate) Settle() { g.background.Wait() }

// Broken closes the intents of workspaces whose process was ended before it could: what
// it ran ended with it.
func (g *Gate) Broken(ctx context.Context, names []id.Workspace) error {
	if g.cfg.Shared == nil {
		return fmt.Errorf("cannot close intents: a daemon's record is closed by its recovery: %w", errdefs.ErrFailedPrecondition)
	}
	open, err := g.cfg.Shared.Unfinished(ctx)
	if err != nil {
		return err
	}
	for _, r := range open {
		if !slices.Contains(names, r.Workspace) {
			continue
		}
		if _, err := g.record.Append(ctx, audit.Record{
			Type: audit.Outcome, Trace: r.Trace, Principal: principal.OwnerOf(uint32(os.Geteuid())), Workspace: r.Workspace, Intent: r.Seq,
			Status: audit.StatusInterrupted, Error: "carrel run was ended before the outcome was recorded; what ran ended with it",
		}); err != nil {
			return err
		}
	}
	return nil
}
