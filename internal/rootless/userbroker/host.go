package userbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/linux/pidfd"
	"github.com/carrel-dev/carrel/internal/rootless"
	"github.com/carrel-dev/carrel/internal/rootless/subid"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// endTimeout bounds the wait for an executor of an earlier process to end.
const endTimeout = 5 * time.Second

// host is what an ordinary user can do to the host.
type host struct {
	cfg      Config
	bootID   string
	launcher rootless.Launcher

	mu   sync.Mutex
	open map[id.Workspace]*opened
}

var _ broker.Effects = (*host)(nil)

// opened is what a workspace that runs has in this process.
type opened struct {
	sockets rootless.Sockets
	way     way
	// protection is of its writable mounts; nil if it has none.
	protection *rootless.Protection
	report     workspace.Report
	// noGroup is why it has no control groups; "" if it has.
	noGroup string
}

func openHost(ctx context.Context, cfg Config) (*host, error) {
	h := &host{cfg: cfg, launcher: rootless.Launcher{Executor: cfg.Executor}, open: map[id.Workspace]*opened{}}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("cannot tell this boot from others: %w", err)
	}
	h.bootID = strings.TrimSpace(string(boot))
	if _, h.launcher.TmpfsBytes, err = rootless.HostLimits(); err != nil {
		return nil, err
	}
	ranges, why := subid.Find()
	if why == nil {
		why = ranges.Try(ctx)
	}
	if why == nil {
		h.launcher.Ranges = ranges
	} else {
		h.launcher.NoRange = why.Error()
		cfg.Log.Info("executors share their commands' id", "reason", why)
	}
	if err := h.launcher.Groups.Ready(); err != nil {
		cfg.Log.Info("control groups are not as they should be", "reason", err)
	}
	return h, h.makeState()
}

// InForce is part of broker.Effects: the numbers of the ledger are no ids.
func (h *host) InForce(workspace.IDs) workspace.IDs { return h.launcher.Ranges.IDs() }

// What follows is nothing's to do here: no user is made, and no number is the host's.

// IDsFree is part of broker.Effects.
func (h *host) IDsFree(workspace.IDs) (bool, error) { return true, nil }

// NameFree is part of broker.Effects. A home that a create which was undone had to leave
// keeps its name.
func (h *host) NameFree(name id.Workspace) error {
	if _, err := os.Lstat(h.Home(name)); err == nil {
		return fmt.Errorf("cannot create %s: its home %s is there already; move it away: %w", name, h.Home(name), errdefs.ErrAlreadyExists)
	}
	return nil
}

// AddUser is part of broker.Effects.
func (h *host) AddUser(context.Context, id.Workspace, workspace.IDs) error { return nil }

// RemoveUser is part of broker.Effects.
func (h *host) RemoveUser(context.Context, id.Workspace, workspace.IDs) error { return nil }

// EndProcesses is part of broker.Effects. Everything of a workspace is in the pid namespace
// of its executor, and ends with it.
func (h *host) EndProcesses(context.Context, workspace.IDs) error { return nil }

// HeldUp is part of broker.Effects.
func (h *host) HeldUp(workspace.IDs) string { return "" }

// Mended is part of broker.Effects.
func (h *host) Mended() []workspace.Mended { return nil }

// Close is part of broker.Effects. Executors end with this process: what one left that could
// not be ended in order is the next daemon's to remove.
func (h *host) Close() error { return h.launcher.Groups.Close() }

// HoldsDisk is part of broker.Effects.
func (h *host) HoldsDisk() error {
	return fmt.Errorf("the control disk is unavailable: a file system of a fixed size takes root to mount; leave --disk out, "+
		"or use a carrel that root brought up: %w", errdefs.ErrFailedPrecondition)
}

// GrowsDisk is part of broker.Effects.
func (h *host) GrowsDisk() error { return h.HoldsDisk() }

// MakeImage is part of broker.Effects.
func (h *host) MakeImage(context.Context, id.Workspace, workspace.IDs, int64) error {
	return h.HoldsDisk()
}

// grouped is what a workspace that runs has here, if it has control groups; else the error
// says what cannot be done without.
func (h *host) grouped(name id.Workspace, what, instead string) (*opened, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.open[name]
	if o == nil {
		return nil, fmt.Errorf("cannot %s %s: it does not run: %w", what, name, errdefs.ErrFailedPrecondition)
	}
	if o.noGroup != "" {
		return nil, fmt.Errorf("cannot %s %s: that takes a control group, and it runs without one (%s); %s: %w",
			what, name, o.noGroup, instead, errdefs.ErrFailedPrecondition)
	}
	return o, nil
}

// Freeze is part of broker.Effects.
func (h *host) Freeze(ctx context.Context, name id.Workspace, frozen bool) error {
	if _, err := h.grouped(name, "pause",
		"a stop signal to each process would not reach those that are being born; "+
			"stop the workspace, or use a carrel that root brought up"); err != nil {
		if !frozen {
			return nil // it never was
		}
		return err
	}
	return h.launcher.Groups.Freeze(ctx, name, frozen)
}

// Limit is part of broker.Effects.
func (h *host) Limit(e broker.Entry, limits workspace.Limits) error {
	o, err := h.grouped(e.Name, "change the limits of",
		"those of processes that run cannot be changed; stop it first: carrel stop "+string(e.Name))
	if err != nil {
		return err
	}
	report, err := h.launcher.Groups.Update(e.Name, e.Executor.PID, e.Limits, limits, o.report)
	h.mu.Lock()
	o.report = report
	h.mu.Unlock()
	return err
}

