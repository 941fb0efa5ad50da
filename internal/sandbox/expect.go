package sandbox

import (
	"fmt"
	"slices"
	"strings"
)

// Mount is one line of a mount table, as /proc/PID/mountinfo gives it.
type Mount struct {
	// Point is where it is mounted, Root the directory of its file system shown there.
	Point, Root, Type string
	Options           []string
}

// expected says what may be mounted where. The longest matching prefix counts.
var expected = []struct {
	prefix string
	types  []string // nil: any of the host
	flags  []string
}{
	{"/", []string{"tmpfs"}, []string{"ro", "nosuid", "nodev"}},
	{"/dev", []string{"tmpfs", "devtmpfs", "devpts", "mqueue"}, []string{"nosuid", "noexec"}},
	{"/dev/shm", []string{"tmpfs"}, []string{"nosuid", "noexec"}},
	{"/proc", []string{"proc", "devtmpfs", "tmpfs"}, []string{"nosuid", "noexec"}},
	{"/run", []string{"tmpfs"}, []string{"nosuid", "nodev"}},
	{"/sys/fs/cgroup", []string{"cgroup", "cgroup2"}, []string{"ro", "nosuid", "nodev", "noexec"}},
	{"/tmp", nil, []string{"nosuid", "nodev"}},
	{"/var/tmp", nil, []string{"nosuid", "nodev"}},
}

// Unexpected says what is wrong with a mount seen inside the workspace of s, or "".
func Unexpected(m Mount, s *Spec) string {
	table := slices.Clone(expected)
	type row = struct {
		prefix string
		types  []string
		flags  []string
	}
	for _, p := range systemBinds {
		table = append(table, row{p, nil, []string{"ro", "nosuid", "nodev"}})
	}
	table = append(table, row{"/etc/", nil, []string{"ro", "nosuid", "nodev"}}, row{s.Home(), nil, []string{"nosuid", "nodev"}})
	best := -1
	for i, e := range table {
		dir := strings.TrimSuffix(e.prefix, "/")
		// Only /etc, /dev, /proc and the binds have mounts below them.
		if m.Point != e.prefix && (!strings.HasPrefix(m.Point, dir+"/") || e.prefix == "/") {
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
	return ""
}
