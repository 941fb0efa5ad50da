package gate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/runtime"
	"github.com/carrel-dev/carrel/internal/store"
	"github.com/carrel-dev/carrel/internal/workspace"
)

const (
	// tick is how often lifetimes are looked at.
	tick = time.Second
	// keepOutput is how long a detached command that has ended keeps its executor, which
	// has its output.
	keepOutput = time.Hour
)

// Tend ends what has lived its time and stops what runs with nothing in it, until ctx
// ends. What it does passes the gate as principal system.
func (g *Gate) Tend(ctx context.Context) {
	if g.cfg.Checkpoints != nil {
		var signing sync.WaitGroup
		signing.Go(func() { g.tendCheckpoints(ctx) })
		defer signing.Wait()
	}
	t := time.NewTicker(tick)
	defer t.Stop()
	old := time.NewTicker(g.oldEvery())
	defer old.Stop()
	g.forgetAllOld(ctx, time.Now())
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-old.C:
			g.forgetAllOld(ctx, now)
		case now := <-t.C:
			g.tendAll(ctx, now)
		}
	}
}

// oldEvery is how often what is kept for a time is looked at: each hour, or as often as the
// shortest time is long.
func (g *Gate) oldEvery() time.Duration {
	every := time.Hour
	for _, keep := range []time.Duration{g.cfg.KeepArchives, g.cfg.KeepHomes} {
		if keep > 0 {
			every = min(every, max(keep, time.Second))
		}
	}
	return every
}

func (g *Gate) forgetAllOld(ctx context.Context, now time.Time) {
	if err := g.forgetOld(ctx, now); err != nil {
		g.cfg.Log.Error("cannot remove archives that were kept for their time", "error", err)
	}
	if err := g.forgetHomes(ctx, now); err != nil {
		g.cfg.Log.Error("cannot remove homes of destroyed workspaces that were kept for their time", "error", err)
	}
	if err := g.forgetRecords(ctx, now); err != nil {
		g.cfg.Log.Error("cannot remove files of the audit log that were kept for their time", "error", err)
	}
	if err := g.cfg.Store.ForgetApprovals(ctx, now, keepAnswered); err != nil {
		g.cfg.Log.Error("cannot remove approvals that were kept for their time", "error", err)
	}
}

func (g *Gate) tendAll(ctx context.Context, now time.Time) {
	g.tendApprovals()
	for _, w := range g.cfg.Store.Due(func(w *store.Workspace) bool { return w.State == workspace.StateRestoring }) {
		g.mu.Lock()
		filled := g.ops[slot{key: w.Key}] != nil // by one that holds the key
		g.mu.Unlock()
		if filled {
			continue
		}
		err := g.exclusive(ctx, slot{key: w.Key}, quiet, false, func(ctx context.Context) error { return g.clearRestoring(ctx, w.Key) })
		if err != nil {
			g.cfg.Log.Error("cannot take back a workspace that could not be filled", "workspace", w.Name, "error", err)
		}
	}
	for _, w := range g.cfg.Store.Due(func(w *store.Workspace) bool { return g.expired(w, now) || g.idle(w, now) }) {
		if err := g.tend(ctx, w, now); err != nil {
			g.cfg.Log.Error("cannot end what has lived its time", "workspace", w.Name, "error", err)
			g.touch(w.Name) // not again at once
		}
	}
}

func (g *Gate) expired(w *store.Workspace, now time.Time) bool {
	return !w.Expires.IsZero() && now.After(w.Expires) && w.State != workspace.StateDestroying && w.State != workspace.StateCreating && w.State != workspace.StateRestoring
}

// idle reports whether a workspace that runs has not been used for its time. Whether
// something runs in it is for tend to see.
func (g *Gate) idle(w *store.Workspace, now time.Time) bool {
	limit := w.Idle
	if limit == 0 {
		limit = g.cfg.Idle
	}
	if limit <= 0 || w.State != workspace.StateRunning {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return now.Sub(g.used[w.Name]) > limit && now.Sub(g.began) > limit
}

func (g *Gate) tend(ctx context.Context, w store.Workspace, now time.Time) error {
	if g.expired(&w, now) {
		g.cfg.Log.Info("a workspace has lived its time", "workspace", w.Name)
		_, err := g.destroy(ctx, principal.Self(), w.Name, false, action.Destroy)
		return err
	}
	return g.exclusive(ctx, slot{name: w.Name}, quiet, false, func(ctx context.Context) error {
		w, err := g.living(w.Name)
		if err != nil || !g.idle(&w, now) {
			return err // it has been used since
		}
		busy, err := g.busy(ctx, w.Name, now)
		if errors.Is(err, runtime.ErrNotRunning) {
			return g.halt(ctx, principal.Self(), w) // of a stop that could not be finished
		}
		if err != nil || busy {
			g.touch(w.Name)
			return err
		}
		return g.halt(ctx, principal.Self(), w)
	})
}

// busy reports whether something runs in a workspace, or is to be kept there.
func (g *Gate) busy(ctx context.Context, name id.Workspace, now time.Time) (bool, error) {
	list, err := g.cfg.Runtime.Commands(ctx, name)
	if err != nil {
		return false, err
	}
	for _, c := range list {
		if c.Status == nil || c.Detached && now.Sub(time.Unix(0, c.Status.EndedNS)) < keepOutput {
			return true, nil
		}
	}
	return false, nil
}

// use notes that a workspace is about to be used, and reports whether it may be about to
// be stopped for not having been: then start waits for that. Whichever of the two comes
// first under the lock is seen by the other.
func (g *Gate) use(name id.Workspace) (closing bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.used[name] = time.Now()
	o := g.ops[slot{name: name}]
	return o != nil && o.kind == quiet
}

// touch notes that a workspace is in use.
func (g *Gate) touch(name id.Workspace) {
	g.mu.Lock()
	g.used[name] = time.Now()
	g.mu.Unlock()
}
