package gate

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/token"
)

// CreateToken makes a token that gives no more than p has. The secret is returned here and
// kept nowhere. principal.MayGrant is the rule; what it refuses is recorded.
func (g *Gate) CreateToken(ctx context.Context, p principal.Principal, want principal.Wanted) (principal.Issued, token.Secret, error) {
	a := action.Action{Kind: action.CreateToken}
	fail := func(err error) (principal.Issued, token.Secret, error) {
		return principal.Issued{}, token.Secret{}, err
	}
	var err error
	if a.Token, err = json.Marshal(wantedToken{
		Name: want.Name, Owner: want.Owner, Roles: want.Roles.Names(), Scope: want.Scope,
		LifeMS: want.Life.Milliseconds(), MaxUses: want.MaxUses, Rate: want.Rate, Burst: want.Burst,
	}); err != nil {
		return fail(fmt.Errorf("cannot make the token: what is wanted cannot be written down: %w: %w", err, errdefs.ErrInvalidArgument))
	}
	if err := g.Permit(ctx, p, a); err != nil {
		return fail(err)
	}
	var made *principal.Issued
	if p.Kind == principal.Token {
		if held, ok := g.cfg.Store.Token(p.Grant.ID); ok {
			made = &held
		}
	}
	t, err := p.MayGrant(want, made, g.cfg.Store.Now())
	if errdefs.IsPermissionDenied(err) {
		return fail(g.deny(ctx, request{by: p, trace: id.NewTrace(), action: a}, err))
	}
	if err != nil {
		return fail(err)
	}
	secret := token.New()
	t.ID, t.Hash = string(secret.ID()), secret.Hash()
	if made != nil {
		t.Parent = made.ID
	}
	err = g.do(ctx, request{by: p, trace: id.NewTrace(), action: a}, func(ctx context.Context) (any, error) {
		err := g.cfg.Store.AddToken(ctx, t)
		crashpoint.Here("daemon.token.added")
		return tokensData{Tokens: []string{t.ID}}, err
	})
	if err != nil {
		return fail(err)
	}
	return t, secret, nil
}

// wantedToken is what the record says of a token that is to be made.
type wantedToken struct {
	Name    string          `json:"name,omitempty"`
	Owner   string          `json:"owner,omitempty"`
	Roles   []string        `json:"roles"`
	Scope   principal.Scope `json:"scope,omitempty"`
	LifeMS  int64           `json:"life_ms,omitempty"`
	MaxUses int64           `json:"max_uses,omitempty"`
	Rate    float64         `json:"rate,omitempty"`
	Burst   int             `json:"burst,omitempty"`
}

// tokensData names tokens in an outcome.
type tokensData struct {
	Tokens []string `json:"tokens"`
}

// Tokens returns the tokens that p may see, the newest last. They hold no secret.
func (g *Gate) Tokens(ctx context.Context, p principal.Principal) ([]principal.Issued, error) {
	if err := g.Permit(ctx, p, action.Action{Kind: action.ListTokens}); err != nil {
		return nil, err
	}
	var own []principal.Issued
	for _, t := range g.cfg.Store.Tokens() {
		if g.administers(p, t) {
			own = append(own, t)
		}
	}
	return own, nil
}

// Token returns one of them. One that p may not see is not_found like one that is not there.
func (g *Gate) Token(ctx context.Context, p principal.Principal, ref string) (principal.Issued, error) {
	return g.token(ctx, p, ref, action.ListTokens)
}

