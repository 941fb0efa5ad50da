package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Models let workspaces use models, with keys that they do not have. Package models has what each method does.
type Models interface {
	Bind(ctx context.Context, k workspace.Kept, add []workspace.ModelUse, own error) (workspace.Models, error)
	Check(k workspace.Kept) error
	Open(ctx context.Context, k workspace.Kept) ([]egressapi.Model, []string, error)
	Uses(k *workspace.Kept, owner, secret string) bool
	Variables(uses workspace.Models) []string
	Ended(name id.Workspace)
	Forget(name id.Workspace)
}

// bindModels returns the models that a workspace may use once it may use these too. Who may not change a secret of its
// owner gives no key that is one. The host's key is for those whom its file names.
func (l *Lifecycle) bindModels(
	ctx context.Context, by principal.Principal, k workspace.Kept, add []workspace.ModelUse,
) (workspace.Models, error) {
	if len(add) == 0 && !k.Models.Any() {
		return k.Models, nil
	}
	if l.cfg.Models == nil || l.cfg.Ways == nil {
		if len(add) == 0 {
			return k.Models, nil
		}
		return k.Models, fmt.Errorf("cannot use the model %s: this daemon has no carrel-egress; install it beside carreld and restart the "+
			"daemon: %w", add[0].Name, errdefs.ErrFailedPrecondition)
	}
	return l.cfg.Models.Bind(ctx, k, add, mayGive(by, k.Owner, "a key of its owner's"))
}

// sameModels is an error if models that are asked for are not those that there are. A caller that asks for none takes
// what there is.
func sameModels(asked workspace.Models, k workspace.Kept) error {
	sorted := func(m workspace.Models) []string { return slices.Sorted(slices.Values(m.Texts())) }
	if (!asked.Any() || slices.Equal(sorted(asked), sorted(k.Models))) &&
		(asked.Budget == workspace.ModelBudget{} || asked.Budget == k.Models.Budget) {
		return nil
	}
	return fmt.Errorf("cannot give workspace %q other models or another budget for them: it is there already, and \"carrel create\" changes "+
		"none; \"carrel update --model\" does: %w", k.Key, errdefs.ErrFailedPrecondition)
}

// modelsAfter returns the models that a workspace may use after a change, and their budget.
func (l *Lifecycle) modelsAfter(
	ctx context.Context, by principal.Principal, k workspace.Kept, c workspace.ModelsChange,
) (workspace.Models, error) {
	if c.Empty() {
		return k.Models, nil
	}
	var err error
	if k.Models, err = k.Models.Without(c.Remove); err != nil {
		return k.Models, err
	}
	k.Models.Budget = k.Models.Budget.With(c.Budget)
	return l.bindModels(ctx, by, k, c.Add)
}

// checkModels is for what changes beside models: secrets.
func (l *Lifecycle) checkModels(k workspace.Kept) error {
	if l.cfg.Models == nil || !k.Models.Any() {
		return nil
	}
	return l.cfg.Models.Check(k)
}

// keysOf are the secrets and the models that a workspace's carrel-egress is told, as far as there are any: after an error
// without the secrets.
func (l *Lifecycle) keysOf(ctx context.Context, k workspace.Kept, trusts string) (egressapi.Secrets, error) {
	s, err := l.secretsOf(ctx, k, trusts)
	if err != nil {
		s = egressapi.Secrets{}
	}
	if l.cfg.Models == nil || !k.Models.Any() {
		return s, err
	}
	all, missing, merr := l.cfg.Models.Open(ctx, k)
	if len(missing) > 0 {
		l.cfg.Log.Warn("a workspace does not get all of its models", "workspace", k.Name, "why", missing)
	}
	s.Models = all
	return s, errors.Join(err, merr)
}

// ModelsChanged puts what the host's file says of models in force in the workspaces that use some.
func (l *Lifecycle) ModelsChanged(ctx context.Context) {
	l.again(ctx, func(k *workspace.Kept) bool { return k.Models.Any() })
}
