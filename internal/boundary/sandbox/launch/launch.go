// Package launch is the broker's side of the start of an executor: it clones the executor into new
// namespaces, speaks with its first stage, looks at it from outside, and lets it continue
// only when every required control is verified.
//
// It must not compose paths or know the ledger: it is given open descriptors.
package launch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/oom"
	"github.com/carrel-dev/carrel/internal/linux/sealed"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Config is what a start needs. All files stay the caller's.
type Config struct {
	// Binary is the executor as Seal returned it. Required.
	Binary *os.File
	// Spec is what the first stage is told; FDs is filled in by Start.
	Spec sandbox.Spec
	// Owner is that of cgroup.Instance.Create.
	Owner string
	// Listener is the bound socket the executor will listen on. Required; rootless, Peers are the
	// far ends of connections instead.
	Listener *os.File
	Peers    []*os.File
	// Home, Tmp and VarTmp are directories. Required; rootless those that are nil are fresh
	// ones on memory.
	Home, Tmp, VarTmp *os.File
	// Detached: they are detached mounts already.
	Detached bool
	// Projects are directories of the host, opened with their user's rights.
	Projects []Project
	// V1Sup are the `tasks` files of the v1 groups the executor is born in, V1Cmd those
	// its commands are born in, in the order of Spec.Cgroup.V1.
	V1Sup, V1Cmd []*os.File
	// Born is the directory of the v2 group that the executor starts in, Cmd the one of its
	// commands. Required unless rootless.
	Born, Cmd *os.File
	// SupProcs is cgroup.procs of the v2 group the executor moves to, or nil if it stays.
	SupProcs *os.File
	// Give are files of those groups for an executor with ids of its own, without root.
	Give []*os.File
	// NoGroup says why there are no groups, without root.
	NoGroup string
	// Hurry has the scheduler prefer the groups until done is called, for the birth in them. The error of done is that
	// they stay preferred. Optional.
	Hurry func() (done func() error)
	// Moved is called when the executor has left Born; it puts the limits in force.
	// Required with SupProcs.
	Moved func() error
	// Outside adds findings about the executor's cgroups. Optional.
	Outside func(pid int) []sandbox.Finding
	// Map maps the ids of Spec, whose executor is apart from its commands without root, for
	// the process pid, which waits for that. nil: they share the caller's.
	Map func(ctx context.Context, pid int) error
	// Ways is called with the sockets of package netns, which it must close, while the first stage
	// continues. It must not return before they are served, because the self-check uses them. nil means
	// that the workspace has no egress.
	Ways func(ctx context.Context, sockets []*os.File) error
	// Log receives what the executor writes to stderr; nil discards it.
	Log *os.File
	// Timeout bounds the whole start; 0 means 20 s.
	Timeout time.Duration
}

// Executor is a started and proved executor.
type Executor struct {
	PID    int
	Pidfd  *os.File
	Report workspace.Report
}

const defaultTimeout = 20 * time.Second

// Seal copies the binary at path into a memfd that nobody can change any more, so that
// what runs inside cannot overwrite a file of the host and a host directory that
// others may not enter is no obstacle.
func Seal(path string) (*os.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the executor: %w", err)
	}
	defer src.Close()
	return sealed.Copy(src, "carrel-executor")
}

// control runs a call on f's descriptor without changing its mode.
func control(f *os.File, call func(fd uintptr) (int, error)) (n int, err error) {
	c, cerr := f.SyscallConn()
	if cerr != nil {
		return 0, cerr
	}
	if cerr := c.Control(func(fd uintptr) { n, err = call(fd) }); cerr != nil {
		return 0, cerr
	}
	return n, err
}

// number is f's descriptor; the caller keeps f alive.
func number(f *os.File) int {
	n, err := control(f, func(fd uintptr) (int, error) { return int(fd), nil })
	if err != nil {
		return -1
	}
	return n
}

// modes are how an executor is started, by mode: how what the spec names is laid out for it, and
// how it is cloned into its namespaces.
var modes = map[sandbox.Mode]struct {
	lay   func(*inheritance, *Config) error
	clone func(*Config, *inheritance) (pid, pidfd int, err error)
}{
	sandbox.Rootful:  {(*inheritance).layRootful, clone},
	sandbox.Rootless: {(*inheritance).layRootless, cloneRootless},
}

