package api

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
)

type tokens struct{ *Server }

// owners are those that a token can be made for: the Unix users.
var owners = regexp.MustCompile(`^uid:(0|[1-9][0-9]{0,9})$`)

func (s tokens) CreateToken(
	ctx context.Context, req *request[carrelv1.CreateTokenRequest],
) (*response[carrelv1.CreateTokenResponse], error) {
	want, err := wantedToken(req.Msg)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	t, secret, err := s.gate.CreateToken(ctx, authn.FromContext(ctx), want)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.CreateTokenResponse{
		Token: tokenTo(t, s.gate.Now()), Secret: secret.Reveal(), Address: s.opts.Address, Fingerprint: s.opts.Fingerprint,
		E2BUrl: s.opts.E2BURL, E2BDomain: s.opts.E2BDomain,
	}), nil
}

func wantedToken(m *carrelv1.CreateTokenRequest) (w principal.Wanted, err error) {
	if w.Roles, err = principal.ParseRoles(m.GetRoles()...); err != nil {
		return w, err
	}
	if w.Scope, err = principal.ParseScope(m.GetWorkspaces()); err != nil {
		return w, err
	}
	if m.GetOwner() != "" && !owners.MatchString(m.GetOwner()) {
		return w, invalid("owner", fmt.Sprintf("%.32q is no user", m.GetOwner()), "give one as \"uid:1000\"")
	}
	if err := between("life_ms", m.GetLifeMs(), 0, principal.MaxLife.Milliseconds(), "0 is 30 days"); err != nil {
		return w, err
	}
	w.Name, w.Owner, w.Life = m.GetName(), m.GetOwner(), time.Duration(m.GetLifeMs())*time.Millisecond
	w.MaxUses, w.Rate, w.Burst = m.GetMaxUses(), m.GetRate(), int(m.GetBurst())
	return w, nil
}

func (s tokens) ListTokens(ctx context.Context, _ *request[carrelv1.ListTokensRequest]) (*response[carrelv1.ListTokensResponse], error) {
	all, err := s.gate.ListTokens(ctx, authn.FromContext(ctx))
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.ListTokensResponse{Tokens: make([]*carrelv1.Token, 0, len(all))}
	for _, t := range all {
		out.Tokens = append(out.Tokens, tokenTo(t, s.gate.Now()))
	}
	return connect.NewResponse(out), nil
}

func (s tokens) GetToken(ctx context.Context, req *request[carrelv1.GetTokenRequest]) (*response[carrelv1.GetTokenResponse], error) {
	t, err := s.gate.Token(ctx, authn.FromContext(ctx), req.Msg.GetId())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.GetTokenResponse{Token: tokenTo(t, s.gate.Now())}), nil
}

func (s tokens) RevokeToken(
	ctx context.Context, req *request[carrelv1.RevokeTokenRequest],
) (*response[carrelv1.RevokeTokenResponse], error) {
	ended, err := s.gate.RevokeToken(ctx, authn.FromContext(ctx), req.Msg.GetId())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.RevokeTokenResponse{Revoked: ended}), nil
}

func (s tokens) WhoAmI(
	ctx context.Context, _ *request[carrelv1.WhoAmIRequest],
) (*response[carrelv1.WhoAmIResponse], error) {
	p := authn.FromContext(ctx)
	out := &carrelv1.WhoAmIResponse{
		Principal: p.String(), Kind: string(p.Kind), Owner: p.Owner(), Roles: p.RolesOf().Names(), Permissions: p.Permissions().Names(),
	}
	if p.Kind == principal.Token {
		t, ok := s.gate.Issued(token.ID(p.Grant.ID))
		if !ok {
			return nil, errcode.ToWire(fmt.Errorf("cannot find token %s: it was removed meanwhile: %w", p.Grant.ID, errdefs.ErrNotFound))
		}
		out.Token = tokenTo(t, s.gate.Now())
	}
	return connect.NewResponse(out), nil
}

func tokenTo(t principal.Issued, now time.Time) *carrelv1.Token {
	state := t.Ended(now)
	if state == "" {
		state = "good"
	}
	return &carrelv1.Token{
		Id: t.ID, Name: t.Name, Owner: t.Owner, Roles: t.Roles.Names(), Workspaces: t.Scope, Maker: t.Maker, Parent: t.Parent,
		CreatedUnixMs: t.Created.UnixMilli(), ExpiresUnixMs: t.Expires.UnixMilli(), MaxUses: t.MaxUses, Uses: t.Uses, Rate: t.Rate,
		Burst:         int32(t.Burst),
		RevokedUnixMs: unixMS(t.Revoked), LastUsedUnixMs: unixMS(t.LastUsed), State: state,
	}
}
