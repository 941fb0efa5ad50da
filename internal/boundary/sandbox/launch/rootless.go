package launch

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
)

// layRootless places what an ordinary user can give.
func (in *inheritance) layRootless(c *Config) error {
	fds := &c.Spec.FDs
	c.Spec.CallerGID = uint32(os.Getegid())
	fds.Listener, fds.SupProcs, fds.Cmd = -1, -1, -1
	fds.Peers, fds.Projects, fds.Stages, fds.V1Tasks, fds.Give, c.Spec.Projects = nil, nil, nil, nil, nil, nil
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
		if p.Staged {
			fds.Stages = append(fds.Stages, in.add(number(p.Stage)))
		}
		c.Spec.Projects = append(c.Spec.Projects, p.Project)
		c.Spec.Seccomp.NoSetID = c.Spec.Seccomp.NoSetID || !p.ReadOnly
	}
	return nil
}

// parent is the thread that rootless executors are children of. It lives as long as this
// process: when it ends, the kernel believes that the parent has ended (PR_SET_PDEATHSIG in prctl(2)).
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
	parent().Do(func() {
		pid, pidfd, err = fork(c, in, &syscall.SysProcAttr{
			// Nothing is mapped before the executor runs, so that this process need not be
			// copied: package syscall does that for the user namespace, to write the maps.
			Cloneflags:  unix.CLONE_VFORK | unix.CLONE_VM,
			AmbientCaps: namespaceCaps(),
			Pdeathsig:   syscall.SIGKILL,
		})
	})
	return pid, pidfd, err
}
