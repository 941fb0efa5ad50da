package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

const (
	// settledAtOnce is how many workspaces a start puts right at the same time, and askedAtOnce
	// how many executors it asks whether they answer.
	settledAtOnce, askedAtOnce = 16, 128
	// recoverTimeout is how long a start waits for all that. What takes longer goes on while
	// others are served: it holds the workspace's slot, so that callers wait for it.
	recoverTimeout = 2 * time.Second
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
	var unsettled, live []func() error
	for _, k := range l.cfg.Store.Workspaces() {
		r, exists := found[k.Name]
		if k.Phase == workspace.Settled && exists && (!interrupted[k.Name] || !r.State.Live()) && inForce(k, r) {
			if r.State.Live() {
				live = append(live, func() error { return l.takeUp(ctx, k) })
			}
			continue
		}
		held := []slot{{name: k.Name}, {key: k.Key}}
		var release []func()
		for _, on := range held { // nobody else is there yet
			if o, claimed := l.slots.claim(on, background, nil); claimed {
				release = append(release, func() { l.slots.release(on, o) })
			}
		}
		unsettled = append(unsettled, func() error {
			err := l.tolerate(k, l.reconcile(ctx, k, r, exists, interrupted[k.Name]))
			for _, f := range release {
				f()
			}
			if now, lerr := l.living(k.Name); err == nil && lerr == nil && now.State.Live() {
				err = l.takeUp(ctx, k)
			}
			return err
		})
	}
	done := make(chan error, 1)
	l.cfg.Gate.Later(func() {
		var settling, asking errgroup.Group
		settling.SetLimit(settledAtOnce)
		asking.SetLimit(askedAtOnce)
		asked := make(chan error, 1)
		go func() { asked <- each(&asking, live) }()
		err := each(&settling, unsettled)
		done <- errors.Join(err, <-asked)
	})
	t := time.NewTimer(recoverTimeout)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		l.cfg.Log.Warn("putting workspaces right takes long and goes on; others are served", "unsettled", len(unsettled), "live", len(live))
		l.cfg.Gate.Later(func() {
			if err := <-done; err != nil {
				l.cfg.Log.Error("cannot put a workspace right", "error", err)
			}
		})
		return nil
	}
}

// each runs all in a group and waits for them.
func each(group *errgroup.Group, all []func() error) error {
	for _, f := range all {
		group.Go(func() error {
			err := f()
			crashpoint.Here("daemon.recover.reconciled")
			return err
		})
	}
	return group.Wait()
}

// inForce reports whether the limits of a workspace that can have some are those it should have.
func inForce(k workspace.Kept, r workspace.Real) bool {
	return r.InForce == k.Limits || !r.State.Live() && r.State != workspace.StateStopped
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
		if err := l.cfg.Store.Insert(ctx, k, nil); err != nil {
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
//
// The workspace's slot is held.
func (l *Lifecycle) reconcile(ctx context.Context, k workspace.Kept, r workspace.Real, exists, interrupted bool) error {
	switch {
	case k.Phase == workspace.Destroying:
		a, err := l.asSystem(ctx, k, operation.Removal{Purge: k.Purge})
		if err != nil {
			return err
		}
		_, err = l.destroy(ctx, a, k.Purge)
		return err
	case k.Phase == workspace.Restoring, k.Phase == workspace.Creating && r.State == workspace.StateCreating:
		return l.recovering(ctx, k, func(ctx context.Context, rt runtime.Runtime, p permit.Permit) error {
			return l.unmake(ctx, rt, p, k)
		})
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
	if !inForce(k, r) {
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
	if !interrupted || !r.State.Live() {
		return nil
	}
	// A pause or a resume that broke off is finished with the executor, too.
	t := resuming
	if r.State == workspace.StatePaused {
		t = pausing
	}
	return l.recovering(ctx, k, func(ctx context.Context, rt runtime.Runtime, p permit.Permit) error {
		_, err := t.do(rt, ctx, p)
		return err
	})
}

// takeUp connects to a live executor, and stops a workspace whose executor has ended. Only the kernel
// says that it has: one that cannot be reached or does not answer stays as it is, because what runs
// there may be somebody's work.
func (l *Lifecycle) takeUp(ctx context.Context, k workspace.Kept) error {
	rt, err := l.Runtime(k.Boundary)
	if err != nil {
		return err
	}
	switch err = rt.Ping(ctx, k.Name); {
	case err == nil:
		l.takeWay(ctx, l.join(k))
		return nil
	case !errors.Is(err, runtime.ErrNotRunning):
		l.takeWay(ctx, l.join(k))
		l.cfg.Log.Warn("the executor of a workspace does not answer; the workspace stays as it is", "workspace", k.Name, "error", err)
		return nil
	}
	l.cfg.Log.Warn("the executor of a workspace has ended; the workspace is stopped", "workspace", k.Name, "error", err)
	return l.tolerate(k, l.ifFree(ctx, slot{name: k.Name}, func(ctx context.Context) error {
		w, err := l.living(k.Name)
		if err != nil || !w.State.Live() || !l.gone(ctx, w.Kept) { // somebody may have started it again
			return err
		}
		return l.haltAsSystem(ctx, w, "")
	}))
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
		return l.haltAsSystem(ctx, w, "")
	})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot clean up behind the executor of workspace %s, which went away: %w", name, err)
	}
	return nil
}
