package cgroup

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Config says which groups are ours.
type Config struct {
	// Name names the instance's group in every hierarchy: one path component of
	// letters, digits and hyphens. Required.
	Name string
	// Shared is what all workspaces may have together. Its memory is required.
	Shared
	// Each is what the workspaces of each owner may have together.
	Each Shared
	// Throughput of each workspace. Optional.
	Throughput Throughput
	// Mountinfo is the text of /proc/self/mountinfo. Optional: it is read if empty.
	Mountinfo string
}

// Instance is our group in each hierarchy. Its methods may be called from any
// goroutine; two about the same workspace must not run at once.
type Instance struct {
	name       string
	ceiling    Shared // of Config
	each       Shared // of each owner
	owning     sync.Mutex
	hurrying   sync.Mutex
	hurried    map[uint64]int // births under way in an owner's group, by its inode
	throughput throughput
	v1         []*hierarchy
	v2         *hierarchy
	missing    []Missing
	of         *owned // nil: root's
}

// hierarchy is one tree of groups in use.
type hierarchy struct {
	name string // as V1Mount.Name; "" for v2
	path string // of the instance's group, for messages
	have []Controller
	io   bool // v2 has IO, and hands it down
	// owned: it is delegated to an ordinary user, who makes the groups.
	owned bool
	dir   dirFD // the instance's group
	root  dirFD
}

func (h *hierarchy) v1() bool { return h.name != "" }
func (h *hierarchy) has(c Controller) bool {
	return slices.Contains(h.have, c) || c == IO && h.io && len(h.have) > 0
}

// ParseMemTotal reads MemTotal of /proc/meminfo, in bytes.
func ParseMemTotal(meminfo string) (int64, error) {
	for line := range strings.Lines(meminfo) {
		if v, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			if err == nil {
				return kib << 10, nil
			}
		}
	}
	return 0, fmt.Errorf("cannot find MemTotal in /proc/meminfo: %w", errdefs.ErrNotFound)
}

// pidsMax is the file of both versions.
const pidsMax = "pids.max"

func validName(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return s != "" && len(s) <= 64 && s[0] != '-'
}

// Open finds the hierarchies and makes the instance's group in each that is needed. A
// controller that the host does not offer is no error: Missing lists it.
func Open(cfg Config) (*Instance, error) {
	if !validName(cfg.Name) {
		return nil, fmt.Errorf("cannot use %q as the name of a control group: it must be 1 to 64 letters, digits and hyphens: %w",
			cfg.Name, errdefs.ErrInvalidArgument)
	}
	if cfg.MemoryBytes <= 0 {
		return nil, fmt.Errorf("cannot use %d as the memory ceiling of all workspaces: %w", cfg.MemoryBytes, errdefs.ErrInvalidArgument)
	}
	if cfg.Mountinfo == "" {
		b, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return nil, fmt.Errorf("cannot find the control groups: %w", err)
		}
		cfg.Mountinfo = string(b)
	}
	if cfg.Pids < 0 {
		return nil, fmt.Errorf("cannot use %d as the ceiling of processes of all workspaces: %w", cfg.Pids, errdefs.ErrInvalidArgument)
	}
	if cfg.Each.MemoryBytes < 0 || cfg.Each.Pids < 0 {
		return nil, fmt.Errorf("cannot use %+v as the ceiling of an owner's workspaces: %w", cfg.Each, errdefs.ErrInvalidArgument)
	}
	in := &Instance{name: cfg.Name, ceiling: cfg.Shared, each: cfg.Each, hurried: map[uint64]int{}}
	err := in.open(ParseMounts(cfg.Mountinfo))
	if err == nil {
		err = in.setThroughput(cfg.Throughput)
	}
	if err != nil {
		in.Close()
		return nil, err
	}
	return in, nil
}

func (in *Instance) open(m Mounts) error {
	root, err := openV2(m.V2)
	if err != nil {
		return err
	}
	in.v2 = &hierarchy{path: joinPath(m.V2, in.name), root: root, dir: -1}
	available, err := in.v2.root.read("cgroup.controllers")
	if err != nil {
		return fmt.Errorf("cannot read what cgroup v2 offers: %w", err)
	}
	enabled, err := in.v2.root.read("cgroup.subtree_control")
	if err != nil {
		return fmt.Errorf("cannot read what cgroup v2 hands down: %w", err)
	}
	in.v2.io = slices.Contains(strings.Fields(available), "io") && slices.Contains(strings.Fields(enabled), "io")
	byMount := map[int]*hierarchy{}
	places := locate(m, strings.Fields(available), strings.Fields(enabled))
	for _, c := range controllers {
		switch p := places[c]; {
		case p.missing != nil:
			in.missing = append(in.missing, *p.missing)
		case p.v1 == inV2:
			in.v2.have = append(in.v2.have, c)
		case byMount[p.v1] != nil:
			byMount[p.v1].have = append(byMount[p.v1].have, c)
		default:
			v := m.V1[p.v1]
			fd, err := openat(unix.AT_FDCWD, v.Point, openDir)
			if err != nil {
				return fmt.Errorf("cannot open the %s control groups: %w", v.Name, err)
			}
			h := &hierarchy{name: v.Name, path: joinPath(v.Point, in.name), have: []Controller{c}, root: dirFD(fd), dir: -1}
			byMount[p.v1] = h
			in.v1 = append(in.v1, h)
		}
	}
	for _, h := range in.all() {
		if err := h.prepare(in.name, in.ceiling, in.each); err != nil {
			return err
		}
		if err := in.vacate(h); err != nil {
			return fmt.Errorf("cannot remove what is left of owners in %s: %w", h.path, err)
		}
	}
	return in.calm()
}

