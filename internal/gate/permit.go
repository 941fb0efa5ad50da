package gate

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/store"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Permit is the one place where it is decided what a principal may do at all; reach decides
// with which workspace. A refusal is recorded.
func (g *Gate) Permit(ctx context.Context, p principal.Principal, a action.Action) error {
	need := a.Kind.Needs()
	if p.Can(need) {
		return nil
	}
	r := request{by: p, trace: id.NewTrace(), action: a}
	switch {
	case p.Kind == principal.Token:
		return g.deny(ctx, r, fmt.Errorf("cannot let %s do %s: it takes what the token's roles (%s) do not give: %s; use a token with another role: %w",
			p, a.Kind, p.RolesOf(), strings.Join((need&^p.Permissions()).Names(), ", "), errdefs.ErrPermissionDenied))
	case p.Kind == principal.User && need != 0:
		return g.deny(ctx, r, fmt.Errorf("cannot let %s %s: it is for root and the members of the carrel group; use sudo or ask an administrator: %w",
			p, verb(a.Kind), errdefs.ErrPermissionDenied))
	default:
		return g.deny(ctx, r, fmt.Errorf("cannot let %s do %s: nobody may who is not known, or has no rule: %w", p, a.Kind, errdefs.ErrPermissionDenied))
	}
}

// permitKey is Permit for an action after which a workspace of owner has the key in a: it
// must be one that p reaches then.
func (g *Gate) permitKey(ctx context.Context, p principal.Principal, a action.Action, owner string) error {
	if err := g.Permit(ctx, p, a); err != nil {
		return err
	}
	if p.MayReach(owner, string(a.Key)) {
		return nil
	}
	return g.deny(ctx, request{by: p, trace: id.NewTrace(), action: a}, fmt.Errorf("cannot let %s have a workspace with the key %q: %s; choose a key that it is limited to: %w",
		p, a.Key, elsewhere(p), errdefs.ErrPermissionDenied))
}

// reaches is the rule of ownership for a workspace.
func reaches(p principal.Principal, w store.Workspace) bool {
	return p.MayReach(w.Owner, string(w.Key), string(w.Name))
}

func reachesArchive(p principal.Principal, a workspace.Archive) bool {
	return p.MayReach(a.Owner, string(a.Key), string(a.Workspace))
}

// elsewhere says why p does not reach something, as far as p may know it.
func elsewhere(p principal.Principal) string {
	if p.Kind == principal.Token && p.Grant != nil && p.Grant.Scope != nil {
		return "it belongs to another user, or is none that the token is limited to"
	}
	return "it belongs to another user"
}
