// Package secrets keeps secrets for the workspaces of their owners, sealed, and shows which there are.
//
// It must not show, log, record or return a value to who asks for an operation. Held alone has the values; it is for the
// ways out of workspaces, and no surface has it.
package secrets

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/httprule"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/secret"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// Config holds the dependencies of New. All but Changed are required.
type Config struct {
	Gate   *gate.Gate
	Store  *store.Store
	Sealer *secret.Sealer
	// Changed is told which secret of an owner was stored, got another value or was removed, once that is durable and
	// before the caller is answered. ctx is the request's.
	Changed func(ctx context.Context, owner, name string)
}

// Secrets are the secrets that a daemon keeps. Its methods may be called from any goroutine.
type Secrets struct{ cfg Config }

// New returns secrets.
func New(cfg Config) *Secrets { return &Secrets{cfg} }

// Held is a secret with its value, for a way out of a workspace.
type Held struct {
	Name  string
	Value redact.Value
	// Hosts, Headers and Sending are as in workspace.Secret.
	Hosts, Headers []string
	Sending        workspace.Sending
}

// SetSecret keeps a secret for p's owner: Name, Hosts, Headers and Sending of want say which. Without Hosts it is for those that
// are known for the variable. already_exists: there is one with this name.
func (s *Secrets) SetSecret(
	ctx context.Context, p principal.Principal, want workspace.Secret, v redact.Value,
) (kept workspace.Secret, err error) {
	if want, err = checked(want, v); err != nil {
		return kept, err
	}
	want.Owner = p.Owner()
	a, err := s.cfg.Gate.Admit(ctx, operation.Request{
		By: p, Op: operation.NewSecret(want.Name, want.Hosts, want.Headers, want.Sending), On: target(want.Owner, want.Name),
	}, nil)
	if err != nil {
		return kept, err
	}
	err = a.Do(ctx, func(ctx context.Context, _ permit.Permit) (any, error) {
		sealed, err := s.cfg.Sealer.Seal(about(want), v)
		if err == nil {
			kept, err = s.cfg.Store.AddSecret(ctx, want, sealed)
		}
		if err != nil {
			return nil, err
		}
		crashpoint.Here("daemon.secret.set")
		s.changed(ctx, kept)
		return nil, nil
	})
	return kept, err
}

// RotateSecret gives a secret of p's owner another value, for the same hosts. not_found: there is none.
func (s *Secrets) RotateSecret(ctx context.Context, p principal.Principal, name string, v redact.Value) (kept workspace.Secret, err error) {
	if err := checkValue(name, v); err != nil {
		return kept, err
	}
	a, kept, sealed, err := s.admit(ctx, p, operation.RotateSecret, p.Owner(), name)
	if err != nil {
		return kept, err
	}
	err = a.Do(ctx, func(ctx context.Context, _ permit.Permit) (any, error) {
		// Hosts that somebody wrote into the database would get the new value.
		if _, err := s.cfg.Sealer.Unseal(about(kept), sealed); err != nil {
			return nil, fmt.Errorf("cannot rotate secret %s, so remove it with \"carrel secret rm %[1]s\" and set it anew: %w", name, err)
		}
		if err := checkInjected(name, kept.Sending, v); err != nil {
			return nil, err
		}
		sealed, err := s.cfg.Sealer.Seal(about(kept), v)
		if err == nil {
			kept, err = s.cfg.Store.RotateSecret(ctx, kept, sealed)
		}
		if err != nil {
			return nil, err
		}
		crashpoint.Here("daemon.secret.rotated")
		s.changed(ctx, kept)
		return nil, nil
	})
	return kept, err
}

