package executor

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
)

// groups hands out sub-groups of the workspace's v2 `cmd` group. A command is cloned into one of
// its own, so that all its descendants can be found and ended however they detach themselves.
// Empty ones are used again: making one costs more than a fork.
type groups struct {
	dir    int // -1: there is none; see session.go
	pids   uint64
	limits []ceiling // of the `cmd` group itself, where controllers limit through v2

	mu   sync.Mutex
	free []*group
	next int
	// taken counts the sub-groups in use.
	taken int
	// sessions replace control groups where there are none. onLoop runs a function on the
	// loop's thread, which then reaps what has ended.
	sessions map[*group]struct{}
	onLoop   func(func())
	uid      uint32 // the commands'
	shared   bool   // the executor has the same uid
}

// ceiling is a limit of the `cmd` group. The broker, which made the group, may change it.
type ceiling struct {
	file string
	fd   int // open for reading
}

// group is one sub-group.
type group struct {
	limits [2]string // as last written, in the order of groups.limits
	name   string
	dir    int // open directory, for clone
	procs  int // cgroup.procs
	events int // cgroup.events
	killer int // cgroup.kill, or -1 before Linux 5.14
	// spent: cgroup.kill was used. The kernel kills every process that is cloned into such a
	// group later, so it cannot be used again.
	spent atomic.Bool
	// of is set if this is no control group but the session that leader leads.
	of     *groups
	leader int
}

func openGroups(spec *sandbox.Spec, onLoop func(func())) (*groups, error) {
	g := &groups{
		dir: spec.FDs.Cmd, pids: uint64(spec.Limits.Pids), sessions: map[*group]struct{}{},
		onLoop: onLoop, uid: spec.IDs.Work, shared: spec.OneID(),
	}
	if g.dir < 0 {
		return g, nil
	}
	var controllers []string
	for _, c := range spec.Cgroup.V2Controllers {
		controllers = append(controllers, "+"+c)
		if c != "memory" && c != "pids" {
			continue
		}
		fd, err := unix.Openat(g.dir, c+".max", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("cannot read the limits of commands: %w", err)
		}
		g.limits = append(g.limits, ceiling{c + ".max", fd})
	}
	if len(controllers) > 0 {
		// Not earlier: the self-check ran in the group itself, and a group that delegates
		// controllers may not hold processes.
		if err := writeAt(g.dir, "cgroup.subtree_control", strings.Join(controllers, " ")); err != nil {
			return nil, fmt.Errorf("cannot limit the groups of commands: %w", err)
		}
	}
	first, err := g.make()
	if err != nil {
		return nil, err
	}
	g.free = append(g.free, first)
	return g, nil
}

func (g *groups) take() (s *group, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer func() {
		if err == nil {
			g.taken++
		}
	}()
	if n := len(g.free); n > 0 {
		s := g.free[n-1]
		if err := g.limit(s); err != nil {
			return nil, fmt.Errorf("cannot limit the group for the command: %w", err)
		}
		g.free = g.free[:n-1]
		return s, nil
	}
	if g.dir < 0 {
		s := &group{dir: -1, procs: -1, events: -1, killer: -1, of: g}
		g.sessions[s] = struct{}{}
		return s, nil
	}
	return g.make()
}

func (g *groups) make() (*group, error) {
	s := &group{name: "c" + strconv.Itoa(g.next), killer: -1}
	g.next++
	fail := func(what string, err error) (*group, error) {
		return nil, fmt.Errorf("cannot make a group for the command: %s: %w", what, err)
	}
	if err := unix.Mkdirat(g.dir, s.name, 0o755); err != nil {
		return fail("mkdir", err)
	}
	var err error
	if s.dir, err = unix.Openat(g.dir, s.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0); err != nil {
		return fail("open", err)
	}
	for _, f := range []struct {
		name string
		mode int
		at   *int
	}{
		{"cgroup.procs", unix.O_RDONLY, &s.procs},
		{"cgroup.events", unix.O_RDONLY, &s.events},
		{"cgroup.kill", unix.O_WRONLY, &s.killer},
	} {
		if *f.at, err = unix.Openat(s.dir, f.name, f.mode|unix.O_CLOEXEC, 0); err != nil && f.at != &s.killer {
			return fail(f.name, err)
		}
	}
	if err := g.limit(s); err != nil {
		return fail("limits", err)
	}
	return s, nil
}

