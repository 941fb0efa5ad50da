package workspace

import (
	"time"

	"github.com/carrel-dev/carrel/internal/id"
)

// View is a workspace as a surface shows it: what is stored of it together with
// what runs.
type View struct {
	Name     id.Workspace
	Key      id.Key
	Owner    string
	User     string
	IDs      IDs
	Home     string // on the host
	State    State
	Root     Root
	Boundary Boundary
	Limits   Limits
	// Mounts are the project mounts in force.
	Mounts []Mount
	// Allow is what its commands may do beyond what others may.
	Allow []Opening
	// Controls are those of a running workspace that was asked for alone.
	Controls  []Control
	CreatedAt time.Time
	Profile   string
	// Expires is when it is destroyed; zero is never.
	Expires time.Time
	// Idle is how long it may run with nothing in it; Forever is without an end.
	Idle        time.Duration
	ExecutorPID int // on the host; 0 unless running
}
