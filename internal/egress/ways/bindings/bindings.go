// Package bindings joins a workspace with the secrets of its owner that it uses: it makes the placeholders that its
// commands have, the authority that its programs trust, and what carrel-egress is told.
//
// It must not keep a value: it asks for each when it is needed, and hands it on.
package bindings

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/egress/ca"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/spec/httprule"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Held is a secret of an owner.
type Held struct {
	Name  string
	Value redact.Value
	// Hosts are rules of hosts that get it, Headers the headers in which they do; without any it is all of them.
	Hosts, Headers []string
	// Sending is how it is sent to them.
	Sending workspace.Sending
}

// Config holds the dependencies of New. All are required.
type Config struct {
	// Held returns a secret of an owner; not_found if there is none.
	Held func(ctx context.Context, owner, name string) (Held, error)
	// Seal and Unseal keep the keys of authorities: see secret.Sealer.
	Seal   func(about string, v redact.Value) ([]byte, error)
	Unseal func(about string, sealed []byte) (redact.Value, error)
}

// Bindings are those of a daemon. They are safe for concurrent use.
type Bindings struct{ cfg Config }

// New returns Bindings.
func New(c Config) *Bindings { return &Bindings{c} }

// An authority is valid for life, and another one is made at a start when less than spare is left: a workspace may run
// for as long.
const (
	life  = 3 * 365 * 24 * time.Hour
	spare = 2 * 365 * 24 * time.Hour
)

// Bind returns what a workspace uses once it uses these secrets too, and all of them as carrel-egress is told. Those
// that it uses keep their placeholders.
//
// Errors: not_found if the owner has no such secret, invalid_argument if there are too many.
func (b *Bindings) Bind(ctx context.Context, k workspace.Kept, names []string) (workspace.Secrets, []egressapi.Secret, error) {
	now := k.Secrets
	now.Uses = append([]workspace.SecretUse(nil), now.Uses...)
	for _, name := range names {
		if now.Has(name) {
			continue
		}
		h, err := b.cfg.Held(ctx, k.Owner, name)
		if err != nil {
			return now, nil, err
		}
		if h.Sending.Inject != "" { // commands have nothing in its place
			now.Uses = append(now.Uses, workspace.SecretUse{Name: name})
			continue
		}
		value := h.Value.Reveal()
		placeholder, err := intercept.NewPlaceholder((&conf.Secret{Name: name}).Prefix(value), max(len(value), shortest))
		if err != nil {
			return now, nil, err
		}
		now.Uses = append(now.Uses, workspace.SecretUse{Name: name, Placeholder: placeholder})
	}
	if len(now.Uses) > workspace.MaxSecrets {
		return now, nil, fmt.Errorf("cannot use %d secrets in one workspace: at most %d are allowed: %w",
			len(now.Uses), workspace.MaxSecrets, errdefs.ErrInvalidArgument)
	}
	k.Secrets = now
	all, _, err := b.opened(ctx, k)
	return now, all, err
}

// shortest is the length of the shortest placeholder with the longest prefix that is known.
const shortest = 32

// Authority returns the secrets with an authority that lasts, and its certificate in PEM, for a workspace that is about
// to be started and uses secrets, or has rules about requests. If the authority is a new one, what is returned differs from
// s and has to be kept before the start.
func (b *Bindings) Authority(name id.Workspace, s workspace.Secrets) (workspace.Secrets, string, error) {
	if _, c, err := b.unsealed(name, s); err == nil && time.Until(c.NotAfter()) > spare {
		return s, string(c.PEM()), nil
	}
	// None, an old one, or one that was sealed with a key that is gone: nothing that runs trusts it.
	c, err := ca.Make(string(name), life)
	if err != nil {
		return s, "", err
	}
	key, err := c.Marshal()
	if err != nil {
		return s, "", err
	}
	if s.Authority, err = b.cfg.Seal(about(name), redact.NewValue(string(key))); err != nil {
		return s, "", fmt.Errorf("cannot keep the authority of workspace %s: %w", name, err)
	}
	return s, string(c.PEM()), nil
}

func (b *Bindings) unsealed(name id.Workspace, s workspace.Secrets) (redact.Value, *ca.CA, error) {
	if len(s.Authority) == 0 {
		return redact.Value{}, nil, fmt.Errorf("it has no authority: %w", errdefs.ErrNotFound)
	}
	key, err := b.cfg.Unseal(about(name), s.Authority)
	if err != nil {
		return key, nil, err
	}
	c, err := ca.Parse([]byte(key.Reveal()))
	return key, c, err
}

// about says what is sealed, so that the authority of one workspace is not that of another.
func about(name id.Workspace) string { return "authority/" + string(name) }

// Open returns the secrets of a workspace as carrel-egress is told. trusts is workspace.Real.Trust: a workspace that does
// not trust its authority gets none, and the error, of kind failed precondition, says so. missing are the names of those
// that the owner has removed: their placeholders stay what they are. A workspace without secrets may have an authority too.
func (b *Bindings) Open(ctx context.Context, k workspace.Kept, trusts string) (s egressapi.Secrets, missing []string, err error) {
	if len(k.Secrets.Uses) == 0 && trusts == "" {
		return s, nil, nil
	}
	key, c, err := b.unsealed(k.Name, k.Secrets)
	if err == nil && workspace.Digest(string(c.PEM())) != trusts {
		err = fmt.Errorf("it was started before it used one: %w", errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return s, nil,
			fmt.Errorf("cannot use the secrets and the authority of workspace %s until it starts again (carrel stop %[1]s): %w", k.Name, err)
	}
	s.List, missing, err = b.opened(ctx, k)
	s.CA = egressapi.Private{Value: key}
	return s, missing, err
}

// opened returns the secrets that a workspace uses, and the names of those that are gone.
func (b *Bindings) opened(ctx context.Context, k workspace.Kept) (all []egressapi.Secret, missing []string, err error) {
	for _, u := range k.Secrets.Uses {
		h, err := b.cfg.Held(ctx, k.Owner, u.Name)
		if errdefs.IsNotFound(err) {
			missing = append(missing, u.Name)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if h.Sending.Inject == "" && u.Placeholder == "" { // it was injected when the workspace took it, and was set anew since
			missing = append(missing, u.Name)
			continue
		}
		s := egressapi.Secret{
			Name: u.Name, Placeholder: u.Placeholder, Value: egressapi.Private{Value: h.Value}, Headers: h.Headers,
			Sending: httprule.Sending(h.Sending),
		}
		if h.Sending.Inject != "" {
			s.Placeholder = ""
		}
		for _, text := range h.Hosts {
			r, rerr := netrule.ParseRule(netrule.Allow, text)
			err = errors.Join(err, rerr)
			s.Hosts = append(s.Hosts, r)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("cannot use the secret %s: %w", u.Name, err)
		}
		all = append(all, s)
	}
	return all, missing, nil
}

// Variables are those that every command of a workspace has: the placeholders, and what makes programs trust the
// authority.
func (b *Bindings) Variables(w workspace.Workspace) (env []string) {
	for _, u := range w.Secrets.Uses {
		if u.Placeholder != "" {
			env = append(env, u.Name+"="+u.Placeholder)
		}
	}
	if w.Trust != "" {
		env = append(env, sandbox.TrustVariables()...)
	}
	return env
}
