package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

var _ Effects = (*Host)(nil)

// Leftovers is part of Effects.
func (h *Host) Leftovers() ([]id.Workspace, error) {
	all, err := h.groups.Names()
	if err != nil {
		return nil, err
	}
	placed, err := h.allPlaced()
	if err != nil {
		return nil, err
	}
	for name := range placed {
		if name != "" {
			all = append(all, name)
		}
	}
	for _, in := range []struct {
		dir      *os.File
		suffixes []string
	}{{h.sockets, []string{".sock"}}, {h.reports, []string{unfinished, ""}}} {
		list, err := os.ReadDir(in.dir.Name())
		if err != nil {
			return nil, fmt.Errorf("cannot look for what was left in %s: %w", in.dir.Name(), err)
		}
		for _, f := range list {
			for _, suffix := range in.suffixes {
				if name, ok := strings.CutSuffix(f.Name(), suffix); ok && id.IsWorkspace(name) {
					all = append(all, id.Workspace(name))
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// fullPercent of the ceiling of all workspaces is where no more are started: beyond it
// the kernel would soon end processes of those that run.
const fullPercent = 95

// Start is part of Effects. What a failed start made is gone when it returns.
func (h *Host) Start(ctx context.Context, e Entry, trust string) (r Running, report workspace.Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	defer func() {
		if err != nil {
			clean, stop := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
			defer stop()
			err = alsoFailed(err, h.CleanUp(clean, e.Name))
		}
	}()
	if used, ceiling, owned := h.groups.Full(e.Owner); ceiling > 0 && used > ceiling/100*fullPercent {
		whose, setting := "all", "cgroup_memory_percent"
		if owned {
			whose, setting = "those of one owner", "cgroup_owner_percent"
		}
		return r, report, fmt.Errorf("cannot start %s: the workspaces that run hold %d MiB of the %d MiB that %s may have "+
			"together (%s in the broker's settings); stop one, or pause what grows: %w",
			e.Name, used>>20, ceiling>>20, whose, setting, errdefs.ErrResourceExhausted)
	}
	projects, err := h.openMounts(ctx, e)
	if err != nil {
		return r, report, fmt.Errorf("cannot start %s: %w", e.Name, err)
	}
	defer launch.CloseProjects(projects)
	c := launch.Config{
		Binary: h.binary, Projects: projects, Owner: e.Owner,
		Spec: sandbox.Spec{
			Mode: sandbox.Rootful, Name: e.Name, User: string(e.Name), IDs: e.IDs, Shell: h.settings.Shell, Limits: e.Limits, Allow: e.Allow,
			// Tmpfs is charged to the workspace as well; a quarter leaves it room to work.
			TmpfsBytes: max(e.Limits.MemoryBytes/4, 1<<20),
			// Its network is its own: any port may be bound there.
			Net: sandbox.Net{LowPorts: true, Trust: trust},
		},
	}
	if e.Egress {
		if err := h.egress.usable(); err != nil {
			return r, report, fmt.Errorf("cannot start %s with a way out: %w", e.Name, err)
		}
		c.Ways = h.ways(e)
	}
	groups, err := c.JoinGroups(ctx, h.groups)
	if err != nil {
		return r, report, err
	}
	defer groups.Close()
	crashpoint.Here("broker.start.groups-made")
	// After the groups: what was left in earlier ones has ended, and lets go of the image.
	dirs, err := h.lend(ctx, e, &c)
	defer closeFiles(dirs...)
	if err != nil {
		return r, report, err
	}
	if c.Listener, err = bindAt(h.sockets, socketName(e.Name), h.settings); err != nil {
		return r, report, err
	}
	defer c.Listener.Close()
	crashpoint.Here("broker.start.socket-bound")
	if c.Log, err = launch.LogOf(e.Name, h.log); err != nil {
		return r, report, err
	}
	defer c.Log.Close()
	started, err := h.launch(ctx, c)
	if err != nil {
		return r, report, fmt.Errorf("cannot start %s: %w", e.Name, err)
	}
	known := brokerapi.Executor{BootID: h.bootID, Socket: h.sockets.Name() + "/" + socketName(e.Name)}
	if r, err = Supervise(e.Name, started, known, sandbox.Rootful, projects, h.log); err == nil {
		err = h.keepReport(e.Name, started.Report)
	}
	return r, started.Report, err
}

// Freeze is part of Effects.
func (h *Host) Freeze(ctx context.Context, name id.Workspace, frozen bool) error {
	return h.groups.Freeze(ctx, name, frozen)
}

// Limit is part of Effects.
func (h *Host) Limit(e Entry, limits workspace.Limits) error {
	report, err := h.Report(e.Name)
	if err != nil {
		return err
	}
	if report, err = launch.ChangeLimits(h.groups, e.Name, e.Executor.PID, e.Limits, limits, report); err != nil {
		return err
	}
	crashpoint.Here("broker.update.applied")
	err = h.replaceReport(e.Name, report)
	if diskreserve.Full(err) && limits == e.Limits {
		return nil // they are in force, and what the report of before says of them holds
	}
	if err != nil {
		err = errors.Join(err, h.groups.Update(e.Name, limits, e.Limits))
	}
	return err
}

// Stats is part of Effects.
func (h *Host) Stats(e Entry) (workspace.Stats, error) {
	st, err := h.groups.Stats(e.Name)
	st.DiskBytes = diskUse(e)
	return st, err
}

// Reclaim is part of Effects.
func (h *Host) Reclaim(ctx context.Context, name id.Workspace) { h.groups.Reclaim(ctx, name) }

// CleanUp is part of Effects.
func (h *Host) CleanUp(ctx context.Context, name id.Workspace) error {
	h.egress.drop(name)
	return each(
		func() error {
			if err := h.groups.Remove(ctx, name); err != nil {
				return err // what runs still must not find a protected name free
			}
			crashpoint.Here("broker.clean.groups-removed")
			return h.unplace(ctx, name)
		},
		func() error { return removeAt(h.sockets, socketName(name)) },
		func() error { crashpoint.Here("broker.clean.socket-removed"); return nil },
		func() error { return h.dropReport(name) },
	)
}

// lend opens the directories of e for c, which has joined its groups. The files are the caller's to
// close.
func (h *Host) lend(ctx context.Context, e Entry, c *launch.Config) (files []*os.File, err error) {
	if e.Limits.DiskBytes > 0 {
		m, err := h.mountImage(ctx, e)
		if err != nil {
			return nil, err
		}
		c.Home, c.Tmp, c.VarTmp, c.Detached = m.Trees[0], m.Trees[1], m.Trees[2], true
		limits := c.Outside
		c.Outside = func(pid int) []sandbox.Finding { return append(limits(pid), h.diskFindings(e, pid, m.Device)...) }
		return m.Trees[:], nil
	}
	if c.Home, err = h.homeFor(e.Name, e.IDs); err == nil {
		c.Tmp, c.VarTmp, err = h.temporaryFor(e.Name)
	}
	return []*os.File{c.Home, c.Tmp, c.VarTmp}, err
}