// Start starts an executor and returns when it is proved. On an error nothing that it
// started is left; cgroups, socket and directories are the caller's to clean.
func Start(ctx context.Context, c Config) (*Executor, error) {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	in := &inheritance{ways: -1}
	defer in.close()
	ways, err := in.openWays(&c)
	if err != nil {
		return nil, err
	}
	defer ways.close()
	ours, err := in.fill(&c)
	if err != nil {
		return nil, err
	}
	status := os.NewFile(uintptr(ours), "status")
	defer status.Close()
	pid, pidfd, err := modes[c.Spec.Mode].clone(&c, in)
	in.close() // the child has its own; a dead child must read as end of file
	crashpoint.Here("broker.start.cloned")
	if err != nil {
		return nil, err
	}
	var report workspace.Report
	if c.Spec.Mode == sandbox.Rootful {
		_ = oom.Set(pid, oom.Executor) // it is read below
	}
	if c.Map != nil {
		if err = c.Map(ctx, pid); err == nil {
			err = allow(status)
		}
	}
	if err == nil {
		report, err = ways.serve(ctx, c.Ways, func(ctx context.Context) (workspace.Report, error) { return converse(ctx, status, &c, pid) })
	}
	if err != nil {
		unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		reap(pid)
		unix.Close(pidfd)
		return nil, err
	}
	return &Executor{PID: pid, Pidfd: os.NewFile(uintptr(pidfd), "pidfd"), Report: report}, nil
}

// inheritance is the list of descriptors a child gets, by place.
type inheritance struct {
	files []uintptr
	owned []int
	null  *os.File
	// ways is the child's end of Spec.FDs.Ways until it has its place, or -1.
	ways int
}

func (in *inheritance) add(fd int) int {
	in.files = append(in.files, uintptr(fd))
	return len(in.files) - 1
}

func (in *inheritance) addOwned(fd int) int {
	in.owned = append(in.owned, fd)
	return in.add(fd)
}

func (in *inheritance) close() {
	for _, fd := range in.owned {
		unix.Close(fd)
	}
	in.owned = nil
	if in.ways >= 0 {
		unix.Close(in.ways)
		in.ways = -1
	}
	if in.null != nil {
		in.null.Close()
		in.null = nil
	}
}

// fill lays out stdio, the spec and what the spec names, and returns our end of the
// status socket.
func (in *inheritance) fill(c *Config) (status int, err error) {
	in.null, err = os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return -1, err
	}
	log := in.null
	if c.Log != nil {
		log = c.Log
	}
	in.add(number(in.null))
	in.add(number(in.null))
	in.add(number(log))
	spec, err := unix.MemfdCreate("carrel-spec", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("cannot hold the spec in memory: %w", err)
	}
	in.addOwned(spec) // sandbox.SpecFD

	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot make the status socket: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(pair[0])
		}
	}()
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return -1, err
	}
	fds := &c.Spec.FDs
	fds.Status = in.addOwned(pair[1])
	fds.Ways = -1
	if in.ways >= 0 {
		fds.Ways = in.addOwned(in.ways)
		in.ways = -1
	}
	way, ok := modes[c.Spec.Mode]
	if !ok {
		return -1, fmt.Errorf("cannot start a workspace in mode %q: %w", c.Spec.Mode, errdefs.ErrInvalidArgument)
	}
	if err := way.lay(in, c); err != nil {
		return -1, err
	}
	c.Spec.Version = sandbox.SpecVersion
	if err := c.Spec.Validate(); err != nil {
		return -1, err
	}
	b, err := json.Marshal(c.Spec)
	if err != nil {
		return -1, err
	}
	if _, err := unix.Write(spec, b); err != nil {
		return -1, fmt.Errorf("cannot write the spec: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(spec), unix.F_ADD_SEALS,
		unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE); err != nil {
		return -1, fmt.Errorf("cannot seal the spec: %w", err)
	}
	return pair[0], nil
}

