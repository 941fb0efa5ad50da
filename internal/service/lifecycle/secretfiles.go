package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Placeholders keeps placeholders of secrets in files of workspaces that run, with the rights of their commands. Package
// filerun has what each method does.
type Placeholders interface {
	Place(ctx context.Context, rt runtime.Runtime, p permit.Permit, u workspace.SecretUse) error
	Take(ctx context.Context, rt runtime.Runtime, p permit.Permit, u workspace.SecretUse) error
}

func sameFiles(a, b workspace.Secrets) bool {
	sorted := func(s workspace.Secrets) []workspace.SecretFile {
		return slices.SortedFunc(slices.Values(s.Files()), func(f, o workspace.SecretFile) int { return strings.Compare(f.Name, o.Name) })
	}
	return len(a.Files()) == 0 || slices.Equal(sorted(a), sorted(b))
}

// placeFiles makes the files of secrets that are not there yet.
func (l *Lifecycle) placeFiles(ctx context.Context, rt runtime.Runtime, p permit.Permit, uses []workspace.SecretUse) (err error) {
	for _, u := range uses {
		if u.File == "" {
			continue
		}
		if perr := l.cfg.Placeholders.Place(ctx, rt, p, u); perr != nil {
			err = errors.Join(err, fmt.Errorf("cannot keep the placeholder of %s in the home: %w", u.Name, perr))
		}
	}
	return err
}

// settleFiles has a workspace that runs have the files of its secrets, and none of those that it uses no more. What cannot be
// done is logged and tried again at the next start: the workspace's own programs may write to those paths, and are not to keep
// it from starting.
func (l *Lifecycle) settleFiles(ctx context.Context, rt runtime.Runtime, p permit.Permit, k workspace.Kept) {
	l.takeFiles(ctx, rt, p, k)
	if err := l.placeFiles(ctx, rt, p, k.Secrets.Uses); err != nil {
		l.cfg.Log.Warn("a workspace has no file of a secret", "workspace", k.Name, "error", err)
	}
}

func (l *Lifecycle) takeFiles(ctx context.Context, rt runtime.Runtime, p permit.Permit, k workspace.Kept) {
	if len(k.Secrets.Gone) == 0 {
		return
	}
	for _, u := range k.Secrets.Gone {
		if err := l.cfg.Placeholders.Take(ctx, rt, p, u); err != nil {
			l.cfg.Log.Warn("a file with the placeholder of a secret that is used no more was left", "workspace", k.Name, "secret", u.Name,
				"error", err)
		}
	}
	if err := l.cfg.Store.Update(ctx, k.Name, func(now *workspace.Kept) { now.Secrets.Gone = nil }); err != nil {
		l.cfg.Log.Warn("cannot forget files of secrets, which are looked for again at the next start", "workspace", k.Name, "error", err)
	}
}

// changeFiles makes the files that a workspace that runs gets by a change, before that is stored: where something else is, nothing
// is changed. What it returns removes those that it loses, once the change was stored. One that does not run gets and loses
// them when it starts.
func (l *Lifecycle) changeFiles(
	ctx context.Context, p permit.Permit, k workspace.Kept, after workspace.Secrets,
) (func(context.Context), error) {
	nothing := func(context.Context) {}
	fresh := slices.DeleteFunc(slices.Clone(after.Uses), func(u workspace.SecretUse) bool {
		return u.File == "" || slices.Contains(k.Secrets.Uses, u)
	})
	state := l.join(k).State
	if state == workspace.StatePaused && len(fresh) > 0 {
		return nothing, fmt.Errorf("cannot make a file in workspace %s: it is paused; let it go on with \"carrel resume %s\": %w", k.Name, k.Name,
			errdefs.ErrFailedPrecondition)
	}
	if state != workspace.StateRunning || len(fresh)+len(after.Gone) == 0 {
		return nothing, nil
	}
	rt, err := l.Runtime(k.Boundary)
	if err != nil {
		return nothing, err
	}
	if err := l.placeFiles(ctx, rt, p, fresh); err != nil {
		return nothing, err
	}
	return func(ctx context.Context) {
		if now, err := l.Living(k.Name); err == nil && slices.Equal(now.Secrets.Gone, after.Gone) {
			l.takeFiles(ctx, rt, p, now)
		}
	}, nil
}
