// Package cgroup makes, fills, empties and removes the control groups of
// workspaces, on hosts with cgroup v1, v2 or both.
//
//	memory (v1) ─ <instance> ─ <name> ┬ sup   the executor alone, small limits
//	                                  └ cmd   its commands, the workspace's limits
//	pids, cpu   the same
//	v2          ─ <instance> ─ <name> ┬ sup   only where v2 has the controllers
//	                                  └ cmd ─ c0, c1 …  made by the executor
//
// v2 is used on every host: cgroup.kill, cgroup.events and clone into a group need no
// controller. The limits live where the controller is.
//
// The package touches only groups of its own instance. It must not change what any
// other group hands down, decide who may start what, or keep state: it reads the kernel's.
package cgroup

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Controller is a controller that limits a workspace.
type Controller string

// The controllers in use.
const (
	Memory Controller = "memory"
	Pids   Controller = "pids"
	CPU    Controller = "cpu"
)

var controllers = []Controller{Memory, Pids, CPU}

// subsystems are the names that may stand among the options of a v1 mount and are a
// controller (kernel/cgroup, include/linux/cgroup_subsys.h).
var subsystems = []string{
	"cpuset", "cpu", "cpuacct", "blkio", "memory", "devices", "freezer", "net_cls",
	"perf_event", "net_prio", "hugetlb", "pids", "rdma", "misc", "debug",
}

// Mounts says where cgroup file systems are mounted.
type Mounts struct {
	V1 []V1Mount
	// V2 is the mount point of the v2 hierarchy, or "" if there is none.
	V2 string
}

// V1Mount is one mounted v1 hierarchy.
type V1Mount struct {
	// Name is its controllers as the kernel lists them: "memory", "cpu,cpuacct".
	Name  string
	Point string
}

// Has reports whether the hierarchy has controller c.
func (m V1Mount) Has(c Controller) bool { return slices.Contains(m.subsystems(), string(c)) }

func (m V1Mount) subsystems() []string { return strings.Split(m.Name, ",") }

// ParseMounts reads the text of /proc/PID/mountinfo (proc_pid_mountinfo(5)). Of two
// mounts of one hierarchy it takes the one that shows more: writable before read-only,
// from its root before from a part.
func ParseMounts(mountinfo string) Mounts {
	var m Mounts
	rank := map[string]int{}
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if !ok || len(f) < 6 || len(g) < 3 || g[0] != "cgroup" && g[0] != "cgroup2" {
			continue
		}
		score := 1
		if slices.Contains(strings.Split(f[5], ","), "rw") {
			score += 2
		}
		if f[3] == "/" {
			score++
		}
		point := unescape(f[4])
		if g[0] == "cgroup2" {
			if score > rank[""] {
				rank[""], m.V2 = score, point
			}
			continue
		}
		var has []string
		for o := range strings.SplitSeq(g[2], ",") {
			if slices.Contains(subsystems, o) {
				has = append(has, o)
			}
		}
		name := strings.Join(has, ",")
		if name == "" || score <= rank[name] {
			continue // a named hierarchy without controllers limits nothing
		}
		rank[name] = score
		m.V1 = slices.DeleteFunc(m.V1, func(o V1Mount) bool { return o.Name == name })
		m.V1 = append(m.V1, V1Mount{Name: name, Point: point})
	}
	return m
}

// unescape undoes the octal escapes of mountinfo: space, tab, newline, backslash.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// Missing is a controller that this host does not offer, and what to do about it.
type Missing struct {
	Controller Controller
	Reason     string
	Remedy     string
}

// place is the decision on one controller: the v1 hierarchy (an index into Mounts.V1),
// v2 (-1), or missing.
type place struct {
	v1      int
	missing *Missing
}

const inV2 = -1

// locate finds each controller. available and enabled are cgroup.controllers and
// cgroup.subtree_control of the v2 group above the instance's; what that group does not
// hand down is never switched on from here, because it is not ours.
func locate(m Mounts, available, enabled []string) map[Controller]place {
	found := map[Controller]place{}
	for _, c := range controllers {
		i := slices.IndexFunc(m.V1, func(v V1Mount) bool { return v.Has(c) })
		var miss *Missing
		switch {
		case i >= 0 && m.V1[i].Has("cpuset"):
			miss = &Missing{
				Reason: fmt.Sprintf("it is mounted together with cpuset at %s, where a new group can hold no process", m.V1[i].Point),
				Remedy: fmt.Sprintf("mount it on its own: umount %s and mkdir -p /sys/fs/cgroup/%s && mount -t cgroup -o %s cgroup "+
					"/sys/fs/cgroup/%s", m.V1[i].Point, c, c, c),
			}
		case i >= 0:
		case slices.Contains(available, string(c)) && slices.Contains(enabled, string(c)):
			i = inV2
		case slices.Contains(available, string(c)):
			miss = &Missing{
				Reason: "cgroup v2 has it, and does not hand it down",
				Remedy: fmt.Sprintf("echo +%s > %s/cgroup.subtree_control", c, cmp.Or(m.V2, "/sys/fs/cgroup")),
			}
		default:
			miss = &Missing{
				Reason: "neither a mounted v1 hierarchy nor cgroup v2 has it",
				Remedy: fmt.Sprintf("boot without cgroup_disable=%s; if it is only not mounted: mkdir -p /sys/fs/cgroup/%s && mount "+
					"-t cgroup -o %s cgroup /sys/fs/cgroup/%s", c, c, c, c),
			}
		}
		if miss != nil {
			miss.Controller = c
		}
		found[c] = place{v1: i, missing: miss}
	}
	return found
}
