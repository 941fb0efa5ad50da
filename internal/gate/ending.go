package gate

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/store"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Stop ends everything that runs in the workspace that ref names.
func (g *Gate) Stop(ctx context.Context, p principal.Principal, ref string) (workspace.View, error) {
	w, err := g.reach(ctx, p, ref, action.Action{Kind: action.Stop})
	if err != nil {
		return workspace.View{}, err
	}
	if err := g.stop(ctx, p, w.Name); err != nil {
		return workspace.View{}, err
	}
	if w, err = g.living(w.Name); err != nil {
		return workspace.View{}, err
	}
	return g.view(w), nil
}

func (g *Gate) stop(ctx context.Context, p principal.Principal, name id.Workspace) error {
	return g.exclusive(ctx, slot{name: name}, action.Stop, true, func(ctx context.Context) error {
		w, err := g.living(name)
		if err != nil || w.State == workspace.StateStopped {
			return err
		}
		if !live(w.State) {
			return fmt.Errorf("cannot stop workspace %s: it is %s: %w", name, w.State, errdefs.ErrFailedPrecondition)
		}
		return g.halt(ctx, p, w)
	})
}

// halt stops a live workspace, with its slot held. What is paused goes on first, so that
// it can end in order.
func (g *Gate) halt(ctx context.Context, p principal.Principal, w store.Workspace) error {
	return g.on(ctx, p, w, action.Action{Kind: action.Stop}, func(ctx context.Context) (any, error) {
		if w.State == workspace.StatePaused {
			if _, err := g.cfg.Runtime.Resume(ctx, w.Name); err != nil {
				g.cfg.Log.Warn("stopping a paused workspace that does not go on", "workspace", w.Name, "error", err)
			}
		}
		rt, err := g.cfg.Runtime.Stop(ctx, w.Name)
		if err != nil {
			return nil, err
		}
		crashpoint.Here("daemon.stop.stopped")
		g.note(rt)
		return nil, g.cfg.Store.SetState(ctx, w.Name, workspace.StateStopped)
	})
}

// Destroy ends the life of the workspace that ref names. Its home is kept aside
// at the path returned, unless purge is set.
func (g *Gate) Destroy(ctx context.Context, p principal.Principal, ref string, purge bool, request string) (string, error) {
	if err := workspace.ValidateLife(0, 0, request); err != nil {
		return "", err
	}
	// By the ref, which is all that a repeated request has once the workspace is gone.
	a := action.Action{Kind: action.Destroy, Key: id.Key(ref), Purge: purge}
	if err := g.Permit(ctx, p, a); err != nil {
		return "", err
	}
	return once(ctx, g, p, request, a, func(began time.Time) (string, error) {
		if !began.IsZero() {
			// The first time may have come to its end, but for the answer. What has the key
			// now is then another workspace.
			if w, retained, ok, err := g.cfg.Store.Destroyed(ctx, ref, began); err != nil || ok && reaches(p, w) {
				return retained, err
			}
		}
		w, err := g.reach(ctx, p, ref, action.Action{Kind: action.Destroy, Purge: purge})
		if err != nil {
			return "", err
		}
		return g.destroyAsked(ctx, p, w, purge)
	})
}

// destroyAsked has a person answer, where one must, before others have to wait for it.
func (g *Gate) destroyAsked(ctx context.Context, p principal.Principal, w store.Workspace, purge bool) (retained string, err error) {
	r := request{by: p, trace: id.NewTrace(), on: w, action: action.Action{Kind: action.Destroy, Workspace: w.Name, Purge: purge}}
	if err := g.clear(ctx, &r); err != nil {
		return "", err
	}
	return g.destroyAs(ctx, r)
}

// destroy takes one up again that a crash or an error broke off; kind says why.
func (g *Gate) destroy(ctx context.Context, p principal.Principal, name id.Workspace, purge bool, kind action.Kind) (retained string, err error) {
	return g.destroyAs(ctx, request{by: p, trace: id.NewTrace(), on: store.Workspace{Name: name}, action: action.Action{Kind: kind, Workspace: name, Purge: purge}})
}

func (g *Gate) destroyAs(ctx context.Context, r request) (retained string, err error) {
	name, purge := r.on.Name, r.action.Purge
	err = g.exclusive(ctx, slot{name: name}, action.Destroy, false, func(ctx context.Context) error {
		w, err := g.living(name)
		if err != nil {
			return err
		}
		r.on = w
		return g.do(ctx, r, func(ctx context.Context) (any, error) {
			if err := g.cfg.Store.SetDestroying(ctx, name, purge); err != nil {
				return nil, err
			}
			crashpoint.Here("daemon.destroy.begun")
			rt, err := g.cfg.Runtime.Destroy(ctx, name, purge)
			if err != nil && !errdefs.IsNotFound(err) {
				return nil, err
			}
			crashpoint.Here("daemon.destroy.done")
			retained = rt.Retained
			if err := g.cfg.Store.SetDestroyed(ctx, name, retained); err != nil {
				return nil, err
			}
			g.mu.Lock()
			delete(g.seen, name)
			delete(g.used, name)
			delete(g.proved, name)
			g.mu.Unlock()
			if retained == "" {
				return nil, nil
			}
			return struct {
				Retained string `json:"retained"`
			}{retained}, nil
		})
	})
	return retained, err
}
