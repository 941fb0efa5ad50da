// Package principal says who asks. It holds the facts about a caller that
// decisions rest on, and the one rule on who may reach whose workspace.
//
// It is pure: it must not look up users, read sockets or know the clock.
// Package authn turns a connection into a Principal.
package principal

import "strconv"

// Kind tells people from the daemon's own actions.
type Kind string

// The kinds of principal there are so far. Tokens come with the gate's issue.
const (
	// User is a Unix user known by the peer credentials of its socket.
	User Kind = "user"
	// System is the daemon acting on its own: start-up recovery, time-outs.
	System Kind = "system"
)

// Principal is one authenticated caller. The zero value may do nothing.
type Principal struct {
	Kind Kind
	// UID and GID are the Unix ids of a User, as the kernel reported them when
	// the connection was made.
	UID, GID uint32
	// Admin is set for root and for members of the carrel group: they reach
	// every workspace.
	Admin bool
}

// Self is the daemon itself.
func Self() Principal { return Principal{Kind: System} }

// String is the form used in records and as the owner of a workspace:
// "uid:1000" or "system".
func (p Principal) String() string {
	switch p.Kind {
	case User:
		return OwnerOf(p.UID)
	case System:
		return "system"
	default:
		return "nobody"
	}
}

// OwnerOf is the owner string of the Unix user uid.
func OwnerOf(uid uint32) string { return "uid:" + strconv.FormatUint(uint64(uid), 10) }

// MayReach is the one rule on ownership: the daemon itself, root, members of
// the carrel group, and the owner reach a workspace; nobody else does.
func (p Principal) MayReach(owner string) bool {
	switch p.Kind {
	case System:
		return true
	case User:
		return p.UID == 0 || p.Admin || owner == p.String()
	default:
		return false
	}
}