// RemoveSecret removes a secret of owner, "" for p's. not_found: there is none.
func (s *Secrets) RemoveSecret(ctx context.Context, p principal.Principal, owner, name string) error {
	a, kept, _, err := s.admit(ctx, p, operation.RemoveSecret, cmp.Or(owner, p.Owner()), name)
	if err != nil {
		return err
	}
	return a.Do(ctx, func(ctx context.Context, _ permit.Permit) (any, error) {
		if err := s.cfg.Store.RemoveSecret(ctx, kept); err != nil {
			return nil, err
		}
		crashpoint.Here("daemon.secret.removed")
		s.changed(ctx, kept)
		return nil, nil
	})
}

// ListSecrets returns the secrets that p may see, by owner and name, without their values.
func (s *Secrets) ListSecrets(ctx context.Context, p principal.Principal) ([]workspace.Secret, error) {
	r := operation.Request{By: p, Op: operation.OnSecret(operation.ListSecrets, ""), On: target(p.Owner(), "")}
	if _, err := s.cfg.Gate.Authorise(ctx, r, nil); err != nil {
		return nil, err
	}
	of := p.Owner()
	if p.Can(principal.Any) {
		of = ""
	}
	return s.cfg.Store.Secrets(ctx, of)
}

// Held returns secrets of an owner by their names, in their order, with their values. not_found names those that are
// missing; failed_precondition: one cannot be unsealed.
func (s *Secrets) Held(ctx context.Context, owner string, names []string) ([]Held, error) {
	var all []Held
	var missing []string
	for _, name := range names {
		kept, sealed, err := s.cfg.Store.Secret(ctx, owner, name)
		if errdefs.IsNotFound(err) {
			missing = append(missing, name)
			continue
		}
		if err != nil {
			return nil, err
		}
		v, err := s.cfg.Sealer.Unseal(about(kept), sealed)
		if err != nil {
			return nil, fmt.Errorf("cannot use secret %s of %s: %w", name, owner, err)
		}
		all = append(all, Held{Name: kept.Name, Value: v, Hosts: kept.Hosts, Headers: kept.Headers, Sending: kept.Sending})
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("cannot find secret %s of %s: there is none with this name; store it with \"carrel secret set %s\": %w",
			strings.Join(missing, ", "), owner, missing[0], errdefs.ErrNotFound)
	}
	return all, nil
}

// admit admits an operation on a secret that is kept, and returns that.
func (s *Secrets) admit(
	ctx context.Context, p principal.Principal, op operation.Name, owner, name string,
) (a *gate.Admitted, kept workspace.Secret, sealed []byte, err error) {
	if err := conf.CheckSecretName(name); err != nil {
		return nil, kept, nil, err
	}
	what := operation.OnSecret(op, name)
	if owner != p.Owner() {
		what.Owner = owner
	}
	authorised, err := s.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: what, On: target(owner, name)}, nil)
	if err != nil {
		return nil, kept, nil, err
	}
	// Who may not reach what the owner has does not get here, and so does not learn what there is.
	if kept, sealed, err = s.cfg.Store.Secret(ctx, owner, name); err != nil {
		return nil, kept, nil, err
	}
	a, err = authorised.Admit(ctx)
	return a, kept, sealed, err
}

func target(owner, name string) operation.Target {
	return operation.Target{Kind: operation.Secret, ID: name, Owner: owner}
}

// about is what a sealed value is bound to: whose it is, its name, and who gets it, so that it does not open when
// somebody has changed one of these in the database.
func about(x workspace.Secret) string {
	parts := []any{x.Hosts, x.Headers}
	if !httprule.Sending(x.Sending).IsZero() { // those that were sealed before there was a Sending open as they did
		parts = append(parts, x.Sending)
	}
	to, err := json.Marshal(parts)
	if err != nil {
		panic("secrets: " + err.Error()) // lists of texts always marshal
	}
	sum := sha256.Sum256(to)
	return "secret/" + x.Owner + "/" + x.Name + "/" + hex.EncodeToString(sum[:])
}

func (s *Secrets) changed(ctx context.Context, x workspace.Secret) {
	if s.cfg.Changed != nil {
		s.cfg.Changed(ctx, x.Owner, x.Name)
	}
}
