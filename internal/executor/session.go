package executor

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/sandbox"
)

// Where no control group is used, a command's sub-group is the session that its main
// process leads. A process can leave its session. So while several commands run, what has
// left is nobody's and stays; when the last of them ends, everything in the workspace but
// the executor counts as left by it, and is ended with it. How many are running is looked at
// under the lock that a new one is taken under: nothing of a command that is being born is
// mistaken for a leftover.

// leads notes the main process.
func (s *group) leads(pid int) {
	if s.of != nil {
		s.of.mu.Lock()
		s.leader = pid
		s.of.mu.Unlock()
	}
}

// last reports whether it is of the one command that runs. The lock is held.
func (s *group) last() bool {
	_, mine := s.of.sessions[s]
	return mine && len(s.of.sessions) == 1
}

// sessionLives is populated. seen lists the processes of a session; see look.
func (s *group) sessionLives(seen func(leader int) []int) bool {
	s.of.mu.Lock()
	last, leader := s.last(), s.leader
	s.of.mu.Unlock()
	if last {
		// Of pid 1: all others in its pid namespace. What has ended and was not waited for
		// still counts.
		return !errors.Is(unix.Kill(-1, 0), unix.ESRCH)
	}
	return !errors.Is(unix.Kill(-leader, 0), unix.ESRCH) || len(seen(leader)) > 0
}

// look lists the processes of a session, or all with 0, from the loop's thread: the
// executor's others see none, as they are not in the commands' Landlock domain. It must not
// be called on the loop, nor with the lock held.
func (g *groups) look(leader int) (pids []int) {
	g.onLoop(func() { pids = g.members(leader) })
	return pids
}

// sessionPIDs is pids.
func (s *group) sessionPIDs() []int {
	s.of.mu.Lock()
	leader := s.leader
	if s.last() {
		leader = 0
	}
	s.of.mu.Unlock()
	return s.of.look(leader)
}

// signalSession is signal.
func (s *group) signalSession(sig unix.Signal) int {
	pids := s.sessionPIDs()
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.last() {
		if unix.Kill(-1, sig) != nil { // at once for all: a fork under way fails
			return 0
		}
		return max(len(pids), 1) // some hide from a look
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

// waitSession is waitEmpty without events: what is left are children of the executor, or
// become some, and the loop waits for them.
func (s *group) waitSession(end time.Time) bool {
	for s.populated() {
		if !time.Now().Before(end) {
			return false
		}
		s.of.onLoop(func() {})
		t := time.NewTimer(sessionPause)
		<-t.C
	}
	return true
}

const sessionPause = 5 * time.Millisecond

// members lists the processes of a session that have not ended, or all with 0: those that
// hide, as a process that is not dumpable does, are missing. It is for the loop.
func (g *groups) members(leader int) []int {
	// To an executor with an id of its own they hide too, and show to a thread that looks
	// with theirs. With one id this changes nothing.
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
		// After the name, which is in parentheses and may hold anything: state, parent,
		// group, session (proc_pid_stat(5)).
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) > 3 && f[0] != "Z" && f[0] != "X" && (leader == 0 || f[3] == strconv.Itoa(leader)) {
			out = append(out, pid)
		}
	}
	return out
}

// lowered prepares for a child that is forked now, and undoes it for the executor. Where there
// are no control groups, that is how many processes and threads there may be, of which the
// executor must always be able to make one. Where it has the commands' id, it is the signals
// that it ignores, which a child would inherit. Those stay as they are while another command
// runs, which could send one; a child whose C library or language wants them sets a handler of
// its own.
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
	_ = syscall.Setrlimit(unix.RLIMIT_NPROC, &limit) // within what the first stage set
}
