package lifecycle

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Bindings join workspaces with the secrets of their owners. Package bindings has what each method does.
type Bindings interface {
	Bind(ctx context.Context, k workspace.Kept, names []string) (workspace.Secrets, []egressapi.Secret, error)
	Authority(name id.Workspace, s workspace.Secrets) (workspace.Secrets, string, error)
	Open(ctx context.Context, k workspace.Kept, trusts string) (egressapi.Secrets, []string, error)
	Variables(w workspace.Workspace) []string
}

// bind returns what a workspace uses once it uses these secrets too, with files for some, if it can. Who may not change
// a secret gives none: a workspace would be a way to use it.
func (l *Lifecycle) bind(
	ctx context.Context, by principal.Principal, k workspace.Kept, c workspace.SecretsChange,
) (workspace.Secrets, error) {
	names := c.Add
	if len(names) == 0 {
		return k.Secrets, nil
	}
	if err := mayGive(by, k.Owner, "the secret "+names[0]); err != nil {
		return k.Secrets, err
	}
	if l.cfg.Bindings == nil || l.cfg.Ways == nil {
		return k.Secrets, fmt.Errorf("cannot use the secret %s: this daemon has no carrel-egress; install it beside carreld and restart the "+
			"daemon: %w", names[0], errdefs.ErrFailedPrecondition)
	}
	now, all, err := l.cfg.Bindings.Bind(ctx, k, names)
	if err != nil {
		return now, err
	}
	files, err := workspace.WithTemplates(c.Files, c.Templates)
	if err != nil {
		return now, err
	}
	for _, f := range files {
		for _, x := range all {
			if err := f.Holds(x.Name, x.Value.Reveal()); err != nil {
				return now, err
			}
		}
	}
	// Only of the new ones is it asked that some host gets them: rules may be taken from the others.
	fresh := slices.DeleteFunc(slices.Clone(all), func(s egressapi.Secret) bool { return k.Secrets.Has(s.Name) })
	if err := l.cfg.Ways.CheckSecrets(k.Reach, fresh); err != nil {
		return now, err
	}
	return now.WithFiles(files)
}

// mayGive is an error if by may not give a workspace what belongs to its owner.
func mayGive(by principal.Principal, owner, what string) error {
	if by.Can(principal.Secrets) && operation.Reaches(by, operation.Target{Kind: operation.Secret, Owner: owner}) {
		return nil
	}
	return fmt.Errorf("cannot give a workspace %s: that takes the permission \"secrets\" for all workspaces of its owner, so no token "+
		"that is limited to some; have its owner do it: %w", what, errdefs.ErrPermissionDenied)
}

// sameSecrets is an error if secrets that are asked for are not those that there are. A caller that asks for none takes
// what there is.
func sameSecrets(asked workspace.Secrets, k workspace.Kept) error {
	names := func(s workspace.Secrets) []string { return slices.Sorted(slices.Values(s.Names())) }
	if len(asked.Uses) == 0 || slices.Equal(names(asked), names(k.Secrets)) && sameFiles(asked, k.Secrets) {
		return nil
	}
	return fmt.Errorf("cannot give workspace %q other secrets: it is there already, and \"carrel create\" changes none; \"carrel update "+
		"--secret\" does: %w", k.Key, errdefs.ErrFailedPrecondition)
}

// secretsAfter returns the secrets that a workspace uses after a change, if it can use them.
func (l *Lifecycle) secretsAfter(
	ctx context.Context, by principal.Principal, k workspace.Kept, c workspace.SecretsChange,
) (workspace.Secrets, error) {
	if c.Empty() {
		return k.Secrets, nil
	}
	var err error
	if k.Secrets, err = k.Secrets.Without(c.Remove); err != nil {
		return k.Secrets, err
	}
	now, err := l.bind(ctx, by, k, c)
	if err != nil {
		return now, err
	}
	if w := l.join(k); len(c.Add) > 0 && w.State.Live() && w.Egress && w.Trust == "" {
		return now, fmt.Errorf("cannot give workspace %s the secret %s: it was started without one and trusts nobody yet who could send it; "+
			"stop it first (carrel stop %s): %w", k.Name, c.Add[0], k.Name, errdefs.ErrFailedPrecondition)
	}
	return now, nil
}

