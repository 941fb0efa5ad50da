// Package permit is the right to change one workspace. The gate issues one with each intent
// that it has recorded, and takes it back when the outcome is known; a runtime changes
// nothing without one. So nobody can forget to pass the gate: it does not compile.
//
// Only the gate may call Issue; a test over the whole module holds that.
package permit

import (
	"fmt"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Permit lets its holder change one workspace while one effect lasts. The zero Permit lets
// nobody change anything.
type Permit struct{ grant *grant }

type grant struct {
	name id.Workspace
	over atomic.Bool
}

// Issue returns a permit for the workspace with that name, and what ends it.
func Issue(name id.Workspace) (p Permit, end func()) {
	g := &grant{name: name}
	return Permit{g}, func() { g.over.Store(true) }
}

// Workspace returns the name of the workspace that may be changed.
//
// Errors: permission_denied for the zero Permit, for one without a workspace and for one
// whose effect has ended.
func (p Permit) Workspace() (id.Workspace, error) {
	switch {
	case p.grant == nil || p.grant.name == "":
		return "", fmt.Errorf("cannot change a workspace without a permit of the gate: %w", errdefs.ErrPermissionDenied)
	case p.grant.over.Load():
		return "", fmt.Errorf("cannot change workspace %s: the operation that the permit is for has ended: %w", p.grant.name,
			errdefs.ErrPermissionDenied)
	}
	return p.grant.name, nil
}
