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

// freezeTimeout bounds the wait for commands to stand still. One that the kernel cannot
// interrupt, for a file system that does not answer, keeps the rest from counting as
// frozen.
const freezeTimeout = 5 * time.Second

// Freeze pauses a running workspace or lets a paused one go on.
func (l *Lifecycle) Freeze(ctx context.Context, name id.Workspace, frozen bool, states ...workspace.State) (Entry, error) {
	ctx, cancel := bounded(ctx, freezeTimeout+stopTimeout)
	defer cancel()
	unlock, err := l.lock(ctx, name)
	if err != nil {
		return Entry{}, err
	}
	defer unlock()
	what, to := "resume", workspace.StateRunning
	if frozen {
		what, to = "pause", workspace.StatePaused
	}
	e, err := l.get(what, name, states...)
	if err != nil || e.State == to {
		return e, err
	}
	if !l.alive(name) {
		return e, fmt.Errorf("cannot %s %s: its executor has ended: %w", what, name, errdefs.ErrFailedPrecondition)
	}
	if err := l.freeze(ctx, name, frozen); err != nil {
		return e, l.heldUp(e.IDs, err)
	}
	crashpoint.Here("broker.freeze.done")
	before := e
	e.State = to
	if err := l.ledger.Put(e); err != nil {
		return before, alsoFailed(err, l.freeze(ctx, name, !frozen))
	}
	return e, nil
}

func (l *Lifecycle) freeze(ctx context.Context, name id.Workspace, frozen bool) error {
	ctx, cancel := within(ctx, freezeTimeout)
	defer cancel()
	return l.host.Freeze(ctx, name, frozen)
}

// Update changes the limits of a workspace. The ledger is written before they are put in
// force, so that a crash in between leaves what is wanted to the next broker.
func (l *Lifecycle) Update(ctx context.Context, name id.Workspace, limits workspace.Limits, states ...workspace.State) (Entry, error) {
	ctx, cancel := bounded(ctx, stopTimeout)
	defer cancel()
	unlock, err := l.lock(ctx, name)
	if err != nil {
		return Entry{}, err
	}
	defer unlock()
	e, err := l.get("change the limits of", name, states...)
	if err != nil || e.Limits == limits {
		return e, err
	}
	if err := diskChange(name, e.Limits.DiskBytes, limits.DiskBytes, l.host.GrowsDisk); err != nil {
		return e, err
	}
	before := e
	e.Limits = limits
	if err := l.ledger.Put(e); err != nil {
		return before, err
	}
	crashpoint.Here("broker.update.kept")
	if !l.alive(name) {
		return e, nil // in force from the next start on
	}
	if err := l.host.Limit(before, limits); err != nil {
		if undo := l.ledger.Put(before); undo != nil {
			err = alsoFailed(err, undo)
		}
		return before, err
	}
	return e, nil
}

// Stats returns what the commands of a running workspace use.
func (l *Lifecycle) Stats(name id.Workspace, states ...workspace.State) (workspace.Stats, error) {
	e, err := l.get("measure", name, states...)
	if err != nil {
		return workspace.UnknownStats, err
	}
	return l.host.Stats(e)
}
