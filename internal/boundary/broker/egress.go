package broker

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/oom"
	"github.com/carrel-dev/carrel/internal/linux/pidfd"
	"github.com/carrel-dev/carrel/internal/linux/thread"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/egressapi/begin"
)

// Egress starts a carrel-egress for a workspace that was made with a way out, instead of the one there may be, and
// returns its control socket. The one that served the start is handed out first. It reaches nothing until its
// rules come, and ends with the socket.
func (l *Lifecycle) Egress(ctx context.Context, p brokerapi.NameParams) (control *os.File, err error) {
	err = l.alone(ctx, brokerapi.MethodEgress, p.Name, func(ctx context.Context) error {
		e, err := l.get(brokerapi.MethodEgress, p.Name)
		if err != nil {
			return err
		}
		if !e.Egress {
			return fmt.Errorf("cannot open a way out of %s: it was started without one: %w", p.Name, errdefs.ErrFailedPrecondition)
		}
		control, err = l.host.Egress(ctx, e)
		return err
	})
	return control, err
}

// egresses are what a Host knows of carrel-egress.
type egresses struct {
	binary *os.File // sealed; nil if there is none

	mu sync.Mutex
	// fresh are the control sockets of those that served a start and that nobody has asked for.
	fresh map[id.Workspace]*os.File
}

// keep holds a control socket until somebody asks for it.
func (g *egresses) keep(name id.Workspace, control *os.File) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if old := g.fresh[name]; old != nil {
		old.Close()
	}
	if g.fresh == nil {
		g.fresh = map[id.Workspace]*os.File{}
	}
	g.fresh[name] = control
}

// take returns what keep held, nil if there is none.
func (g *egresses) take(name id.Workspace) *os.File {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := g.fresh[name]
	delete(g.fresh, name)
	return f
}

// drop ends what keep held.
func (g *egresses) drop(name id.Workspace) {
	if f := g.take(name); f != nil {
		f.Close()
	}
}

func (g *egresses) close() {
	closeFiles(g.binary)
	for name := range g.fresh {
		g.drop(name)
	}
}

// usable is an error if there is no carrel-egress.
func (g *egresses) usable() error {
	if g.binary != nil {
		return nil
	}
	return fmt.Errorf("this host has no carrel-egress; set egress_path in the broker's settings to that of the program: %w",
		errdefs.ErrFailedPrecondition)
}

// ways serves the sockets of a start. It is launch.Config.Ways.
func (h *Host) ways(e Entry) func(context.Context, []*os.File) error {
	return func(ctx context.Context, sockets []*os.File) error {
		defer closeFiles(sockets...)
		control, err := h.startEgress(ctx, e, sockets)
		if err == nil {
			h.egress.keep(e.Name, control)
		}
		return err
	}
}

// Egress is part of Effects.
func (h *Host) Egress(ctx context.Context, e Entry) (*os.File, error) {
	if control := h.egress.take(e.Name); control != nil {
		if !hungUp(control) {
			return control, nil
		}
		control.Close()
	}
	// The one before may hang, and hold the sockets.
	if err := h.groups.EndNet(ctx, e.Name); err != nil {
		return nil, err
	}
	if e.Executor == nil || e.Executor.BootID != h.bootID {
		return nil, fmt.Errorf("cannot open the way out of %s: it has no executor: %w", e.Name, errdefs.ErrFailedPrecondition)
	}
	x, err := pidfd.Open(e.Executor.PID, e.Executor.StartTime)
	if err != nil {
		return nil, fmt.Errorf("cannot open the way out of %s: %w: %w", e.Name, err, errdefs.ErrFailedPrecondition)
	}
	defer x.Close()
	sockets, err := h.reopen(ctx, e.Name, x)
	if err != nil {
		return nil, fmt.Errorf("cannot open the way out of %s: %w", e.Name, err)
	}
	defer closeFiles(sockets...)
	return h.startEgress(ctx, e, sockets)
}

// hungUp reports whether the other end of a socket is closed.
func hungUp(f *os.File) (up bool) {
	err := withFD(f, func(fd int) error {
		p := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(p, 0)
		up = p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
		return err
	})
	return up || err != nil
}

// reopen opens the sockets of package netns in the network namespace of an executor, from a process in the group of
// its carrel-egress.
func (h *Host) reopen(ctx context.Context, name id.Workspace, executor *os.File) ([]*os.File, error) {
	groups, err := h.groups.OpenNet(name)
	if err != nil {
		return nil, err
	}
	defer groups.Close()
	log, err := launch.LogOf(name, h.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	return launch.Reopen(ctx, h.binary, executor, log, func(fork func(int) error) error {
		return joined(groups, func() error { return withFD(groups.V2, fork) })
	})
}

// joined calls start on a thread in the v1 groups, as the start of an executor does it.
func joined(groups *cgroup.NetFiles, start func() error) error {
	return thread.Throwaway(func() error {
		for _, tasks := range groups.V1 {
			if _, err := tasks.WriteString("0"); err != nil {
				return err
			}
		}
		return start()
	})
}

// startEgress starts carrel-egress on sockets, in the workspace's groups, with an id of its own, and returns its control
// socket once it serves without a rule.
func (h *Host) startEgress(ctx context.Context, e Entry, sockets []*os.File) (control *os.File, err error) {
	name := e.Name
	if err := h.egress.usable(); err != nil {
		return nil, err
	}
	groups, err := h.groups.OpenNet(name)
	if err != nil {
		return nil, err
	}
	defer groups.Close()
	log, err := launch.LogOf(name, h.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c := begin.Config{
		Program: h.egress.binary, Workspace: string(name), Sockets: sockets, Log: log,
		On: func(start func() error) error { return joined(groups, start) },
	}
	uid := h.settings.EgressUID(e.IDs)
	if free, err := h.users.IDsFree(workspace.IDs{Executor: uid, Work: uid, Agent: uid}); err != nil || !free {
		uid = h.settings.lastUID() // somebody of the host has that id
	}
	c.Attr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	var p *begin.Process
	err = withFD(groups.V2, func(fd int) error {
		c.Attr.UseCgroupFD, c.Attr.CgroupFD = true, fd
		p, err = begin.Start(ctx, c)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot start carrel-egress for %s: %w", name, err)
	}
	_ = oom.Set(p.PID, oom.Executor) // it is one of the workspace's where that cannot be set
	crashpoint.Here("broker.egress.started")
	return p.Control, nil
}
