package executor

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// loop runs on the one thread that forks commands. It waits in one epoll instance for spawn
// connections, for the end of commands and for work from other goroutines, and handles each
// itself. A request on a spawn connection is read, forked, waited for and answered without a
// switch between threads, each of which would cost about a tenth of the fork.
//
// What it calls must not block.
type loop struct {
	epoll int
	wake  int // an eventfd: there is work in queue

	mu    sync.Mutex
	queue []func()
	conns map[int32]*jsonrpc.Conn
	next  int32

	// ended is called with the pid of a command whose pidfd is readable.
	ended func(pid int)
	// sweep is called after each round of events and after each pause. It returns how long the
	// loop may sleep before the next call; negative means until an event comes.
	sweep func() time.Duration
}

// Kinds of event, in the upper word of its data.
const (
	eventWake = iota
	eventPID
	eventConn
)

func newLoop() (*loop, error) {
	fail := func(err error) (*loop, error) { return nil, fmt.Errorf("cannot make the event loop: %w", err) }
	l := &loop{conns: map[int32]*jsonrpc.Conn{}}
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fail(err)
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fail(err)
	}
	if err := l.poll(l.wake, eventWake, 0); err != nil {
		return fail(err)
	}
	return l, nil
}

func (l *loop) poll(fd int, kind, value int32) error {
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: value, Pad: kind})
}

// run never returns.
func (l *loop) run() {
	var events [64]unix.EpollEvent
	for {
		pause := -1
		if d := l.sweep(); d >= 0 {
			pause = int(d.Milliseconds()) + 1
		}
		n, err := unix.EpollWait(l.epoll, events[:], pause)
		if err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			panic(fmt.Sprintf("cannot wait for events: %v", err))
		}
		for _, ev := range events[:n] {
			switch ev.Pad {
			case eventWake:
				l.work()
			case eventPID:
				l.ended(int(ev.Fd))
			case eventConn:
				l.step(ev.Fd)
			}
		}
	}
}

func (l *loop) work() {
	var b [8]byte
	_, _ = unix.Read(l.wake, b[:]) // only resets it
	l.mu.Lock()
	queue := l.queue
	l.queue = nil
	l.mu.Unlock()
	for _, f := range queue {
		f()
	}
}

// do runs f on the loop's thread and returns when f has. It must not be called on that thread.
func (l *loop) do(f func()) {
	done := make(chan struct{})
	l.mu.Lock()
	l.queue = append(l.queue, func() { defer close(done); f() })
	l.mu.Unlock()
	one := [8]byte{1}
	if _, err := unix.Write(l.wake, one[:]); err != nil && !errors.Is(err, unix.EAGAIN) {
		panic(fmt.Sprintf("cannot wake the event loop: %v", err))
	}
	<-done
}

// add makes the loop step c whenever c is readable.
func (l *loop) add(c *jsonrpc.Conn) error {
	l.mu.Lock()
	l.next++
	n := l.next
	l.conns[n] = c
	l.mu.Unlock()
	if err := l.poll(c.Descriptor(), eventConn, n); err != nil {
		c.Close()
		return fmt.Errorf("cannot watch a connection: %w", err)
	}
	return nil
}

func (l *loop) step(n int32) {
	l.mu.Lock()
	c := l.conns[n]
	l.mu.Unlock()
	if c == nil {
		return
	}
	if err := c.Step(); err != nil {
		l.mu.Lock()
		delete(l.conns, n)
		l.mu.Unlock()
		if fd := c.Descriptor(); fd >= 0 { // half-closed: replies may still go out
			_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil)
		}
	}
}
