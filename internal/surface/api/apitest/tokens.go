package apitest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

var _ authn.Book = (*Gate)(nil)

// permit authorises by the same table as the gate.
func (g *Gate) permit(p principal.Principal, n operation.Name) error {
	row := operation.Of(n)
	if p.Can(row.Needs) {
		return nil
	}
	g.mu.Lock()
	g.refused = append(g.refused, p.String()+" "+string(n))
	g.mu.Unlock()
	return fmt.Errorf("cannot let %s %s: it is for root and the members of the carrel group: %w", p, row.Words, errdefs.ErrPermissionDenied)
}

// MayRead implements api.Gate.
func (g *Gate) MayRead(_ context.Context, p principal.Principal) error {
	return g.permit(p, operation.ReadAudit)
}

// Refused lists what was refused, as "PRINCIPAL KIND".
func (g *Gate) Refused() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.refused)
}

// Logins lists what Login was told, as "FROM PRINCIPAL ID REASON".
func (g *Gate) Logins() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.logins)
}

// CreateToken implements api.Gate.
func (g *Gate) CreateToken(_ context.Context, p principal.Principal, want principal.Wanted) (principal.Issued, token.Secret, error) {
	if err := g.permit(p, operation.CreateToken); err != nil {
		return principal.Issued{}, token.Secret{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var made *principal.Issued
	if p.Kind == principal.Token {
		held := g.tokens[p.Grant.ID]
		made = &held
	}
	t, err := p.MayGrant(want, made, time.Now())
	if err != nil {
		return t, token.Secret{}, err
	}
	secret := token.New()
	t.ID, t.Hash = string(secret.ID()), secret.Hash()
	if made != nil {
		t.Parent = made.ID
	}
	if g.tokens == nil {
		g.tokens = map[string]principal.Issued{}
	}
	g.tokens[t.ID] = t
	return t, secret, nil
}

// ListTokens implements api.Gate.
func (g *Gate) ListTokens(_ context.Context, p principal.Principal) ([]principal.Issued, error) {
	if err := g.permit(p, operation.ListTokens); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var own []principal.Issued
	for _, t := range g.tokens {
		if p.MayReach(t.Owner) {
			own = append(own, t)
		}
	}
	slices.SortFunc(own, func(a, b principal.Issued) int { return a.Created.Compare(b.Created) })
	return own, nil
}

// Token implements api.Gate.
func (g *Gate) Token(_ context.Context, p principal.Principal, ref string) (principal.Issued, error) {
	if err := g.permit(p, operation.ListTokens); err != nil {
		return principal.Issued{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if t, ok := g.tokens[ref]; ok && p.MayReach(t.Owner) {
		return t, nil
	}
	return principal.Issued{}, fmt.Errorf("cannot find token %q: %w", ref, errdefs.ErrNotFound)
}

// RevokeToken implements api.Gate.
func (g *Gate) RevokeToken(ctx context.Context, p principal.Principal, ref string) ([]string, error) {
	if err := g.permit(p, operation.RevokeToken); err != nil {
		return nil, err
	}
	t, err := g.Token(ctx, p, ref)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	t.Revoked = time.Now()
	g.tokens[ref] = t
	g.mu.Unlock()
	if g.TokensRevoked != nil {
		g.TokensRevoked([]string{ref})
	}
	return []string{ref}, nil
}

// Change changes a token that was made.
func (g *Gate) Change(ref token.ID, change func(*principal.Issued)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.tokens[string(ref)]
	change(&t)
	g.tokens[string(ref)] = t
}

// Issued implements api.Gate and authn.Book, and so do Spend, Login and Now.
func (g *Gate) Issued(ref token.ID) (principal.Issued, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t, ok := g.tokens[string(ref)]
	return t, ok
}

// Spend implements authn.Book.
func (g *Gate) Spend(_ context.Context, ref token.ID) (principal.Issued, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t, ok := g.tokens[string(ref)]
	if !ok || t.Ended(time.Now()) != "" {
		return t, fmt.Errorf("cannot use token %s: %w", ref, errdefs.ErrPermissionDenied)
	}
	if t.MaxUses > 0 {
		t.Uses++
	}
	g.tokens[string(ref)] = t
	return t, nil
}

// Login implements authn.Book.
func (g *Gate) Login(_ context.Context, from string, by principal.Principal, ref token.ID, refused string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.logins = append(g.logins, fmt.Sprintf("%s %s %s %s", from, by, ref, refused))
	g.notify()
	return nil
}

// AwaitLogins waits until Login has been told of n.
func (g *Gate) AwaitLogins(ctx context.Context, n int) error {
	for {
		g.mu.Lock()
		ok, changed := len(g.logins) >= n, g.wait()
		g.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Now implements authn.Book.
func (g *Gate) Now() time.Time { return time.Now() }
