package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Plan is what a new workspace is to be.
type Plan struct {
	KeyDigest string
	Limits    workspace.Limits
	// Allow is what commands may do beyond what others may; workspace.CheckOpenings has
	// passed it.
	Allow []workspace.Opening
	// Grant is the mounts asked for, or nil. It is used up only when there is no such
	// workspace yet.
	Grant *Grant
	// Start it as well. If that alone fails it is made, and stopped.
	Start bool
}

// Create makes a workspace, or returns the one there is for the key, with a proof if it
// has just been started.
func (l *Lifecycle) Create(ctx context.Context, name id.Workspace, p Plan, states ...workspace.State) (Entry, workspace.Report, error) {
	ctx, cancel := bounded(ctx, userTimeout+stopTimeout)
	defer cancel()
	var report workspace.Report
	unlock, err := l.lock(ctx, name)
	if err != nil {
		return Entry{}, report, err
	}
	defer unlock()
	e, found, err := l.plan(ctx, name, p, states)
	if err != nil || found {
		return e, report, err
	}
	crashpoint.Here("broker.create.allocated")
	// Adding the user takes as long as all the rest, and nothing of that needs it.
	ids, added := e.IDs, make(chan error, 1)
	go func() {
		err := l.host.AddUser(ctx, name, ids)
		crashpoint.Here("broker.create.user-added")
		added <- err
	}()
	err = l.host.MakeDirs(name, e.IDs)
	crashpoint.Here("broker.create.dirs-made")
	if err == nil && e.Limits.DiskBytes > 0 {
		err = l.host.MakeImage(ctx, name, e.IDs, e.Limits.DiskBytes)
	}
	e.State = workspace.StateStopped
	var r Running
	if err == nil && p.Start {
		var start error
		if r, report, start = l.host.Start(ctx, e); start != nil {
			l.log.Warn("a new workspace does not start", "workspace", name, "error", start)
		} else {
			e.State, e.Executor = workspace.StateRunning, &r.Executor
			crashpoint.Here("broker.create.started")
		}
	}
	if err = errors.Join(err, <-added); err == nil {
		err = l.ledger.Put(e)
	}
	if err != nil {
		undo, stop := bounded(ctx, userTimeout+stopTimeout)
		defer stop()
		return Entry{}, workspace.Report{}, alsoFailed(fmt.Errorf("cannot create %s: %w", name, err), l.undoCreate(undo, e))
	}
	if e.State == workspace.StateRunning {
		l.follow(name, r)
	}
	return e, report, nil
}

// plan finds the workspace that there is, or enters a new one into the ledger as
// creating. The lock is held.
func (l *Lifecycle) plan(ctx context.Context, name id.Workspace, p Plan, states []workspace.State) (e Entry, found bool, err error) {
	e, ok := l.ledger.Get(name)
	switch {
	case !ok && slices.Contains(states, absent), ok && e.State == workspace.StateDestroyed && slices.Contains(states, e.State):
	case e.KeyDigest != p.KeyDigest:
		return Entry{}, false, fmt.Errorf("cannot create %s: the name belongs to another key: %w", name, errdefs.ErrAlreadyExists)
	case e.State == workspace.StateCreating:
		// An undoing that failed: it has to succeed first.
		if err := l.undoCreate(ctx, e); err != nil {
			return Entry{}, false, err
		}
	case !slices.Contains(states, e.State):
		return Entry{}, false, fmt.Errorf("cannot create %s: it is %s; destroy it again to finish that: %w", name, e.State, errdefs.ErrFailedPrecondition)
	default:
		return e, true, nil
	}
	if err := l.host.NameFree(name); err != nil {
		return Entry{}, false, err
	}
	if p.Limits.DiskBytes > 0 {
		if err := l.host.HoldsDisk(); err != nil {
			return Entry{}, false, fmt.Errorf("cannot create %s with a disk limit: %w", name, err)
		}
	}
	var mounts []Mount
	if p.Grant != nil {
		if mounts, err = l.host.TakeMounts(ctx, name, p.Grant); err != nil {
			return Entry{}, false, fmt.Errorf("cannot create %s: %w", name, err)
		}
	}
	e, err = l.ledger.Allocate(Entry{Name: name, KeyDigest: p.KeyDigest, Limits: p.Limits, Allow: p.Allow, Home: l.host.Home(name), Mounts: mounts},
		l.settings.UIDFirst, l.settings.UIDCount, l.settings.MaxWorkspaces, l.host.IDsFree)
	return e, false, err
}

// undoCreate takes back what a create did, whether all of it or nothing. The ids stay
// spent.
func (l *Lifecycle) undoCreate(ctx context.Context, e Entry) error {
	if err := l.endAll(ctx, e); err != nil {
		return err
	}
	return l.unmake(ctx, e)
}

// endAll ends what a create has started.
func (l *Lifecycle) endAll(ctx context.Context, e Entry) error {
	return each(func() error { return l.endProcesses(ctx, e) }, func() error { return l.cleanUp(ctx, e) })
}

// unmake removes what a create has made, of which nothing runs.
func (l *Lifecycle) unmake(ctx context.Context, e Entry) error {
	err := each(
		func() error { return l.host.RemoveUser(ctx, e.Name, e.IDs) },
		func() error { crashpoint.Here("broker.undo.user-removed"); return nil },
		func() error { return l.host.UnmakeDirs(e.Name, e.IDs) },
	)
	if err != nil {
		return err
	}
	crashpoint.Here("broker.undo.dirs-removed")
	e.State, e.Executor = workspace.StateDestroyed, nil
	return l.ledger.Put(e)
}
