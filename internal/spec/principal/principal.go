// Package principal defines callers and what they may do: the facts about a caller that
// decisions use, the table of roles, and the rule on who may reach whose workspace.
//
// It is pure: it must not look up users, read sockets or know the clock.
// Package authn turns a connection into a Principal.
package principal

import (
	"slices"
	"strconv"
	"strings"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Kind distinguishes people, programs and the daemon itself.
type Kind string

// The kinds of principal.
const (
	// User is a Unix user known by the peer credentials of its socket.
	User Kind = "user"
	// Token is the holder of a token. It counts as a program: no person here typed what it asks
	// for.
	Token Kind = "token"
	// System is the daemon acting on its own: start-up recovery, time-outs.
	System Kind = "system"
	// Inside is what runs in a workspace. It sends no requests: the daemon asks for it, when it wants what a person has
	// to approve.
	Inside Kind = "inside"
)

// Principal is one authenticated caller. The zero value may do nothing.
type Principal struct {
	Kind Kind
	// UID and GID are the Unix ids of a User, as the kernel reported them when
	// the connection was made.
	UID, GID uint32
	// Admin is set for root and for members of the carrel group: they have the role
	// admin, and all other users operator.
	Admin bool
	// Grant is what a Token was made with, nil for the other kinds.
	Grant *Grant
	// Place is where an Inside is, nil for the other kinds.
	Place *Place
	// Bound, if not nil, narrows a User or a Token to what a program in one workspace may do there in their name.
	Bound *Bound
}

// Bound is the task in whose workspace a program acts for a principal. It reaches no other workspace, and has no
// permission beyond bounded.
type Bound struct {
	Workspace id.Workspace
	// Trace joins the records of all that is done with those of the task.
	Trace id.Trace
}

// bounded are the permissions that a principal with a Bound keeps, if it has them.
const bounded = Known | Look | Run

// Bind is p for a program in a workspace, with the trace of the task that runs it.
func (p Principal) Bind(name id.Workspace, trace id.Trace) Principal {
	p.Bound = &Bound{name, trace}
	return p
}

// Place is a workspace and the owner of it.
type Place struct {
	Workspace id.Workspace
	Owner     string
}

// Grant is what a token permits its holder.
type Grant struct {
	// ID names the token.
	ID string
	// Owner is the owner of the workspaces that it is for, as OwnerOf writes it.
	Owner string
	Roles Roles
	// Scope limits the workspaces; nil is all workspaces of the owner.
	Scope Scope
	// Makers are who made the token, who made its maker, and so on to a user, each as
	// Principal.String has it.
	Makers []string
}

// Self is the daemon itself.
func Self() Principal { return Principal{Kind: System} }

// InWorkspace is what runs in a workspace of an owner.
func InWorkspace(name id.Workspace, owner string) Principal {
	return Principal{Kind: Inside, Place: &Place{name, owner}}
}

// String is the form used in records and approvals: "uid:1000", "token:0123456789ab",
// "inside:ws-2a97516c" or "system".
func (p Principal) String() string {
	switch {
	case p.Kind == User:
		return OwnerOf(p.UID)
	case p.Kind == Token && p.Grant != nil:
		return tokenPrefix + p.Grant.ID
	case p.Kind == Inside && p.Place != nil:
		return insidePrefix + string(p.Place.Workspace)
	case p.Kind == System:
		return "system"
	default:
		return "nobody"
	}
}

const (
	tokenPrefix  = "token:"
	insidePrefix = "inside:"
)

// IsInside reports whether a principal that was written by String is what runs in a workspace.
func IsInside(s string) bool { return strings.HasPrefix(s, insidePrefix) }

// IsToken reports whether a principal that was written by String is a token.
func IsToken(s string) bool { return strings.HasPrefix(s, tokenPrefix) }

// Owner is the owner of what p makes: for a token, the owner of the token, and for what runs in a workspace, that of
// the workspace.
func (p Principal) Owner() string {
	switch {
	case p.Kind == Token && p.Grant != nil:
		return p.Grant.Owner
	case p.Kind == Inside && p.Place != nil:
		return p.Place.Owner
	}
	return p.String()
}

// Makers are who made the token of p, the last one first; nil if p is no token.
func (p Principal) Makers() []string {
	if p.Kind == Token && p.Grant != nil {
		return p.Grant.Makers
	}
	return nil
}

// OwnerOf is the owner string of the Unix user uid.
func OwnerOf(uid uint32) string { return "uid:" + strconv.FormatUint(uint64(uid), 10) }

// Can reports whether p has a permission. MayReach says with whose workspaces it may use it.
func (p Principal) Can(need Permission) bool {
	return p.Permissions().Has(need)
}

// Permissions are all permissions of p.
func (p Principal) Permissions() Permission {
	if p.Bound != nil {
		p.Bound = nil
		return p.Permissions() & bounded
	}
	switch {
	case p.Kind == System:
		return everything
	case p.Kind == User && (p.Admin || p.UID == 0):
		return Roles(Admin).Permissions()
	case p.Kind == User:
		return Roles(Operator).Permissions()
	case p.Kind == Token && p.Grant != nil:
		return p.Grant.Roles.Permissions()
	case p.Kind == Inside && p.Place != nil:
		return Run
	default:
		return 0
	}
}

// RolesOf are the roles of p. The system has none, and may do everything; who is bound has none.
func (p Principal) RolesOf() Roles {
	switch {
	case p.Bound != nil:
		return 0
	case p.Kind == User && (p.Admin || p.UID == 0):
		return Roles(Admin)
	case p.Kind == User:
		return Roles(Operator)
	case p.Kind == Token && p.Grant != nil:
		return p.Grant.Roles
	default:
		return 0
	}
}

// MayReach is the rule on ownership: a workspace is reached by its owner, by tokens of its
// owner, and by principals with the permission Any: the daemon itself, root, members of the
// carrel group, and tokens with the role admin. What runs in a workspace reaches that one.
//
// names are the key of the workspace and its derived name. A token with a scope reaches only
// what its scope names; without names, nothing. Who is bound reaches one workspace at most.
func (p Principal) MayReach(owner string, names ...string) bool {
	if p.Bound != nil {
		// The derived name stands last. A key can be any text, also the derived name of another workspace.
		own := len(names) > 0 && names[len(names)-1] == string(p.Bound.Workspace)
		p.Bound = nil
		return own && p.MayReach(owner, names...)
	}
	if p.Kind == Inside {
		return p.Place != nil && owner == p.Place.Owner && slices.Contains(names, string(p.Place.Workspace))
	}
	if p.Kind == Token && p.Grant != nil && p.Grant.Scope != nil && !p.Grant.Scope.Names(names...) {
		return false
	}
	return p.Can(Any) || p.Can(Known) && owner == p.Owner()
}