// limit copies the current limits of the group above to a sub-group, for tools that read only
// their own group.
func (g *groups) limit(s *group) error {
	for i, l := range g.limits {
		var b [64]byte
		n, err := unix.Pread(l.fd, b[:], 0)
		if err != nil {
			return fmt.Errorf("cannot read %s: %w", l.file, err)
		}
		now := strings.TrimSpace(string(b[:n]))
		if now == s.limits[i] {
			continue
		}
		if err := writeAt(s.dir, l.file, now); err != nil {
			return fmt.Errorf("cannot write %s: %w", l.file, err)
		}
		s.limits[i] = now
	}
	return nil
}

func writeAt(dir int, file, value string) error {
	fd, err := unix.Openat(dir, file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(value))
	return err
}

// give returns an empty sub-group for further use.
func (g *groups) give(s *group) {
	g.mu.Lock()
	g.taken--
	g.mu.Unlock()
	if s.of != nil {
		g.mu.Lock()
		delete(g.sessions, s)
		g.mu.Unlock()
		return
	}
	if s.spent.Load() {
		for _, fd := range []int{s.dir, s.procs, s.events, s.killer} {
			unix.Close(fd)
		}
		_ = unix.Unlinkat(g.dir, s.name, unix.AT_REMOVEDIR) // else the broker removes it with the workspace
		return
	}
	g.mu.Lock()
	g.free = append(g.free, s)
	g.mu.Unlock()
}

// populated reports whether a process is left in the sub-group.
func (s *group) populated() bool {
	if s.of != nil {
		return s.sessionLives(s.of.look)
	}
	var b [128]byte
	n, err := unix.Pread(s.events, b[:], 0)
	return err != nil || !strings.Contains(string(b[:n]), "populated 0")
}

// quiet reports whether no process is left in the sub-group. Only the loop may call it.
func (s *group) quiet() bool {
	if s.of != nil {
		return !s.sessionLives(s.of.members)
	}
	return !s.populated()
}

// pids lists its processes.
func (s *group) pids() []int {
	if s.of != nil {
		return s.sessionPIDs()
	}
	var out []int
	b := make([]byte, 0, 4096)
	for off := int64(0); ; {
		var chunk [4096]byte
		n, err := unix.Pread(s.procs, chunk[:], off)
		if err != nil || n <= 0 {
			break
		}
		b = append(b, chunk[:n]...)
		off += int64(n)
	}
	for line := range strings.Lines(string(b)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 1 {
			out = append(out, pid)
		}
	}
	return out
}

// signal sends sig to each process and returns how many there were.
func (s *group) signal(sig unix.Signal) int {
	if s.of != nil {
		return s.signalSession(sig)
	}
	pids := s.pids()
	for _, pid := range pids {
		unix.Kill(pid, sig)
	}
	return len(pids)
}

// kill kills all processes at once. Without cgroup.kill it repeats until none is left to signal.
func (s *group) kill() {
	if s.killer >= 0 {
		s.spent.Store(true)
		if _, err := unix.Write(s.killer, []byte("1")); err == nil {
			return
		}
	}
	for range 100 {
		if s.signal(unix.SIGKILL) == 0 {
			return
		}
	}
}

// waitEmpty returns once no process is left, or false after d. The kernel says so by an
// event on cgroup.events.
func (s *group) waitEmpty(d time.Duration) bool {
	begun := time.Now()
	end := begun.Add(d)
	if s.of != nil {
		return s.waitSession(end)
	}
	for s.populated() {
		left := time.Until(end)
		if left <= 0 {
			return false
		}
		// The event is edge-triggered: the time-out of each round makes a missed one harmless.
		round := int(min(left, longer(time.Since(begun), 100*time.Millisecond)).Milliseconds()) + 1
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(s.events), Events: unix.POLLPRI}}, round)
	}
	return true
}

// oomSince reports whether the kernel has killed a process for lack of memory since the last
// call.
func (e *Executor) oomSince() bool {
	n := oomKills()
	return e.oomSeen.Swap(n) < n
}

// oomKills reads how many processes of the workspace the kernel has killed for lack of memory.
func oomKills() int64 {
	for _, f := range []struct{ file, key string }{
		{"/sys/fs/cgroup/memory/memory.oom_control", "oom_kill "}, {"/sys/fs/cgroup/cmd/memory.events", "oom_kill "},
	} {
		b, err := os.ReadFile(f.file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), f.key); ok {
				n, _ := strconv.ParseInt(v, 10, 64)
				return n
			}
		}
	}
	return 0
}
