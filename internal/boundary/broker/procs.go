package broker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// noteWait is how long processes that have ended may wait for their parent. After a restart of
// the broker that is init, and in some containers init does not wait for them.
const noteWait = 3 * time.Second

// EndProcesses is part of Effects.
func (h *Host) EndProcesses(ctx context.Context, ids workspace.IDs) error {
	wrap := func(err error) error {
		return fmt.Errorf("cannot end the processes of uids %d to %d: %w", ids.Executor, ids.Agent, err)
	}
	if ids != workspace.IDsFrom(ids.Executor) || ids.Executor < 1000 {
		return wrap(errdefs.ErrInvalidArgument)
	}
	wait, begun := time.Millisecond, time.Now()
	for {
		pids, err := withIDs(ids)
		if err != nil {
			return wrap(err)
		}
		if len(pids) == 0 {
			return nil
		}
		if time.Since(begun) > noteWait && !slices.ContainsFunc(pids, func(pid int) bool { return !hasEnded(pid) }) {
			return nil
		}
		for _, pid := range pids {
			if err := endOne(pid, ids); err != nil {
				return wrap(err)
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return wrap(fmt.Errorf("%d are left, the first is pid %d: %w", len(pids), pids[0], errdefs.ErrUnavailable))
		}
		wait = min(2*wait, 100*time.Millisecond)
	}
}

// HeldUp is part of Effects. A thread that is in state D of /proc/PID/stat (proc_pid_stat(5))
// takes no signal, KILL neither, until what it waits for comes. The kernel wakes even such a thread
// for a moment when it thaws its cgroup, so that one that is not seen at once is looked for again.
func (h *Host) HeldUp(ids workspace.IDs) string {
	for end := time.Now().Add(heldUpWait); ; time.Sleep(10 * time.Millisecond) {
		if why := heldUp(ids); why != "" || time.Now().After(end) {
			return why
		}
	}
}

func heldUp(ids workspace.IDs) string {
	pids, err := withIDs(ids)
	if err != nil {
		return ""
	}
	var said []string
	for _, pid := range pids {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", pid)) // it may have ended
		for _, task := range tasks {
			name, state := taskState(task)
			if state != "D" {
				continue
			}
			at := ""
			// 0 is a kernel that does not tell, or a thread that has gone on.
			if b, err := os.ReadFile(task + "/wchan"); err == nil && len(b) > 1 {
				at = " in " + string(b)
			}
			if len(said) < maxHeldUp {
				said = append(said, fmt.Sprintf("process %d (%s) sleeps uninterruptibly%s", pid, name, at))
			}
			break
		}
	}
	if len(said) == 0 {
		return ""
	}
	return strings.Join(said, ", ") + ": the kernel waits for a file system or a device that does not answer, and no signal ends that; " +
		"see to it (a frozen file system: fsfreeze --unfreeze; a network file system: its server; a disk: dmesg), then repeat what failed"
}

const (
	maxHeldUp  = 3                      // so many processes are named
	heldUpWait = 500 * time.Millisecond // so long they are looked for, after what failed
)
