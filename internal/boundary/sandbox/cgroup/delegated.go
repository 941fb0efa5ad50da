package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// wanted are the controllers that a delegated group must have. cpu is used if available.
var wanted = []Controller{Memory, Pids}

// candidate is the group that this process is in, or one above it, as it was read.
type candidate struct {
	path string // from the mount of v2, "/" for the group that is mounted
	kind string // cgroup.type; "" in the root of the hierarchy
	// mine: the caller owns it and can make groups in it and move processes there.
	mine               bool
	available, enabled []string // cgroup.controllers, cgroup.subtree_control
	procs              []int    // of the process's own group
}

func (c *candidate) domain() bool { return c.kind == "domain" || c.kind == "" }

// root reports whether it is the host's root group, which alone has no type, and alone may hand down beside processes of its own
// (admin-guide/cgroup-v2.rst, No Internal Process Constraint).
func (c *candidate) root() bool { return c.path == "/" && c.kind == "" }

// lacks names the first of need that is not in have.
func lacks(have []string, need []Controller) Controller {
	for _, n := range need {
		if !slices.Contains(have, string(n)) {
			return n
		}
	}
	return ""
}

// unit reports whether systemd gave the group to a service or scope. systemd removes it when its
// last process has ended.
func (c *candidate) unit() bool {
	return strings.HasSuffix(c.path, ".service") || strings.HasSuffix(c.path, ".scope")
}

// choose says in which of groups, the process's own first and then those above it, an
// instance is made, and whether the process has to leave it for a group below: a group with
// processes cannot hand controllers down, and one that does can have none.
//
// A group that hands controllers down already is used as it is. Otherwise the group that holds only
// this process is made to hand them down. systemd expects that of what it delegated; elsewhere it is
// the last resort, because after a kill no process can be put into that group until this is undone.
func choose(groups []candidate, self int, need []Controller) (at int, park bool, why string) {
	own := &groups[0]
	if !own.domain() {
		return 0, false, fmt.Sprintf("the group of this process, %s, is of the type %s, and not a domain", own.path, own.kind)
	}
	alone := own.mine && lacks(own.available, need) == "" && len(own.procs) == 1 && own.procs[0] == self
	if alone && own.unit() {
		return 0, true, ""
	}
	for i := range groups {
		if c := &groups[i]; (i > 0 || c.root()) && c.mine && c.domain() && lacks(c.enabled, need) == "" {
			return i, false, ""
		}
	}
	if alone {
		return 0, true, ""
	}
	top := &groups[len(groups)-1]
	i := slices.IndexFunc(groups, func(c candidate) bool { return c.mine })
	switch {
	case lacks(top.available, need) != "":
		return 0, false, fmt.Sprintf("cgroup v2 has no %s controller here", lacks(top.available, need))
	case i < 0:
		return 0, false, fmt.Sprintf("neither %s, the group of this process, nor one above it is delegated to you", own.path)
	case !groups[i].domain():
		return 0, false, fmt.Sprintf("the group %s is delegated to you and is of the type %s, not a domain", groups[i].path, groups[i].kind)
	case lacks(groups[i].available, need) != "":
		return 0, false, fmt.Sprintf("the group %s is delegated to you without the %s controller",
			groups[i].path, lacks(groups[i].available, need))
	}
	return 0, false, fmt.Sprintf("the group %s is delegated to you, and holds other processes beside this one, "+
		"and none above it that is yours hands %s and %s down", groups[i].path, Memory, Pids)
}

// survey reads the groups that this process is in, from its own up to the one that is mounted.
func survey(point, cgroups string) ([]candidate, error) {
	own := ""
	for line := range strings.Lines(cgroups) {
		if p, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok { // cgroups(7)
			own = p
		}
	}
	if !strings.HasPrefix(own, "/") || path.Clean(own) != own || strings.HasPrefix(own, "/..") {
		return nil, fmt.Errorf("the group of this process, %q, is not in sight", own)
	}
	var all []candidate
	for p := own; ; p = path.Dir(p) {
		c, err := look(point, p, p == own)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
		if p == "/" {
			break
		}
	}
	// A mount can show another part of the tree than the one that paths start from.
	if all[0].domain() && !slices.Contains(all[0].procs, os.Getpid()) {
		return nil, fmt.Errorf("%s%s does not hold this process", point, own)
	}
	return all, nil
}