func joinPath(point, name string) string {
	if point == "" {
		point = "cgroup2:" // detached: it has no path
	}
	return point + "/" + name
}

// all returns every hierarchy in use, v2 last.
func (in *Instance) all() []*hierarchy { return append(slices.Clone(in.v1), in.v2) }

// openV2 opens the v2 hierarchy. A host that mounts none still has one, and it can be opened
// without a mount that others would see.
func openV2(point string) (dirFD, error) {
	if point != "" {
		fd, err := openat(unix.AT_FDCWD, point, openDir)
		if err != nil {
			return -1, fmt.Errorf("cannot open cgroup v2: %w", err)
		}
		return dirFD(fd), nil
	}
	fail := func(step string, err error) (dirFD, error) {
		return -1, fmt.Errorf("cannot reach cgroup v2: %s: %w; mount it: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 "+
			"cgroup2 /sys/fs/cgroup/unified", step, err)
	}
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fail("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return fail("fsconfig", err)
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return fail("fsmount", err)
	}
	defer unix.Close(mnt)
	fd, err := openat(mnt, ".", openDir)
	if err != nil {
		return fail("open", err)
	}
	return dirFD(fd), nil
}

// prepare makes the instance's group and puts the ceilings on it.
func (h *hierarchy) prepare(name string, ceiling, each Shared) error {
	var err error
	if h.dir, err = h.root.make(name); err != nil {
		return fmt.Errorf("cannot make the control group %s: %w; the broker needs root and a writable cgroup file system", h.path, err)
	}
	if err = h.share(h.dir, ceiling); err != nil {
		return fmt.Errorf("cannot prepare the control group %s: %w", h.path, err)
	}
	owners, err := h.owners() // of an earlier broker, which may have had other settings
	for _, o := range owners {
		d, e := h.dir.open(o)
		if e == nil {
			e = h.share(d, each)
			d.close()
		}
		err = errors.Join(err, e)
	}
	if err != nil {
		return fmt.Errorf("cannot prepare the control groups of owners in %s: %w", h.path, err)
	}
	return nil
}

// handedDown are the controllers that groups below get, as cgroup.subtree_control takes
// them.
func (h *hierarchy) handedDown() []string {
	var all []string
	for _, c := range h.have {
		all = append(all, "+"+string(c))
	}
	if h.io && len(all) > 0 {
		all = append(all, "+io")
	}
	return all
}

// Missing lists the controllers that this host does not offer.
func (in *Instance) Missing() []Missing { return slices.Clone(in.missing) }

// Close closes the descriptors. The groups stay.
func (in *Instance) Close() {
	if in.v2 == nil {
		return
	}
	for _, h := range in.all() {
		if h.dir >= 0 {
			h.dir.close()
		}
		if h.root >= 0 {
			h.root.close()
		}
	}
	in.v1, in.v2 = nil, nil
}

// RemoveInstance removes the instance's groups, which must hold no workspace, and
// closes.
func (in *Instance) RemoveInstance() error {
	if in.of != nil {
		return in.removeOwned()
	}
	var errs []error
	for _, h := range in.all() {
		errs = append(errs, in.vacate(h))
		if err := unix.Unlinkat(int(h.root), in.name, unix.AT_REMOVEDIR); err != nil && !isNotExist(err) {
			errs = append(errs, fmt.Errorf("cannot remove the control group %s: %w", h.path, err))
		}
	}
	in.Close()
	return errors.Join(errs...)
}

// Names lists the workspaces that have a group in any hierarchy.
func (in *Instance) Names() ([]id.Workspace, error) {
	seen := map[id.Workspace]bool{}
	for _, h := range in.all() {
		names, err := h.dir.groups()
		if err != nil {
			return nil, fmt.Errorf("cannot list the control groups of %s: %w", h.path, err)
		}
		owners, err := h.owners()
		for _, o := range owners {
			d, e := h.dir.open(o)
			if e == nil {
				var more []string
				more, e = d.groups()
				names = append(names, more...)
				d.close()
			}
			if !isNotExist(e) {
				err = errors.Join(err, e)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list the control groups of owners in %s: %w", h.path, err)
		}
		for _, n := range names {
			if w, err := id.ParseWorkspace(n); err == nil {
				seen[w] = true
			}
		}
	}
	var all []id.Workspace
	for w := range seen {
		all = append(all, w)
	}
	slices.Sort(all)
	return all, nil
}
