package cgroup

import "github.com/carrel-dev/carrel/internal/workspace"

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
