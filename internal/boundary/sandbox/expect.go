package sandbox

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Mount is one line of a mount table, as /proc/PID/mountinfo gives it.
type Mount struct {
	// Point is where it is mounted, Root the directory of its file system shown there.
	Point, Root, Type string
	Options           []string
	// Super are the options of the file system itself, whoever mounted it.
	Super []string
}

// expectedMount says what may be mounted at prefix, or below it.
type expectedMount struct {
	prefix string
	types  []string // nil: any of the host
	flags  []string
	super  string // an option of the file system itself; "" for any
}

// expected is the table. The longest matching prefix counts.
var expected = []expectedMount{
	{"/", []string{"tmpfs"}, []string{"ro", "nosuid", "nodev"}, ""},
	{"/dev", []string{"tmpfs", "devtmpfs", "mqueue"}, []string{"nosuid", "noexec"}, ""},
	{"/dev/pts", []string{"devpts"}, []string{"nosuid", "noexec"}, "max=" + strconv.Itoa(Terminals)},
	{"/dev/shm", []string{"tmpfs"}, []string{"nosuid", "noexec"}, ""},
	{"/proc", []string{"proc", "devtmpfs", "tmpfs"}, []string{"nosuid", "noexec"}, ""},
	{"/run", []string{"tmpfs"}, []string{"nosuid", "nodev"}, ""},
	{"/sys/fs/cgroup", []string{"cgroup", "cgroup2"}, []string{"ro", "nosuid", "nodev", "noexec"}, ""},
	{"/tmp", nil, []string{"nosuid", "nodev"}, ""},
	{"/var/tmp", nil, []string{"nosuid", "nodev"}, ""},
}

// ProjectFindings looks for the project mounts among the mounts seen inside: each
// must be there as it was asked for, and in a writable one each protected name must be a
// read-only mount of its own.
func ProjectFindings(mode Mode, seen []Mount, projects []Project) []Finding {
	var found []Finding
	for _, p := range projects {
		want := map[string][]string{p.Destination: slices.Clone(modes[mode].projectFlags)}
		if p.Staged {
			want[p.Destination] = slices.Clone(stagedFlags)
		}
		if p.ReadOnly {
			want[p.Destination] = append(want[p.Destination], "ro")
		}
		for _, name := range slices.Concat(p.Pinned, p.Held) {
			want[p.Destination+"/"+name] = []string{"ro", "nosuid", "nodev"}
		}
		f := Finding{Control: "project-mounts", OK: true}
		for _, point := range slices.Sorted(maps.Keys(want)) {
			i := slices.IndexFunc(seen, func(m Mount) bool { return m.Point == point })
			if i < 0 {
				f.OK, f.Evidence = false, point+" is not mounted"
				break
			}
			if p.Staged && seen[i].Type != overlayType {
				f.OK, f.Evidence = false, point+" is no staged copy: it is mounted as "+seen[i].Type
				break
			}
			if missing := slices.IndexFunc(want[point], func(o string) bool { return !slices.Contains(seen[i].Options, o) }); missing >= 0 {
				f.OK, f.Evidence = false, fmt.Sprintf("%s is not mounted %s", point, want[point][missing])
				break
			}
		}
		if f.OK {
			f.Evidence = fmt.Sprintf("%s is %s, %d names in it read-only", p.Destination, strings.Join(want[p.Destination], ","),
				len(p.Pinned)+len(p.Held))
			if p.Staged {
				f.Evidence = fmt.Sprintf("%s is %s, a staged copy", p.Destination, strings.Join(stagedFlags, ","))
			}
		}
		found = append(found, f)
	}
	return found
}

// Expected is what may be mounted in one workspace.
type Expected []expectedMount

// Expect returns the table for the workspace of s.
func Expect(s *Spec) Expected {
	table := slices.Grow(slices.Clone(expected), len(systemBinds)+2+2*len(s.Projects))
	for _, p := range systemBinds {
		table = append(table, expectedMount{p, nil, []string{"ro", "nosuid", "nodev"}, ""})
	}
	for _, p := range s.Projects {
		flags := slices.Clone(modes[s.Mode].projectFlags)
		if p.ReadOnly {
			flags = append(flags, "ro")
		}
		if p.Staged {
			table = append(table, expectedMount{p.Destination, []string{overlayType}, stagedFlags, stagedSuper})
			continue
		}
		// What is mounted in it is what is protected.
		table = append(table, expectedMount{p.Destination, nil, flags, ""}, expectedMount{
			p.Destination + "/", nil, []string{"ro", "nosuid", "nodev"}, "",
		})
		for _, dir := range p.waysToHeld() {
			table = append(table, expectedMount{p.Destination + "/" + dir, nil, flags, ""})
		}
		for _, held := range p.Held {
			table = append(table, expectedMount{p.Destination + "/" + held, nil, []string{"ro", "nosuid", "nodev"}, ""})
		}
	}
	return append(table, expectedMount{"/etc/", nil, []string{"ro", "nosuid", "nodev"}, ""},
		expectedMount{workspace.Home, nil, []string{"nosuid", "nodev"}, ""})
}

// Unexpected says what is wrong with a mount seen inside, or "".
func (table Expected) Unexpected(m Mount) string {
	best := -1
	for i, e := range table {
		// Only /etc, /dev, /proc and the binds have mounts below them.
		if m.Point != e.prefix && (e.prefix == "/" || !below(m.Point, strings.TrimSuffix(e.prefix, "/"))) {
			continue
		}
		if best < 0 || len(e.prefix) > len(table[best].prefix) {
			best = i
		}
	}
	if best < 0 {
		return fmt.Sprintf("%s (%s) is mounted and not in the table", m.Point, m.Type)
	}
	e := table[best]
	if e.types != nil && !slices.Contains(e.types, m.Type) {
		return fmt.Sprintf("%s is a %s", m.Point, m.Type)
	}
	for _, f := range e.flags {
		if !slices.Contains(m.Options, f) {
			return fmt.Sprintf("%s is not mounted %s", m.Point, f)
		}
	}
	if e.super != "" && !slices.Contains(m.Super, e.super) {
		return fmt.Sprintf("%s is a %s without %s", m.Point, m.Type, e.super)
	}
	return ""
}

// below reports whether path lies beneath dir.
func below(path, dir string) bool {
	return len(path) > len(dir) && path[len(dir)] == '/' && strings.HasPrefix(path, dir)
}
