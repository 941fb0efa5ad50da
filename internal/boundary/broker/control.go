package broker

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// Pause freezes the commands of a running workspace.
func (l *Lifecycle) Pause(ctx context.Context, p brokerapi.NameParams) (brokerapi.Workspace, error) {
	return l.change(ctx, brokerapi.MethodPause, p.Name, func(ctx context.Context, e Entry) (Entry, error) {
		return l.setFrozen(ctx, e, brokerapi.MethodPause, workspace.StatePaused)
	})
}

// Resume lets the commands of a paused workspace go on.
func (l *Lifecycle) Resume(ctx context.Context, p brokerapi.NameParams) (brokerapi.Workspace, error) {
	return l.change(ctx, brokerapi.MethodResume, p.Name, func(ctx context.Context, e Entry) (Entry, error) {
		return l.setFrozen(ctx, e, brokerapi.MethodResume, workspace.StateRunning)
	})
}

func (l *Lifecycle) setFrozen(ctx context.Context, e Entry, method string, to workspace.State) (Entry, error) {
	if e.State == to {
		return e, nil
	}
	if _, _, alive := l.followed(e.Name); !alive {
		return e, fmt.Errorf("cannot %s %s: its executor has ended: %w", method, e.Name, errdefs.ErrFailedPrecondition)
	}
	frozen := to == workspace.StatePaused
	if err := l.freeze(ctx, e.Name, frozen); err != nil {
		return e, l.heldUp(e.IDs, err)
	}
	crashpoint.Here("broker.freeze.done")
	before := e
	e.State = to
	if err := l.ledger.Put(e); err != nil {
		return before, alsoFailed(err, l.freeze(ctx, e.Name, !frozen))
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
func (l *Lifecycle) Update(ctx context.Context, p brokerapi.UpdateParams) (brokerapi.Workspace, error) {
	limits, err := l.limits(p.Limits)
	if err != nil {
		return brokerapi.Workspace{}, err
	}
	return l.change(ctx, brokerapi.MethodUpdate, p.Name, func(_ context.Context, e Entry) (Entry, error) {
		if e.Limits == limits {
			return e, nil
		}
		if err := l.diskChange(e, limits.DiskBytes); err != nil {
			return e, err
		}
		before := e
		e.Limits = limits
		if err := l.ledger.Put(e); err != nil {
			return before, err
		}
		crashpoint.Here("broker.update.kept")
		if _, _, alive := l.followed(e.Name); !alive {
			return e, nil // in force from the next start on
		}
		if err := l.host.Limit(before, limits); err != nil {
			if undo := l.ledger.Put(before); undo != nil {
				err = alsoFailed(err, undo)
			}
			return before, err
		}
		return e, nil
	})
}

// diskChange reports why the limit on disk space cannot be changed to bytes.
func (l *Lifecycle) diskChange(e Entry, bytes int64) error {
	from := e.Limits.DiskBytes
	why := ""
	switch {
	case from == bytes:
		return nil
	case from == 0:
		why = "it was created without one, and its files lie in directories of the host; archive it and restore it with --disk"
	case bytes == 0:
		why = "it was created with one, and its files lie in an image; archive it and restore it without"
	case bytes < from:
		why = "an image can grow and not shrink; archive it and restore it with a smaller --disk"
	default:
		if err := l.host.GrowsDisk(); err != nil {
			return fmt.Errorf("cannot change the disk limit of %s: %w; or archive it and restore it with a larger --disk", e.Name, err)
		}
		return nil
	}
	return fmt.Errorf("cannot change the disk limit of %s from %d to %d: %s: %w", e.Name, from, bytes, why, errdefs.ErrFailedPrecondition)
}

// Stats returns what the commands of a running workspace use.
func (l *Lifecycle) Stats(_ context.Context, p brokerapi.NameParams) (workspace.Stats, error) {
	e, err := l.get(brokerapi.MethodStats, p.Name)
	if err != nil {
		return workspace.UnknownStats, err
	}
	return l.host.Stats(e)
}

// Report returns the proof of a running workspace.
func (l *Lifecycle) Report(_ context.Context, p brokerapi.NameParams) (workspace.Report, error) {
	if _, err := l.get(brokerapi.MethodReport, p.Name); err != nil {
		return workspace.Report{}, err
	}
	return l.host.Report(p.Name)
}

// maxList bounds a list so that it fits into a reply: a workspace takes at most 12 KiB of it, as
// each path is bounded by the settings or by workspace.CheckMounts.
const (
	maxReply = 1 << 20
	maxList  = maxReply/(12<<10) - 1
)

// List returns workspaces that are not destroyed, by name.
func (l *Lifecycle) List(_ context.Context, p brokerapi.ListParams) (brokerapi.ListResult, error) {
	res := brokerapi.ListResult{Workspaces: []brokerapi.Workspace{}}
	for _, e := range l.Entries() {
		if e.Name <= p.After {
			continue
		}
		if len(res.Workspaces) == maxList {
			res.More = true
			break
		}
		res.Workspaces = append(res.Workspaces, l.show(e))
	}
	return res, nil
}

// Countersign signs a checkpoint of the audit log, as Countersigner does.
func (l *Lifecycle) Countersign(_ context.Context, p brokerapi.CountersignParams) (brokerapi.CountersignResult, error) {
	next, proof, err := p.Parse()
	if err != nil {
		return brokerapi.CountersignResult{}, err
	}
	c := l.ledger.Audit()
	signed, last, _, err := c.Sign(next, p.Old, proof)
	return brokerapi.CountersignResult{Note: string(signed), Key: c.Public(), Size: last.Size, Root: last.Root.String()}, err
}
