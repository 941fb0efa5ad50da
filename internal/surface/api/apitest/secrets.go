package apitest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// secret is one that the gate keeps.
type secret struct {
	workspace.Secret

	value redact.Value
}

// SetSecret implements api.Gate.
func (g *Gate) SetSecret(_ context.Context, p principal.Principal, want workspace.Secret, v redact.Value) (workspace.Secret, error) {
	if err := g.permit(p, operation.SetSecret); err != nil {
		return workspace.Secret{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	want.Owner, want.Created = p.Owner(), time.Now()
	if g.secret(want.Owner, want.Name) != nil {
		return want, fmt.Errorf("cannot store secret %s: there is one with this name; change it with \"carrel secret rotate %[1]s\": %w",
			want.Name, errdefs.ErrAlreadyExists)
	}
	g.secrets = append(g.secrets, &secret{want, v})
	return want, nil
}

// secret is the one of an owner with that name, nil if there is none. g.mu is held.
func (g *Gate) secret(owner, name string) *secret {
	for _, x := range g.secrets {
		if x.Owner == owner && x.Name == name {
			return x
		}
	}
	return nil
}

// RotateSecret implements api.Gate.
func (g *Gate) RotateSecret(_ context.Context, p principal.Principal, name string, v redact.Value) (workspace.Secret, error) {
	if err := g.permit(p, operation.RotateSecret); err != nil {
		return workspace.Secret{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	x := g.secret(p.Owner(), name)
	if x == nil {
		return workspace.Secret{}, noSecret(name)
	}
	x.value, x.Rotated = v, time.Now()
	return x.Secret, nil
}

// ListSecrets implements api.Gate.
func (g *Gate) ListSecrets(_ context.Context, p principal.Principal) ([]workspace.Secret, error) {
	if err := g.permit(p, operation.ListSecrets); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []workspace.Secret
	for _, x := range g.secrets {
		if p.MayReach(x.Owner) {
			all = append(all, x.Secret)
		}
	}
	slices.SortFunc(all, func(a, b workspace.Secret) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// RemoveSecret implements api.Gate.
func (g *Gate) RemoveSecret(_ context.Context, p principal.Principal, owner, name string) error {
	if err := g.permit(p, operation.RemoveSecret); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	x := g.secret(cmp.Or(owner, p.Owner()), name)
	if x == nil {
		return noSecret(name)
	}
	g.secrets = slices.DeleteFunc(g.secrets, func(o *secret) bool { return o == x })
	return nil
}

// ValueOf is the value of a secret of an owner, "" if there is none.
func (g *Gate) ValueOf(owner, name string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x := g.secret(owner, name); x != nil {
		return x.value.Reveal()
	}
	return ""
}

func noSecret(name string) error {
	return fmt.Errorf("cannot find secret %s: there is none with this name; store it with \"carrel secret set %[1]s\": %w", name,
		errdefs.ErrNotFound)
}