// wayOf is the way out with which a workspace is to be started. If it uses secrets, or rules are about requests inside
// TLS, it has an authority then, which the caller keeps before the start.
func (l *Lifecycle) wayOf(k *workspace.Kept) (way runtime.Way, err error) {
	if way.Open = k.Reach.Any() || k.Models.Any(); !way.Open || l.cfg.Bindings == nil {
		return way, nil
	}
	if len(k.Secrets.Uses) == 0 && (l.cfg.Ways == nil || l.cfg.Ways.InsideTLS(k.Reach) == "") {
		return way, nil
	}
	k.Secrets, way.Trust, err = l.cfg.Bindings.Authority(k.Name, k.Secrets)
	return way, err
}

// keptWay is wayOf for a workspace that is stored: a new authority is.
func (l *Lifecycle) keptWay(ctx context.Context, k *workspace.Kept) (runtime.Way, error) {
	before := k.Secrets.Authority
	way, err := l.wayOf(k)
	if err != nil || bytes.Equal(before, k.Secrets.Authority) {
		return way, err
	}
	return way, l.cfg.Store.Update(ctx, k.Name, func(now *workspace.Kept) { now.Secrets.Authority = k.Secrets.Authority })
}

// secretsOf are the secrets that a workspace's carrel-egress is told. What was removed is left out.
func (l *Lifecycle) secretsOf(ctx context.Context, k workspace.Kept, trusts string) (egressapi.Secrets, error) {
	if l.cfg.Bindings == nil || len(k.Secrets.Uses) == 0 && trusts == "" {
		return egressapi.Secrets{}, nil
	}
	s, missing, err := l.cfg.Bindings.Open(ctx, k, trusts)
	if len(missing) > 0 {
		l.cfg.Log.Warn("a workspace uses secrets that are not there: hosts get placeholders", "workspace", k.Name, "secrets", missing)
	}
	return s, err
}

// SecretChanged puts another value, or the removal, of an owner's secret in force in the workspaces that use it, as a key
// of models too. It returns when no connection with the earlier value is left, or has logged why one may be.
func (l *Lifecycle) SecretChanged(ctx context.Context, owner, name string) {
	l.again(ctx, func(k *workspace.Kept) bool {
		return k.Owner == owner && k.Secrets.Has(name) || l.cfg.Models != nil && k.Models.Any() && l.cfg.Models.Uses(k, owner, name)
	})
}

// again puts what is stored in force in workspaces, and logs of those in which it may not be.
func (l *Lifecycle) again(ctx context.Context, of func(*workspace.Kept) bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeWithin)
	defer cancel()
	var changing sync.WaitGroup
	for _, k := range l.cfg.Store.Due(of) {
		changing.Go(func() {
			// A start that is under way may have read the earlier value.
			err := l.Alone(ctx, k.Name, operation.UpdateWorkspace, func(ctx context.Context) error { return l.reached(ctx, k.Name) })
			if err != nil && !errdefs.IsNotFound(err) {
				l.cfg.Log.Error("a workspace may still use an earlier secret or model; stop it", "workspace", k.Name, "error", err)
			}
		})
	}
	changing.Wait()
}

// changeWithin bounds again.
const changeWithin = 30 * time.Second

// Variables are those that every command of a workspace has: the placeholders of secrets, what makes programs trust the
// authority that sends these, and where models are.
func (l *Lifecycle) Variables(name id.Workspace) []string {
	w, err := l.living(name)
	if err != nil || l.cfg.Bindings == nil {
		return nil
	}
	env := l.cfg.Bindings.Variables(w)
	if l.cfg.Models != nil && w.Models.Any() {
		env = append(env, l.cfg.Models.Variables(w.Models)...)
	}
	return env
}
