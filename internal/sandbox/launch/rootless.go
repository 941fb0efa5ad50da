package launch

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/sandbox"
)

// rootless reports whether it is started by an ordinary user: without a broker, a group
// of its own and a socket, from directories that the first stage makes mounts of.
func (c *Config) rootless() bool { return c.Spec.Mode == sandbox.Rootless }

func (c *Config) mode() sandbox.Mode {
	if c.rootless() {
		return sandbox.Rootless
	}
	return sandbox.Rootful
}

// layRootless places what an ordinary user can give.
func (in *inheritance) layRootless(c *Config) {
	fds := &c.Spec.FDs
	c.Spec.CallerGID = uint32(os.Getegid())
	fds.Listener, fds.SupProcs, fds.Cmd = -1, -1, -1
	fds.Peers, fds.Projects, fds.V1Tasks, fds.Give, c.Spec.Projects = nil, nil, nil, nil, nil
	if c.Cmd != nil {
		fds.Cmd, fds.SupProcs = in.add(number(c.Cmd)), in.add(number(c.SupProcs))
		for _, f := range c.Give {
			fds.Give = append(fds.Give, in.add(number(f)))
		}
	}
	for _, p := range c.Peers {
		fds.Peers = append(fds.Peers, in.add(number(p)))
	}
	for _, d := range []struct {
		dir *os.File
		at  *int
	}{{c.Home, &fds.Home}, {c.Tmp, &fds.Tmp}, {c.VarTmp, &fds.VarTmp}} {
		*d.at = -1
		if d.dir != nil {
			*d.at = in.add(number(d.dir))
		}
	}
	for _, p := range c.Projects {
		fds.Projects = append(fds.Projects, in.add(number(p.Dir)))
		c.Spec.Projects = append(c.Spec.Projects, p.Project)
		c.Spec.Seccomp.NoSetID = c.Spec.Seccomp.NoSetID || !p.ReadOnly
	}
}

// parent is the thread that rootless executors are children of. It lives as long as this
// process: the kernel takes its end for that of the parent (PR_SET_PDEATHSIG in prctl(2)).
var parent = sync.OnceValue(sandbox.NewThread)

// namespaceCaps are every capability, in the new user namespace alone: an id that is not
// 0 there would lose them by running the executor. The first stage gives them up.
func namespaceCaps() []uintptr {
	var all []uintptr
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		// Those that this kernel knows.
		if _, _, e := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, c, 0); e == 0 {
			all = append(all, c)
		}
	}
	return all
}

// cloneRootless starts the executor, whose ids are mapped when it runs. It ends with this
// process.
func cloneRootless(c *Config, in *inheritance) (pid, pidfd int, err error) {
	parent().Do(func() { pid, pidfd, err = forkRootless(c, in) })
	return pid, pidfd, err
}

func forkRootless(c *Config, in *inheritance) (pid, pidfd int, err error) {
	born := -1
	if c.Born != nil {
		born = number(c.Born)
	}
	pidfd = -1
	path, files := executable(c.Binary, in.files)
	pid, err = syscall.ForkExec(path, []string{"carrel-executor", string(c.Spec.Name)}, &syscall.ProcAttr{
		Dir:   "/",
		Env:   append(append([]string(nil), sandbox.Environ...), crashpoint.Lend()...),
		Files: files,
		Sys: &syscall.SysProcAttr{
			// Nothing is mapped before the executor runs, so that this process need not be
			// copied: package syscall does that for the user namespace, to write the maps.
			Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC |
				unix.CLONE_NEWUTS | unix.CLONE_NEWNET | unix.CLONE_VFORK | unix.CLONE_VM,
			AmbientCaps: namespaceCaps(),
			Setsid:      true,
			Pdeathsig:   syscall.SIGKILL,
			PidFD:       &pidfd,
			UseCgroupFD: born >= 0, CgroupFD: born,
		},
	})
	if err != nil {
		return 0, -1, fmt.Errorf("cannot start the executor: %w%s", err, hint(err))
	}
	if pidfd < 0 {
		unix.Kill(pid, unix.SIGKILL)
		reap(pid)
		return 0, -1, fmt.Errorf("cannot start the executor: the kernel gave no pidfd; Linux 5.4 or newer is needed: %w", errdefs.ErrFailedPrecondition)
	}
	return pid, pidfd, nil
}
