// Package sched has the scheduler prefer carrel's broker and daemon to what runs in workspaces. Every operation of every
// caller passes through them, and with two processors and twenty busy workspaces they get a tenth of the time that they
// need by equal shares: the queue of new connections fills, and everybody waits.
//
// There are two shares to set. The kernel divides time among sessions first, where it groups processes by session
// (autogroups, sched(7)), and a nice value counts only within one of them. Where a service manager puts services into
// control groups, their CPUWeight takes the place of the first.
package sched

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Nice is the value of broker and daemon: some nine times the share of a process with 0, and one that is waited for is run
// before others.
const Nice = -10

// PreferSession sets the share of the session that a process leads. A kernel that does not group by session is no error.
func PreferSession(leader int) error {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/autogroup", leader), os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = f.WriteString(strconv.Itoa(Nice))
		_ = f.Close()
	}
	if err != nil {
		return fmt.Errorf("cannot have the scheduler prefer the session of process %d: %w", leader, err)
	}
	return nil
}

// Prefer sets the value of each thread of a process. Its later threads and its children inherit it.
func Prefer(pid int) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, t := range threads {
		n, nerr := strconv.Atoi(t.Name())
		if nerr == nil {
			nerr = unix.Setpriority(unix.PRIO_PROCESS, n, Nice)
		}
		if !errors.Is(nerr, unix.ESRCH) { // a thread that has ended
			err = errors.Join(err, nerr)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot have the scheduler prefer process %d: %w", pid, err)
	}
	return nil
}