func (g *Gate) token(ctx context.Context, p principal.Principal, ref string, kind action.Kind) (principal.Issued, error) {
	a := action.Action{Kind: kind}
	if err := g.Permit(ctx, p, a); err != nil {
		return principal.Issued{}, err
	}
	known, err := token.ParseID(ref)
	if err != nil {
		return principal.Issued{}, fmt.Errorf("cannot find the token: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	missing := fmt.Errorf("cannot find token %s: there is none of yours with this id; \"carrel token ls\" lists them: %w", known, errdefs.ErrNotFound)
	t, ok := g.cfg.Store.Token(string(known))
	if !ok {
		return t, missing
	}
	if !g.administers(p, t) {
		a.Token = tokenRef(t.ID)
		return principal.Issued{}, g.deny(ctx, request{by: p, trace: id.NewTrace(), action: a}, missing)
	}
	return t, nil
}

func tokenRef(ref string) json.RawMessage { return json.RawMessage(`"` + ref + `"`) } // hexadecimal digits

// administers reports whether p may see and revoke a token: a user those of its own, who
// has Any all, and a token itself and those that it made, by whatever way.
func (g *Gate) administers(p principal.Principal, t principal.Issued) bool {
	if p.Kind != principal.Token || p.Grant == nil {
		return p.MayReach(t.Owner)
	}
	if p.Can(principal.Any) && p.Grant.Scope == nil {
		return true
	}
	for range maxLine {
		if t.ID == p.Grant.ID {
			return true
		}
		parent, ok := g.cfg.Store.Token(t.Parent)
		if !ok {
			return false
		}
		t = parent
	}
	return false
}

// maxLine is how many tokens one after the other may have made each other, for who looks.
const maxLine = 1024

// RevokeToken ends a token and all that were made with it. What they have under way ends
// too. It returns the ids of those that had not been revoked yet.
func (g *Gate) RevokeToken(ctx context.Context, p principal.Principal, ref string) ([]string, error) {
	t, err := g.token(ctx, p, ref, action.RevokeToken)
	if err != nil {
		return nil, err
	}
	var ended []string
	a := action.Action{Kind: action.RevokeToken, Token: tokenRef(t.ID)}
	err = g.do(ctx, request{by: p, trace: id.NewTrace(), action: a}, func(ctx context.Context) (_ any, err error) {
		ended, err = g.cfg.Store.RevokeToken(ctx, t.ID)
		if err == nil && g.cfg.TokensRevoked != nil {
			g.cfg.TokensRevoked(ended)
		}
		return tokensData{Tokens: ended}, err
	})
	return ended, err
}

// Login records who came with a token: from is where, an address or the Unix user; by who it
// is, and the zero Principal if refused says why that is not known; ref the id that was
// given, if one was. Of those who are refused some are counted in the record of the next, by
// where they come from. An error is for one who is known: who cannot be recorded may not
// come in.
func (g *Gate) Login(ctx context.Context, from string, by principal.Principal, ref token.ID, refused string) error {
	data := struct {
		From    string   `json:"from"`
		Token   token.ID `json:"token,omitempty"`
		Refused string   `json:"refused,omitempty"`
		Untold  int64    `json:"refusals_not_recorded,omitempty"`
	}{From: from, Token: ref, Refused: refused}
	r := request{by: by, trace: id.NewTrace(), action: action.Action{Kind: action.Login}}
	rec, err := g.intentOf(&r)
	if err != nil {
		return err
	}
	rec.Type, rec.Status, rec.Policy, rec.Approval = audit.Login, audit.StatusOK, "", ""
	if refused != "" {
		record, untold := g.refusals.login(from, time.Now())
		if !record {
			return nil
		}
		data.Untold = untold
		rec.Type, rec.Status, rec.ErrorKind = audit.Denial, audit.StatusDenied, "unauthenticated"
		rec.Error = "cannot let in who came with a token: it is " + refused
	}
	if rec.Data, err = json.Marshal(data); err != nil {
		return fmt.Errorf("cannot record a login: %w", err)
	}
	if _, err = g.recordOf(&r).Append(ctx, rec); err != nil {
		g.cfg.Log.Error("cannot record a login", "from", from, "principal", by, "error", err)
		return fmt.Errorf("cannot record the login, so it was refused: %w", err)
	}
	return nil
}

// Spend notes a use of a token; see store.Store.SpendToken.
func (g *Gate) Spend(ctx context.Context, ref token.ID) (principal.Issued, error) {
	t, err := g.cfg.Store.SpendToken(ctx, string(ref))
	if err == nil {
		crashpoint.Here("daemon.token.spent")
	}
	return t, err
}

// Issued returns a token for who authenticates with it, good or ended.
func (g *Gate) Issued(ref token.ID) (principal.Issued, bool) { return g.cfg.Store.Token(string(ref)) }

// Now is the time that tokens are judged by.
func (g *Gate) Now() time.Time { return g.cfg.Store.Now() }
