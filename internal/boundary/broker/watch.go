package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/linux/pidfd"
	"github.com/carrel-dev/carrel/internal/linux/pollfd"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// Supervise takes over an executor that package launch has just started: it watches for its end,
// and ends it when one of its writable mounts loses its protection. After an error it has killed
// the executor.
func Supervise(
	name id.Workspace, started *launch.Executor, known brokerapi.Executor, mode sandbox.Mode, projects []launch.Project, log *slog.Logger,
) (Running, error) {
	known.PID = started.PID
	r, err := watch(started.Pidfd, known)
	if err != nil {
		_ = unix.Kill(started.PID, unix.SIGKILL) // our child, not waited for: the pid is still its own
		_, _ = unix.Wait4(started.PID, nil, 0, nil)
		return r, fmt.Errorf("cannot watch the executor of %s: %w", name, err)
	}
	if r.Executor.StartTime, err = pidfd.StartTime(started.PID); err != nil {
		err = fmt.Errorf("cannot start %s: its executor ended at once: %w", name, err)
	} else if err = started.Report.Err(); err != nil {
		// The launcher has checked it, and a start without proof must not slip through here.
		err = fmt.Errorf("cannot start %s: %w", name, err)
	} else {
		err = guard(name, mode, launch.Specs(projects), r, log)
	}
	if err != nil {
		_ = r.Kill() // the caller may wait for r.Exited, or not: the kernel may be unable to end it
	}
	return r, err
}

// guard ends an executor whose writable mounts lose their protection.
func guard(name id.Workspace, mode sandbox.Mode, projects []sandbox.Project, r Running, log *slog.Logger) error {
	err := launch.Guard(mode, r.Executor.PID, r.Exited, projects, func(what string) {
		log.Error("ending a workspace, because what was protected in a project mount was removed or replaced on the host; "+
			"see what is there now, then start it again", "workspace", name, "lost", what)
		if err := r.Kill(); err != nil {
			log.Error("cannot end it", "workspace", name, "error", err)
		}
	})
	if err != nil {
		return fmt.Errorf("cannot guard %s: %w", name, err)
	}
	return nil
}

// watch waits for the end of a process in one goroutine that holds no thread. It takes
// over pidfd. A child is reaped; one of an earlier broker is reaped by init.
func watch(pidfd *os.File, x brokerapi.Executor) (Running, error) {
	f, err := pollfd.Open(pidfd)
	if err != nil {
		return Running{}, err
	}
	rc, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return Running{}, err
	}
	exited := make(chan struct{})
	var open sync.Mutex // held while the descriptor is used or closed
	go func() {
		defer close(exited)
		_ = rc.Read(func(fd uintptr) bool {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(p, 0)
			if err != nil || n == 0 {
				return false
			}
			_ = unix.Waitid(unix.P_PIDFD, int(fd), nil, unix.WEXITED, nil) // ECHILD: not ours
			return true
		})
		open.Lock()
		defer open.Unlock()
		_ = f.Close()
		f = nil
	}()
	kill := func() error {
		open.Lock()
		defer open.Unlock()
		if f == nil {
			return nil
		}
		err := withFD(f, func(fd int) error { return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) })
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		return err
	}
	return Running{Executor: x, Exited: exited, Kill: kill}, nil
}