// Stats is part of broker.Effects. Without control groups nothing counts.
func (h *host) Stats(e broker.Entry) (workspace.Stats, error) {
	if _, err := h.grouped(e.Name, "measure", ""); err != nil {
		return workspace.UnknownStats, nil //nolint:nilerr // what it runs without is in its report
	}
	return h.launcher.Groups.Stats(e.Name)
}

// Report is part of broker.Effects.
func (h *host) Report(name id.Workspace) (workspace.Report, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.open[name]
	if o == nil {
		return workspace.Report{}, fmt.Errorf("cannot read the report of %s: it does not run: %w", name, errdefs.ErrFailedPrecondition)
	}
	return o.report, nil
}

// Whole is part of broker.Effects.
func (h *host) Whole(broker.Entry) bool { return false }

// Found is part of broker.Effects: no user shows a workspace, and no id is spent.
func (h *host) Found() ([]broker.Entry, uint32, error) { return nil, 0, nil }

// Leftovers is part of broker.Effects. What protected names of an earlier process is removed
// when the workspace is put right, which Adopt brings about.
func (h *host) Leftovers() ([]id.Workspace, error) { return nil, nil }

// Adopt is part of broker.Effects: an executor ends with the process that started it. One
// that has not come to its end yet is ended, so that nothing runs of what is then stopped.
func (h *host) Adopt(e broker.Entry) (broker.Running, error) {
	x := e.Executor
	if x != nil && x.PID > 1 && x.BootID == h.bootID {
		if err := endEarlier(x); err != nil {
			return broker.Running{}, fmt.Errorf("cannot end the executor of %s: %w", e.Name, err)
		}
	}
	return broker.Running{}, fmt.Errorf("the daemon that started it has ended, and its processes with it: %w", errdefs.ErrNotFound)
}

func endEarlier(x *brokerapi.Executor) error {
	f, err := pidfd.Open(x.PID, x.StartTime)
	if errors.Is(err, pidfd.ErrEnded) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := pidfd.Kill(f); err != nil {
		return err
	}
	if !pidfd.Ended(f, endTimeout) {
		return fmt.Errorf("process %d does not end: %w", x.PID, errdefs.ErrUnavailable)
	}
	return nil
}

// Start is part of broker.Effects. What a failed start made is gone when it returns.
func (h *host) Start(ctx context.Context, e broker.Entry, trust string) (r broker.Running, report workspace.Report, err error) {
	o := &opened{}
	defer func() {
		if err == nil {
			return
		}
		if r.Exited != nil {
			<-r.Exited // it has been killed
		}
		err = errors.Join(err, h.launcher.Groups.End(e.Name), o.close())
	}()
	projects, err := h.openMounts(e, o)
	if err != nil {
		return r, report, fmt.Errorf("cannot start %s: %w", e.Name, err)
	}
	defer launch.CloseProjects(projects)
	var dirs [3]*os.File
	for i, path := range []string{h.Home(e.Name), h.at("tmp", string(e.Name), temporary[0]), h.at("tmp", string(e.Name), temporary[1])} {
		if dirs[i], err = openDir(path); err != nil {
			return r, report, fmt.Errorf("cannot start %s: %w", e.Name, err)
		}
		defer dirs[i].Close()
	}
	stderr, err := launch.LogOf(e.Name, h.cfg.Log)
	if err != nil {
		return r, report, err
	}
	defer stderr.Close()
	crashpoint.Here("userbroker.start.prepared")
	c := launch.Config{
		Spec: sandbox.Spec{Allow: e.Allow, Name: e.Name, Limits: e.Limits},
		Home: dirs[0], Tmp: dirs[1], VarTmp: dirs[2], Projects: projects, Log: stderr,
	}
	if e.Egress {
		c.Ways, c.Spec.Net.Trust = o.way.serve(h.cfg.Egress, e.Name, stderr), trust
	}
	started, err := h.launcher.Start(ctx, &c, &o.sockets)
	if err != nil {
		return r, report, fmt.Errorf("cannot start %s: %w", e.Name, err)
	}
	o.noGroup = c.NoGroup
	crashpoint.Here("userbroker.start.launched")
	r, err = broker.Supervise(e.Name, started, brokerapi.Executor{BootID: h.bootID}, sandbox.Rootless, projects, h.cfg.Log)
	if err != nil {
		return r, report, err
	}
	o.report = started.Report
	h.mu.Lock()
	h.open[e.Name] = o
	h.mu.Unlock()
	return r, started.Report, nil
}

// Reclaim is part of broker.Effects. The groups of one user are few.
func (h *host) Reclaim(context.Context, id.Workspace) {}

// CleanUp is part of broker.Effects. The executor has ended.
func (h *host) CleanUp(_ context.Context, name id.Workspace) error {
	h.mu.Lock()
	o := h.open[name]
	delete(h.open, name)
	h.mu.Unlock()
	// First: what runs still must not find a protected name free.
	if err := h.launcher.Groups.End(name); err != nil {
		return err
	}
	if o == nil {
		return rootless.Abandoned(name)
	}
	return o.close()
}

// close removes what was made for an executor that has ended.
func (o *opened) close() error {
	o.sockets.Close()
	o.way.close()
	if o.protection == nil {
		return nil
	}
	return o.protection.Release()
}

// connect hands out a connection that the executor was started with, once.
func (h *host) connect(name id.Workspace, role execapi.Role) (*net.UnixConn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.open[name]
	if o == nil {
		return nil, runtime.ErrNotRunning
	}
	return o.sockets.Take(role)
}

// openDir opens a directory of the state, which must be the caller's own.
func openDir(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
