package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/workspace"
)

// uidsOf reads the real, effective, saved and file system uid of a process. nil means
// that it is gone.
func uidsOf(pid int) ([]uint32, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		v, ok := strings.CutPrefix(line, "Uid:")
		if !ok {
			continue
		}
		var uids []uint32
		for f := range strings.FieldsSeq(v) {
			n, err := strconv.ParseUint(f, 10, 32)
			if err != nil {
				return nil, err
			}
			uids = append(uids, uint32(n))
		}
		return uids, nil
	}
	return nil, fmt.Errorf("cannot read the ids of process %d: %w", pid, errdefs.ErrInternal)
}

func hasUID(pid int, uid uint32) error {
	uids, err := uidsOf(pid)
	if err == nil && !slices.Contains(uids, uid) {
		err = fmt.Errorf("process %d has the ids %v and not %d", pid, uids, uid)
	}
	return err
}

// hasEnded reports whether a process has ended and only waits for its parent to take
// note. A first thread that has ended while others run shows as a zombie too.
func hasEnded(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	return err != nil || strings.Contains(string(b), "\nState:\tZ") && strings.Contains(string(b), "\nThreads:\t1\n")
}

// noteWait is how long those that have ended may wait for their parent. After a restart of
// the broker that is init, and in some containers there is none that does it.
const noteWait = 3 * time.Second

// withIDs lists the processes that have one of ids among their uids.
func withIDs(ids workspace.IDs) ([]int, error) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, n := range names {
		pid, err := strconv.Atoi(n.Name())
		if err != nil {
			continue
		}
		uids, err := uidsOf(pid)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(uids, func(u uint32) bool { return u >= ids.Executor && u <= ids.Agent }) {
			found = append(found, pid)
		}
	}
	return found, nil
}

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

// endOne kills a process that, once held by a pidfd, still has one of ids.
func endOne(pid int, ids workspace.IDs) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	uids, err := uidsOf(pid)
	if err != nil || !slices.ContainsFunc(uids, func(u uint32) bool { return u >= ids.Executor && u <= ids.Agent }) {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// HeldUp is part of Effects. A thread that is in state D of /proc/PID/stat (proc_pid_stat(5))
// takes no signal, KILL neither, until what it waits for comes.
func (h *Host) HeldUp(ids workspace.IDs) string {
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
	return strings.Join(said, ", ") + ": the kernel waits for a file system or a device that does not answer, and no signal ends that; see to it (a frozen file system: fsfreeze --unfreeze; a network file system: its server; a disk: dmesg), then repeat what failed"
}

// maxHeldUp is how many processes are named.
const maxHeldUp = 3

// taskState is the name and the state of a thread, from its directory below /proc.
func taskState(dir string) (name, state string) {
	b, _ := os.ReadFile(dir + "/stat") // it may have ended
	open, end := strings.IndexByte(string(b), '('), strings.LastIndexByte(string(b), ')')
	if open < 0 || end < open {
		return "", ""
	}
	if f := strings.Fields(string(b[end+1:])); len(f) > 0 {
		state = f[0]
	}
	return strings.ToValidUTF8(string(b[open+1:end]), "?"), state
}
