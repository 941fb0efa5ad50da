package cgroup

import (
	"cmp"
	"strings"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// What tests from outside need to reach.

// InV2 is where Locate puts a controller that limits through v2.
const InV2 = inV2

// Shares and Holds are conversions of the table.
var (
	Shares = shares
	Holds  = holds
)

// Locate says where each controller is: an index into m.V1, InV2, or missing.
func Locate(m Mounts, available, enabled []string) (at map[Controller]int, missing map[Controller]Missing) {
	at, missing = map[Controller]int{}, map[Controller]Missing{}
	for c, p := range locate(m, available, enabled) {
		if p.missing != nil {
			missing[c] = *p.missing
		} else {
			at[c] = p.v1
		}
	}
	return at, missing
}

// Written is what the table writes for l, by version, group and file.
func Written(l workspace.Limits) map[string]int64 {
	all := map[string]int64{}
	for _, s := range settings {
		for label, v1 := range map[string]bool{"v1": true, "v2": false} {
			if f := s.file(v1); f != "" {
				all[label+" "+s.group+" "+f] = s.value(l, v1)
			}
		}
	}
	return all
}

// Candidate is a group that may be delegated.
type Candidate = candidate

// NewCandidate makes one.
func NewCandidate(path, kind string, mine bool, available, enabled []string, procs []int) Candidate {
	return candidate{path: path, kind: kind, mine: mine, available: available, enabled: enabled, procs: procs}
}

// Choose is the decision for the controllers that workspaces want.
func Choose(groups []Candidate, self int) (at int, park bool, why string) {
	return choose(groups, self, wanted)
}

// OwnedName and ParseOwned are the names of users' groups, StartOf what they tell of a process.
var (
	OwnedName  = ownedName
	ParseOwned = parseOwned
	StartOf    = startOf
)

// OpenAny is OpenDelegated without a look at who owns what, nor at controllers, from the
// group of a process that is in own of the hierarchy at point.
func OpenAny(point, own string) (*Instance, error) {
	return openDelegated(Mounts{V2: point}, "0::"+own+"\n", nil)
}

// OpenStepsAny is OpenSteps below the group of a process that is in own of the v2 hierarchy at point, whatever controllers it has.
func OpenStepsAny(point, own string) (*Steps, error) {
	return openSteps(Mounts{V2: point}, "0::"+own+"\n", nil)
}

// OwnersLeft lists the groups of owners in every hierarchy, and how many hierarchies there are.
func (in *Instance) OwnersLeft() (all []string, hierarchies int) {
	for _, h := range in.all() {
		owners, err := h.owners()
		if err != nil {
			all = append(all, err.Error())
		}
		all = append(all, owners...)
		hierarchies++
	}
	return all, hierarchies
}

// Weights reads the weight of a workspace's group and of its owner's: "usual", "most" or a number. ok is
// false where root does not divide the processors by groups here.
func (in *Instance) Weights(name id.Workspace) (own, owners string, ok bool) {
	h := in.weighing()
	if h == nil {
		return "", "", false
	}
	file, usual, most := h.weight()
	called := map[string]string{usual: "usual", most: "most"}
	read := func(d dirFD, err error) string {
		if err != nil {
			return err.Error()
		}
		defer d.close()
		text, err := d.read(file)
		if err != nil {
			return err.Error()
		}
		text = strings.TrimSpace(text)
		return cmp.Or(called[text], text)
	}
	return read(h.open(string(name))), read(h.parent(string(name))), true
}