func look(point, p string, own bool) (c candidate, err error) {
	fd, err := openat(unix.AT_FDCWD, path.Join(point, p), openDir)
	if err != nil {
		return c, err
	}
	d := dirFD(fd)
	defer d.close()
	c.path = p
	kind, err := d.read("cgroup.type")
	if err != nil && !isNotExist(err) {
		return c, err
	}
	c.kind = strings.TrimSpace(kind)
	for _, f := range []struct {
		name string
		to   *[]string
	}{{"cgroup.controllers", &c.available}, {"cgroup.subtree_control", &c.enabled}} {
		text, err := d.read(f.name)
		if err != nil {
			return c, err
		}
		*f.to = strings.Fields(text)
	}
	c.mine = d.mine()
	if !own || !c.domain() { // a threaded group does not say
		return c, nil
	}
	c.procs, err = d.pids()
	return c, err
}

// mine reports whether the caller owns a group and may use it as delegation allows
// (admin-guide/cgroup-v2.rst, Delegation).
func (d dirFD) mine() bool {
	for _, name := range []string{".", "cgroup.procs", "cgroup.subtree_control"} {
		var st unix.Stat_t
		if unix.Fstatat(int(d), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || int(st.Uid) != os.Geteuid() ||
			unix.Faccessat(int(d), name, unix.W_OK, unix.AT_EACCESS) != nil {
			return false
		}
	}
	return true
}

// OpenDelegated makes an instance for the workspaces of an ordinary user, in the groups of
// cgroup v2 that were delegated to them. An error of kind not_found says why there are none.
//
// Its group is named after the process that made it, and is locked as long as that process runs. It
// removes what killed processes left, or Left says why not. Close leaves the group to the next
// process; RemoveInstance undoes everything.
func OpenDelegated() (*Instance, error) {
	m, cgroups, err := mounted()
	if err != nil {
		return nil, err
	}
	return openDelegated(m, cgroups, wanted)
}

// Delegated says in which group OpenDelegated would make an instance, or why it would make none. It
// makes nothing.
func Delegated() (group string, err error) {
	m, cgroups, err := mounted()
	if err != nil {
		return "", err
	}
	base, _, _, err := find(m, cgroups, wanted)
	return base.path, err
}

func mounted() (m Mounts, cgroups string, err error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return m, "", fmt.Errorf("cannot find the control groups: %w", err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return m, "", fmt.Errorf("cannot find the control groups: %w", err)
	}
	return ParseMounts(string(mountinfo)), string(own), nil
}

// find returns the group to use, whether to leave it, and the groups that are passed over.
func find(m Mounts, cgroups string, need []Controller) (base candidate, park bool, over []candidate, err error) {
	if m.V2 == "" {
		return base, false, nil, errdefs.ErrNotFound.WithMessage("cgroup v2 is not mounted")
	}
	groups, err := survey(m.V2, cgroups)
	if err != nil {
		return base, false, nil, fmt.Errorf("cannot look for delegated control groups: %w", err)
	}
	at, park, why := choose(groups, os.Getpid(), need)
	if why != "" {
		return base, false, nil, errdefs.ErrNotFound.WithMessage(why)
	}
	return groups[at], park, groups[:at], nil
}

func openDelegated(m Mounts, cgroups string, need []Controller) (*Instance, error) {
	base, park, over, err := find(m, cgroups, need)
	if err != nil {
		return nil, err
	}
	offered := base.enabled
	if park {
		offered = base.available
	}
	in := &Instance{of: &owned{parked: park}}
	root, err := openat(unix.AT_FDCWD, path.Join(m.V2, base.path), openDir)
	if err != nil {
		return nil, fmt.Errorf("cannot use the delegated control group %s: %w", base.path, err)
	}
	in.v2 = &hierarchy{root: dirFD(root), dir: -1, owned: true, io: slices.Contains(offered, "io")}
	for _, c := range controllers {
		if slices.Contains(offered, string(c)) {
			in.v2.have = append(in.v2.have, c)
		} else {
			in.missing = append(in.missing, Missing{Controller: c, Reason: "the delegated group " + base.path + " does not have it"})
		}
	}
	in.of.left = sweep(in.v2.root)
	err = in.settle(path.Join(m.V2, base.path))
	if err == nil {
		err = in.bound(m.V2, over)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot use the delegated control group %s: %w", base.path, err), in.RemoveInstance())
	}
	return in, nil
}
