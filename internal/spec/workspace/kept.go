package workspace

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Workspace is everything known about a workspace: what people requested, which the daemon
// stores, and what exists and runs, which the broker's ledger has.
type Workspace struct {
	Kept
	Real
	// Silent is since when its executor has answered nothing; zero if it answers.
	Silent time.Time
	// Controls are set for one running workspace, and not in lists.
	Controls []Control
}

// Kept is what people requested of a workspace, and the phase of an operation on it.
type Kept struct {
	Name     id.Workspace
	Key      id.Key
	Owner    string
	Root     Root
	Boundary Boundary
	// Profile names the defaults that it was made with, "" for none.
	Profile string
	// Limits are the limits that were requested last.
	Limits Limits
	// Reach is what its commands may reach of the network.
	Reach Reach
	// Secrets are those of its owner's that it uses.
	Secrets Secrets
	// Models are those that it may use, with their budget.
	Models Models
	Phase  Phase
	// Purge says whether destroying, once begun, removes the home.
	Purge bool
	// Expires is when it will be destroyed; zero is never.
	Expires time.Time
	// Idle is how long it may be idle; 0 is the configured time, negative is for ever.
	Idle time.Duration
	// OneUse: whoever made it destroys it after one use. If not, it is destroyed with its home later.
	OneUse    bool
	CreatedAt time.Time
}

// Left is what is left of its life now: Forever without an end, and at least a second.
func (k Kept) Left(now time.Time) Life {
	l := Life{TTL: Forever, Idle: k.Idle}
	if !k.Expires.IsZero() {
		l.TTL = max(k.Expires.Sub(now), time.Second)
	}
	return l
}

// Spec is the boundary and the root of a new workspace. There is only one choice so far.
func Spec() Kept { return Kept{Root: RootSystem, Boundary: BoundaryNamespace} }

// New is the Kept of a new workspace.
func New(key id.Key, owner string, now time.Time) Kept {
	k := Spec()
	k.Key, k.Owner, k.Phase, k.CreatedAt = key, owner, Creating, now
	return k
}

// Phase is the phase of an operation on a workspace, which must survive a crash.
type Phase string

// The phases.
const (
	Creating Phase = "creating"
	// Restoring: it is being filled; a crash undoes it.
	Restoring Phase = "restoring"
	// Settled: no such operation runs. The broker says what exists and runs.
	Settled    Phase = "settled"
	Destroying Phase = "destroying"
	// Destroyed: its name is never used again.
	Destroyed Phase = "destroyed"
)

// Real is what exists and runs of a workspace, according to its runtime.
type Real struct {
	// State is its state; the zero value means that it does not exist.
	State State
	// InForce are the limits of the running workspace.
	InForce     Limits
	User        string
	IDs         IDs
	Home        string // on the host
	ExecutorPID int    // on the host; 0 unless it is live
	Retained    string // where the home was kept when it was destroyed
	Mounts      []Mount
	// Allow is what its commands may do that is closed otherwise.
	Allow []Opening
	// Egress: it was made, or started last, with a way out to the network, which Kept.Reach rules. One that is
	// live without it gets one when it starts next.
	Egress bool
	// Trust is Digest of the certificate that its programs trust beside the host's, since it was started last; "" for none.
	Trust string
}

// Digest tells what a workspace trusts from what another does; "" is nothing.
func Digest(trust string) string {
	if trust == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(trust))
	return hex.EncodeToString(sum[:])
}

// Live reports whether a workspace in that state has an executor.
func (s State) Live() bool { return s == StateRunning || s == StatePaused }

// States maps phases to the state that people see during them.
var states = map[Phase]State{
	Creating: StateCreating, Restoring: StateRestoring, Destroying: StateDestroying, Destroyed: StateDestroyed,
}

// Join returns a workspace as people see it: during an operation its state is that of the
// operation. A workspace that its runtime does not know is stopped, and cannot be started.
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
