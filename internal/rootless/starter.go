package rootless

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/boundary/runtime/namespace"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/linux/removal"
	"github.com/carrel-dev/carrel/internal/linux/sealed"
	"github.com/carrel-dev/carrel/internal/service/filerun"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// starter is the broker of one run: it starts the one executor of this process with the rights
// of its user, and ends it.
type starter struct {
	namespace.Broker // refuses what a run has no use for
	name             id.Workspace
	options          *Options
	state            *state
	launcher         Launcher
	way              *wayOut // nil: it reaches nothing
	authority        string  // what its command has to trust, in PEM

	mu       sync.Mutex
	sockets  Sockets
	executor *launch.Executor
	home     string
	report   workspace.Report
	// ended is called when the executor has ended.
	ended func()
	// lost is why the workspace was ended from here.
	lost string
}

var _ namespace.Broker = (*starter)(nil)

// noStay says why a run serves no other operation.
const noStay = "a workspace without root lives for one command; carrel up, as root, serves workspaces that stay"

// Create implements namespace.Broker.
func (s *starter) Create(ctx context.Context, p brokerapi.CreateParams, _ *os.File) (res brokerapi.StartResult, err error) {
	if err := s.start(ctx, p.Limits); err != nil {
		return res, errors.Join(err, s.end(true))
	}
	res.Report = s.report
	res.Workspace = brokerapi.Workspace{
		Name: s.name, State: workspace.StateRunning, User: string(s.name), IDs: s.launcher.Ranges.IDs(), Limits: p.Limits, Home: s.home,
		Executor: &brokerapi.Executor{PID: s.executor.PID},
	}
	return res, nil
}

// Stop implements namespace.Broker. It is asked for where an executor that was proved cannot be
// reached.
func (s *starter) Stop(context.Context, brokerapi.NameParams) (brokerapi.Workspace, error) {
	err := fmt.Errorf("cannot run the command: the executor ended as soon as it was started; try again: %w", errdefs.ErrUnavailable)
	return brokerapi.Workspace{}, errors.Join(err, s.end(true))
}

// Destroy implements namespace.Broker.
func (s *starter) Destroy(_ context.Context, p brokerapi.DestroyParams) (brokerapi.Workspace, error) {
	err := s.end(p.Purge)
	w := brokerapi.Workspace{Name: s.name, State: workspace.StateDestroyed}
	if !p.Purge {
		w.Retained = s.home
	}
	if s.lost != "" {
		err = errors.Join(err, fmt.Errorf("cannot go on: the workspace was ended, because what was protected in a mount was removed or "+
			"replaced on the host (%s); see what is there now: %w", s.lost, errdefs.ErrFailedPrecondition))
	}
	return w, err
}

func (s *starter) start(ctx context.Context, limits workspace.Limits) error {
	projects, err := s.state.openMounts(s.options.Mounts, s.name, true)
	if err != nil {
		return err
	}
	defer launch.CloseProjects(projects)
	c := launch.Config{
		Spec:     sandbox.Spec{Accept: s.options.Accept, Allow: s.options.Allow, Name: s.name, Limits: limits},
		Projects: projects, Log: os.Stderr,
	}
	if s.options.Keep {
		if c.Home, err = s.state.makeHome(s.name); err != nil {
			return err
		}
		defer c.Home.Close()
		s.home = c.Home.Name()
	}
	if s.way != nil {
		c.Ways, c.Spec.Net.Trust = s.way.start, s.authority
	}
	begun := s.state.clock(ctx)
	executor, err := s.launcher.Start(ctx, &c, &s.sockets)
	if err == nil {
		err = begun()
	}
	if err != nil {
		return err
	}
	crashpoint.Here("run.begin.launched")
	s.mu.Lock()
	s.executor, s.report = executor, executor.Report
	s.mu.Unlock()
	ended := make(chan struct{})
	s.ended = sync.OnceFunc(func() { close(ended) })
	return launch.Guard(sandbox.Rootless, executor.PID, ended, launch.Specs(projects), func(what string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.executor == executor {
			s.lost = what
			_ = unix.Kill(executor.PID, unix.SIGKILL) // not waited for yet
		}
	})
}

// placeFiles makes the files of secrets, before the command is there. It is single.Workspace.Prepare.
func (s *starter) placeFiles(ctx context.Context, rt runtime.Runtime, p permit.Permit) error {
	if s.way == nil {
		return nil
	}
	placer := filerun.Placer{Program: func() (*os.File, error) {
		f, err := os.Open(s.options.Archive)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return sealed.Copy(f, "carrel-archive") // nothing inside may run what is on this host beside its programs
	}}
	for _, u := range s.way.uses {
		if err := placer.Place(ctx, rt, p, u); err != nil {
			return fmt.Errorf("cannot keep the placeholder of %s in the home: %w", u.Name, err)
		}
	}
	return nil
}

// connect hands out a connection that the executor was started with.
func (s *starter) connect(_ context.Context, _ id.Workspace, role execapi.Role) (*net.UnixConn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sockets.Take(role)
}

// end ends the executor, and with it everything that runs in the workspace, and removes
// what was made for it.
func (s *starter) end(purge bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sockets.Close()
	if x := s.executor; x != nil {
		s.executor = nil
		_ = unix.Kill(x.PID, unix.SIGKILL) // our child, not waited for: the pid is still its own
		for {
			if _, err := unix.Wait4(x.PID, nil, 0, nil); !errors.Is(err, unix.EINTR) {
				break
			}
		}
		x.Pidfd.Close()
		if s.ended != nil {
			s.ended()
		}
	}
	s.way.close()
	s.way = nil
	crashpoint.Here("run.end.ended")
	err := s.launcher.Groups.End(s.name)
	if err == nil {
		err = errors.Join(s.state.takeGit(context.Background()), s.state.look(s.name), s.state.keepCopies(context.Background()))
	}
	crashpoint.Here("run.end.taken")
	err = errors.Join(err, s.launcher.Groups.Close(), s.state.unplace(s.name))
	crashpoint.Here("run.end.unplaced")
	if purge && s.home != "" {
		err = errors.Join(err, removal.Path(context.Background(), s.home))
	}
	return err
}

// HostLimits are what a workspace may use that asks for nothing: half of this host's memory for each
// process, and a quarter, tmpfs bytes, for its files on memory.
func HostLimits() (l workspace.Limits, tmpfs int64, err error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return workspace.Limits{}, 0, fmt.Errorf("cannot see how much memory there is: %w", err)
	}
	total := int64(info.Totalram) * int64(info.Unit)
	l = workspace.DefaultLimits
	l.MemoryBytes, l.Pids = max(total/2, workspace.MinMemoryBytes), maxPids
	return l, max(total/4, 16<<20), nil
}

// maxPids is more than a build of anything starts.
const maxPids = 4096
