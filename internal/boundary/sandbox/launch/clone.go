package launch

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/linux/thread"
)

// clone starts the executor in its namespaces and groups. The thread that does it joins
// the v1 groups first, by their `tasks` files: a thread that moves itself costs no
// grace period of the kernel, where moving the child would cost one of some 10 ms.
func clone(c *Config, in *inheritance) (pid, pidfd int, err error) {
	if c.Hurry != nil {
		done := c.Hurry()
		defer func() {
			if err := done(); err != nil && c.Log != nil {
				fmt.Fprintf(c.Log, "cannot set the weight of the owner's group back, which stays preferred until their next start: %v\n", err)
			}
		}()
	}
	err = thread.Throwaway(func() error {
		for _, f := range c.V1Sup {
			if _, err := unix.Write(number(f), []byte("0")); err != nil {
				return fmt.Errorf("cannot join %s: %w", f.Name(), err)
			}
		}
		ids := c.Spec.IDs
		if err := becomeOwner(ids.Agent); err != nil {
			return err
		}
		maps := []syscall.SysProcIDMap{
			{ContainerID: 0, HostID: int(ids.Executor), Size: 1},
			{ContainerID: int(ids.Work), HostID: int(ids.Work), Size: 2},
		}
		pid, pidfd, err = fork(c, in, &syscall.SysProcAttr{
			UidMappings: maps, GidMappings: maps, GidMappingsEnableSetgroups: true,
			Credential: &syscall.Credential{Uid: 0, Gid: 0},
		})
		return err
	})
	return pid, pidfd, err
}

// noSetuidFixup is SECBIT_NO_SETUID_FIXUP of linux/securebits.h: a change of ids leaves capabilities alone.
const noSetuidFixup = 1 << 2

// becomeOwner makes uid the effective user of the calling thread, which keeps its capabilities. What
// the kernel counts by user in a namespace, it adds up for whoever made the namespace: for root, the
// counts of all workspaces and of the host's own services would be one sum with one limit.
func becomeOwner(uid uint32) error {
	if _, _, e := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, noSetuidFixup, 0); e != 0 {
		return fmt.Errorf("cannot keep the capabilities for a change of ids: %w", e)
	}
	const keep = ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); e != 0 {
		return fmt.Errorf("cannot take uid %d, which is to own the namespace: %w", uid, e)
	}
	return nil
}

// fork starts the executor in new namespaces and the group Born, with what else attr says.
func fork(c *Config, in *inheritance, attr *syscall.SysProcAttr) (pid, pidfd int, err error) {
	pidfd = -1
	attr.Cloneflags |= unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET
	attr.Setsid, attr.PidFD = true, &pidfd
	if c.Born != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, number(c.Born)
	}
	path, files := executable(c.Binary, in.files)
	pid, err = syscall.ForkExec(path, []string{"carrel-executor", string(c.Spec.Name)}, &syscall.ProcAttr{
		Dir: "/",
		Env: append(slices.Clip(sandbox.Environ), crashpoint.Lend()...),
		// Go places these at 0, 1, 2 … in the child.
		Files: files,
		Sys:   attr,
	})
	if err != nil {
		return 0, -1, fmt.Errorf("cannot start the executor: %w%s", err, hint(err))
	}
	if pidfd < 0 {
		unix.Kill(pid, unix.SIGKILL)
		reap(pid)
		return 0, -1, fmt.Errorf("cannot start the executor: the kernel gave no pidfd; Linux 5.4 or newer is needed: %w",
			errdefs.ErrFailedPrecondition)
	}
	return pid, pidfd, nil
}

// hint says what an errno of the clone usually means.
func hint(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return "; a namespace limit is reached: see /proc/sys/user/max_*_namespaces"
	case errors.Is(err, unix.EPERM):
		return "; the host forbids user namespaces: see carrel doctor"
	case errors.Is(err, unix.EAGAIN):
		return "; a process limit is reached"
	default:
		return ""
	}
}
