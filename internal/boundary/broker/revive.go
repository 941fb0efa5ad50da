package broker

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// Revive makes a destroyed workspace a stopped one again, with its ids and the home that was kept of it. The
// first id tells it from another of the name. Its mounts were granted to the one that was destroyed, and are gone.
// What breaks off is finished as a destroy, which keeps the home.
func (l *Lifecycle) Revive(ctx context.Context, p brokerapi.ForgetParams) (brokerapi.Workspace, error) {
	return l.change(ctx, brokerapi.MethodRevive, p.Name, func(ctx context.Context, e Entry) (Entry, error) {
		if err := l.revivable(e, p.ID); err != nil {
			return e, fmt.Errorf("cannot bring %s back: %w", e.Name, err)
		}
		gone := e
		e.State, e.Purge, e.Mounts = workspace.StateDestroying, false, nil
		if err := l.ledger.Put(e); err != nil {
			return gone, err
		}
		crashpoint.Here("broker.revive.begun")
		err := l.host.AddUser(ctx, e.Name, e.IDs)
		crashpoint.Here("broker.revive.user-added")
		if err == nil {
			err = l.host.TakeHome(e.Name, e.IDs)
		}
		crashpoint.Here("broker.revive.home-taken")
		if err == nil {
			back := e
			back.State, back.Retained = workspace.StateStopped, ""
			if err = l.ledger.Put(back); err == nil {
				return back, nil
			}
		}
		undo, stop := bounded(ctx, rules[brokerapi.MethodRevive].timeout)
		defer stop()
		e, uerr := l.remove(undo, e)
		return e, alsoFailed(fmt.Errorf("cannot bring %s back: %w", e.Name, err), uerr)
	})
}

// revivable says why a destroyed workspace cannot be brought back.
func (l *Lifecycle) revivable(e Entry, id uint32) error {
	if e.IDs.Executor != id || e.Retained == "" {
		return fmt.Errorf("no home was kept of it: %w", errdefs.ErrNotFound)
	}
	if err := l.host.NameFree(e.Name); err != nil {
		return err
	}
	free, err := l.host.IDsFree(e.IDs)
	if err == nil && !free {
		err = fmt.Errorf("the host has given its ids, from %d on, to somebody else; copy what is needed from %s: %w",
			e.IDs.Executor, e.Retained, errdefs.ErrFailedPrecondition)
	}
	if err == nil && e.Limits.DiskBytes > 0 {
		err = l.host.HoldsDisk()
	}
	return err
}
