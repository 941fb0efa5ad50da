package principal

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Permission is a set of permissions.
type Permission uint32

// The permissions. All except Any, Audit, Policy and Host are about workspaces that the
// principal reaches, and its own tokens.
const (
	// Known: ask for the own principal, and for the version of the daemon.
	Known Permission = 1 << iota
	// Look: see workspaces, their commands and their output.
	Look
	// Run: run commands, attach to them and signal them. A stopped workspace is started.
	Run
	// Make: create workspaces.
	Make
	// Lifecycle: start, stop, pause, resume, change and destroy.
	Lifecycle
	// Keep: archive and restore workspaces, and use archives.
	Keep
	// Answer: see approvals and answer them. Package approval says which.
	Answer
	// Tokens: make tokens that give no more than the maker has, see and revoke them.
	Tokens
	// Secrets: keep secrets for the owner's workspaces, see which there are, change and remove them. Nobody reads their
	// values.
	Secrets
	// Audit: read the record of everybody's operations.
	Audit
	// Policy: reload the policy.
	Policy
	// Host: see what concerns the host and not a workspace.
	Host
	// Any: use the other permissions with everybody's workspaces, tokens and approvals.
	Any

	everything = Any<<1 - 1
)

var permissionNames = []string{
	"known", "look", "run", "make", "lifecycle", "archives", "answer", "tokens", "secrets", "audit", "policy", "host", "any",
}

// Names lists the permissions of a set.
func (p Permission) Names() []string {
	var names []string
	for i, name := range permissionNames {
		if p&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// Has reports whether all of need is in the set. It is false for an empty need, so that an
// operation without a stated permission is refused.
func (p Permission) Has(need Permission) bool { return need != 0 && p&need == need }

// Roles is a set of roles.
type Roles uint8

// The roles.
const (
	Admin Roles = 1 << iota
	Operator
	Approver
	Auditor
	Agent
)

// role is a row of the table of what each role may do.
type role struct {
	bit  Roles
	name string
	may  Permission
}

var roleTable = []role{
	{Admin, "admin", everything},
	{Operator, "operator", Known | Look | Run | Make | Lifecycle | Keep | Answer | Tokens | Secrets},
	{Approver, "approver", Known | Look | Answer},
	{Auditor, "auditor", Known | Audit},
	{Agent, "agent", Known | Look | Run},
}

// AllRoles is every role.
const AllRoles = Admin | Operator | Approver | Auditor | Agent

// ParseRoles reads the names of one or more roles.
func ParseRoles(names ...string) (Roles, error) {
	var r Roles
	known := strings.Join(AllRoles.Names(), ", ")
	for _, n := range names {
		i := slices.IndexFunc(roleTable, func(row role) bool { return row.name == n })
		if i < 0 {
			return 0, fmt.Errorf("cannot use %q as a role: there are %s: %w", n, known, errdefs.ErrInvalidArgument)
		}
		r |= roleTable[i].bit
	}
	if r == 0 {
		return 0, fmt.Errorf("cannot do without a role: give one or more of %s: %w", known, errdefs.ErrInvalidArgument)
	}
	return r, nil
}

// Names lists the roles of a set.
func (r Roles) Names() []string {
	var names []string
	for _, row := range roleTable {
		if r&row.bit != 0 {
			names = append(names, row.name)
		}
	}
	return names
}

// String joins the names.
func (r Roles) String() string { return strings.Join(r.Names(), ", ") }

// Permissions are the permissions of all roles in the set.
func (r Roles) Permissions() Permission {
	var p Permission
	for _, row := range roleTable {
		if r&row.bit != 0 {
			p |= row.may
		}
	}
	return p
}

// MaxScope is how many entries a scope may have.
const MaxScope = 64

// Scope names workspaces: each entry is a key, a derived name, or the beginning of a key
// followed by "*". (A key that ends in "*" cannot be named alone.)
type Scope []string

// ParseScope checks the entries. No entries give nil, which limits nothing. A lone "*" is
// refused, because it looks like a limit and is none.
func ParseScope(entries []string) (Scope, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	if len(entries) > MaxScope {
		return nil, fmt.Errorf("cannot limit to %d workspaces: at most %d entries are taken: %w",
			len(entries), MaxScope, errdefs.ErrInvalidArgument)
	}
	for _, e := range entries {
		// A beginning may end in a space, unlike a key.
		stem, prefix := strings.CutSuffix(e, "*")
		if prefix {
			stem += "x"
		}
		if _, err := id.ParseKey(stem); err != nil || e == "*" {
			return nil, fmt.Errorf("cannot limit to workspace %q: give a key, a name, or the beginning of a key and \"*\": %w",
				e, errdefs.ErrInvalidArgument)
		}
	}
	return slices.Clone(Scope(entries)), nil
}

// Names reports whether the scope names a workspace: names are its key and its derived name.
// Beginnings are compared with the key only, because all names begin alike.
func (s Scope) Names(names ...string) bool {
	for i, n := range names {
		for _, e := range s {
			stem, prefix := strings.CutSuffix(e, "*")
			if n != "" && (n == e || prefix && i == 0 && strings.HasPrefix(n, stem)) {
				return true
			}
		}
	}
	return false
}

// Within reports whether o names everything that s names. nil names everything.
func (s Scope) Within(o Scope) bool {
	if o == nil {
		return true
	}
	if s == nil {
		return false
	}
	for _, e := range s {
		stem, prefix := strings.CutSuffix(e, "*")
		covered := slices.ContainsFunc(o, func(by string) bool {
			bystem, byprefix := strings.CutSuffix(by, "*")
			// An entry in the form of a name may name a workspace with another key.
			return e == by || byprefix && strings.HasPrefix(stem, bystem) && (prefix || !id.IsWorkspace(e))
		})
		if !covered {
			return false
		}
	}
	return true
}
