package executor

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
)

// Without control groups a command's sub-group is the session that its main process leads. A
// process can leave its session. While several commands run, such a process belongs to none of
// them and stays. When the last command ends, everything in the workspace but the executor
// counts as left behind by it and is ended. Commands are counted under the same lock under which
// a new one is added, so that no process of a new command is mistaken for a leftover.

// leads sets the main process.
func (s *group) leads(pid int) {
	if s.of != nil {
		s.of.mu.Lock()
		s.leader = pid
		s.of.mu.Unlock()
	}
}

// last reports whether s is the session of the only command that runs. The lock is held.
func (s *group) last() bool {
	_, mine := s.of.sessions[s]
	return mine && len(s.of.sessions) == 1
}

// sessionLives implements populated for sessions. seen lists the processes of a session; see
// look.
func (s *group) sessionLives(seen func(leader int) []int) bool {
	s.of.mu.Lock()
	last, leader := s.last(), s.leader
	s.of.mu.Unlock()
	if last {
		// From pid 1 this reaches all others in its pid namespace, also those that have ended
		// and were not waited for.
		return !errors.Is(unix.Kill(-1, 0), unix.ESRCH)
	}
	return !errors.Is(unix.Kill(-leader, 0), unix.ESRCH) || len(seen(leader)) > 0
}

// look lists the processes of a session, or all processes if leader is 0. It runs on the loop's
// thread, because the executor's other threads are outside the commands' Landlock domain and see
// no process. It must not be called on that thread, nor with the lock held.
func (g *groups) look(leader int) (pids []int) {
	g.onLoop(func() { pids = g.members(leader) })
	return pids
}

// sessionPIDs implements pids for sessions.
func (s *group) sessionPIDs() []int {
	s.of.mu.Lock()
	leader := s.leader
	if s.last() {
		leader = 0
	}
	s.of.mu.Unlock()
	return s.of.look(leader)
}

// signalSession implements signal for sessions.
func (s *group) signalSession(sig unix.Signal) int {
	pids := s.sessionPIDs()
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.last() {
		if unix.Kill(-1, sig) != nil { // all at once, so that a fork under way fails
			return 0
		}
		return max(len(pids), 1) // some processes may not be visible
	}
	if s.leader <= 1 {
		return 0
	}
	reached := 0
	if unix.Kill(-s.leader, sig) == nil {
		reached = 1
	}
	for _, pid := range pids {
		if sid, err := unix.Getsid(pid); err == nil && sid == s.leader { // it may be another's by now
			unix.Kill(pid, sig)
		}
	}
	return max(len(pids), reached)
}

// waitSession implements waitEmpty for sessions, which have no events. Processes that are left
// are or become children of the executor, and the loop waits for them. The longer it has waited, the
// seldomer it looks: some processes do not end for hours.
func (s *group) waitSession(end time.Time) bool {
	for begun := time.Now(); s.populated(); {
		if !time.Now().Before(end) {
			return false
		}
		s.of.onLoop(func() {})
		<-time.After(longer(time.Since(begun), sessionPause))
	}
	return true
}

// sessionPause is between the first looks, and longestPause between the last.
const (
	sessionPause = 5 * time.Millisecond
	longestPause = 2 * time.Second
)

// longer is the pause between two looks at what has been waited for that long already.
func longer(waited, least time.Duration) time.Duration {
	return min(max(waited/8, least), longestPause)
}

// members lists the processes of a session that have not ended, or all if leader is 0. Processes
// that are not visible, as one that is not dumpable, are missing. Only the loop may call it.
func (g *groups) members(leader int) []int {
	// The commands' processes are visible to their own id only. Where the executor has the
	// same id this changes nothing.
	asCommand(g.uid)
	defer asCommand(0)
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, d := range all {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || pid <= 1 {
			continue
		}
		b, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue
		}
		// Behind the name, which is in parentheses and may contain anything, follow state,
		// parent, group and session (proc_pid_stat(5)).
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) > 3 && f[0] != "Z" && f[0] != "X" && (leader == 0 || f[3] == strconv.Itoa(leader)) {
			out = append(out, pid)
		}
	}
	return out
}

// lowered, with on, prepares the executor for a fork, and otherwise restores it. Without control
// groups it lowers the limit of processes, above which the executor must still be able to make a
// thread. Where the executor has the commands' id, it restores the signals that the executor
// ignores and that a child would inherit. These stay ignored while another command runs, which
// could send one; a child whose C library or language needs them sets its own handler.
func (g *groups) lowered(on bool) {
	if g.dir >= 0 && !g.shared {
		return
	}
	g.mu.Lock()
	alone := g.taken == 1
	g.mu.Unlock()
	if alone || !on {
		runtimeSignals(!on)
	}
	if g.dir >= 0 {
		return
	}
	limit := syscall.Rlimit{Cur: g.pids, Max: g.pids + sandbox.OwnThreads}
	if !on {
		limit.Cur = limit.Max
	}
	_ = syscall.Setrlimit(unix.RLIMIT_NPROC, &limit) // cannot fail: within the first stage's limit
}
