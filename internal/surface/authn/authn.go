// Package authn turns a caller of the API into the Principal that every decision uses. There are
// two kinds of evidence: on the Unix socket the ids that SO_PEERCRED and SO_PEERGROUPS reported
// when the connection was made, and on either socket a token, which then replaces the ids.
//
// It must not decide who may do what, store a token, or tell an unknown caller why a token was
// refused.
package authn

import (
	"context"
	"fmt"
	"net"
	"os/user"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/linux/lineage"
	"github.com/carrel-dev/carrel/internal/linux/peercred"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// Peers authenticates the peers of a Unix socket.
type Peers struct {
	adminGID uint32
	hasAdmin bool
	// owner, if owned, is the only user besides root who may do anything.
	owner uint32
	owned bool
	// inside reports whether an id is one of a workspace's, or of what serves one; nil is none.
	inside func(uid uint32) bool
}

// Owner returns a Peers for the carrel of one user. That user and root are admins, and everybody
// else may do nothing. A peer in another user namespace than this process's is refused: a command in a
// workspace has the user's id too.
func Owner(uid uint32) *Peers { return &Peers{owner: uid, owned: true} }

// Inside makes p refuse peers with an id of a workspace. It must be called before p is used.
func (a *Peers) Inside(is func(uid uint32) bool) { a.inside = is }

// New returns a Peers for which the members of the group adminGroup are admins,
// as is root. The group is resolved once, here; "" means that only root is an
// admin. A group that does not exist is a not_found error.
func New(adminGroup string) (*Peers, error) {
	if adminGroup == "" {
		return &Peers{}, nil
	}
	g, err := user.LookupGroup(adminGroup)
	if err != nil {
		return nil, fmt.Errorf("cannot find the group %q whose members administer carrel: %w; make it with \"groupadd --system %s\" or set "+
			"socket_group: %w",
			adminGroup, err, adminGroup, errdefs.ErrNotFound)
	}
	gid, err := strconv.ParseUint(g.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("cannot use gid %q of group %q: %w: %w", g.Gid, adminGroup, err, errdefs.ErrInvalidArgument)
	}
	return &Peers{adminGID: uint32(gid), hasAdmin: true}, nil
}

// Judge returns the principal for a peer's credentials.
func (a *Peers) Judge(c peercred.Cred) principal.Principal {
	admin := c.UID == 0
	if a.owned {
		if c.UID != a.owner && c.UID != 0 {
			return principal.Principal{}
		}
		admin = true
	}
	if a.hasAdmin {
		admin = admin || c.GID == a.adminGID || slices.Contains(c.Groups, a.adminGID)
	}
	return principal.Principal{Kind: principal.User, UID: c.UID, GID: c.GID, Admin: admin}
}

// Of returns the principal at the other end of c, which must be a Unix connection.
func (a *Peers) Of(c net.Conn) (principal.Principal, error) {
	p, _, err := a.of(c)
	return p, err
}

// of is Of, with the process.
func (a *Peers) of(c net.Conn) (p principal.Principal, from lineage.Peer, err error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return p, from, fmt.Errorf("cannot tell who is calling: %T carries no peer credentials: %w", c, errdefs.ErrUnauthenticated)
	}
	cred, err := peercred.Of(u)
	if err != nil {
		return p, from, fmt.Errorf("cannot tell who is calling: %w: %w", err, errdefs.ErrUnauthenticated)
	}
	if err := a.outside(u, cred); err != nil {
		return p, from, err
	}
	return a.Judge(cred), lineage.Peer{PID: cred.PID, Since: lineage.Now()}, nil
}

// outside refuses a peer that is in a workspace, or may be.
func (a *Peers) outside(u *net.UnixConn, cred peercred.Cred) error {
	var err error
	switch {
	case a.owned && cred.UID == a.owner: // nobody else can be in one of this user's workspaces and be let in
		err = peercred.SameUserNamespace(u)
	case a.inside != nil && a.inside(cred.UID):
		err = fmt.Errorf("uid %d is that of a workspace, or of what serves one: %w", cred.UID, errdefs.ErrPermissionDenied)
	}
	if err != nil {
		return fmt.Errorf("cannot serve whoever may be in a workspace: %w; run carrel outside of it: %w", err, errdefs.ErrPermissionDenied)
	}
	return nil
}

type refusedKey struct{}

// Refused is why a peer may do nothing, whatever else it brings, or nil.
func Refused(ctx context.Context) error {
	err, _ := ctx.Value(refusedKey{}).(error)
	return err
}

// ConnContext is the hook of http.Server: it authenticates each connection once,
// when it is accepted. A peer that cannot be authenticated gets the zero
// Principal, which may do nothing.
func (a *Peers) ConnContext(ctx context.Context, c net.Conn) context.Context {
	p, from, err := a.of(c)
	if err != nil {
		p, ctx = principal.Principal{}, context.WithValue(ctx, refusedKey{}, err)
	}
	return withArrival(lineage.NewContext(NewContext(ctx, p), from), "unix "+p.String())
}

// NewContext returns ctx with p as the caller.
func NewContext(ctx context.Context, p principal.Principal) context.Context {
	return principal.NewContext(ctx, p)
}

// FromContext returns the caller, or the zero Principal if there is none.
func FromContext(ctx context.Context) principal.Principal { return principal.FromContext(ctx) }
