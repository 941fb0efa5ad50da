package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// createTries is how often a create is begun that somebody else's use of its ids ends.
const createTries = 3

// Create makes a workspace, or returns the one there is for the key. A new one is started too if
// p asks for that, and then comes with its proof. grant is what p.Mounts are asked for with; it is
// used up only when there is no such workspace yet.
func (l *Lifecycle) Create(ctx context.Context, p brokerapi.CreateParams, grant *os.File) (res brokerapi.StartResult, err error) {
	if p.Limits, err = l.limits(p.Limits); err != nil {
		return res, err
	}
	if top := l.settings.LimitsMax.DiskBytes; top > 0 && p.Limits.DiskBytes == 0 {
		return res, fmt.Errorf("cannot create %s without a disk limit: this host allows at most %d (limits_max in the broker's settings); "+
			"give --disk, or set limits.disk: %w", p.Name, top, errdefs.ErrInvalidArgument)
	}
	err = l.alone(ctx, brokerapi.MethodCreate, p.Name, func(ctx context.Context) error {
		for try := 1; ; try++ {
			e, found, err := l.allocate(ctx, p, grant)
			if err == nil && !found {
				if p.Start {
					e.Egress, e.Trust = p.Egress, workspace.Digest(p.Trust)
				}
				e, res.Report, err = l.build(ctx, e, p)
			}
			// With the next ids. A grant of mounts is used up.
			if errors.Is(err, errTaken) && try < createTries && len(p.Mounts) == 0 {
				continue
			}
			res.Workspace = l.show(e)
			return err
		}
	})
	return res, err
}

// allocate finds the workspace that there is, or enters a new one into the ledger as
// creating. The lock is held.
func (l *Lifecycle) allocate(ctx context.Context, p brokerapi.CreateParams, grant *os.File) (e Entry, found bool, err error) {
	e, _ = l.ledger.Get(p.Name)
	switch {
	case e.State == absent, e.State == workspace.StateDestroyed:
	case e.KeyDigest != p.KeyDigest:
		return Entry{}, false, fmt.Errorf("cannot create %s: the name belongs to another key: %w", p.Name, errdefs.ErrAlreadyExists)
	case e.State == workspace.StateCreating:
		// An undoing that failed: it has to succeed first.
		if err := l.undoCreate(ctx, e); err != nil {
			return Entry{}, false, err
		}
	case !slices.Contains(rules[brokerapi.MethodCreate].states, e.State):
		return Entry{}, false, fmt.Errorf("cannot create %s: it is %s; destroy it again to finish that: %w",
			p.Name, e.State, errdefs.ErrFailedPrecondition)
	default:
		return e, true, nil
	}
	if err := l.host.NameFree(p.Name); err != nil {
		return Entry{}, false, err
	}
	if p.Limits.DiskBytes > 0 {
		if err := l.host.HoldsDisk(); err != nil {
			return Entry{}, false, fmt.Errorf("cannot create %s with a disk limit: %w", p.Name, err)
		}
	}
	var mounts []Mount
	if len(p.Mounts) > 0 {
		if mounts, err = l.host.TakeMounts(ctx, p, grant); err != nil {
			return Entry{}, false, fmt.Errorf("cannot create %s: %w", p.Name, err)
		}
	}
	e, err = l.ledger.Allocate(Entry{
		Name: p.Name, KeyDigest: p.KeyDigest, Limits: p.Limits, Owner: p.Owner, Allow: p.Allow, Home: l.host.Home(p.Name), Mounts: mounts,
	}, l.settings, l.host.IDsFree)
	return e, false, err
}

// build makes what a new workspace consists of, and starts it if that is asked for. A start
// that fails leaves it made and stopped.
func (l *Lifecycle) build(ctx context.Context, e Entry, p brokerapi.CreateParams) (_ Entry, report workspace.Report, err error) {
	crashpoint.Here("broker.create.allocated")
	// Adding the user takes as long as all the rest, and nothing of that needs it.
	name, ids, added := e.Name, e.IDs, make(chan error, 1)
	go func() {
		err := l.host.AddUser(ctx, name, ids)
		crashpoint.Here("broker.create.user-added")
		added <- err
	}()
	err = l.host.MakeDirs(name, ids)
	crashpoint.Here("broker.create.dirs-made")
	if err == nil && e.Limits.DiskBytes > 0 {
		err = l.host.MakeImage(ctx, name, ids, e.Limits.DiskBytes)
	}
	e.State = workspace.StateStopped
	var r Running
	if err == nil && p.Start {
		var failed error
		if r, report, failed = l.host.Start(ctx, e, p.Trust); failed != nil {
			l.log.Warn("a new workspace does not start", "workspace", name, "error", failed)
		} else {
			e.State, e.Executor = workspace.StateRunning, &r.Executor
			crashpoint.Here("broker.create.started")
		}
	}
	if err = errors.Join(err, <-added); err == nil {
		err = l.ledger.Put(e)
	}
	if err != nil {
		undo, stop := bounded(ctx, rules[brokerapi.MethodCreate].timeout)
		defer stop()
		return Entry{}, workspace.Report{}, alsoFailed(fmt.Errorf("cannot create %s: %w", name, err), l.undoCreate(undo, e))
	}
	if e.State == workspace.StateRunning {
		l.follow(name, r)
	}
	return e, report, nil
}

// undoCreate undoes a create, however far it came. The ids stay spent.
func (l *Lifecycle) undoCreate(ctx context.Context, e Entry) error {
	if err := l.endAll(ctx, e); err != nil {
		return err
	}
	return l.unmake(ctx, e)
}

// endAll ends everything that an operation has started which failed or broke off.
func (l *Lifecycle) endAll(ctx context.Context, e Entry) error {
	return each(func() error { return l.endProcesses(ctx, e) }, func() error { return l.cleanUp(ctx, e) })
}

// unmake removes what a create has made, once nothing of it runs.
func (l *Lifecycle) unmake(ctx context.Context, e Entry) error {
	err := each(
		func() error { return l.host.RemoveUser(ctx, e.Name, e.IDs) },
		func() error { crashpoint.Here("broker.undo.user-removed"); return nil },
		func() error { return l.host.UnmakeDirs(ctx, e.Name, e.IDs) },
	)
	if err != nil {
		return err
	}
	crashpoint.Here("broker.undo.dirs-removed")
	e.State, e.Executor = workspace.StateDestroyed, nil
	return l.ledger.Put(e)
}
