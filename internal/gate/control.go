package gate

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/runtime"
	"github.com/carrel-dev/carrel/internal/store"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Pause freezes the commands of the running workspace that ref names.
func (g *Gate) Pause(ctx context.Context, p principal.Principal, ref string) (workspace.View, error) {
	return g.turn(ctx, p, ref, action.Pause, workspace.StateRunning, workspace.StatePaused, g.cfg.Runtime.Pause)
}

// Resume lets the commands of the paused workspace that ref names go on.
func (g *Gate) Resume(ctx context.Context, p principal.Principal, ref string) (workspace.View, error) {
	return g.turn(ctx, p, ref, action.Resume, workspace.StatePaused, workspace.StateRunning, g.cfg.Runtime.Resume)
}

// turn moves a workspace from one state to another. One that is there already is told
// so again, which mends what an attempt that broke off has left.
func (g *Gate) turn(ctx context.Context, p principal.Principal, ref string, kind action.Kind, from, to workspace.State,
	do func(context.Context, id.Workspace) (runtime.Workspace, error),
) (workspace.View, error) {
	w, err := g.reach(ctx, p, ref, action.Action{Kind: kind})
	if err != nil {
		return workspace.View{}, err
	}
	err = g.exclusive(ctx, slot{name: w.Name}, kind, true, func(ctx context.Context) error {
		w, err := g.living(w.Name)
		if err != nil {
			return err
		}
		if w.State != from && w.State != to {
			return fmt.Errorf("cannot %s workspace %s: it is %s: %w", verb(kind), w.Name, w.State, errdefs.ErrFailedPrecondition)
		}
		return g.on(ctx, p, w, action.Action{Kind: kind}, func(ctx context.Context) (any, error) {
			rt, err := do(ctx, w.Name)
			if err != nil {
				return nil, err
			}
			crashpoint.Here("daemon.turn.done")
			g.note(rt)
			return nil, g.cfg.Store.SetState(ctx, w.Name, to)
		})
	})
	if err != nil {
		return workspace.View{}, err
	}
	if w, err = g.living(w.Name); err != nil {
		return workspace.View{}, err
	}
	return g.view(w), nil
}

// Update changes limits, key or lifetime of the workspace that ref names.
//
// Errors: already_exists if the key belongs to another workspace, failed_precondition if
// what runs uses more than the new limits.
func (g *Gate) Update(ctx context.Context, p principal.Principal, ref string, c workspace.Change) (workspace.View, error) {
	if err := workspace.ValidateLife(c.TTL, c.Idle, c.Request); err != nil {
		return workspace.View{}, err
	}
	a := action.Action{Kind: action.Update, Key: c.Key, TTLMS: millis(c.TTL), IdleMS: millis(c.Idle)}
	if err := setLimits(&a, c.Limits); err != nil {
		return workspace.View{}, err
	}
	w, err := g.reach(ctx, p, ref, a)
	if err != nil {
		return workspace.View{}, err
	}
	if c.Key != "" {
		// It would be out of reach of who renamed it, or take another's place there.
		if err := g.permitKey(ctx, p, a, w.Owner); err != nil {
			return workspace.View{}, err
		}
	}
	a.Workspace = w.Name
	name, err := once(ctx, g, p, c.Request, a, func(time.Time) (id.Workspace, error) {
		change := func(ctx context.Context) error {
			return g.exclusive(ctx, slot{name: w.Name}, action.Update, false, func(ctx context.Context) error { return g.update(ctx, p, w.Name, a, c) })
		}
		if c.Key == "" {
			return w.Name, change(ctx)
		}
		// Nobody else is to be given that key meanwhile.
		return w.Name, g.exclusive(ctx, slot{key: c.Key}, action.Update, false, change)
	})
	if err != nil {
		return workspace.View{}, err
	}
	if w, err = g.living(name); err != nil {
		return workspace.View{}, err
	}
	return g.view(w), nil
}

