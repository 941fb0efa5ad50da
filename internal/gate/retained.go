package gate

import (
	"context"
	"errors"
	"time"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/store"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Retained returns the homes of destroyed workspaces that p may reach, and when each is
// removed.
func (g *Gate) Retained(ctx context.Context, p principal.Principal) ([]workspace.Retained, error) {
	if err := g.Permit(ctx, p, action.Action{Kind: action.List}); err != nil {
		return nil, err
	}
	all, err := g.cfg.Store.Retained(ctx)
	if err != nil {
		return nil, err
	}
	var own []workspace.Retained
	for _, r := range all {
		if !p.MayReach(r.Owner, string(r.Key), string(r.Workspace)) {
			continue
		}
		if g.cfg.KeepHomes > 0 {
			r.ExpiresMS = r.DestroyedAtMS + g.cfg.KeepHomes.Milliseconds()
		}
		own = append(own, r)
	}
	return own, nil
}

// forgetHomes removes the homes of destroyed workspaces that have been kept for their time.
// One that cannot be removed keeps the others from nothing.
func (g *Gate) forgetHomes(ctx context.Context, now time.Time) error {
	if g.cfg.KeepHomes <= 0 {
		return nil
	}
	all, err := g.cfg.Store.Retained(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range all {
		if now.Sub(time.UnixMilli(r.DestroyedAtMS)) > g.cfg.KeepHomes && ctx.Err() == nil {
			errs = append(errs, g.forgetHome(ctx, r))
		}
	}
	return errors.Join(errs...)
}

// forgetHome may be repeated: what a crash leaves of a home, or of the word of it, goes with
// the next.
func (g *Gate) forgetHome(ctx context.Context, r workspace.Retained) error {
	w := store.Workspace{Name: r.Workspace, Key: r.Key, Owner: r.Owner}
	return g.on(ctx, principal.Self(), w, action.Action{Kind: action.Forget}, func(ctx context.Context) (any, error) {
		if err := g.cfg.Runtime.Forget(ctx, r.Workspace, r.Home); err != nil {
			return nil, err
		}
		crashpoint.Here("daemon.forget.removed")
		return struct {
			Retained string `json:"retained"`
		}{r.Home}, g.cfg.Store.ForgetRetained(ctx, r.Workspace)
	})
}
