package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Destroy ends the life of the workspace that ref names. Its home is kept aside at the path
// returned, unless purge is set.
func (l *Lifecycle) Destroy(ctx context.Context, p principal.Principal, ref string, purge bool, request string) (string, error) {
	if err := workspace.ValidateLife(0, 0, request); err != nil {
		return "", err
	}
	if err := l.may(ctx, p, operation.DestroyWorkspace); err != nil {
		return "", err
	}
	// By the ref, which is all that a repeated request has once the workspace is gone.
	repeated := operation.Destroy{Ref: id.Key(ref), Purge: purge}
	return Once(ctx, l, p, request, repeated, operation.Target{}, l.nameOf(ref), func(at *Attempt) (string, error) {
		own := cmp.Or(at.Own, ref)
		if !at.Began.IsZero() {
			// The first attempt may have come to its end, but for the answer.
			if k, retained, ok, err := l.cfg.Store.Destroyed(ctx, own, at.Began); err != nil || ok && operation.Reaches(p, targetOf(k)) {
				return retained, err
			}
		}
		a, err := l.admit(ctx, p, own, operation.Destroy{Purge: purge}) // nobody else waits for a person's answer
		if err != nil {
			return "", err
		}
		retained, err := l.DestroyAdmitted(ctx, a, purge)
		if k, there := l.cfg.Store.ByName(a.Request().On.Name); err != nil && (!there || k.Phase == workspace.Destroying) {
			at.Keep()
		}
		return retained, err
	})
}

// nameOf is the name of the workspace that ref means now, "" if there is none.
func (l *Lifecycle) nameOf(ref string) string {
	k, _ := l.find(ref)
	return string(k.Name)
}

// DestroyAdmitted ends the life of the target of an admitted operation.
func (l *Lifecycle) DestroyAdmitted(ctx context.Context, a *gate.Admitted, purge bool) (retained string, err error) {
	err = l.Alone(ctx, a.Request().On.Name, operation.DestroyWorkspace, func(ctx context.Context) (err error) {
		retained, err = l.destroy(ctx, a, purge)
		return err
	})
	return retained, err
}

// destroy is DestroyAdmitted for a workspace whose slot is held.
func (l *Lifecycle) destroy(ctx context.Context, a *gate.Admitted, purge bool) (retained string, err error) {
	name := a.Request().On.Name
	k, err := l.Living(name)
	if err != nil {
		// Who waited for another that ended it, as upkeep does, has what was asked for.
		if _, kept, ended, lerr := l.cfg.Store.Destroyed(ctx, string(name), time.Time{}); lerr == nil && ended && (kept == "" || !purge) {
			return kept, nil
		}
		return "", err
	}
	err = a.Do(ctx, func(ctx context.Context, p permit.Permit) (any, error) {
		rt, err := l.Runtime(k.Boundary)
		if err != nil {
			return nil, err
		}
		if err := l.cfg.Store.SetDestroying(ctx, name, purge); err != nil {
			return nil, err
		}
		crashpoint.Here("daemon.destroy.begun")
		l.closeWay(name)
		real, err := rt.Destroy(ctx, p, purge)
		if err != nil && !errdefs.IsNotFound(err) {
			l.unended(name, err)
			if errdefs.IsUnavailable(err) {
				err = fmt.Errorf("%w; workspace %s is destroyed without being asked again as soon as that can be done", err, name)
			}
			return nil, err
		}
		crashpoint.Here("daemon.destroy.done")
		retained = real.Retained
		if err := l.cfg.Store.SetDestroyed(ctx, name, retained); err != nil {
			return nil, err
		}
		l.forget(name)
		return kept(retained), nil
	})
	return retained, err
}

// kept is what an outcome says of a home that was kept, nil if none was.
func kept(home string) any {
	if home == "" {
		return nil
	}
	return struct {
		Retained string `json:"retained"`
	}{home}
}

// Expired reports whether a workspace has lived its time.
func Expired(w *workspace.Workspace, now time.Time) bool {
	return !w.Expires.IsZero() && now.After(w.Expires) && w.Phase == workspace.Settled
}

// A workspace for one use was left if it is stopped, was made before OneUseKept, which is longer than a command may wait for a person's
// answer, and not used for oneUseQuiet.
const (
	OneUseKept  = 8 * 24 * time.Hour
	oneUseQuiet = time.Hour
)

