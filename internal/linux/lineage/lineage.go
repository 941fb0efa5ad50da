// Package lineage says from which processes another one comes: its parents, the leaders of its session and of its group with
// theirs, and its control groups.
//
// It must not decide what a process may do. A process can give itself any name; it cannot choose its parents, and one whose parent
// ends becomes the child of the nearest process above that adopts orphans (PR_SET_CHILD_SUBREAPER).
package lineage

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxDepth bounds how many processes are looked at: a longer line is an error.
const maxDepth = 256

// tick is the unit in which the kernel tells when a process began: USER_HZ, which is 100 on all of Linux.
const tick = 10 * time.Millisecond

// ErrGone is wrapped by the error of Of if the process has ended.
var ErrGone = errors.New("the process has ended")

// Peer is the process that made a connection. The zero Peer is unknown.
type Peer struct {
	// PID is 0 for one that cannot be seen from here.
	PID int
	// Since is when the connection was accepted, as the time since the machine was started: another process with the PID is younger.
	Since time.Duration
}

// Now is the time since the machine was started.
func Now() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// Process is one process.
type Process struct {
	PID  int
	Name string // as the process calls itself
}

// Lineage is where a process comes from.
type Lineage struct {
	Self Process
	// Above are its parents, the nearest first, and then the leaders of its session and group with theirs.
	Above []Process
	// Groups are its control groups.
	Groups string
}

// String names the process and its parents.
func (l Lineage) String() string {
	all := []string{fmt.Sprintf("%.16q (%d)", l.Self.Name, l.Self.PID)}
	for _, p := range l.Above[:min(len(l.Above), 6)] {
		all = append(all, fmt.Sprintf("%.16q (%d)", p.Name, p.PID))
	}
	return strings.Join(all, " < ")
}

// Of returns the lineage of the process that made a connection.
func Of(p Peer) (l Lineage, err error) {
	seen := map[int]bool{}
	self, err := look(p.PID)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return l, fmt.Errorf("cannot see process %d: %w", p.PID, ErrGone)
	case err != nil:
		return l, err
	case self.began > p.Since+tick:
		return l, fmt.Errorf("another process has the number %d by now: %w", p.PID, ErrGone)
	}
	l.Self, seen[p.PID] = Process{p.PID, self.name}, true
	groups, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cgroup")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return l, err
	}
	l.Groups = string(groups)
	next := []int{self.parent, self.session, self.group}
	for len(next) > 0 {
		pid := next[0]
		next = next[1:]
		if pid <= 0 || seen[pid] {
			continue
		}
		seen[pid] = true
		s, err := look(pid)
		if errors.Is(err, os.ErrNotExist) {
			continue // who has it for a parent has another one by now, and the leader of a session may have ended
		}
		if err != nil {
			return l, err
		}
		if l.Above = append(l.Above, Process{pid, s.name}); len(l.Above) > maxDepth {
			return l, fmt.Errorf("process %d has more than %d above it", p.PID, maxDepth)
		}
		next = slices.Insert(next, 0, s.parent)
	}
	return l, nil
}

type stat struct {
	name                   string
	parent, group, session int
	began                  time.Duration
}

// look reads what proc_pid_stat(5) says of a process.
func look(pid int) (s stat, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, unix.ESRCH) {
		err = os.ErrNotExist
	}
	if err != nil {
		return s, err
	}
	// The name is in parentheses and may hold anything.
	text := string(b)
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	bad := fmt.Errorf("cannot read /proc/%d/stat", pid)
	if open < 0 || end < open {
		return s, bad
	}
	f := strings.Fields(text[end+1:])
	if len(f) < 20 {
		return s, bad
	}
	var n [4]int
	for i, at := range []int{1, 2, 3, 19} {
		if n[i], err = strconv.Atoi(f[at]); err != nil {
			return s, bad
		}
	}
	return stat{text[open+1 : end], n[0], n[1], n[2], time.Duration(n[3]) * tick}, nil
}