// layRootful places what a broker prepared.
func (in *inheritance) layRootful(c *Config) error {
	fds := &c.Spec.FDs
	fds.Listener = in.add(number(c.Listener))
	for _, d := range []struct {
		dir *os.File
		at  *int
	}{{c.Home, &fds.Home}, {c.Tmp, &fds.Tmp}, {c.VarTmp, &fds.VarTmp}} {
		if c.Detached {
			*d.at = in.add(number(d.dir))
			continue
		}
		tree, err := detach(number(d.dir))
		if err != nil {
			return fmt.Errorf("cannot lend %s: %w", d.dir.Name(), err)
		}
		*d.at = in.addOwned(tree)
	}
	if err := in.lend(c); err != nil {
		return err
	}
	fds.V1Tasks = nil
	for _, f := range c.V1Cmd {
		fds.V1Tasks = append(fds.V1Tasks, in.add(number(f)))
	}
	fds.SupProcs = -1
	if c.SupProcs != nil {
		fds.SupProcs = in.add(number(c.SupProcs))
	}
	fds.Cmd = in.add(number(c.Cmd))
	return nil
}

// detach makes a private mount of a directory that set-uid files and devices do
// nothing in. The host side sets that, so nothing inside can take it back.
func detach(dir int) (int, error) {
	tree, err := unix.OpenTree(dir, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return -1, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		unix.Close(tree)
		return -1, err
	}
	return tree, nil
}

// executable makes binary the last of a child's descriptors, and returns its path there. By
// its own number here it could not be run: package syscall puts a child's descriptors in
// their places over whatever else is open.
func executable(binary *os.File, files []uintptr) (path string, all []uintptr) {
	all = append(slices.Clip(files), uintptr(number(binary)))
	return fmt.Sprintf("/proc/self/fd/%d", len(all)-1), all
}

// asked is what the workspace asks of the control table.
func (c *Config) asked() sandbox.Asked {
	return sandbox.Asked{
		Projects: len(c.Spec.Projects) > 0, Disk: c.Spec.Limits.DiskBytes > 0, Egress: c.Spec.Net.Egress, Allow: c.Spec.Allow,
		Grouped: c.Cmd != nil, NoGroup: c.NoGroup,
	}
}

// converse reads what the first stage reports and answers it.
func converse(ctx context.Context, status *os.File, c *Config, pid int) (workspace.Report, error) {
	if end, ok := ctx.Deadline(); ok {
		if err := status.SetDeadline(end); err != nil {
			return workspace.Report{}, err
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = status.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	in := bufio.NewReaderSize(io.LimitReader(status, 4*sandbox.MaxProgress), sandbox.MaxProgress)
	var (
		looking sync.WaitGroup
		seen    []sandbox.Finding // from outside, once looking is done
		looked  bool
	)
	defer looking.Wait() // pid is the caller's to reap
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return workspace.Report{}, fmt.Errorf("cannot start the executor: it ended or hung before it had reported: %w", err)
		}
		var p sandbox.Progress
		if err := json.Unmarshal(line, &p); err != nil {
			return workspace.Report{}, fmt.Errorf("cannot understand the executor: %w", err)
		}
		switch {
		case p.Error != "":
			return workspace.Report{}, fmt.Errorf("%s: %w", p.Error, errdefs.ErrFailedPrecondition)
		case p.Moved && c.Moved != nil:
			if err := c.Moved(); err != nil {
				return workspace.Report{}, err
			}
			if err := allow(status); err != nil {
				return workspace.Report{}, err
			}
		case p.Confined && !looked:
			looked = true
			looking.Go(func() {
				seen = append(Outside(pid, c.Spec), findHostSockets(c.Projects)...)
				if c.Outside != nil {
					seen = append(seen, c.Outside(pid)...)
				}
			})
		case len(p.Findings) > 0 && looked:
			looking.Wait()
			report := sandbox.Judge(c.Spec.Mode, c.asked(), c.Spec.Accept, append(p.Findings, seen...))
			if err := report.Err(); err != nil {
				return report, err
			}
			crashpoint.Here("broker.start.proved")
			return report, allow(status)
		default:
			return workspace.Report{}, fmt.Errorf("cannot understand the executor: it reported nothing: %w", errdefs.ErrFailedPrecondition)
		}
	}
}

func allow(status *os.File) error {
	if _, err := status.Write([]byte("{\"go\":true}\n")); err != nil {
		return fmt.Errorf("cannot answer the executor: %w", err)
	}
	return nil
}

func reap(pid int) {
	for {
		if _, err := unix.Wait4(pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
