package lifecycle

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Start starts the workspace that ref names and returns it with its proof.
func (l *Lifecycle) Start(ctx context.Context, p principal.Principal, ref string) (workspace.Workspace, error) {
	a, err := l.Authorise(ctx, p, ref, operation.Simple(operation.StartWorkspace))
	if err != nil {
		return workspace.Workspace{}, err
	}
	name := a.On().Name
	w, err := l.living(name)
	if err != nil {
		return w, err
	}
	if w.State == workspace.StateRunning && l.gone(ctx, w.Kept) {
		if err := l.Lost(ctx, name); err != nil {
			return w, err
		}
	}
	if err := l.start(ctx, a, name); err != nil {
		return w, err
	}
	return l.get(ctx, name)
}

// gone reports whether the executor of a workspace that should run is not there.
func (l *Lifecycle) gone(ctx context.Context, k workspace.Kept) bool {
	rt, err := l.Runtime(k.Boundary)
	return err == nil && errors.Is(rt.Ping(ctx, k.Name), runtime.ErrNotRunning)
}

// Ready has the target of an authorised operation run before a command is judged, and notes
// whether its isolation was verified.
func (l *Lifecycle) Ready(ctx context.Context, a *gate.Authorised) error {
	name := a.On().Name
	if err := l.ensureRunning(ctx, a, name); err != nil {
		return err
	}
	k, err := l.Living(name)
	if err != nil {
		return err
	}
	// What is not known is no question for a person, who does not know it either.
	ok, err := l.verified(ctx, k)
	a.Seen(ok, l.writable(name))
	return err
}

// Seen notes whether the isolation of the target was verified, and starts nothing. It is assumed of a
// workspace that does not run: it starts verified, or not at all.
func (l *Lifecycle) Seen(ctx context.Context, a *gate.Authorised) (verified, assumed bool, err error) {
	k, err := l.Living(a.On().Name)
	if err != nil {
		return false, false, err
	}
	assumed = !l.join(k).State.Live()
	if verified = assumed; !assumed {
		verified, _ = l.verified(ctx, k) // what is not known is judged as on a host
	}
	a.Seen(verified, l.writable(k.Name))
	return verified, assumed, nil
}

// ensureRunning returns at once if the workspace runs and else starts it. One that is being
// ended is not started again behind the back of the caller that ends it.
func (l *Lifecycle) ensureRunning(ctx context.Context, a *gate.Authorised, name id.Workspace) error {
	l.using.note(name)
	op := l.slots.on(slot{name: name})
	if op == operation.StopWorkspace || op == operation.DestroyWorkspace {
		return fmt.Errorf("cannot run anything in workspace %s: it is being stopped; try again when it has: %w", name,
			errdefs.ErrFailedPrecondition)
	}
	// One that may be about to be stopped because nobody used it is waited for.
	k, err := l.Living(name)
	if err == nil && op != background && l.join(k).State == workspace.StateRunning {
		return nil
	}
	return l.start(ctx, a.Step(operation.Simple(operation.StartWorkspace), targetOf(k)), name)
}

// Again starts a workspace once more whose executor was gone when it was asked for something.
func (l *Lifecycle) Again(ctx context.Context, a *gate.Authorised) error {
	if err := l.Lost(ctx, a.On().Name); err != nil {
		return err
	}
	return l.ensureRunning(ctx, a, a.On().Name)
}

// start starts a workspace unless it runs. Concurrent starts are one.
func (l *Lifecycle) start(ctx context.Context, a *gate.Authorised, name id.Workspace) error {
	return l.slots.exclusive(ctx, slot{name: name}, operation.StartWorkspace, true, func(ctx context.Context) error {
		w, err := l.living(name)
		switch {
		case err != nil || w.State == workspace.StateRunning:
			return err
		case w.State == workspace.StatePaused:
			return fmt.Errorf("cannot run anything in workspace %s: it is paused; let it go on with \"carrel resume %s\": %w", name, name,
				errdefs.ErrFailedPrecondition)
		case w.State != workspace.StateStopped:
			return fmt.Errorf("cannot start workspace %s: it is %s; repeat what was begun to finish it: %w", name, w.State,
				errdefs.ErrFailedPrecondition)
		}
		admitted, err := a.Admit(ctx)
		if err != nil {
			return err
		}
		return admitted.Do(ctx, func(ctx context.Context, p permit.Permit) (any, error) {
			rt, err := l.Runtime(w.Boundary)
			if err != nil {
				return nil, err
			}
			leave, err := l.Room(w.Kept)
			if err != nil {
				return nil, err
			}
			defer leave()
			if err := l.checkReach(principal.Self(), w.Reach); err != nil {
				return nil, err
			}
			way, err := l.keptWay(ctx, &w.Kept)
			if err != nil {
				return nil, err
			}
			crashpoint.Here("daemon.start.trusted")
			real, rep, err := rt.Start(ctx, p, way)
			if err != nil {
				if real.State != "" { // it runs, and could not be reached
					l.note(name, real)
				}
				return nil, l.doubt(name, err)
			}
			crashpoint.Here("daemon.start.started")
			real, err = l.openWay(ctx, rt, p, w.Kept, real)
			l.note(name, real)
			if err != nil {
				return nil, err
			}
			l.prove(w.Kept, rep)
			l.settleFiles(ctx, rt, p, w.Kept)
			return proof(rep), nil
		})
	})
}