// update runs with the workspace's slot held.
func (g *Gate) update(ctx context.Context, p principal.Principal, name id.Workspace, a action.Action, c workspace.Change) error {
	w, err := g.living(name)
	if err != nil {
		return err
	}
	if w.State == workspace.StateCreating || w.State == workspace.StateRestoring || w.State == workspace.StateDestroying {
		return fmt.Errorf("cannot change workspace %s: it is %s: %w", name, w.State, errdefs.ErrFailedPrecondition)
	}
	if c.Key != "" && c.Key != w.Key {
		if err := g.usableKey(c.Key); err != nil {
			return err
		}
		if _, taken := g.cfg.Store.ByKey(c.Key); taken {
			return fmt.Errorf("cannot give workspace %s the key %q: another workspace has it: %w", name, c.Key, errdefs.ErrAlreadyExists)
		}
	}
	limits := c.Limits.Or(w.Limits)
	if err := limits.Validate(); err != nil {
		return err
	}
	return g.on(ctx, p, w, a, func(ctx context.Context) (any, error) {
		// Also when they are those that the database has: of an earlier change that broke
		// off, the broker may have others.
		if c.Limits != (workspace.Limits{}) {
			rt, err := g.cfg.Runtime.Limit(ctx, name, limits)
			if err != nil {
				return nil, err
			}
			crashpoint.Here("daemon.update.limited")
			g.note(rt)
		}
		return nil, g.cfg.Store.Update(ctx, name, func(w *store.Workspace) {
			w.Limits = limits
			if c.Key != "" {
				w.Key = c.Key
			}
			if c.TTL != 0 {
				w.Expires = expiry(c.TTL)
			}
			if c.Idle != 0 {
				w.Idle = c.Idle
			}
		})
	})
}

// expiry is the time at which a lifetime that begins now ends.
func expiry(ttl time.Duration) time.Time {
	if ttl <= 0 {
		return time.Time{}
	}
	return time.Now().Add(ttl)
}

// millis is a duration in an action: milliseconds, and forever as it is.
func millis(d time.Duration) int64 {
	if d == workspace.Forever {
		return -1
	}
	return d.Milliseconds()
}

// setLimits puts the limits that were asked for into an action.
func setLimits(a *action.Action, l workspace.Limits) error {
	if l == (workspace.Limits{}) {
		return nil
	}
	raw, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("cannot read the limits: %w", err)
	}
	a.Limits = raw
	return nil
}

// Stats returns what the workspaces that refs name use, or with none those that run and
// p may reach. One that does not run uses nothing and is told as such if it was named.
func (g *Gate) Stats(ctx context.Context, p principal.Principal, refs []string) ([]workspace.Usage, error) {
	if err := g.Permit(ctx, p, action.Action{Kind: action.Stats}); err != nil {
		return nil, err
	}
	var list []store.Workspace
	for _, ref := range refs {
		w, err := g.reach(ctx, p, ref, action.Action{Kind: action.Stats})
		if err != nil {
			return nil, err
		}
		list = append(list, w)
	}
	if len(refs) == 0 {
		for _, w := range g.cfg.Store.Workspaces() {
			if reaches(p, w) && live(w.State) {
				list = append(list, w)
			}
		}
	}
	out := make([]workspace.Usage, 0, len(list))
	for _, w := range list {
		u := workspace.Usage{Name: w.Name, Key: w.Key, State: w.State, Limits: w.Limits}
		if live(w.State) {
			st, err := g.cfg.Runtime.Stats(ctx, w.Name)
			if errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
				st, err = workspace.UnknownStats, nil // it has ended meanwhile
			}
			if err != nil {
				return nil, err
			}
			u.Stats = st
		}
		out = append(out, u)
	}
	return out, nil
}

// live reports whether a workspace in that state has an executor.
func live(s workspace.State) bool { return s == workspace.StateRunning || s == workspace.StatePaused }
