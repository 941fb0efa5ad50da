package sandbox

import (
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// conditions are what the rows of the tables in this package depend on: steps, controls, openings
// and checks. A mode is tested nowhere else.
type conditions uint16

const (
	// rootful: a broker with root prepared mounts, id maps and the socket.
	rootful conditions = 1 << iota
	// rootless: an ordinary user gave directories and connections.
	rootless
	// oneID: executor and commands share the caller's id. apart: without root, they do not.
	oneID
	apart
	// grouped: control groups hold the limits.
	grouped
	// mounted: directories of the host are mounted. sized: disk space is limited.
	mounted
	sized
	// reaching: carrel-egress serves what its rules allow.
	reaching
	// These are opened to commands.
	userNS
	nestedMounts
	ioUring
)

// when is the condition of one row: all of with hold, and none of without.
type when struct{ with, without conditions }

// always is the condition of a row for every workspace.
var always when

func with(c conditions) when    { return when{with: c} }
func without(c conditions) when { return when{without: c} }

func (w when) holds(c conditions) bool { return c&w.with == w.with && c&w.without == 0 }

// modeDef is what differs from one mode to the other where no row of another table does.
type modeDef struct {
	// conditions hold for every workspace of the mode.
	conditions conditions
	// boundary and root are what a report says of the workspace.
	boundary workspace.Boundary
	root     workspace.Root
	// ids returns the ids of a workspace whose executor is not apart.
	ids func(first uint32) workspace.IDs
	// projectFlags are the options of every project mount. Without root the caller's id is the
	// commands', and there is nothing to map.
	projectFlags []string
	// tmpfsParts is into how many parts Spec.TmpfsBytes is divided for each tmpfs of the root.
	// Without root, home and temporary directories take of it too.
	tmpfsParts int64
}

// modes is the table of modes.
var modes = map[Mode]modeDef{
	Rootful: {
		rootful | grouped, workspace.BoundaryNamespace, workspace.RootSystem, workspace.IDsFrom,
		[]string{"nosuid", "nodev", "idmapped"},
		2,
	},
	Rootless: {rootless, workspace.BoundaryNamespace, workspace.RootSystem, sameIDs, []string{"nosuid", "nodev"}, 16},
}

func sameIDs(id uint32) workspace.IDs { return workspace.IDs{Executor: id, Work: id, Agent: id} }

// openingConditions are the conditions that openings bring about.
var openingConditions = map[workspace.Opening]conditions{
	workspace.UserNS: userNS, workspace.NestedMounts: nestedMounts, workspace.IOUring: ioUring,
}

func conditionsOf(allow []workspace.Opening) (c conditions) {
	for _, o := range allow {
		c |= openingConditions[o]
	}
	return c
}

// flag is c if it holds.
func flag(holds bool, c conditions) conditions {
	if holds {
		return c
	}
	return 0
}

// conditions are those that hold for the workspace of s.
func (s *Spec) conditions() conditions {
	return modes[s.Mode].conditions | conditionsOf(s.Allow) | flag(s.OneID(), oneID) | flag(s.IDScheme() == RangeIDs, apart) |
		flag(s.FDs.Cmd >= 0, grouped) | flag(len(s.Projects) > 0, mounted) | flag(s.Limits.DiskBytes > 0, sized) |
		flag(s.Net.Egress, reaching)
}

// conditions are those that a report is judged by.
func (a Asked) conditions(mode Mode) conditions {
	return modes[mode].conditions | conditionsOf(a.Allow) | flag(a.Grouped, grouped) | flag(a.Projects, mounted) | flag(a.Disk, sized) |
		flag(a.Egress, reaching)
}
