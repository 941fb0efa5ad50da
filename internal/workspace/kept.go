package workspace

import (
	"time"

	"github.com/carrel-dev/carrel/internal/id"
)

// Workspace is all that is known of a workspace: what people said about it, which the daemon
// keeps, and what exists and runs, which the broker's ledger owns.
type Workspace struct {
	Kept
	Real
	// Controls are those of a running workspace that was asked for alone.
	Controls []Control
}

// Kept is what people said about a workspace, and how far an operation on it has come.
type Kept struct {
	Name     id.Workspace
	Key      id.Key
	Owner    string
	Root     Root
	Boundary Boundary
	// Profile names the defaults that it was made with, "" for none.
	Profile string
	// Limits are those that were asked for last.
	Limits Limits
	Phase  Phase
	// Purge says whether destroying, once begun, removes the home.
	Purge bool
	// Expires is when it is to be destroyed; zero is never.
	Expires time.Time
	// Idle is how long it may run with nothing in it; 0 is the configured time, negative is
	// without an end.
	Idle      time.Duration
	CreatedAt time.Time
}

// Spec is the boundary and the root of a new workspace: there is one choice so far.
func Spec() Kept { return Kept{Root: RootSystem, Boundary: BoundaryNamespace} }

// New is what is kept of a new workspace.
func New(key id.Key, owner string, now time.Time) Kept {
	k := Spec()
	k.Key, k.Owner, k.Phase, k.CreatedAt = key, owner, Creating, now
	return k
}

// Phase is how far an operation on a workspace has come that a crash must not lose.
type Phase string

// The phases.
const (
	Creating Phase = "creating"
	// Restoring: it is being filled; a crash undoes it.
	Restoring Phase = "restoring"
	// Settled: no such operation is under way. What exists and runs is the broker's to say.
	Settled    Phase = "settled"
	Destroying Phase = "destroying"
	// Destroyed: its name is never used again.
	Destroyed Phase = "destroyed"
)

// Real is what exists and runs of a workspace, as its runtime knows it.
type Real struct {
	// State is its state; the zero value is that of a workspace that does not exist.
	State State
	// InForce are the limits of what runs.
	InForce     Limits
	User        string
	IDs         IDs
	Home        string // on the host
	ExecutorPID int    // on the host; 0 unless it is live
	Retained    string // where the home was kept when it was destroyed
	Mounts      []Mount
	// Allow is what its commands may do beyond what others may.
	Allow []Opening
}

// Live reports whether a workspace in that state has an executor.
func (s State) Live() bool { return s == StateRunning || s == StatePaused }

// States maps the phases that hide what is real to the state that people see.
var states = map[Phase]State{
	Creating: StateCreating, Restoring: StateRestoring, Destroying: StateDestroying, Destroyed: StateDestroyed,
}

// Join returns a workspace as people see it: while an operation is under way its state is the
// operation's. One that its runtime does not know is stopped, and cannot be started.
func Join(k Kept, r Real) Workspace {
	if s, ok := states[k.Phase]; ok {
		r.State = s
	}
	if r.State == "" {
		r.State = StateStopped
	}
	if !r.State.Live() {
		r.ExecutorPID = 0
	}
	return Workspace{Kept: k, Real: r}
}
