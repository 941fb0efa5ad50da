package hostrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/pidfd"
)

// killPause is the time between two rounds of signals to processes that make new ones meanwhile.
const killPause = 5 * time.Millisecond

// endAll ends all processes that the command started: SIGTERM, the grace, SIGKILL until none is left. It returns those
// that it cannot end. When ctx ends there is no grace any more.
func (s *stage) endAll(ctx context.Context, grace time.Duration, gone <-chan struct{}) []string {
	graced, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	select {
	case <-gone:
		return nil
	default:
	}
	s.signalAll(unix.SIGTERM)
	s.signalAll(unix.SIGCONT) // one that is stopped cannot answer
	if waitFor(graced, gone) {
		return nil
	}
	late, cancelLate := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancelLate()
	for late.Err() == nil {
		// First none may make another, so that a round reaches all. In a namespace one call does.
		if !s.row.held {
			s.signalAll(unix.SIGSTOP)
		}
		s.signalAll(unix.SIGKILL)
		if haveEnded(late, gone, killPause) {
			return nil
		}
	}
	if s.row.held { // the /proc in sight may be the host's, with other numbers
		return []string{"a process of the command waits in the kernel for something, and ends when it has that"}
	}
	var left []string
	for _, p := range descendants() {
		left = append(left, fmt.Sprintf("process %d (%s) of uid %d could not be ended; end it with: sudo kill -KILL %d",
			p.pid, p.name, p.uid, p.pid))
	}
	if left == nil {
		left = []string{"a process that this user can neither see nor end; look for it as root"}
	}
	return left
}

// Adopt makes this process the parent of what a supervisor leaves behind that is killed.
func Adopt() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// EndAdopted ends all processes below this one, which must have called Adopt and have no Run under way. It takes killTime at
// most.
func EndAdopted() {
	for end := time.Now().Add(killTime); time.Now().Before(end); {
		for { // those that have ended are no longer below
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 && !errors.Is(err, unix.EINTR) {
				break
			}
		}
		below := descendants()
		if len(below) == 0 {
			return
		}
		s := stage{row: rowOf(None)}
		s.signalAll(unix.SIGSTOP) // first none may make another
		s.signalAll(unix.SIGKILL)
		haveEnded(context.Background(), nil, killPause)
	}
}

// waitFor waits for gone or the end of ctx.
func waitFor(ctx context.Context, gone <-chan struct{}) bool {
	select {
	case <-gone:
		return true
	case <-ctx.Done():
		return false
	}
}

// haveEnded reports whether all have ended, after at most d.
func haveEnded(ctx context.Context, gone <-chan struct{}, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return waitFor(ctx, gone)
}

// signalAll sends a signal to all that the command started. An error is no news: who has ended needs none, and who may
// not be signalled is found when nothing else is left.
func (s *stage) signalAll(sig unix.Signal) {
	if s.row.held {
		unix.Kill(-1, sig) // all in the namespace but this process
		return
	}
	for _, p := range descendants() {
		if f, err := pidfd.Open(p.pid, p.start); err == nil { // or another has its number by now
			_ = pidfd.Signal(f, sig)
			_ = f.Close()
		}
	}
}

// process is one as /proc shows it.
type process struct {
	pid, parent int
	start       uint64
	uid         uint32
	name        string
}

// descendants are the processes below this one. As it adopts orphans (PR_SET_CHILD_SUBREAPER), none of them gets out by
// leaving its parent.
func descendants() []process { return descendantsOf(os.Getpid()) }

// descendantsOf are those below another one, which adopts orphans too.
func descendantsOf(pid int) []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // as many as it has
	children := map[int][]process{}
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			if p, ok := look(pid); ok {
				children[p.parent] = append(children[p.parent], p)
			}
		}
	}
	var all []process
	next := []int{pid}
	for len(next) > 0 {
		below := children[next[0]]
		delete(children, next[0]) // what was read while numbers changed hands could lead in a circle
		next = next[1:]
		for _, p := range below {
			all = append(all, p)
			next = append(next, p.pid)
		}
	}
	return all
}

// look reads what proc_pid_stat(5) says of a process.
func look(pid int) (p process, ok bool) {
	path := "/proc/" + strconv.Itoa(pid)
	b, err := os.ReadFile(path + "/stat")
	if err != nil {
		return p, false
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return p, false
	}
	// The name is in parentheses and may hold anything.
	text := string(b)
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return p, false
	}
	f := strings.Fields(text[end+1:])
	if len(f) < 20 {
		return p, false
	}
	p = process{pid: pid, uid: st.Uid, name: text[open+1 : end]}
	parent, err1 := strconv.Atoi(f[1])
	start, err2 := strconv.ParseUint(f[19], 10, 64)
	p.parent, p.start = parent, start
	return p, err1 == nil && err2 == nil
}

// below are the numbers of the processes below one. Where the kernel lists children it reads no other processes.
func below(pid int) (all []int) {
	if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(os.Getpid()) + "/children"); err != nil {
		for _, p := range descendantsOf(pid) {
			all = append(all, p.pid)
		}
		return all
	}
	seen := map[int]bool{pid: true}
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		task := "/proc/" + strconv.Itoa(next[0]) + "/task"
		threads, err := os.ReadDir(task)
		if err != nil {
			continue // it has ended
		}
		for _, t := range threads {
			b, _ := os.ReadFile(task + "/" + t.Name() + "/children") // it may have ended
			for f := range strings.FieldsSeq(string(b)) {
				if p, err := strconv.Atoi(f); err == nil && !seen[p] {
					seen[p] = true
					all, next = append(all, p), append(next, p)
				}
			}
		}
	}
	return all
}
