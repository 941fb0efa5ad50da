package executor

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// newbornPatience is how long a process that is being started may be stopped before it is killed,
// and newbornWatch how often that is looked at, while commands are being started.
const (
	newbornPatience = time.Second
	newbornWatch    = 500 * time.Millisecond
)

// newborns kills a process that a command stopped before it could exec. Between the change of its
// ids and exec a new process may be signalled by the workspace's commands, and it shares this
// process's memory, so that the thread that started it waits in the kernel until it execs or dies.
// The next garbage collection would wait for that thread, and everything else for the collection.
type newborns struct {
	r *reaper
	// thread is the one that starts commands; since is when it began to, in nanoseconds since
	// start, 0 while it does not.
	thread atomic.Int32
	since  atomic.Int64
	start  time.Time
	awake  atomic.Bool
}

// begin is called before a process is started, on the thread that starts it.
func (n *newborns) begin() {
	n.since.Store(int64(time.Since(n.start)) + 1)
	if !n.awake.Load() && n.awake.CompareAndSwap(false, true) {
		n.thread.Store(int32(unix.Gettid()))
		go n.watch()
	}
}

// end is called when it runs, or could not be started.
func (n *newborns) end() { n.since.Store(0) }

// watch ends when nothing has been started for some rounds.
func (n *newborns) watch() {
	for quiet := 0; quiet < 4; {
		time.Sleep(newbornWatch)
		since := time.Duration(n.since.Load())
		switch {
		case since == 0:
			quiet++
			continue
		case time.Since(n.start)-since >= newbornPatience:
			n.free()
		}
		quiet = 0
	}
	n.awake.Store(false)
	if n.since.Load() != 0 && n.awake.CompareAndSwap(false, true) { // begun meanwhile
		go n.watch()
	}
}

// free kills the process that is being started if it is stopped. It is the one child of the
// thread that is not known as a command yet.
func (n *newborns) free() {
	list, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", n.thread.Load()))
	if err != nil {
		return // no such file: the daemon notices, and has the workspace stopped
	}
	for word := range strings.FieldsSeq(string(list)) {
		pid, err := strconv.Atoi(word)
		if err != nil || n.r.knows(pid) || !stopped(pid) {
			continue
		}
		if n.since.Load() != 0 { // it could have been started, and stopped, since
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// stopped reports whether a child is stopped, and leaves its state to be waited for.
func stopped(pid int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo == int32(unix.SIGCHLD)
}

// knows reports whether a process is a command's.
func (r *reaper) knows(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byPID[pid] != nil
}
