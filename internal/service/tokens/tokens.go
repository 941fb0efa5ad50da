// Package tokens makes tokens, shows and revokes them, and records who comes with one.
//
// It must not authenticate: package authn does, and asks here what is known of a token.
package tokens

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// maxLine is how many tokens, each made by the next, are followed.
const maxLine = 1024

// Config holds the dependencies of New. All but Revoked are required.
type Config struct {
	Gate    *gate.Gate
	Store   *store.Store
	Records *record.Writer
	// Revoked is told which tokens were just revoked, to end what they have under way.
	Revoked func(ids []string)
	Log     *slog.Logger
}

// Tokens are the tokens of the API. Its methods may be called from any goroutine.
type Tokens struct{ cfg Config }

// New returns tokens.
func New(cfg Config) *Tokens { return &Tokens{cfg} }

// data names tokens in an outcome.
type data struct {
	Tokens []string `json:"tokens"`
}

// CreateToken makes a token that gives no more than p has. The secret is returned here and
// kept nowhere. principal.MayGrant is the rule; what it refuses is recorded.
func (t *Tokens) CreateToken(ctx context.Context, p principal.Principal, want principal.Wanted) (principal.Issued, token.Secret, error) {
	op, err := operation.NewToken(want)
	if err != nil {
		return principal.Issued{}, token.Secret{}, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	none := func(err error) (principal.Issued, token.Secret, error) {
		return principal.Issued{}, token.Secret{}, err
	}
	authorised, err := t.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: op}, nil)
	if err != nil {
		return none(err)
	}
	if _, err := gate.Answering(ctx); err != nil {
		return none(authorised.Deny(ctx, err))
	}
	made, err := t.grant(p, want)
	if errdefs.IsPermissionDenied(err) {
		err = authorised.Deny(ctx, err)
	}
	if err != nil {
		return none(err)
	}
	a, err := authorised.Admit(ctx)
	if err != nil {
		return none(err)
	}
	secret := token.New()
	made.ID, made.Hash = string(secret.ID()), secret.Hash()
	if err := a.Do(ctx, func(ctx context.Context, _ permit.Permit) (any, error) {
		err := t.cfg.Store.AddToken(ctx, made)
		crashpoint.Here("daemon.token.added")
		return data{[]string{made.ID}}, err
	}); err != nil {
		return none(err)
	}
	return made, secret, nil
}

// grant is the token that p may make, without its id and secret.
func (t *Tokens) grant(p principal.Principal, want principal.Wanted) (principal.Issued, error) {
	if p.Kind != principal.Token {
		return p.MayGrant(want, nil, t.cfg.Store.Now())
	}
	held, ok := t.cfg.Store.Token(p.Grant.ID)
	if !ok {
		return p.MayGrant(want, nil, t.cfg.Store.Now())
	}
	made, err := p.MayGrant(want, &held, t.cfg.Store.Now())
	made.Parent = held.ID
	return made, err
}

// ListTokens returns the tokens that p may see, the newest last. They hold no secret.
func (t *Tokens) ListTokens(ctx context.Context, p principal.Principal) ([]principal.Issued, error) {
	if _, err := t.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: operation.OnToken(operation.ListTokens, "")}, nil); err != nil {
		return nil, err
	}
	var own []principal.Issued
	for _, x := range t.cfg.Store.Tokens() {
		if operation.Reaches(p, t.target(x)) {
			own = append(own, x)
		}
	}
	return own, nil
}

// Token returns one of them. One that p may not see is not_found like one that is not there.
func (t *Tokens) Token(ctx context.Context, p principal.Principal, ref string) (principal.Issued, error) {
	_, x, err := t.authorise(ctx, p, operation.ListTokens, ref)
	return x, err
}

// authorise authorises an operation on one token, and returns that.
func (t *Tokens) authorise(
	ctx context.Context, p principal.Principal, op operation.Name, ref string,
) (*gate.Authorised, principal.Issued, error) {
	known, perr := token.ParseID(ref)
	var found principal.Issued
	a, err := t.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: operation.OnToken(op, string(known))}, func() (operation.Target, error) {
		if perr != nil {
			return operation.Target{}, fmt.Errorf("cannot find the token: %w: %w", perr, errdefs.ErrInvalidArgument)
		}
		var ok bool
		if found, ok = t.cfg.Store.Token(string(known)); !ok {
			return operation.Target{}, fmt.Errorf("cannot find token %s: there is none of yours with this id; \"carrel token ls\" lists them: "+
				"%w", known, errdefs.ErrNotFound)
		}
		return t.target(found), nil
	})
	if err != nil {
		return nil, principal.Issued{}, err
	}
	return a, found, nil
}

