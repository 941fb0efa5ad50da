// Package workspace defines workspaces: their specification, limits, states and controls, and
// the report that proves their isolation.
//
// It is pure: no files, network or clock. The broker makes these things real,
// the executor proves them, the daemon keeps and shows them.
package workspace

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
)

// Boundary is what isolates a workspace.
type Boundary string

// Root is the file system that a workspace sees.
type Root string

// The boundary and root that exist so far.
const (
	BoundaryNamespace Boundary = "namespace"
	RootSystem        Root     = "system"
)

// State is the state of a workspace.
type State string

// The states of a workspace. Creating and destroying are passed through and are
// seen only while an operation is under way or after a crash, before start-up
// has finished it.
const (
	StateCreating State = "creating"
	// StateRestoring: it is being filled; a crash undoes it.
	StateRestoring State = "restoring"
	StateStopped   State = "stopped"
	StateRunning   State = "running"
	// StatePaused: it runs, and its commands are frozen.
	StatePaused     State = "paused"
	StateDestroying State = "destroying"
	StateDestroyed  State = "destroyed"
)

// Limits bound what the commands of a workspace can use together. Zero in a
// request means the default; a Limits that is in force has no zero but SwapBytes and
// DiskBytes.
type Limits struct {
	// MemoryBytes is the ceiling on memory, page cache and tmpfs included.
	MemoryBytes int64 `json:"memory_bytes"`
	// SwapBytes is how much swap may be used beyond it.
	SwapBytes int64 `json:"swap_bytes"`
	// Pids is the most processes and threads alive at once.
	Pids int64 `json:"pids"`
	// CPUWeight is the share of processor time under contention, 1 to 10000, as
	// cpu.weight of cgroup v2.
	CPUWeight int64 `json:"cpu_weight"`
	// OpenFiles is RLIMIT_NOFILE of each process.
	OpenFiles int64 `json:"open_files"`
	// DiskBytes is the size of the file system that holds the home and the private
	// temporary directories; 0 is without a limit.
	DiskBytes int64 `json:"disk_bytes,omitempty"`
}

// DefaultLimits apply to a workspace that requests none.
var DefaultLimits = Limits{MemoryBytes: 1 << 30, SwapBytes: 0, Pids: 512, CPUWeight: 100, OpenFiles: 4096}

// Bounds of each limit. A value outside is refused by daemon and broker alike.
const (
	MinMemoryBytes, MaxMemoryBytes = 16 << 20, 1 << 44
	MinPids, MaxPids               = 8, 1 << 20
	MinCPUWeight, MaxCPUWeight     = 1, 10000
	MinOpenFiles, MaxOpenFiles     = 64, 1 << 20
	MaxSwapBytes                   = 1 << 44
	MinDiskBytes, MaxDiskBytes     = 16 << 20, 1 << 43
)

// OrDefault returns l with every zero replaced by the default.
func (l Limits) OrDefault() Limits { return l.Or(DefaultLimits) }

// Or returns l with every zero replaced by the value of d.
func (l Limits) Or(d Limits) Limits {
	return Limits{
		MemoryBytes: cmp.Or(l.MemoryBytes, d.MemoryBytes),
		SwapBytes:   cmp.Or(l.SwapBytes, d.SwapBytes),
		Pids:        cmp.Or(l.Pids, d.Pids),
		CPUWeight:   cmp.Or(l.CPUWeight, d.CPUWeight),
		OpenFiles:   cmp.Or(l.OpenFiles, d.OpenFiles),
		DiskBytes:   cmp.Or(l.DiskBytes, d.DiskBytes),
	}
}

// Validate reports the first limit that is out of bounds.
func (l Limits) Validate() error {
	for _, c := range []struct {
		name        string
		v, min, max int64
	}{
		{"memory_bytes", l.MemoryBytes, MinMemoryBytes, MaxMemoryBytes},
		{"swap_bytes", l.SwapBytes, 0, MaxSwapBytes},
		{"pids", l.Pids, MinPids, MaxPids},
		{"cpu_weight", l.CPUWeight, MinCPUWeight, MaxCPUWeight},
		{"open_files", l.OpenFiles, MinOpenFiles, MaxOpenFiles},
	} {
		if c.v < c.min || c.v > c.max {
			return fmt.Errorf("cannot use %d as limit %s: it must be between %d and %d: %w",
				c.v, c.name, c.min, c.max, errdefs.ErrInvalidArgument)
		}
	}
	if d := l.DiskBytes; d != 0 && (d < MinDiskBytes || d > MaxDiskBytes) {
		return fmt.Errorf("cannot use %d as limit disk_bytes: it must be between %d and %d, or 0 for none: %w",
			d, MinDiskBytes, int64(MaxDiskBytes), errdefs.ErrInvalidArgument)
	}
	return nil
}

// IDs are the three host ids of a workspace, used for user and group alike.
// They are consecutive: Executor, Work = Executor+1, Agent = Executor+2.
type IDs struct {
	Executor uint32 `json:"executor"`
	Work     uint32 `json:"work"`
	Agent    uint32 `json:"agent"`
}

// IDsFrom returns the ids that start at first.
func IDsFrom(first uint32) IDs { return IDs{first, first + 1, first + 2} }

// ControlState is what is known of one control.
type ControlState string

// Verified: tried, and it held. Applied: set up, but not tried. Unavailable:
// this host cannot. Off: not asked for. Failed: tried, and it did not hold.
const (
	Verified    ControlState = "verified"
	Applied     ControlState = "applied"
	Unavailable ControlState = "unavailable"
	Off         ControlState = "off"
	Failed      ControlState = "failed"
)

// Control is one isolation measure as it was requested and as it was found.
type Control struct {
	ID        string       `json:"id"`
	Requested bool         `json:"requested"`
	Required  bool         `json:"required"`
	State     ControlState `json:"state"`
	// Evidence names the layer that held and what was seen, errno included.
	Evidence string `json:"evidence"`
	// Remedy says what to do when the state is not Verified; else it is empty.
	Remedy string `json:"remedy"`
	// Opened is the opening that turned it off, if any.
	Opened Opening `json:"opened,omitempty"`
}

// Report is the result of the checks of a started workspace.
type Report struct {
	Boundary Boundary  `json:"boundary"`
	Root     Root      `json:"root"`
	Controls []Control `json:"controls"`
}

// Unmet returns the required controls that are not verified.
func (r Report) Unmet() []Control {
	var unmet []Control
	for _, c := range r.Controls {
		if c.Required && c.State != Verified {
			unmet = append(unmet, c)
		}
	}
	return unmet
}

// Err returns nil if every required control is verified, and else an error that
// names each one that is not, with its evidence and remedy. A report without
// controls proves nothing and is an error too.
func (r Report) Err() error {
	if len(r.Controls) == 0 {
		return fmt.Errorf("cannot prove the isolation: the report lists no controls: %w", errdefs.ErrFailedPrecondition)
	}
	unmet := r.Unmet()
	if len(unmet) == 0 {
		return nil
	}
	var each []string
	for _, c := range unmet {
		msg := fmt.Sprintf("%s is %s (%s)", c.ID, c.State, c.Evidence)
		if c.Remedy != "" {
			msg += ", remedy: " + c.Remedy
		}
		each = append(each, msg)
	}
	return fmt.Errorf("cannot hold the workspace: required control %s: %w", strings.Join(each, "; "), errdefs.ErrFailedPrecondition)
}
