package lifecycle

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Stop ends everything that runs in the workspace that ref names.
func (l *Lifecycle) Stop(ctx context.Context, p principal.Principal, ref string) (workspace.Workspace, error) {
	a, err := l.Authorise(ctx, p, ref, operation.Simple(operation.StopWorkspace))
	if err != nil {
		return workspace.Workspace{}, err
	}
	name := a.On().Name
	if err := l.stop(ctx, a, name); err != nil {
		return workspace.Workspace{}, err
	}
	return l.showNow(name)
}

func (l *Lifecycle) stop(ctx context.Context, a *gate.Authorised, name id.Workspace) error {
	return l.slots.exclusive(ctx, slot{name: name}, operation.StopWorkspace, true, func(ctx context.Context) error {
		w, err := l.living(name)
		if err != nil {
			return err
		}
		// Of one that is stopped, too, something may be left that could not be ended.
		if !w.State.Live() && w.State != workspace.StateStopped {
			return fmt.Errorf("cannot stop workspace %s: it is %s: %w", name, w.State, errdefs.ErrFailedPrecondition)
		}
		admitted, err := a.Admit(ctx)
		if err != nil {
			return err
		}
		return l.halt(ctx, admitted, w, "")
	})
}

// halt stops a live workspace, whose slot is held. One that is paused goes on first, so that
// it can end in order.
func (l *Lifecycle) halt(ctx context.Context, a *gate.Admitted, w workspace.Workspace, why string) error {
	return a.Do(ctx, func(ctx context.Context, p permit.Permit) (any, error) {
		return halted(why), l.end(ctx, p, w)
	})
}

// halted is what an outcome says of a halt that nobody asked for, nil without a reason.
func halted(why string) any {
	if why == "" {
		return nil
	}
	return struct {
		Reason string `json:"reason"`
	}{why}
}

// end is the effect of halt.
func (l *Lifecycle) end(ctx context.Context, p permit.Permit, w workspace.Workspace) error {
	rt, err := l.Runtime(w.Boundary)
	if err != nil {
		return err
	}
	if w.State == workspace.StatePaused {
		if _, err := rt.Resume(ctx, p); err != nil {
			l.cfg.Log.Warn("stopping a paused workspace that does not go on", "workspace", w.Name, "error", err)
		}
	}
	l.closeWay(w.Name)
	real, err := rt.Stop(ctx, p)
	if err != nil {
		l.takeWay(ctx, w)
		return l.doubt(w.Name, err)
	}
	crashpoint.Here("daemon.stop.stopped")
	l.note(w.Name, real)
	return nil
}

// haltAsSystem stops a live workspace on the daemon's own account. Its slot is held.
func (l *Lifecycle) haltAsSystem(ctx context.Context, w workspace.Workspace, why string) error {
	a, err := l.asSystem(ctx, w.Kept, operation.Simple(operation.StopWorkspace))
	if err != nil {
		return err
	}
	return l.halt(ctx, a, w, why)
}

// StopIdle stops a workspace that is still idle, unless busy says that something runs in it or
// something else is done to it right now.
// busy wraps runtime.ErrNotRunning if its executor has gone.
func (l *Lifecycle) StopIdle(ctx context.Context, name id.Workspace, now time.Time,
	busy func(context.Context, workspace.Workspace) (bool, error),
) error {
	return l.ifFree(ctx, slot{name: name}, func(ctx context.Context) error {
		w, err := l.living(name)
		if err != nil || !l.Idle(&w, now) {
			return err // it has been used since
		}
		runs, err := busy(ctx, w)
		if err != nil || runs {
			l.Touch(name)
			return err
		}
		return l.haltAsSystem(ctx, w, "")
	})
}

// turn is what pausing and resuming have in common.
type turn struct {
	op       operation.Name
	from, to workspace.State
	do       func(runtime.Runtime, context.Context, permit.Permit) (workspace.Real, error)
}

var (
	pausing  = turn{operation.PauseWorkspace, workspace.StateRunning, workspace.StatePaused, runtime.Runtime.Pause}
	resuming = turn{operation.ResumeWorkspace, workspace.StatePaused, workspace.StateRunning, runtime.Runtime.Resume}
)

// Pause freezes the commands of the running workspace that ref names.
func (l *Lifecycle) Pause(ctx context.Context, p principal.Principal, ref string) (workspace.Workspace, error) {
	return l.turn(ctx, p, ref, pausing)
}

// Resume lets the commands of the paused workspace that ref names go on.
func (l *Lifecycle) Resume(ctx context.Context, p principal.Principal, ref string) (workspace.Workspace, error) {
	return l.turn(ctx, p, ref, resuming)
}

// turn moves a workspace from one state to another. One that is there already is told so
// again, which finishes an attempt that broke off.
func (l *Lifecycle) turn(ctx context.Context, p principal.Principal, ref string, t turn) (workspace.Workspace, error) {
	a, err := l.Authorise(ctx, p, ref, operation.Simple(t.op))
	if err != nil {
		return workspace.Workspace{}, err
	}
	name := a.On().Name
	err = l.slots.exclusive(ctx, slot{name: name}, t.op, true, func(ctx context.Context) error {
		w, err := l.living(name)
		if err != nil {
			return err
		}
		if w.State != t.from && w.State != t.to {
			return fmt.Errorf("cannot %s workspace %s: it is %s: %w", operation.Of(t.op).Words, name, w.State, errdefs.ErrFailedPrecondition)
		}
		admitted, err := a.Admit(ctx)
		if err != nil {
			return err
		}
		return admitted.Do(ctx, func(ctx context.Context, p permit.Permit) (any, error) { return nil, l.freeze(ctx, p, w, t) })
	})
	if err != nil {
		return workspace.Workspace{}, err
	}
	return l.showNow(name)
}

// freeze is the effect of turn.
func (l *Lifecycle) freeze(ctx context.Context, p permit.Permit, w workspace.Workspace, t turn) error {
	rt, err := l.Runtime(w.Boundary)
	if err != nil {
		return err
	}
	real, err := t.do(rt, ctx, p)
	if err != nil {
		return l.doubt(w.Name, err)
	}
	crashpoint.Here("daemon.turn.done")
	l.note(w.Name, real)
	return nil
}
