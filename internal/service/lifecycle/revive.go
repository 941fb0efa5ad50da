package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Revive brings the destroyed workspace that ref names back, with the home that was kept of it: of several with
// one key, the one that was destroyed last. It is stopped then. A lifetime that has ended has no end.
func (l *Lifecycle) Revive(ctx context.Context, p principal.Principal, ref string) (workspace.Workspace, error) {
	var k workspace.Kept
	var home string
	authorised, err := l.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: operation.Simple(operation.ReviveWorkspace)},
		func() (on operation.Target, err error) {
			// One that broke off ends as the destroy that it was to undo, before it is tried again.
			if o, there := l.find(ref); there && o.Phase == workspace.Destroying && operation.Reaches(p, targetOf(o)) {
				if err := l.Finish(ctx, o.Name); err != nil {
					return on, err
				}
			}
			k, home, err = l.cfg.Store.Kept(ctx, ref)
			return targetOf(k), err
		})
	if err != nil {
		return workspace.Workspace{}, err
	}
	a, err := authorised.Admit(ctx)
	if err != nil {
		return workspace.Workspace{}, err
	}
	if !k.Expires.IsZero() && time.Now().After(k.Expires) {
		k.Expires = time.Time{}
	}
	err = l.AloneWithKey(ctx, k.Key, operation.ReviveWorkspace, func(ctx context.Context) error {
		if o, exists := l.cfg.Store.ByKey(k.Key); exists {
			return fmt.Errorf("cannot bring workspace %s back: %s has its key %q; destroy that one, or give it another key with \"carrel update "+
				"--key\": %w", k.Name, o.Name, k.Key, errdefs.ErrAlreadyExists)
		}
		return l.Alone(ctx, k.Name, operation.ReviveWorkspace, func(ctx context.Context) error { return l.revive(ctx, a, k, home) })
	})
	if err != nil {
		return workspace.Workspace{}, err
	}
	return l.showNow(k.Name)
}

// revive runs with the slots of key and name held.
func (l *Lifecycle) revive(ctx context.Context, a *gate.Admitted, k workspace.Kept, home string) error {
	return a.Do(ctx, func(ctx context.Context, p permit.Permit) (any, error) {
		return nil, l.bringBack(ctx, p, a.Request().By, k, home)
	})
}

func (l *Lifecycle) bringBack(ctx context.Context, p permit.Permit, by principal.Principal, k workspace.Kept, home string) error {
	rt, err := l.Runtime(k.Boundary)
	if err != nil {
		return err
	}
	if err := l.cfg.Store.Revive(ctx, k, func() error {
		l.admission.Lock()
		defer l.admission.Unlock()
		return l.mayLive(by, k)
	}); err != nil {
		return err
	}
	crashpoint.Here("daemon.revive.begun")
	real, err := rt.Revive(ctx, p, home)
	if err != nil {
		return errors.Join(err, l.unrevive(ctx, rt, p, k))
	}
	crashpoint.Here("daemon.revive.done")
	l.note(k.Name, real)
	return l.cfg.Store.SetPhase(ctx, k.Name, workspace.Settled)
}

// unrevive destroys a workspace that could not be brought back. If that fails too, upkeep does it.
func (l *Lifecycle) unrevive(ctx context.Context, rt runtime.Runtime, p permit.Permit, k workspace.Kept) error {
	real, err := rt.Destroy(ctx, p, false)
	if err != nil && !errdefs.IsNotFound(err) {
		l.unended(k.Name, err)
		return err
	}
	l.forget(k.Name)
	return l.cfg.Store.SetDestroyed(ctx, k.Name, real.Retained)
}
