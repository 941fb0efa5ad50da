package lifecycle

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Get returns the workspace that ref names, with its controls if it runs.
func (l *Lifecycle) Get(ctx context.Context, p principal.Principal, ref string) (workspace.Workspace, error) {
	a, err := l.Authorise(ctx, p, ref, operation.Simple(operation.InspectWorkspace))
	if err != nil {
		return workspace.Workspace{}, err
	}
	return l.get(ctx, a.On().Name)
}

// get returns a workspace, with its controls if it runs.
func (l *Lifecycle) get(ctx context.Context, name id.Workspace) (workspace.Workspace, error) {
	w, err := l.showNow(name)
	if err != nil || !w.State.Live() {
		return w, err
	}
	rt, err := l.Runtime(w.Boundary)
	if err != nil {
		return w, err
	}
	rep, err := rt.Report(ctx, w.Name)
	if errdefs.IsFailedPrecondition(err) { // its executor has gone, and word of it is on the way
		if lerr := l.Lost(ctx, w.Name); lerr != nil {
			return w, lerr
		}
		if now, nerr := l.showNow(w.Name); nerr != nil || !now.State.Live() {
			return now, nerr
		}
	}
	if err != nil {
		return w, fmt.Errorf("cannot show the proof of workspace %s: %w", w.Name, err)
	}
	w.Controls = rep.Controls
	return w, nil
}

// may authorises an operation on no workspace in particular.
func (l *Lifecycle) may(ctx context.Context, p principal.Principal, n operation.Name) error {
	_, err := l.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: operation.Simple(n)}, nil)
	return err
}

// List returns the workspaces that p reaches, by name and without controls.
func (l *Lifecycle) List(ctx context.Context, p principal.Principal) ([]workspace.Workspace, error) {
	if err := l.may(ctx, p, operation.ListWorkspaces); err != nil {
		return nil, err
	}
	all := l.cfg.Store.Workspaces()
	list := make([]workspace.Workspace, 0, len(all))
	for _, k := range all {
		if operation.Reaches(p, targetOf(k)) {
			list = append(list, l.show(k))
		}
	}
	return list, nil
}

// Retained returns the homes of destroyed workspaces that p reaches, and when each is removed.
func (l *Lifecycle) Retained(ctx context.Context, p principal.Principal) ([]workspace.Retained, error) {
	if err := l.may(ctx, p, operation.ListWorkspaces); err != nil {
		return nil, err
	}
	all, err := l.cfg.Store.Retained(ctx)
	if err != nil {
		return nil, err
	}
	var own []workspace.Retained
	for _, r := range all {
		if !p.MayReach(r.Owner, string(r.Key), string(r.Workspace)) {
			continue
		}
		if l.cfg.KeepHomes > 0 {
			r.ExpiresMS = r.DestroyedAtMS + l.cfg.KeepHomes.Milliseconds()
		}
		own = append(own, r)
	}
	return own, nil
}

// Stats returns what the workspaces that refs name use, or with none those that run and p
// reaches. One that does not run uses nothing and is told as such if it was named.
func (l *Lifecycle) Stats(ctx context.Context, p principal.Principal, refs []string) ([]workspace.Usage, error) {
	if err := l.may(ctx, p, operation.StatWorkspace); err != nil {
		return nil, err
	}
	var list []workspace.Workspace
	seen := map[string]bool{}
	for _, ref := range refs { // each is work for the broker
		if seen[ref] {
			continue
		}
		seen[ref] = true
		a, err := l.Authorise(ctx, p, ref, operation.Simple(operation.StatWorkspace))
		if err != nil {
			return nil, err
		}
		w, err := l.living(a.On().Name)
		if err != nil {
			return nil, err
		}
		list = append(list, w)
	}
	if len(refs) == 0 {
		for _, k := range l.cfg.Store.Workspaces() {
			if w := l.join(k); operation.Reaches(p, targetOf(k)) && w.State.Live() {
				list = append(list, w)
			}
		}
	}
	out := make([]workspace.Usage, 0, len(list))
	for _, w := range list {
		u, err := l.usage(ctx, w)
		if err != nil {
			return nil, err
		}
		out = append(out, u)
	}
	return out, nil
}

func (l *Lifecycle) usage(ctx context.Context, w workspace.Workspace) (workspace.Usage, error) {
	u := workspace.Usage{Name: w.Name, Key: w.Key, State: w.State, Limits: w.Limits}
	if !w.State.Live() {
		return u, nil
	}
	rt, err := l.Runtime(w.Boundary)
	if err != nil {
		return u, err
	}
	u.Stats, err = rt.Stats(ctx, w.Name)
	if errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) { // it has ended meanwhile
		u.Stats, err = workspace.UnknownStats, nil
	}
	return u, err
}
