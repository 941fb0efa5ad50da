// Package portconn is a connection to a port inside a workspace, as the daemon holds it: what is at the other end is the
// workspace's, which says what it likes, when it likes, or nothing.
//
// It must not look at what is carried, nor know who may connect.
package portconn

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
)

// Buffer is how many bytes of one direction a copy holds.
const Buffer = 16 << 10

// Conn is a connection. Each direction may have a goroutine of its own. It ends by Close, by End, or when nothing has moved
// for its time.
type Conn struct {
	tcp  *net.TCPConn
	idle time.Duration
	// moved is when a byte moved last, in nanoseconds since began.
	began   time.Time
	moved   atomic.Int64
	in, out atomic.Int64
	timer   *time.Timer

	once  sync.Once
	done  chan struct{}
	over  func(in, out int64)
	mu    sync.Mutex
	cause error
}

var _ net.Conn = (*Conn)(nil)

// New returns the connection over c, which it takes. over, if not nil, is called once at the end with the bytes that went into
// the workspace and out of it.
func New(c *net.TCPConn, idle time.Duration, over func(in, out int64)) *Conn {
	x := &Conn{tcp: c, idle: idle, began: time.Now(), done: make(chan struct{}), over: over}
	x.mu.Lock() // the timer may be quick
	defer x.mu.Unlock()
	x.timer = time.AfterFunc(idle, x.look)
	return x
}

// look ends a connection on which nothing moves.
func (c *Conn) look() {
	still := time.Since(c.began) - time.Duration(c.moved.Load())
	if still < c.idle {
		c.mu.Lock()
		if c.cause == nil {
			c.timer.Reset(c.idle - still)
		}
		c.mu.Unlock()
		return
	}
	c.End(fmt.Errorf("cannot keep the connection: nothing has moved on it for %v; connect again: %w", c.idle, errdefs.ErrAborted))
}

func (c *Conn) note(n int, of *atomic.Int64) {
	if n > 0 {
		of.Add(int64(n))
		c.moved.Store(int64(time.Since(c.began)))
	}
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.tcp.Read(b)
	c.note(n, &c.out)
	return n, c.why(err)
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	n := 0
	for n < len(b) { // in pieces, so that what moves slowly is seen to move
		m, err := c.tcp.Write(b[n:min(len(b), n+Buffer)])
		c.note(m, &c.in)
		if n += m; err != nil {
			return n, c.why(err)
		}
	}
	return n, nil
}

// why is the reason for which it was ended, instead of what comes of that.
func (c *Conn) why(err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // a net.Conn returns it bare
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return c.cause
	}
	return err
}

// CloseWrite says that no more comes from this side; the other direction goes on.
func (c *Conn) CloseWrite() error { return c.tcp.CloseWrite() }

// Close ends it; what was written still arrives.
func (c *Conn) Close() error {
	c.end(net.ErrClosed, false)
	return nil
}

// End breaks it off: the other side sees a reset, and not an end that it could take for a whole message. Reads and writes
// return cause.
func (c *Conn) End(cause error) { c.end(cause, true) }

// Done is closed when it has ended, and Err says why then: net.ErrClosed if by Close.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is why it has ended, nil while it lasts.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

func (c *Conn) end(cause error, reset bool) {
	c.once.Do(func() {
		c.mu.Lock()
		c.cause = cause
		c.timer.Stop()
		c.mu.Unlock()
		if reset {
			_ = c.tcp.SetLinger(0) // else it ends as if all had been said
		}
		c.tcp.Close()
		close(c.done)
		if c.over != nil {
			c.over(c.in.Load(), c.out.Load())
		}
	})
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.tcp.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.tcp.RemoteAddr() }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error { return c.tcp.SetDeadline(t) }

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.tcp.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.tcp.SetWriteDeadline(t) }
