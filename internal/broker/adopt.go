package broker

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/brokerapi"
	"github.com/carrel-dev/carrel/internal/pollfd"
)

// Adopt is part of Effects. The pid alone proves nothing: the process must have started
// when the ledger says, in this boot, and have the executor's id.
func (h *Host) Adopt(e Entry) (Running, error) {
	x := e.Executor
	gone := func(why string) (Running, error) {
		return Running{}, fmt.Errorf("cannot find the executor of %s: %s: %w", e.Name, why, errdefs.ErrNotFound)
	}
	if x == nil || x.PID <= 1 {
		return gone("the ledger names none")
	}
	if x.BootID != h.bootID {
		return gone("the host has been started again since")
	}
	fd, err := unix.PidfdOpen(x.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return gone("it has ended")
	}
	if err != nil {
		return Running{}, fmt.Errorf("cannot hold the executor of %s: %w", e.Name, err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	// One that nobody has waited for yet has ended all the same.
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0); err == nil && n > 0 {
		_ = pidfd.Close()
		return gone("it has ended")
	}
	// Held now, so that what is read next is of this process or of none.
	start, err := StartTime(x.PID)
	if err == nil && start != x.StartTime {
		err = errors.New("its pid belongs to another process")
	}
	if err == nil {
		err = hasUID(x.PID, e.IDs.Executor)
	}
	if err != nil {
		_ = pidfd.Close()
		return gone(err.Error())
	}
	r, err := Watch(pidfd, *x)
	if err == nil {
		err = h.adoptGuard(e, r)
	}
	return r, err
}

// Watch waits for the end of a process in one goroutine that holds no thread. It takes
// over pidfd. A child is reaped; one of an earlier broker is reaped by init.
func Watch(pidfd *os.File, x brokerapi.Executor) (Running, error) {
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

// StartTime reads field 22 of /proc/PID/stat (proc_pid_stat(5)).
func StartTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is the command's name, in parentheses, and may hold anything.
	i := strings.LastIndexByte(string(b), ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 20 {
		return 0, fmt.Errorf("cannot read the start time of process %d: %w", pid, errdefs.ErrInternal)
	}
	return strconv.ParseUint(f[19], 10, 64)
}
