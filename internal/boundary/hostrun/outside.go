package hostrun

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// namespaces are read from outside: one is held if it is not the caller's.
var namespaces = []struct{ file, control string }{
	{"user", "user-namespace"}, {"mnt", "mount-namespace"}, {"pid", "pid-namespace"}, {"ipc", "ipc-namespace"},
}

// outside looks at a supervisor through the host's /proc, which nothing inside can change.
func outside(pid int, sp *spec, r *row) []finding {
	proc := "/proc/" + strconv.Itoa(pid) + "/"
	var found []finding
	add := func(control string, ok bool, format string, a ...any) {
		found = append(found, finding{control, ok, "outside: " + fmt.Sprintf(format, a...)})
	}
	list := namespaces
	if r.alone {
		list = append(slices.Clone(list), struct{ file, control string }{"net", "network"})
	}
	for _, ns := range list {
		own, err1 := os.Readlink("/proc/self/ns/" + ns.file)
		theirs, err2 := os.Readlink(proc + "ns/" + ns.file)
		add(ns.control, err1 == nil && err2 == nil && own != theirs, "%s, the caller has %s", theirs, own)
	}
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		add("capabilities", false, "cannot read status: %v", err)
	}
	caps := "0000000000000000"
	if sp.Root {
		caps = fmt.Sprintf("%016x", 1<<keptBy)
	}
	for _, want := range []struct{ control, field, value string }{
		{"capabilities", "CapPrm", caps},
		{"capabilities", "CapEff", caps},
		{"capabilities", "CapBnd", caps},
		{"capabilities", "CapAmb", caps},
		{"no-new-privileges", "NoNewPrivs", "1"},
		{"seccomp", "Seccomp", "2"},
	} {
		got := field(string(status), want.field)
		add(want.control, got == want.value, "%s %s", want.field, got)
	}
	mounts, err := readMounts(proc + "mountinfo")
	if err != nil {
		add("files", false, "cannot read the mounts: %v", err)
		return found
	}
	ok, says := judgeMounts(mounts, sp, r)
	add("files", ok, "%s", says)
	return found
}

// field is a line of /proc/PID/status.
func field(status, name string) string {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// judgeMounts reports whether no mount may be written but those that are the command's own, and each name that is to
// be locked is a mount that may not.
func judgeMounts(mounts []mount, sp *spec, r *row) (ok bool, says string) {
	own := append(privateIn(r), "/dev/pts")
	for _, w := range sp.Writes {
		own = append(own, w.Dir)
	}
	var open []string
	locked := map[string]bool{}
	for _, m := range mounts {
		readOnly := slices.Contains(m.options, "ro")
		if !readOnly && !slices.Contains(own, m.point) {
			open = append(open, m.point)
		}
		if !slices.Contains(m.options, "nosuid") {
			open = append(open, m.point+" (with set-uid programs)")
		}
		locked[m.point] = readOnly
	}
	for _, w := range sp.Writes {
		for _, name := range w.Locked {
			if !locked[w.Dir+"/"+name] {
				open = append(open, w.Dir+"/"+name)
			}
		}
	}
	if len(mounts) == 0 || len(open) > 0 {
		return false, fmt.Sprintf("of %d mounts these may be written: %s", len(mounts), strings.Join(open, ", "))
	}
	return true, fmt.Sprintf("of %d mounts only %s may be written", len(mounts), strings.Join(own, ", "))
}
