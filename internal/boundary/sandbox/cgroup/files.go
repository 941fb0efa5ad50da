package cgroup

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Files are the descriptors of a workspace's groups that starting its executor takes.
type Files struct {
	// V1 names the v1 hierarchies in use, as they are mounted: "memory",
	// "cpu,cpuacct". V1Sup and V1Cmd are the `tasks` files of the groups in each, open
	// for writing: a thread that writes "0" there moves itself, without waiting for a
	// grace period of the kernel as moving a process from outside does.
	V1           []string
	V1Sup, V1Cmd []*os.File
	// Born is the v2 group to clone the executor into, Cmd that of its commands, as a
	// mount of its own from which ".." leads nowhere, where v2 is mounted.
	Born, Cmd *os.File
	// SupProcs is cgroup.procs of the v2 group that the executor moves to once its
	// cgroup namespace is made, or nil if it may stay where it starts, because nothing
	// is limited through v2.
	SupProcs *os.File
	// Give are the files that the executor gives to its own gid and makes writable for it, if an
	// ordinary user made the groups and the executor has another id.
	Give []*os.File
	// V2Controllers are those that limit through v2.
	V2Controllers []string
}

// Close closes all of them.
func (f *Files) Close() {
	for _, list := range [][]*os.File{f.V1Sup, f.V1Cmd, f.Give, {f.Born, f.Cmd, f.SupProcs}} {
		for _, x := range list {
			if x != nil {
				_ = x.Close()
			}
		}
	}
}

// maxGroups and maxDepth bound what the executor can make below its workspace's group.
const (
	maxGroups = 4096
	maxDepth  = 4
)

// Create makes the groups of a workspace, which must have none, and sets the limits
// that can be set already. owner is 16 hex digits, or "" for a workspace that shares Config.Each with no
// others. After an error it has removed what it made.
func (in *Instance) Create(name id.Workspace, owner string, executor uint32, l workspace.Limits) (*Files, error) {
	if !id.IsWorkspace(string(name)) || owner != "" && (len(owner) != 16 || strings.Trim(owner, "0123456789abcdef") != "") {
		return nil, fmt.Errorf("cannot make control groups for %q of %q: %w", name, owner, errdefs.ErrInvalidArgument)
	}
	f := &Files{}
	var made []*hierarchy
	for _, h := range in.all() {
		err := in.place(h, owner, string(name))
		if err == nil {
			made = append(made, h)
			err = h.create(string(name), executor, l, f)
		}
		if err == nil && h == in.v2 {
			err = in.throttle(name)
		}
		if err != nil {
			f.Close()
			for _, h := range made { // no process was ever in these
				_ = in.removeFrom(h, string(name))
			}
			return nil, fmt.Errorf("cannot make the control groups of %s in %s: %w", name, h.path, err)
		}
	}
	return f, nil
}

func (h *hierarchy) create(name string, executor uint32, l workspace.Limits, f *Files) error {
	own, err := h.open(name)
	if err != nil {
		return err
	}
	defer own.close()
	c, err := own.make(cmd)
	if err != nil {
		return err
	}
	defer c.close()
	if err := h.apply(own, "", l); err != nil {
		return err
	}
	if h.v1() {
		return h.createV1(own, c, executor, l, f)
	}
	return h.createV2(own, c, executor, f)
}

func (h *hierarchy) createV1(own, c dirFD, executor uint32, l workspace.Limits, f *Files) error {
	s, err := own.make(sup)
	if err != nil {
		return err
	}
	defer s.close()
	for _, g := range []struct {
		dir   dirFD
		group string
		to    *[]*os.File
	}{{s, sup, &f.V1Sup}, {c, cmd, &f.V1Cmd}} {
		if err := h.apply(g.dir, g.group, l); err != nil {
			return err
		}
		tasks, err := g.dir.openFile("tasks", unix.O_WRONLY)
		if err != nil {
			return err
		}
		*g.to = append(*g.to, tasks)
	}
	f.V1 = append(f.V1, h.name)
	// The executor may move its own threads between its two groups.
	return errors.Join(s.chown("tasks", executor), c.chown("tasks", executor))
}

// createV2 leaves the limits to EnableSubtree where v2 has the controllers.
func (h *hierarchy) createV2(own, c dirFD, executor uint32, f *Files) error {
	if err := own.write("cgroup.max.descendants", strconv.Itoa(maxGroups)); err != nil {
		return err
	}
	if err := own.write("cgroup.max.depth", strconv.Itoa(maxDepth)); err != nil {
		return err
	}
	// Delegation (admin-guide/cgroup-v2.rst): to move or clone from sup to cmd one must
	// be able to write cgroup.procs of both and of what is above both. The limits of
	// cmd still belong to root.
	var give []error
	switch {
	case !h.owned:
		give = []error{
			own.chown("cgroup.procs", executor),
			c.chown("", executor), c.chown("cgroup.procs", executor), c.chown("cgroup.subtree_control", executor),
		}
	case int(executor) != os.Geteuid():
		give = []error{f.lendable(own, c)}
	}
	if len(h.have) > 0 {
		s, err := own.make(sup)
		if err != nil {
			return err
		}
		defer s.close()
		if !h.owned {
			give = append(give, s.chown("cgroup.procs", executor))
		}
		if f.SupProcs, err = s.openFile("cgroup.procs", unix.O_WRONLY); err != nil {
			return err
		}
		for _, c := range h.have {
			f.V2Controllers = append(f.V2Controllers, string(c))
		}
	}
	if err := errors.Join(give...); err != nil {
		return err
	}
	born, err := openat(int(own), ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return err
	}
	f.Born = os.NewFile(uintptr(born), "v2 group")
	if f.Cmd, err = alone(c, h.owned); err != nil {
		return err
	}
	return nil
}

// alone opens a group as a mount of its own. That fails for a v2 hierarchy that is not mounted
// (openV2), and for an ordinary user; the descriptor is then the directory itself, from which ".."
// leads to groups that their owners and modes protect.
func alone(d dirFD, owned bool) (*os.File, error) {
	n, err := -1, error(unix.EINVAL)
	if !owned {
		n, err = unix.OpenTree(int(d), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	}
	if errors.Is(err, unix.EINVAL) {
		n, err = unix.Openat(int(d), ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: cmd, Err: err}
	}
	return os.NewFile(uintptr(n), "v2 cmd group"), nil
}
