package lifecycle

import (
	"cmp"
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Update changes limits, key, lifetime or network rules of the workspace that ref names.
//
// Errors: already_exists if the key belongs to another workspace, not_found if a rule to remove is
// not there, failed_precondition if what runs uses more than the new limits or has no way out.
func (l *Lifecycle) Update(ctx context.Context, p principal.Principal, ref string, c workspace.Change) (workspace.Workspace, error) {
	op, err := operation.NewUpdate(c)
	if err != nil {
		return workspace.Workspace{}, err
	}
	if err := l.may(ctx, p, operation.UpdateWorkspace); err != nil {
		return workspace.Workspace{}, err
	}
	// By the ref: a repeated request has that, also when the key has changed.
	repeated := operation.Target{Kind: operation.Workspace, Name: id.Workspace(ref)}
	name, err := Once(ctx, l, p, c.Request, op, repeated, l.nameOf(ref), func(at *Attempt) (id.Workspace, error) {
		a, err := l.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: op}, func() (operation.Target, error) {
			on, err := l.Find(cmp.Or(at.Own, ref))
			on.NewKey = c.Key
			return on, err
		})
		if err != nil {
			return "", err
		}
		name := a.On().Name
		change := func(ctx context.Context) error {
			return l.Alone(ctx, name, operation.UpdateWorkspace, func(ctx context.Context) error { return l.update(ctx, a, p, name, c) })
		}
		if c.Key == "" {
			return name, change(ctx)
		}
		// Nobody else is to be given that key meanwhile.
		return name, l.AloneWithKey(ctx, c.Key, operation.UpdateWorkspace, change)
	})
	if err != nil {
		return workspace.Workspace{}, err
	}
	// The answer may be of an earlier attempt, and the workspace renamed since.
	if _, err := l.Authorise(ctx, p, string(name), op); err != nil {
		return workspace.Workspace{}, err
	}
	return l.showNow(name)
}

// update runs with the workspace's slot held.
func (l *Lifecycle) update(ctx context.Context, a *gate.Authorised, by principal.Principal, name id.Workspace, c workspace.Change) error {
	k, err := l.Living(name)
	if err != nil {
		return err
	}
	if k.Phase != workspace.Settled {
		return fmt.Errorf("cannot change workspace %s: it is %s: %w", name, k.Phase, errdefs.ErrFailedPrecondition)
	}
	if c.Key != "" && c.Key != k.Key {
		if err := l.UsableKey(c.Key); err != nil {
			return err
		}
		if _, taken := l.cfg.Store.ByKey(c.Key); taken {
			return fmt.Errorf("cannot give workspace %s the key %q: another workspace has it: %w", name, c.Key, errdefs.ErrAlreadyExists)
		}
	}
	limits := c.Limits.Or(k.Limits)
	if err := limits.Validate(); err != nil {
		return err
	}
	reach, err := l.reachAfter(by, k, c.Reach)
	if errdefs.IsPermissionDenied(err) {
		return a.Deny(ctx, err)
	}
	if err != nil {
		return err
	}
	after := k
	after.Reach = reach
	secrets, err := l.secretsAfter(ctx, by, after, c.Secrets)
	if errdefs.IsPermissionDenied(err) {
		return a.Deny(ctx, err)
	}
	if err != nil {
		return err
	}
	after.Secrets = secrets
	models, err := l.modelsAfter(ctx, by, after, c.Models)
	if err == nil && c.Models.Empty() && !c.Secrets.Empty() {
		err = l.checkModels(after)
	}
	if errdefs.IsPermissionDenied(err) {
		return a.Deny(ctx, err)
	}
	if err != nil {
		return err
	}
	admitted, err := a.Admit(ctx)
	if err != nil {
		return err
	}
	return admitted.Do(ctx, func(ctx context.Context, p permit.Permit) (any, error) {
		// Also when they are those that the database has: of an earlier change that broke
		// off, the broker may have others.
		if c.Limits != (workspace.Limits{}) {
			rt, err := l.Runtime(k.Boundary)
			if err != nil {
				return nil, err
			}
			real, err := rt.Limit(ctx, p, limits)
			if err != nil {
				return nil, l.doubt(name, err)
			}
			crashpoint.Here("daemon.update.limited")
			l.note(name, real)
		}
		settle, err := l.changeFiles(ctx, p, k, secrets)
		if err != nil {
			return nil, err
		}
		defer settle(ctx)
		if err := l.cfg.Store.Update(ctx, name, func(k *workspace.Kept) {
			k.Limits, k.Reach, k.Secrets, k.Models = limits, reach, secrets, models
			if c.Key != "" {
				k.Key = c.Key
			}
			if c.TTL != 0 {
				k.Expires = expiry(c.TTL)
			}
			if c.Idle != 0 {
				k.Idle = c.Idle
			}
		}); err != nil {
			return nil, err
		}
		if now, lives := l.Target(name); lives && now.Key != k.Key {
			l.cfg.Gate.Renamed(now)
		}
		if c.Reach.Empty() && c.Secrets.Empty() && len(c.Models.Add)+len(c.Models.Remove) == 0 {
			return nil, nil
		}
		return nil, l.reached(ctx, name)
	})
}
