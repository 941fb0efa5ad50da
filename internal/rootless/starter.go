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

	"github.com/carrel-dev/carrel/internal/brokerapi"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/rootless/subid"
	"github.com/carrel-dev/carrel/internal/runtime/namespace"
	"github.com/carrel-dev/carrel/internal/sandbox"
	"github.com/carrel-dev/carrel/internal/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// shell is the login shell of the workspace's passwd entry.
const shell = "/bin/bash"

// starter is the broker of one run: it starts the one executor of this process with the rights
// of its user, and ends it.
type starter struct {
	namespace.Unserved
	name    id.Workspace
	options *Options
	tmpfs   int64
	state   *state
	groups  Groups
	// ranges are nil where the executor shares the caller's id; noRange is why.
	ranges  *subid.Ranges
	noRange string

	mu       sync.Mutex
	wires    Wires
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
		Name: s.name, State: workspace.StateRunning, User: s.user(), IDs: s.ranges.IDs(), Limits: p.Limits, Home: s.home,
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

// user is the caller's name inside.
func (s *starter) user() string { return string(s.name) }

func (s *starter) start(ctx context.Context, limits workspace.Limits) error {
	far, err := s.wires.Make()
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range far {
			f.Close()
		}
	}()
	// From its file: what runs inside cannot open it (the executor is not dumpable), and a
	// sealed copy in memory would take a tenth of the start.
	binary, err := os.Open(s.options.Executor)
	if err != nil {
		return fmt.Errorf("cannot read the executor: %w", err)
	}
	defer binary.Close()
	projects, err := s.state.openMounts(s.options.Mounts, s.name)
	if err != nil {
		return err
	}
	defer launch.CloseProjects(projects)
	var home *os.File
	if s.options.Keep {
		if home, err = s.state.makeHome(s.name); err != nil {
			return err
		}
		defer home.Close()
		s.home = home.Name()
	}
	c := launch.Config{
		Binary: binary,
		Spec: sandbox.Spec{
			Mode: sandbox.Rootless, Accept: s.options.Accept, Allow: s.options.Allow,
			Name: s.name, User: s.user(), Shell: shell, Limits: limits, TmpfsBytes: s.tmpfs,
			Net: sandbox.Net{LowPorts: true},
		},
		Peers: far, Home: home, Projects: projects, Log: os.Stderr,
		Outside: func(int) []sandbox.Finding {
			if s.noRange == "" {
				return nil
			}
			return []sandbox.Finding{{Control: "ids", OK: true, Evidence: "no range of ids is used: " + s.noRange}}
		},
	}
	c.Map = s.ranges.Put(&c.Spec)
	files, err := s.groups.Lend(ctx, &c)
	if err != nil {
		return err
	}
	executor, err := launch.Start(ctx, c)
	files.Close()
	if err != nil {
		return fmt.Errorf("cannot start a workspace without root: %w%s", err, explain())
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

// connect hands out a connection that the executor was started with.
func (s *starter) connect(_ context.Context, _ id.Workspace, role execapi.Role) (*net.UnixConn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wires.Take(role)
}

// end ends the executor, and with it everything that runs in the workspace, and removes
// what was made for it.
func (s *starter) end(purge bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wires.Close()
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
	crashpoint.Here("run.end.ended")
	err := s.groups.End(s.name)
	err = errors.Join(err, s.groups.Close(), s.state.unplace(s.name))
	crashpoint.Here("run.end.unplaced")
	if purge && s.home != "" {
		err = errors.Join(err, os.RemoveAll(s.home))
	}
	return err
}

// hostLimits are what a workspace may use: half of this host's memory for each process,
// and a quarter for its files.
func hostLimits() (workspace.Limits, int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return workspace.Limits{}, 0, fmt.Errorf("cannot see how much memory there is: %w", err)
	}
	total := int64(info.Totalram) * int64(info.Unit)
	l := workspace.DefaultLimits
	l.MemoryBytes, l.Pids = max(total/2, workspace.MinMemoryBytes), maxPids
	return l, max(total/4, 16<<20), nil
}

// maxPids is more than a build of anything starts.
const maxPids = 4096
