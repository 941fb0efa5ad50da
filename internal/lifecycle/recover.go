package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/operation"
	"github.com/carrel-dev/carrel/internal/permit"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/runtime"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// reconciledAtOnce is how many workspaces a start puts right at the same time.
const reconciledAtOnce = 16

// How long a start waits for one workspace: recoverTimeout, or recoverLeast once all together
// have taken recoverAll.
const (
	recoverTimeout = 5 * time.Second
	recoverLeast   = 500 * time.Millisecond
	recoverAll     = 15 * time.Second
)

// Recover puts right what the last run left, before anything is served: it finishes what was
// being made or ended, and takes up the executors that live. interrupted are the workspaces of
// operations that have no outcome. Nothing is run again.
func (l *Lifecycle) Recover(ctx context.Context, interrupted map[id.Workspace]bool) error {
	found := map[id.Workspace]workspace.Real{}
	for boundary, rt := range l.cfg.Runtimes {
		real, err := rt.List(ctx)
		if err != nil {
			return fmt.Errorf("cannot learn which workspaces there are: %w", err)
		}
		for name, r := range real {
			found[name] = r
			if _, known := l.cfg.Store.ByName(name); known {
				l.note(name, r)
			} else if err := l.stray(ctx, boundary, name, r); err != nil {
				l.cfg.Log.Error("cannot take up a workspace that only the broker knows; it stays as it is", "workspace", name, "home", r.Home,
					"error", err)
			}
		}
	}
	until := time.Now().Add(recoverAll)
	// Each that runs is asked for over sockets of its own, which is mostly waiting.
	var all errgroup.Group
	all.SetLimit(reconciledAtOnce)
	for _, k := range l.cfg.Store.Workspaces() {
		all.Go(func() error {
			r, exists := found[k.Name]
			if err := l.reconcile(ctx, k, r, exists, interrupted[k.Name], until); err != nil {
				return fmt.Errorf("cannot put workspace %s right: %w", k.Name, err)
			}
			crashpoint.Here("daemon.recover.reconciled")
			return nil
		})
	}
	return all.Wait()
}

// stray takes care of a workspace that the broker has and the database does not know: a create
// whose daemon ended before it had the answer, or the rest of a database that was lost. One
// that nobody has used yet goes. Any other may hold somebody's data: it becomes an
// administrator's, under its own name as key, and so can be seen, renamed or destroyed. A
// caller that makes a workspace for the key that it was made for does not get it, because its
// owner is not known.
func (l *Lifecycle) stray(ctx context.Context, boundary workspace.Boundary, name id.Workspace, r workspace.Real) error {
	k := workspace.New(id.Key(name), principal.Self().String(), time.Now())
	k.Name, k.Boundary, k.Limits, k.Phase = name, boundary, r.InForce, workspace.Settled
	return l.recovering(ctx, k, func(ctx context.Context, rt runtime.Runtime, p permit.Permit) error {
		if r.State == workspace.StateStopped {
			err := rt.Discard(ctx, p)
			if !errdefs.IsFailedPrecondition(err) {
				return err
			}
		}
		if r.State == workspace.StateCreating || r.State == workspace.StateDestroying {
			return fmt.Errorf("it is %s; the next start of the broker finishes that: %w", r.State, errdefs.ErrFailedPrecondition)
		}
		if err := l.cfg.Store.Insert(ctx, k); err != nil {
			return err
		}
		l.cfg.Log.Warn("the broker has a workspace that the database did not know; it belongs to the administrators now", "workspace", name,
			"home", r.Home)
		l.note(name, r)
		return nil
	})
}

// reconcile finishes or undoes what the last run left of one workspace.
//
//	phase       with the broker   becomes
//	restoring   either            gone: what was unpacked is not known to be whole
//	creating    creating          gone: the broker could not undo it
//	creating    there             settled: the creation is finished
//	creating    missing           gone: the creation is undone
//	destroying  either            destroyed: finished, with or without the home
//	settled     live              as it is if the executor answers, else stopped
//	settled     otherwise         as it is
//
// Live is running or paused. Other limits than the database has are those of a change that was
// not finished: they are taken back.
func (l *Lifecycle) reconcile(ctx context.Context, k workspace.Kept, r workspace.Real, exists, interrupted bool, until time.Time) error {
	switch {
	case k.Phase == workspace.Destroying:
		return l.soon(until, k, func() error {
			a, err := l.asSystem(ctx, k, operation.Removal{Purge: k.Purge})
			if err != nil {
				return err
			}
			_, err = l.DestroyAdmitted(ctx, a, k.Purge)
			return err
		})
	case k.Phase == workspace.Restoring, k.Phase == workspace.Creating && r.State == workspace.StateCreating:
		return l.tolerate(k, l.recovering(ctx, k, func(ctx context.Context, rt runtime.Runtime,
			p permit.Permit,
		) error {
			return l.unmake(ctx, rt, p, k)
		}))
	case k.Phase == workspace.Creating && !exists:
		return l.recovering(ctx, k, func(ctx context.Context, _ runtime.Runtime, _ permit.Permit) error {
			return l.cfg.Store.Delete(ctx, k.Name)
		})
	case k.Phase == workspace.Creating:
		if err := l.recovering(ctx, k, func(ctx context.Context, _ runtime.Runtime, _ permit.Permit) error {
			return l.cfg.Store.SetPhase(ctx, k.Name, workspace.Settled)
		}); err != nil {
			return err
		}
	case !exists:
		l.cfg.Log.Error("the broker does not know a workspace of the database; it cannot be started", "workspace", k.Name)
		return nil
	}
	if r.InForce != k.Limits && (r.State.Live() || r.State == workspace.StateStopped) {
		if err := l.tolerate(k, l.recovering(ctx, k, func(ctx context.Context, rt runtime.Runtime, p permit.Permit) error {
			now, err := rt.Limit(ctx, p, k.Limits)
			if err == nil {
				l.note(k.Name, now)
			}
			return err
		})); err != nil {
			return err
		}
	}
	if !r.State.Live() {
		return nil
	}
	return l.takeUp(ctx, k, r, interrupted, until)
}

