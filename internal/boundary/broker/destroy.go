package broker

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// Destroy ends a workspace's life. A repeated destroy gets the same answer. With p.Unused only a
// workspace that is stopped, and whose home is as it was made, is destroyed.
func (l *Lifecycle) Destroy(ctx context.Context, p brokerapi.DestroyParams) (brokerapi.Workspace, error) {
	if p.Unused {
		return l.change(ctx, methodDiscard, p.Name, l.discard)
	}
	return l.change(ctx, brokerapi.MethodDestroy, p.Name, func(ctx context.Context, e Entry) (Entry, error) {
		if e.State == workspace.StateDestroyed {
			return e, nil
		}
		if e.State != workspace.StateDestroying || e.Purge != p.Purge {
			soon, cancel := within(ctx, stopTimeout)
			err := l.settle(soon, e, true)
			cancel()
			if err != nil {
				return e, err
			}
			e.State, e.Executor, e.Purge = workspace.StateDestroying, nil, p.Purge
			if err := l.ledger.Put(e); err != nil {
				return e, err
			}
		}
		crashpoint.Here("broker.destroy.begun")
		return l.finishDestroy(ctx, e)
	})
}

func (l *Lifecycle) discard(ctx context.Context, e Entry) (Entry, error) {
	if e.State == workspace.StateDestroyed {
		return e, nil
	}
	empty, err := l.host.HomeEmpty(e.Name, e.IDs)
	if err != nil {
		return e, err
	}
	if !empty {
		return e, fmt.Errorf("cannot discard %s: its home %s is not empty: %w", e.Name, e.Home, errdefs.ErrFailedPrecondition)
	}
	e.State, e.Purge = workspace.StateDestroying, true
	if err := l.ledger.Put(e); err != nil {
		return e, err
	}
	return l.finishDestroy(ctx, e)
}

// finishDestroy does all that follows the line "destroying". Each step can be repeated.
// The order matters: no process may be left when the user is removed, or it would own files
// that appear after the home was kept.
func (l *Lifecycle) finishDestroy(ctx context.Context, e Entry) (Entry, error) {
	if err := l.empty(ctx, e); err != nil {
		return e, err
	}
	return l.remove(ctx, e)
}

// remove removes what is left of a workspace in which nothing runs.
func (l *Lifecycle) remove(ctx context.Context, e Entry) (Entry, error) {
	if e.Purge { // first: on a full disk this makes the room that the tools need which remove the user
		if err := l.host.PurgeHome(ctx, e.Name, e.IDs); err != nil {
			return e, err
		}
		if err := l.host.RemoveTemporary(ctx, e.Name); err != nil {
			return e, err
		}
	}
	if err := l.host.RemoveUser(ctx, e.Name, e.IDs); err != nil {
		return e, err
	}
	crashpoint.Here("broker.destroy.user-removed")
	if !e.Purge {
		var err error
		if e.Retained, err = l.host.KeepHome(e.Name, e.IDs); err != nil {
			return e, err
		}
	}
	crashpoint.Here("broker.destroy.home-gone")
	if err := l.host.RemoveTemporary(ctx, e.Name); err != nil {
		return e, err
	}
	crashpoint.Here("broker.destroy.tmp-removed")
	e.State = workspace.StateDestroyed
	return e, l.ledger.Put(e)
}

// empty ends everything that runs in a workspace that is being destroyed, in the time of a stop.
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
func (l *Lifecycle) Forget(ctx context.Context, p brokerapi.ForgetParams) error {
	return l.alone(ctx, brokerapi.MethodForget, p.Name, func(ctx context.Context) error { return l.forget(ctx, p) })
}

func (l *Lifecycle) forget(ctx context.Context, p brokerapi.ForgetParams) error {
	e, ok := l.ledger.Get(p.Name)
	own := ok && e.IDs.Executor == p.ID
	if p.ID < l.settings.UIDFirst || p.ID-l.settings.UIDFirst >= l.settings.UIDCount || own && e.State != workspace.StateDestroyed {
		return fmt.Errorf("cannot forget the home of %s with id %d: no destroyed workspace has it: %w",
			p.Name, p.ID, errdefs.ErrFailedPrecondition)
	}
	if err := l.host.ForgetHome(ctx, p.Name, workspace.IDsFrom(p.ID)); err != nil {
		return err
	}
	crashpoint.Here("broker.forget.removed")
	if !own || e.Retained == "" {
		return nil
	}
	e.Retained = ""
	return l.ledger.Put(e)
}
