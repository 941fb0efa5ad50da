package lifecycle

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// What was begun while the daemon runs and comes to no end, because the runtime went away, is brought to
// one without a restart: when the runtime is back, and by upkeep.

// doubt notes that it is not known what an operation has changed, unless its error says that it was refused.
func (l *Lifecycle) doubt(name id.Workspace, err error) error {
	if errdefs.IsUnavailable(err) || !refusal(err) {
		l.mu.Lock()
		l.doubtful[name] = true
		l.mu.Unlock()
	}
	return err
}

// refusal reports whether an error is of a kind that says that nothing was done.
func refusal(err error) bool {
	return errdefs.IsFailedPrecondition(err) || errdefs.IsInvalidArgument(err) || errdefs.IsResourceExhausted(err) ||
		errdefs.IsNotFound(err) || errdefs.IsPermissionDenied(err) || errdefs.IsAlreadyExists(err)
}

func (l *Lifecycle) doubted(name id.Workspace) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.doubtful[name]
}

// Unsettled reports whether something was begun with a workspace that has come to no end. Somebody may
// be at work on it.
func (l *Lifecycle) Unsettled(w *workspace.Workspace) bool {
	return w.Phase != workspace.Settled || w.Silent.IsZero() && l.doubted(w.Name)
}

// Finish brings to an end what was begun with a workspace and nobody works on any more, as the next
// start of the daemon would, and notes what the runtime says of it. If something else is done to it
// right now it does nothing. While the runtime cannot be reached nothing is begun, and so nothing
// recorded.
func (l *Lifecycle) Finish(ctx context.Context, name id.Workspace) error {
	k, there := l.cfg.Store.ByName(name)
	if !there {
		return nil
	}
	// Whoever makes or fills it has its key too, and may be about to take it up.
	err := l.ifFree(ctx, slot{key: k.Key}, func(ctx context.Context) error {
		return l.ifFree(ctx, slot{name: name}, func(ctx context.Context) error { return l.finish(ctx, name) })
	})
	if now, lerr := l.living(name); err == nil && lerr == nil && !l.Unsettled(&now) && now.State.Live() {
		err = l.takeUp(ctx, now.Kept)
	}
	return err
}

// finish is Finish with the slots of the workspace and of its key held.
func (l *Lifecycle) finish(ctx context.Context, name id.Workspace) error {
	k, err := l.Living(name)
	if err != nil {
		return nil //nolint:nilerr // it was finished meanwhile
	}
	rt, err := l.Runtime(k.Boundary)
	if err != nil {
		return err
	}
	found, err := rt.List(ctx)
	if err != nil {
		return err
	}
	r, exists := found[name]
	l.note(name, r) // one that is not there does not run
	if err := l.reconcile(ctx, k, r, exists, l.doubted(name)); err != nil {
		return err
	}
	l.mu.Lock()
	delete(l.doubtful, name)
	l.mu.Unlock()
	return nil
}

// Reconcile compares all workspaces with what the runtimes report, for example after a new broker has answered. It
// finishes interrupted operations and notes every other difference. It returns the operations that callers were told
// had failed: those that it has finished, and those that take longer than recoverTimeout and continue in the background.
func (l *Lifecycle) Reconcile(ctx context.Context) ([]workspace.Mended, error) {
	found := map[id.Workspace]workspace.Real{}
	for boundary, rt := range l.cfg.Runtimes {
		real, err := rt.List(ctx)
		if err != nil {
			return nil, fmt.Errorf("cannot learn which workspaces there are: %w", err)
		}
		maps.Copy(found, real)
		for name := range real {
			if _, known := l.cfg.Store.ByName(name); !known {
				l.unknown(ctx, boundary, rt, name)
			}
		}
	}
	var mu sync.Mutex
	var mended []workspace.Mended
	going := map[id.Workspace]workspace.Workspace{} // those with an operation that is not finished yet
	var all errgroup.Group
	all.SetLimit(settledAtOnce)
	done := make(chan error, 1)
	l.cfg.Gate.Later(func() {
		for _, k := range l.cfg.Store.Workspaces() {
			r, there := found[k.Name]
			w, now := l.join(k), workspace.Join(k, r)
			if !l.Unsettled(&w) && w.State == now.State && w.ExecutorPID == now.ExecutorPID && (!there || inForce(k, r)) {
				continue
			}
			if there && !inForce(k, r) { // if somebody is at work on it now, upkeep goes on with it
				l.mu.Lock()
				l.doubtful[k.Name] = true
				l.mu.Unlock()
			}
			mu.Lock()
			if w.Phase != workspace.Settled {
				going[k.Name] = w
			}
			mu.Unlock()
			all.Go(func() error {
				err := l.tolerate(k, l.Finish(ctx, k.Name))
				mu.Lock()
				defer mu.Unlock()
				delete(going, k.Name)
				if m, ok := l.ended(w); ok {
					mended = append(mended, m)
				}
				return err
			})
		}
		done <- all.Wait()
	})
	t := time.NewTimer(recoverTimeout)
	defer t.Stop()
	var err error
	select {
	case err = <-done:
	case <-t.C: // what takes longer goes on
	}
	mu.Lock()
	defer mu.Unlock()
	told := slices.Clone(mended)
	for name, w := range going {
		told = append(told, workspace.Mended{
			Kind: workspace.GoesOn, Workspace: name, Done: fmt.Sprintf("it is %s, had met no broker, and is being brought to its end", w.State),
		})
	}
	return told, err
}

// unknown takes care of a workspace that the store did not know a moment ago.
func (l *Lifecycle) unknown(ctx context.Context, boundary workspace.Boundary, rt runtime.Runtime, name id.Workspace) {
	err := l.ifFree(ctx, slot{name: name}, func(ctx context.Context) error {
		real, err := rt.List(ctx) // it may have been ended meanwhile
		r, there := real[name]
		if _, known := l.cfg.Store.ByName(name); err != nil || !there || known {
			return err
		}
		return l.stray(ctx, boundary, name, r)
	})
	if err != nil {
		l.cfg.Log.Error("cannot take up a workspace that only the broker knows; it stays as it is", "workspace", name, "error", err)
	}
}

// ended says what has become of an operation that was not finished with a workspace, if it is by now.
func (l *Lifecycle) ended(was workspace.Workspace) (m workspace.Mended, ok bool) {
	k, there := l.cfg.Store.ByName(was.Name)
	m.Workspace = was.Name
	switch {
	case was.Phase == workspace.Destroying && !there:
		m.Kind, m.Done = workspace.DestroyFinished, "a destroy had met no broker and is finished"
	case was.Phase != workspace.Settled && !there:
		m.Kind, m.Done = workspace.CreateUndone, "a create had met no broker and is undone"
	case was.Phase != workspace.Settled && k.Phase == workspace.Settled:
		m.Kind, m.Done = workspace.CreateFinished, "a create had lost its broker, was carried out all the same, and is finished"
	}
	return m, m.Kind != ""
}
