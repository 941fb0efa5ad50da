package broker

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
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

// hasEnded reports whether a process has ended, even if its parent has not waited for it. A first
// thread that has ended while others run shows as a zombie too.
func hasEnded(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	return err != nil || strings.Contains(string(b), "\nState:\tZ") && strings.Contains(string(b), "\nThreads:\t1\n")
}

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
