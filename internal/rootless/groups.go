package rootless

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Groups are the control groups of the workspaces that this process starts, if some are
// delegated to its user. The zero value has none yet. Its methods may be called from any
// goroutine; two about the same workspace must not run at once.
type Groups struct {
	mu sync.Mutex
	in *cgroup.Instance
}

// open finds the groups, or says why there are none. It looks again each time, because the
// obstacle, such as another process in the group, may be gone.
func (g *Groups) open() (*cgroup.Instance, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.in != nil {
		return g.in, nil
	}
	in, err := cgroup.OpenDelegated()
	if err != nil {
		return nil, err
	}
	g.in = in
	return in, nil
}

// Ready finds the groups now. The error says why there are none, or what a killed process
// left there.
func (g *Groups) Ready() error {
	in, err := g.open()
	if err != nil {
		return err
	}
	return in.Left()
}

// Lend makes the groups of the workspace that c starts, and has c use them; close files when
// it is started. Where there are none, c says why, and files are empty.
func (g *Groups) Lend(ctx context.Context, c *launch.Config) (files *cgroup.Files, err error) {
	files = &cgroup.Files{}
	in, err := g.open()
	if err != nil {
		c.NoGroup = err.Error()
		return files, nil //nolint:nilerr // the report says it
	}
	for _, p := range c.Projects {
		if !p.ReadOnly && onCgroups(p) {
			return files, fmt.Errorf("cannot mount %s writable: control groups are there, and a command could raise its own limits; "+
				"mount it read-only (:ro): %w", p.Dir.Name(), errdefs.ErrInvalidArgument)
		}
	}
	// What is on memory counts, and is to leave room to work.
	c.Spec.TmpfsBytes = min(c.Spec.TmpfsBytes, max(c.Spec.Limits.MemoryBytes/2, 1<<20))
	return c.JoinGroups(ctx, in)
}

func onCgroups(p launch.Project) bool {
	var fs unix.Statfs_t
	err := withFD(p.Dir, func(fd int) error { return unix.Fstatfs(fd, &fs) })
	return err != nil || fs.Type == unix.CGROUP2_SUPER_MAGIC
}

// Update puts other limits in force for a workspace whose executor is pid, and into its
// proof. If that fails the old ones hold.
func (g *Groups) Update(name id.Workspace, pid int, old, limits workspace.Limits, report workspace.Report) (workspace.Report, error) {
	in, err := g.open()
	if err != nil {
		return report, err
	}
	return launch.ChangeLimits(in, name, pid, old, limits, report)
}

// Freeze freezes the commands of a workspace, or thaws them.
func (g *Groups) Freeze(ctx context.Context, name id.Workspace, frozen bool) error {
	in, err := g.open()
	if err != nil {
		return err
	}
	return in.Freeze(ctx, name, frozen)
}

// Stats is what the commands of a workspace use.
func (g *Groups) Stats(name id.Workspace) (workspace.Stats, error) {
	in, err := g.open()
	if err != nil {
		return workspace.UnknownStats, err
	}
	return in.Stats(name)
}

// endTimeout bounds the wait for the last process of a workspace to be gone.
const endTimeout = 5 * time.Second

// End removes the groups of a workspace whose executor has ended, if it had any.
func (g *Groups) End(name id.Workspace) error {
	g.mu.Lock()
	in := g.in
	g.mu.Unlock()
	if in == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	return in.Remove(ctx, name)
}

// Close removes what was made for this process, where no workspace runs any more.
func (g *Groups) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	in := g.in
	g.in = nil
	if in == nil {
		return nil
	}
	return in.RemoveInstance()
}