// target is a token as a target: of its owner, and of the tokens that made it.
func (t *Tokens) target(x principal.Issued) operation.Target {
	on := operation.Target{Kind: operation.Token, ID: x.ID, Owner: x.Owner, Makers: []string{x.ID}}
	for len(on.Makers) < maxLine {
		maker, ok := t.cfg.Store.Token(x.Parent)
		if !ok {
			break
		}
		x = maker
		on.Makers = append(on.Makers, x.ID)
	}
	return on
}

// RevokeToken ends a token and all that were made with it. What they have under way ends too.
// It returns the ids of those that had not been revoked yet.
func (t *Tokens) RevokeToken(ctx context.Context, p principal.Principal, ref string) (ended []string, err error) {
	authorised, x, err := t.authorise(ctx, p, operation.RevokeToken, ref)
	if err != nil {
		return nil, err
	}
	a, err := authorised.Admit(ctx)
	if err != nil {
		return nil, err
	}
	return ended, a.Do(ctx, func(ctx context.Context, _ permit.Permit) (_ any, err error) {
		ended, err = t.cfg.Store.RevokeToken(ctx, x.ID)
		if err == nil && t.cfg.Revoked != nil {
			t.cfg.Revoked(ended)
		}
		return data{ended}, err
	})
}

// Login records who came with a token: from is where, an address or the Unix user; by who it
// is, and the zero Principal if refused says why that is not known; ref the id that was given,
// if one was. Of those that are refused some are counted in the record of the next, by where
// they come from. An error is for a caller that is known: without a record it may not come in.
func (t *Tokens) Login(ctx context.Context, from string, by principal.Principal, ref token.ID, refused string) error {
	said := struct {
		From    string   `json:"from"`
		Token   token.ID `json:"token,omitempty"`
		Refused string   `json:"refused,omitempty"`
		Untold  int64    `json:"refusals_not_recorded,omitempty"`
	}{From: from, Token: ref, Refused: refused}
	if refused != "" {
		write, untold := t.cfg.Gate.CountLogin(from)
		if !write {
			return nil
		}
		said.Untold = untold
	}
	r := &operation.Request{By: by, Op: operation.Simple(operation.Login)}
	if t.cfg.Gate.Full() != nil { // the room that is left is for what makes more
		t.cfg.Records.Observed(r)
		return nil
	}
	of, err := t.cfg.Records.Of(r)
	if err != nil {
		return err
	}
	rec := of.Intent()
	rec.Type, rec.Status, rec.Approval, rec.Trace = audit.Login, audit.StatusOK, "", id.NewTrace()
	if refused != "" {
		rec.Type, rec.Status, rec.ErrorKind = audit.Denial, audit.StatusDenied, "unauthenticated"
		rec.Error = "cannot let in who came with a token: it is " + refused
	}
	if rec.Data, err = json.Marshal(said); err != nil {
		return fmt.Errorf("cannot record a login: %w", err)
	}
	if refused == "" {
		if err := t.cfg.Gate.Charge(r, rec); err != nil {
			return fmt.Errorf("cannot record the login, so it was refused: %w", err)
		}
	} else {
		ctx = context.WithoutCancel(ctx) // it was refused, whoever waits to hear of it
	}
	if _, err = of.Append(ctx, rec); err != nil {
		if ctx.Err() == nil { // the client is there still
			t.cfg.Log.Error("cannot record a login", "from", from, "principal", by, "error", err)
		}
		return fmt.Errorf("cannot record the login, so it was refused: %w", err)
	}
	return nil
}

// Spend notes a use of a token; see store.Store.SpendToken.
func (t *Tokens) Spend(ctx context.Context, ref token.ID) (principal.Issued, error) {
	x, err := t.cfg.Store.SpendToken(ctx, string(ref))
	if err == nil {
		crashpoint.Here("daemon.token.spent")
	}
	return x, err
}

// Issued returns a token for a caller that authenticates with it, good or ended.
func (t *Tokens) Issued(ref token.ID) (principal.Issued, bool) {
	return t.cfg.Store.Token(string(ref))
}

// Now is the time that tokens are judged by.
func (t *Tokens) Now() time.Time { return t.cfg.Store.Now() }