// takeUp connects to a live executor. A pause or a resume that broke off is finished with the
// executor, too.
func (l *Lifecycle) takeUp(ctx context.Context, k workspace.Kept, r workspace.Real, interrupted bool, until time.Time) error {
	rt, err := l.Runtime(k.Boundary)
	if err != nil {
		return err
	}
	if interrupted {
		t := resuming
		if r.State == workspace.StatePaused {
			t = pausing
		}
		err = l.recovering(ctx, k, func(ctx context.Context, rt runtime.Runtime, p permit.Permit) error {
			_, err := t.do(rt, ctx, p)
			return err
		})
	} else {
		err = rt.Ping(ctx, k.Name)
	}
	if err == nil {
		return nil
	}
	l.cfg.Log.Warn("the executor of a workspace does not answer; the workspace is stopped", "workspace", k.Name, "error", err)
	return l.soon(until, k, func() error {
		a, err := l.cfg.Gate.Authorise(ctx, operation.Request{
			By: principal.Self(), Op: operation.Simple(operation.StopWorkspace),
			On: targetOf(k),
		}, nil)
		if err != nil {
			return err
		}
		return l.stop(ctx, a, k.Name)
	})
}

// soon runs what may wait for processes that the kernel cannot end. What takes too long goes on
// while others are served: it holds the workspace's slot, so that callers wait for it.
func (l *Lifecycle) soon(until time.Time, k workspace.Kept, f func() error) error {
	done := make(chan error, 1)
	l.cfg.Gate.Later(func() { done <- l.tolerate(k, f()) })
	t := time.NewTimer(max(min(recoverTimeout, time.Until(until)), recoverLeast))
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		l.cfg.Log.Warn("putting a workspace right takes long and goes on", "workspace", k.Name)
		return nil
	}
}

// tolerate keeps a workspace that cannot be put right from keeping all others down: it stays
// in its state, and the same operation can be asked for again.
func (l *Lifecycle) tolerate(k workspace.Kept, err error) error {
	if err == nil || errdefs.IsDataLoss(err) {
		return err
	}
	l.cfg.Log.Error("cannot put a workspace right; it stays as it is", "workspace", k.Name, "phase", k.Phase, "error", err)
	return nil
}

// recovering carries out a step of the recovery of one workspace.
func (l *Lifecycle) recovering(ctx context.Context, k workspace.Kept, f func(context.Context, runtime.Runtime, permit.Permit) error) error {
	rt, err := l.Runtime(k.Boundary)
	if err != nil {
		return err
	}
	a, err := l.asSystem(ctx, k, operation.Simple(operation.Recover))
	if err != nil {
		return err
	}
	return a.Do(ctx, func(ctx context.Context, p permit.Permit) (any, error) { return nil, f(ctx, rt, p) })
}

// ExecutorLost is told by a runtime when the executor of a workspace went away by itself.
func (l *Lifecycle) ExecutorLost(name id.Workspace) {
	if err := l.Lost(context.Background(), name); err != nil {
		l.cfg.Log.Error("cannot clean up behind an executor that went away", "workspace", name, "error", err)
	}
}

// Lost makes a workspace whose executor went away a stopped one, so that its next use starts
// it. Concurrent callers wait for that. A workspace that answers after all is left alone.
func (l *Lifecycle) Lost(ctx context.Context, name id.Workspace) error {
	if l.slots.ending(name) {
		return nil
	}
	err := l.Alone(ctx, name, background, func(ctx context.Context) error {
		w, err := l.living(name)
		if err != nil || !w.State.Live() || !l.gone(ctx, w.Kept) {
			return err
		}
		l.cfg.Log.Warn("the executor of a workspace went away; the workspace is stopped", "workspace", name)
		return l.haltAsSystem(ctx, w)
	})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot clean up behind the executor of workspace %s, which went away: %w", name, err)
	}
	return nil
}

// TakeBackUnfilled takes back the workspaces that were to be filled and that nobody fills any
// more.
func (l *Lifecycle) TakeBackUnfilled(ctx context.Context) (errs error) {
	for _, w := range l.Due(func(w *workspace.Workspace) bool { return w.Phase == workspace.Restoring }) {
		if l.slots.on(slot{key: w.Key}) != "" {
			continue // by the one that holds the key
		}
		err := l.AloneWithKey(ctx, w.Key, background, func(ctx context.Context) error { return l.ClearRestoring(ctx, w.Key) })
		if err != nil {
			errs = errors.Join(errs, fmt.Errorf("cannot take back workspace %s, which could not be filled: %w", w.Name, err))
		}
	}
	return errs
}
