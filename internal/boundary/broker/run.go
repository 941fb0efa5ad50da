package broker

import (
	"context"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// Start starts a workspace's executor, or returns the one that lives.
func (l *Lifecycle) Start(ctx context.Context, p brokerapi.StartParams) (res brokerapi.StartResult, err error) {
	res.Workspace, err = l.change(ctx, brokerapi.MethodStart, p.Name, func(ctx context.Context, e Entry) (Entry, error) {
		if e.State == workspace.StateRunning {
			_, known, alive := l.followed(e.Name)
			if !known { // it may live: that could not be told when the broker started
				if _, err := l.adopt(ctx, e); err != nil {
					return e, err
				}
				_, _, alive = l.followed(e.Name)
			} else if !alive {
				if err := l.settle(ctx, e, false); err != nil {
					return e, err
				}
			}
			if alive {
				res.Report, err = l.host.Report(e.Name)
				return e, err
			}
			e.Executor = nil
		}
		e.Egress, e.Trust = p.Egress, workspace.Digest(p.Trust)
		r, report, err := l.host.Start(ctx, e, p.Trust)
		res.Report = report
		if err != nil {
			return e, err
		}
		crashpoint.Here("broker.start.launched")
		e.State, e.Executor = workspace.StateRunning, &r.Executor
		if err := l.ledger.Put(e); err != nil {
			l.mu.Lock()
			l.running[e.Name] = r
			l.mu.Unlock()
			return e, alsoFailed(err, l.settle(ctx, Entry{Name: e.Name}, false))
		}
		crashpoint.Here("broker.start.kept")
		l.follow(e.Name, r)
		return e, nil
	})
	return res, err
}

// Stop ends all that runs in a workspace. Asking the executor first is the daemon's
// part.
func (l *Lifecycle) Stop(ctx context.Context, p brokerapi.NameParams) (brokerapi.Workspace, error) {
	return l.change(ctx, brokerapi.MethodStop, p.Name, func(ctx context.Context, e Entry) (Entry, error) {
		if e.State == workspace.StateStopped {
			return e, l.endAll(ctx, e) // what is left of an operation that could not end it
		}
		if err := l.settle(ctx, e, false); err != nil {
			return e, err
		}
		e.State, e.Executor = workspace.StateStopped, nil
		return e, nil
	})
}
