package jsonrpc

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socket is the part of a connection that a Conn uses.
type socket interface {
	syscall.RawConn
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	Close() error
}

// polled is a connection under Go's poller.
type polled struct {
	*net.UnixConn
	syscall.RawConn
}

// bare is a socket that only its owner's event loop polls. Under Go's poller each message
// would also wake a thread of the runtime.
type bare struct {
	fd int
	// open is read-locked while fd is used, so that it is not closed under a call.
	open   sync.RWMutex
	closed bool
	until  time.Time // the write deadline; only the writer uses it
}

func newBare(c *net.UnixConn) (*bare, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	b := &bare{}
	cerr := rc.Control(func(fd uintptr) { b.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3) })
	if err := errors.Join(cerr, err); err != nil {
		return nil, err
	}
	return b, c.Close()
}

func (b *bare) use(f func() error) error {
	b.open.RLock()
	defer b.open.RUnlock()
	if b.closed {
		return net.ErrClosed
	}
	return f()
}

func (b *bare) Control(f func(uintptr)) error {
	return b.use(func() error { f(uintptr(b.fd)); return nil })
}

// Read calls f until it is done. In between it waits for the end of the connection only.
func (b *bare) Read(f func(uintptr) bool) error { return b.wait(f, 0, time.Time{}) }

// Write calls f until it is done. In between it waits until the socket is writable.
func (b *bare) Write(f func(uintptr) bool) error { return b.wait(f, unix.POLLOUT, b.until) }

func (b *bare) wait(f func(uintptr) bool, events int16, until time.Time) error {
	return b.use(func() error {
		for !f(uintptr(b.fd)) {
			ms := -1
			if !until.IsZero() {
				if ms = int(time.Until(until).Milliseconds()); ms <= 0 {
					return os.ErrDeadlineExceeded
				}
			}
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(b.fd), Events: events}}, ms); err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
		}
		return nil
	})
}

func (b *bare) SetReadDeadline(time.Time) error    { return nil } // see (*reader).begun
func (b *bare) SetWriteDeadline(t time.Time) error { b.until = t; return nil }

// Close wakes waiting calls, then closes.
func (b *bare) Close() error {
	if err := b.use(func() error { return unix.Shutdown(b.fd, unix.SHUT_RDWR) }); errors.Is(err, net.ErrClosed) {
		return err
	}
	b.open.Lock()
	defer b.open.Unlock()
	if b.closed {
		return net.ErrClosed
	}
	b.closed = true
	return unix.Close(b.fd)
}
