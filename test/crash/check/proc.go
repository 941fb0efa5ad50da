package check

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
)

// process is what /proc tells of one.
type process struct {
	pid int
	// As /proc has them.
	state, parent, threads string
	ids                    []uint64 // uids, gids and groups
	maps                   []uint64 // ids of the host that its user namespace maps, but for whole ranges
}

func (p process) file(name string) string { return fmt.Sprintf("/proc/%d/%s", p.pid, name) }

// eachProcess calls f with every process; one that ends meanwhile is passed over.
func eachProcess(f func(process) error) error {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range all {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		p := process{pid: pid}
		status, err := os.ReadFile(p.file("status"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(status)) {
			w := strings.Fields(line)
			if len(w) > 1 {
				switch w[0] {
				case "State:":
					p.state = w[1]
				case "PPid:":
					p.parent = w[1]
				case "Threads:":
					p.threads = w[1]
				}
			}
			if len(w) < 2 || !slices.Contains([]string{"Uid:", "Gid:", "Groups:"}, w[0]) {
				continue
			}
			for _, n := range w[1:] {
				if id, err := strconv.ParseUint(n, 10, 32); err == nil {
					p.ids = append(p.ids, id)
				}
			}
		}
		for _, name := range []string{"uid_map", "gid_map"} {
			text, _ := os.ReadFile(p.file(name)) // it may have ended
			for line := range strings.Lines(string(text)) {
				var inside, outside, n uint64
				if _, err := fmt.Sscan(line, &inside, &outside, &n); err == nil && n < 1000 {
					for k := range n {
						p.maps = append(p.maps, outside+k)
					}
				}
			}
		}
		if p.state == "Z" && p.parent == "1" && p.threads == "1" {
			continue // it has ended, and init is to take note
		}
		if err := f(p); err != nil {
			return err
		}
	}
	return nil
}

// processes looks for processes and user namespaces with ids that no workspace has that
// runs.
func (v *view) processes(context.Context) error {
	executors, ways := map[string]bool{}, map[string]int{}
	err := eachProcess(func(p process) error {
		if name := v.egress(p); name != "" {
			if v.strange[name] { // another instance may have the same range
				return nil
			}
			if ways[name]++; ways[name] > 1 || !v.runs(name) || !v.ledger[name].Egress {
				v.found(Process, "pid %d is carrel-egress number %d of %s", p.pid, ways[name], name)
			}
			return nil
		}
		for _, id := range p.ids {
			if name := v.owner(id); v.mine(id) && !v.runs(name) {
				v.found(Process, "pid %d has id %d", p.pid, id)
			} else if name != "" {
				executors[name] = true
			}
		}
		for _, id := range p.maps {
			if v.mine(id) && !v.runs(v.owner(id)) {
				v.found(Namespace, "pid %d is in a user namespace that maps id %d", p.pid, id)
			}
		}
		return nil
	})
	for _, name := range v.want.Live {
		if v.runs(name) && !executors[name] {
			v.found(Lost, "%s is %s and has no process", name, v.ledger[name].State)
		}
	}
	return err
}

// egress returns the workspace whose carrel-egress a process says that it is, "" if it is none: that one has an id of the last quarter
// of the range, counted down from the last but one by workspaces, or the last id.
func (v *view) egress(p process) string {
	first, count := uint64(v.in.First), uint64(v.in.IDs)
	last := first + count - 1
	if len(p.ids) == 0 || p.ids[0] > last || p.ids[0] < last && p.ids[0] < first+count-count/4 ||
		slices.ContainsFunc(p.ids, func(id uint64) bool { return id != p.ids[0] }) {
		return ""
	}
	text, _ := os.ReadFile(p.file("cmdline")) // it may have ended
	program, name, _ := strings.Cut(strings.TrimSuffix(string(text), "\x00"), "\x00")
	if program != "carrel-egress" {
		return ""
	}
	if e, ok := v.ledger[name]; ok && p.ids[0] != last && p.ids[0] != last-1-(uint64(e.IDs.Executor)-first)/3 {
		return "" // it has another one's id
	}
	return name
}

// mounts looks for mounts below the instance's directories in every mount namespace, but
// those of workspaces that run.
func (v *view) mounts(context.Context) error {
	seen := map[string]bool{}
	return eachProcess(func(p process) error {
		ns, err := os.Readlink(p.file("ns/mnt"))
		if err != nil || seen[ns] {
			return nil
		}
		if slices.ContainsFunc(p.maps, func(id uint64) bool { return v.runs(v.owner(id)) }) {
			return nil
		}
		seen[ns] = true
		text, _ := os.ReadFile(p.file("mountinfo")) // it may have ended
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) < 5 {
				continue
			}
			for _, dir := range []string{v.in.Data, v.in.Runtime} {
				if strings.HasPrefix(f[4], dir+"/") || strings.Contains(f[3], dir+"/") {
					v.found(Mount, "%s at %s", f[3], f[4])
				}
			}
		}
		return nil
	})
}

// groups looks for control groups in every hierarchy.
func (v *view) groups(context.Context) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("cannot find the control groups: %w", err)
	}
	m := cgroup.ParseMounts(string(text))
	points := []string{}
	if m.V2 != "" {
		points = append(points, m.V2)
	}
	for _, h := range m.V1 {
		points = append(points, h.Point)
	}
	for _, point := range points {
		if v.in.Cgroup == "" {
			break
		}
		dir := filepath.Join(point, v.in.Cgroup)
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if v.want.Gone {
			v.found(Cgroup, "%s", dir)
		}
		all, err := names(dir)
		if err != nil {
			return err
		}
		for _, name := range all {
			if err := v.group(dir, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// group looks at a workspace's group, or at that of an owner, in which those of workspaces are.
func (v *view) group(dir, name string) error {
	path := filepath.Join(dir, name)
	if st, err := os.Stat(path); err != nil || !st.IsDir() || v.runs(name) {
		return nil //nolint:nilerr // it has just gone
	}
	if !strings.HasPrefix(name, "o-") {
		v.found(Cgroup, "%s", path)
		return nil
	}
	all, err := names(path)
	if err != nil {
		return err
	}
	held := 0
	for _, n := range all {
		if st, err := os.Stat(filepath.Join(path, n)); err == nil && st.IsDir() {
			held++
			if err := v.group(path, n); err != nil {
				return err
			}
		}
	}
	if held == 0 {
		v.found(Cgroup, "%s", path)
	}
	return nil
}
