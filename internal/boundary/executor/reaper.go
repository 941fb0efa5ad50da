package executor

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// reaper waits for all children, on the loop's thread. A pidfd announces the end of a command,
// so that no thread waits for it. Processes that lose their parent become children of the
// executor. The reaper looks for them after each round of events and, while there are children,
// at growing intervals; SIGCHLD would announce them at once, but wake two threads for each
// command. Every fork and every wait happens on one thread, so that no status is taken before
// its command is known.
type reaper struct {
	e *Executor

	mu    sync.Mutex
	byPID map[int]*command
	pause time.Duration
}

// Bounds of the time that an orphan stays a zombie.
const (
	minPause = 20 * time.Millisecond
	maxPause = 2 * time.Second
)

func newReaper(e *Executor) *reaper {
	r := &reaper{e: e, byPID: map[int]*command{}}
	e.loop.ended = func(pid int) { r.reap(pid) }
	e.loop.sweep = r.sweep
	return r
}

// sweep reaps what has ended and returns when to look again.
func (r *reaper) sweep() time.Duration {
	r.pause = min(max(2*r.pause, minPause), maxPause)
	for {
		got, children := r.reap(-1)
		if !children {
			return -1
		}
		if !got {
			return r.pause
		}
		r.pause = minPause
	}
}

// watch makes r call c.finish at the end of c's main process.
func (r *reaper) watch(c *command) error {
	r.mu.Lock()
	r.byPID[c.pid] = c
	r.mu.Unlock()
	if err := r.e.loop.poll(c.pidfd, eventPID, int32(c.pid)); err != nil {
		r.mu.Lock()
		delete(r.byPID, c.pid) // it counts as never started
		r.mu.Unlock()
		unix.Close(c.pidfd)
		return fmt.Errorf("cannot watch the command: %w", err)
	}
	return nil
}

// reap takes the status of pid, or of any child if pid is -1. It reports whether there
// was one, and whether there are children at all.
func (r *reaper) reap(pid int) (got, children bool) {
	var ws unix.WaitStatus
	var ru unix.Rusage
	r.mu.Lock()
	n, err := unix.Wait4(pid, &ws, unix.WNOHANG, &ru)
	if err != nil || n <= 0 {
		r.mu.Unlock()
		return false, err == nil
	}
	c, abandoned := r.byPID[n], false
	delete(r.byPID, n)
	if c != nil {
		// Under the lock: from here on the kernel may give the pid to another process.
		c.mu.Lock()
		c.reaped = true
		abandoned = c.abandoned
		c.mu.Unlock()
	}
	r.mu.Unlock()
	if c != nil {
		unix.Close(c.pidfd) // leaves the epoll instance too
	}
	if c != nil && !abandoned {
		c.finish(ws, &ru)
	}
	return true, true
}

// finish records how the main process ended. It must not block the loop: settle waits for
// leftovers and streams in a goroutine of its own.
func (c *command) finish(ws unix.WaitStatus, ru *unix.Rusage) {
	crashpoint.Here("executor.exec.reaped")
	s := &c.status
	c.mu.Lock()
	if c.timer != nil {
		c.timer.Stop()
	}
	s.StartedNS, s.EndedNS = c.started.UnixNano(), time.Now().UnixNano()
	s.UserUS, s.SystemUS, s.MaxRSSKiB = ru.Utime.Nano()/1000, ru.Stime.Nano()/1000, ru.Maxrss
	if ws.Signaled() {
		s.Signal = int(ws.Signal())
		s.Code = 128 + s.Signal
	} else {
		s.Code = ws.ExitStatus()
	}
	c.mu.Unlock()
	if s.Code == 128+int(unix.SIGKILL) { // or a shell says so of its child
		s.OOM = c.e.oomSince()
	}
	if c.group.quiet() && c.stdout == nil && c.stderr == nil && c.buffer == nil {
		c.close(true)
		return
	}
	go c.settle()
}

// settle ends what the main process left behind, then waits for the captured streams. It gives
// up on a stream that another process holds open for longer than drainBound.
func (c *command) settle() {
	crashpoint.Here("executor.exec.settling")
	if of := c.group.of; of != nil {
		of.onLoop(func() {})
	}
	empty := !c.group.populated()
	if !empty {
		c.status.Killed = c.group.signal(unix.SIGTERM)
		c.group.signal(unix.SIGCONT)
		if empty = c.group.waitEmpty(leftoverGrace); !empty {
			c.group.kill()
			if empty = c.group.waitEmpty(killWait); !empty {
				c.status.Stuck = len(c.group.pids())
			}
		}
		c.e.loop.do(func() {}) // after which the loop sweeps up what has just ended
	}
	drained := make(chan struct{})
	go func() { c.readers.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(drainBound):
		c.giveUp()
		<-drained
	}
	c.close(empty)
}

// Leftovers of a command have leftoverGrace to end after TERM and killWait after KILL. After
// that a stream may stay open for drainBound.
const (
	leftoverGrace = execapi.DefaultGraceMS * time.Millisecond
	killWait      = 5 * time.Second
	drainBound    = time.Second
)

// close makes the status final.
func (c *command) close(groupEmpty bool) {
	if groupEmpty {
		c.mu.Lock()
		c.released = true
		c.e.groups.give(c.group)
		c.mu.Unlock()
	}
	if c.status.Stuck > 0 {
		go c.outlast()
	} else if !c.keeps {
		c.e.forget(c)
	}
	if !c.detached && c.master != nil {
		c.master.Close()
	}
	crashpoint.Here("executor.exec.final")
	c.e.kept.giveBack(c.input)
	close(c.done)
	c.unshare()
	if c.buffer != nil {
		c.buffer.finish() // after done: a reader at the end can ask for the status
	}
	if c.notify != nil {
		c.notify()
	}
	c.e.rest()
}
