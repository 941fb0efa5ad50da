// Package ended ends processes that a program of the tests started, by their own number.
//
// It must not look for processes.
package ended

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Kill ends a process that this run started, and waits until it has ended, ten seconds at most.
func Kill(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return os.NewSyscallError("pidfd_send_signal", err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return os.NewSyscallError("poll", err)
		case n == 0:
			return fmt.Errorf("process %d does not end", pid)
		default:
			return nil
		}
	}
}