// Left reports whether a workspace was for one use, and who was to destroy it has not.
func (l *Lifecycle) Left(w *workspace.Workspace, now time.Time) bool {
	return w.OneUse && w.Phase == workspace.Settled && w.State == workspace.StateStopped && now.Sub(w.CreatedAt) > OneUseKept &&
		l.using.unusedFor(w.Name, oneUseQuiet, now)
}

// DestroyLeft ends a workspace that was left, unless it is used again or something else is done to it right now.
func (l *Lifecycle) DestroyLeft(ctx context.Context, name id.Workspace, now time.Time) error {
	return l.ifFree(ctx, slot{name: name}, func(ctx context.Context) error {
		w, err := l.living(name)
		if err != nil || !l.Left(&w, now) {
			return err
		}
		l.cfg.Log.Info("a workspace for one use was left", "workspace", name)
		return l.destroyAsSystem(ctx, w, true)
	})
}

// DestroyExpired ends a workspace that has lived its time, unless it is one that is kept then, or something else is done to it
// right now.
func (l *Lifecycle) DestroyExpired(ctx context.Context, name id.Workspace, now time.Time) error {
	return l.ifFree(ctx, slot{name: name}, func(ctx context.Context) error {
		w, err := l.living(name)
		if err != nil || !Expired(&w, now) {
			return err
		}
		l.cfg.Log.Info("a workspace has lived its time", "workspace", name)
		if l.cfg.Keeps != nil {
			if as, err := l.cfg.Keeps(ctx, name); err != nil || as != "" {
				return cmp.Or(err, l.keep(ctx, w, as))
			}
		}
		return l.destroyAsSystem(ctx, w, false)
	})
}

// destroyAsSystem destroys a workspace on the daemon's own account. Its slot is held.
func (l *Lifecycle) destroyAsSystem(ctx context.Context, w workspace.Workspace, purge bool) error {
	a, err := l.asSystem(ctx, w.Kept, operation.Destroy{Purge: purge})
	if err != nil {
		return err
	}
	_, err = l.destroy(ctx, a, purge)
	return err
}

// keep pauses or stops a workspace that has lived its time, and takes the end off its life. Its slot is held. It may be repeated.
func (l *Lifecycle) keep(ctx context.Context, w workspace.Workspace, as workspace.State) error {
	const why = "it has lived its time"
	if w.State == workspace.StateRunning && as == workspace.StatePaused {
		a, err := l.asSystem(ctx, w.Kept, operation.Simple(operation.PauseWorkspace))
		if err == nil {
			err = a.Do(ctx, func(ctx context.Context, p permit.Permit) (any, error) {
				return halted(why), l.freeze(ctx, p, w, pausing)
			})
		}
		switch {
		case err == nil:
			w.State = as
		case !refusal(err) && !errdefs.IsNotImplemented(err):
			return err
		default: // it cannot be paused here: its files are kept all the same
			l.cfg.Log.Warn("stopping a workspace that was to be paused", "workspace", w.Name, "error", err)
		}
	}
	if w.State.Live() && w.State != as {
		if err := l.haltAsSystem(ctx, w, why); err != nil {
			return err
		}
	}
	op, err := operation.NewUpdate(workspace.Change{TTL: workspace.Forever})
	if err != nil {
		return err
	}
	a, err := l.asSystem(ctx, w.Kept, op)
	if err != nil {
		return err
	}
	return a.Do(ctx, func(ctx context.Context, _ permit.Permit) (any, error) {
		return halted(why), l.cfg.Store.Update(ctx, w.Name, func(k *workspace.Kept) { k.Expires = time.Time{} })
	})
}

// RemoveHome removes the home that was kept of a destroyed workspace. It may be repeated: what
// a crash leaves of a home, or of the word of it, goes with the next.
func (l *Lifecycle) RemoveHome(ctx context.Context, r workspace.Retained) error {
	k := workspace.Kept{Name: r.Workspace, Key: r.Key, Owner: r.Owner, Boundary: r.Boundary, Root: r.Root}
	a, err := l.asSystem(ctx, k, operation.Simple(operation.RemoveHome))
	if err != nil {
		return err
	}
	return a.Do(ctx, func(ctx context.Context, p permit.Permit) (any, error) {
		rt, err := l.Runtime(k.Boundary)
		if err != nil {
			return nil, err
		}
		if err := rt.Forget(ctx, p, r.Home); err != nil {
			return nil, err
		}
		crashpoint.Here("daemon.forget.removed")
		return kept(r.Home), l.cfg.Store.ForgetRetained(ctx, r.Workspace)
	})
}
