package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// Recover finishes or undoes what a crash or a reboot interrupted. An error with one
// workspace is logged and does not affect the others.
func (l *Lifecycle) Recover(ctx context.Context) error {
	for _, m := range l.host.Mended() {
		l.tell(m.Kind, "", m.Done, nil)
	}
	if err := l.rebuild(); err != nil {
		return err
	}
	unsure, until := map[id.Workspace]bool{}, time.Now().Add(recoverAll)
	for _, e := range l.ledger.All() {
		var err error
		switch e.State {
		case workspace.StateCreating:
			if l.host.Whole(e) {
				l.log.Warn("taking a create that was interrupted for done: all is there", "workspace", e.Name)
				err = l.soon(ctx, until, func(ctx context.Context) error { return l.finishCreate(ctx, e) })
				l.tell(workspace.CreateFinished, e.Name, "a create had broken off when all was made; the workspace is there, and stopped", err)
				break
			}
			l.log.Warn("undoing a create that was interrupted", "workspace", e.Name)
			if err = l.soon(ctx, until, func(ctx context.Context) error { return l.endAll(ctx, e) }); err == nil {
				err = l.unmake(ctx, e)
			}
			l.tell(workspace.CreateUndone, e.Name, "a create had broken off; what it had made is removed", err)
		case workspace.StateDestroying:
			l.log.Warn("finishing a destroy that was interrupted", "workspace", e.Name)
			if err = l.soon(ctx, until, func(ctx context.Context) error { return l.empty(ctx, e) }); err == nil {
				err = l.soon(ctx, until, func(ctx context.Context) (err error) { e, err = l.remove(ctx, e); return err })
				if errdefs.IsUnavailable(err) {
					l.finishLater(e.Name)
					err = fmt.Errorf("%w; the broker goes on with it", err)
				}
			}
			done := "a destroy had broken off and is finished; the home is removed"
			if e.Retained != "" {
				done = "a destroy had broken off and is finished; the home is at " + e.Retained
			}
			l.tell(workspace.DestroyFinished, e.Name, done, err)
		case workspace.StateRunning, workspace.StatePaused:
			var lost string
			err = l.soon(ctx, until, func(ctx context.Context) (err error) { lost, err = l.adopt(ctx, e); return err })
			unsure[e.Name] = err != nil
			if err != nil || lost != "" {
				l.tell(workspace.ExecutorLost, e.Name, "it is stopped: "+lost, err)
			}
		case workspace.StateStopped, workspace.StateDestroyed: // nothing was under way
		case workspace.StateRestoring: // the daemon's; here it is stopped or running
		}
		if err != nil {
			l.log.Error("cannot bring a workspace in order", "workspace", e.Name, "state", e.State, "error", err)
		}
	}
	left, err := l.host.Leftovers()
	if err != nil {
		return err
	}
	for _, name := range left {
		if _, ok, _ := l.followed(name); ok || unsure[name] {
			continue
		}
		l.log.Warn("removing what a start left that was interrupted", "workspace", name)
		e, _ := l.ledger.Get(name)
		e.Name = name
		err := l.soon(ctx, until, func(ctx context.Context) error { return l.cleanUp(ctx, e) })
		l.tell(workspace.StartSwept, name, "a start had broken off; its control groups, socket and report are removed", err)
		if err != nil {
			l.log.Error("cannot clean up", "workspace", name, "error", err)
		}
	}
	return nil
}

// soon bounds a step of a start, so that a process that cannot be ended does not keep the
// broker from serving.
func (l *Lifecycle) soon(ctx context.Context, until time.Time, step func(context.Context) error) error {
	ctx, cancel := bounded(ctx, max(min(recoverTimeout, time.Until(until)), recoverLeast))
	defer cancel()
	return step(ctx)
}

// finishLater goes on with a destroy that a start has no time for: a home can be large.
func (l *Lifecycle) finishLater(name id.Workspace) {
	ctx, stop := context.WithCancel(context.Background())
	l.watches.Go(func() {
		defer stop()
		unlock, err := l.lock(ctx, name)
		if err == nil {
			defer unlock()
			if e, _ := l.ledger.Get(name); e.State == workspace.StateDestroying {
				_, err = l.finishDestroy(ctx, e)
			}
		}
		if err != nil {
			l.log.Error("cannot finish a destroy; destroy the workspace again", "workspace", name, "error", err)
		}
	})
	go func() {
		defer stop()
		select {
		case <-l.closing:
		case <-ctx.Done():
		}
	}()
}

// adopt takes up the executor of a live workspace. If that has ended, lost says why it is known to have,
// and the workspace is stopped.
func (l *Lifecycle) adopt(ctx context.Context, e Entry) (lost string, err error) {
	r, err := l.host.Adopt(e)
	if err == nil {
		l.follow(e.Name, r)
		// The crash may have come between a change and the line that says so, or after.
		if err := l.host.Limit(e, e.Limits); err != nil {
			return "", errors.Join(err, l.settle(ctx, e, false)) // it must not go on without
		}
		return "", l.freeze(ctx, e.Name, e.State == workspace.StatePaused)
	}
	if !errdefs.IsNotFound(err) {
		return "", err // it may be alive: nothing is ended on a guess
	}
	l.log.Warn("a workspace is no longer running", "workspace", e.Name, "reason", err)
	return err.Error(), l.settle(ctx, e, false)
}

// tell records for the daemon what a start put right, or could not.
func (l *Lifecycle) tell(kind workspace.MendedKind, name id.Workspace, done string, err error) {
	if err != nil {
		kind, done = workspace.NotMended, err.Error()
	}
	if len(done) > brokerapi.MaxDone {
		done = strings.ToValidUTF8(done[:brokerapi.MaxDone], "") + "…"
	}
	if len(l.mended) == brokerapi.MaxMended-1 {
		l.unsaid++
		return
	}
	l.mended = append(l.mended, workspace.Mended{Kind: kind, Workspace: name, Done: strings.ToValidUTF8(done, "?")})
}

// Mended returns what Recover put right, and what identifies this start.
func (l *Lifecycle) Mended(context.Context) (start string, list []workspace.Mended, err error) {
	list = l.mended
	if l.unsaid > 0 {
		more := fmt.Sprintf("%d more; the broker's log has them", l.unsaid)
		list = append(slices.Clone(list), workspace.Mended{Kind: workspace.MoreMended, Done: more})
	}
	return l.start, list, nil
}
