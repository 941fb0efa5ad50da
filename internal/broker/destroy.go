package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Destroy ends a workspace's life. A repeated destroy gets the same answer.
func (l *Lifecycle) Destroy(ctx context.Context, name id.Workspace, purge bool, states ...workspace.State) (Entry, error) {
	// A home can be large, and removing it is what takes long; see empty for the rest.
	ctx, cancel := bounded(ctx, 5*time.Minute)
	defer cancel()
	unlock, err := l.lock(ctx, name)
	if err != nil {
		return Entry{}, err
	}
	defer unlock()
	if e, ok := l.ledger.Get(name); ok && e.State == workspace.StateDestroyed {
		return e, nil
	}
	e, err := l.get("destroy", name, states...)
	if err != nil {
		return e, err
	}
	if e.State != workspace.StateDestroying || e.Purge != purge {
		soon, cancel := within(ctx, stopTimeout)
		err := l.settle(soon, e)
		cancel()
		if err != nil {
			return e, err
		}
		e.State, e.Executor, e.Purge = workspace.StateDestroying, nil, purge
		if err := l.ledger.Put(e); err != nil {
			return e, err
		}
	}
	crashpoint.Here("broker.destroy.begun")
	return l.finishDestroy(ctx, e)
}

// Discard destroys a workspace in which there is nothing of anybody's: it is stopped and
// its home is as it was made. Any other is failed_precondition and stays.
func (l *Lifecycle) Discard(ctx context.Context, name id.Workspace, states ...workspace.State) (Entry, error) {
	ctx, cancel := bounded(ctx, userTimeout+stopTimeout)
	defer cancel()
	unlock, err := l.lock(ctx, name)
	if err != nil {
		return Entry{}, err
	}
	defer unlock()
	e, err := l.get("discard", name, states...)
	if err != nil || e.State == workspace.StateDestroyed {
		return e, err
	}
	if e.State != workspace.StateStopped {
		return e, fmt.Errorf("cannot discard %s: it is %s: %w", name, e.State, errdefs.ErrFailedPrecondition)
	}
	empty, err := l.host.HomeEmpty(name, e.IDs)
	if err != nil {
		return e, err
	}
	if !empty {
		return e, fmt.Errorf("cannot discard %s: its home %s is not empty: %w", name, e.Home, errdefs.ErrFailedPrecondition)
	}
	e.State, e.Purge = workspace.StateDestroying, true
	if err := l.ledger.Put(e); err != nil {
		return e, err
	}
	return l.finishDestroy(ctx, e)
}

// finishDestroy does all that follows the line "destroying". Each step can be repeated.
// The order matters: no process may be left when the user goes, or it would own files
// that appear after the home was put aside.
func (l *Lifecycle) finishDestroy(ctx context.Context, e Entry) (Entry, error) {
	if err := l.empty(ctx, e); err != nil {
		return e, err
	}
	return l.remove(ctx, e)
}

// remove takes away what there is of a workspace in which nothing runs.
func (l *Lifecycle) remove(ctx context.Context, e Entry) (Entry, error) {
	if err := l.host.RemoveUser(ctx, e.Name, e.IDs); err != nil {
		return e, err
	}
	crashpoint.Here("broker.destroy.user-removed")
	var err error
	if e.Purge {
		err = l.host.PurgeHome(e.Name, e.IDs)
	} else {
		e.Retained, err = l.host.KeepHome(e.Name, e.IDs)
	}
	if err != nil {
		return e, err
	}
	crashpoint.Here("broker.destroy.home-gone")
	if err := l.host.RemoveTemporary(e.Name); err != nil {
		return e, err
	}
	crashpoint.Here("broker.destroy.tmp-removed")
	e.State = workspace.StateDestroyed
	return e, l.ledger.Put(e)
}

// empty ends all that runs of a workspace that is being destroyed, in the time that a stop
// has.
func (l *Lifecycle) empty(ctx context.Context, e Entry) error {
	ctx, cancel := within(ctx, stopTimeout)
	defer cancel()
	if err := l.cleanUp(ctx, e); err != nil {
		return err
	}
	crashpoint.Here("broker.destroy.cleaned")
	if err := l.endProcesses(ctx, e); err != nil {
		return err
	}
	crashpoint.Here("broker.destroy.processes-ended")
	return nil
}

// Forget removes the home that was kept of a destroyed workspace, which its name and its
// first id tell from all others. One that is gone is no error.
func (l *Lifecycle) Forget(ctx context.Context, name id.Workspace, first uint32) error {
	ctx, cancel := bounded(ctx, stopTimeout)
	defer cancel()
	unlock, err := l.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	e, ok := l.ledger.Get(name)
	own := ok && e.IDs.Executor == first
	if first < l.settings.UIDFirst || first-l.settings.UIDFirst >= l.settings.UIDCount || own && e.State != workspace.StateDestroyed {
		return fmt.Errorf("cannot forget the home of %s with id %d: that is of no destroyed workspace: %w", name, first, errdefs.ErrFailedPrecondition)
	}
	if err := l.host.ForgetHome(name, workspace.IDsFrom(first)); err != nil {
		return err
	}
	crashpoint.Here("broker.forget.removed")
	if !own || e.Retained == "" {
		return nil
	}
	e.Retained = ""
	return l.ledger.Put(e)
}
