// Package pidfd holds processes, and tells one from a later one with its pid.
//
// What it says of a process is the kernel's word: where that cannot be had it says that it does not
// know, and never that the process has ended.
package pidfd

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// StartTime is field 22 of /proc/PID/stat (proc_pid_stat(5)): when the process began.
func StartTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is the command's name, in parentheses, and may hold anything.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 20 {
		return 0, fmt.Errorf("cannot read /proc/%d/stat: it has %d fields", pid, len(f))
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// ErrEnded is wrapped by the error of Open if the process has ended, even if its parent has not waited
// for it.
var ErrEnded = errors.New("the process has ended")

// Open holds the process that has had pid since start. After an error other than ErrEnded nothing is known
// of it.
func Open(pid int, start uint64) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, ErrEnded
	}
	if err != nil {
		return nil, fmt.Errorf("cannot hold process %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	// Held now, so that what is read next belongs to this process or to none.
	began, err := StartTime(pid)
	switch {
	case Ended(f, 0):
		err = ErrEnded
	case err != nil:
		err = fmt.Errorf("cannot tell process %d from another with its pid: %w", pid, err)
	case began != start:
		err = fmt.Errorf("another has its pid %d: %w", pid, ErrEnded)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Ended waits for at most d for the end of a process.
func Ended(f *os.File, d time.Duration) (ended bool) {
	err := with(f, func(fd int) error {
		for end := time.Now().Add(d); ; {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(time.Until(end), 0).Milliseconds()))
			if !errors.Is(err, unix.EINTR) {
				ended = n > 0
				return err
			}
		}
	})
	return ended && err == nil
}

// Kill ends a process, unless it has ended.
func Kill(f *os.File) error { return Signal(f, unix.SIGKILL) }

// Signal sends a process a signal, unless it has ended.
func Signal(f *os.File, s unix.Signal) error {
	err := with(f, func(fd int) error { return unix.PidfdSendSignal(fd, s, nil, 0) })
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

func with(f *os.File, do func(fd int) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := c.Control(func(fd uintptr) { err = do(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}
