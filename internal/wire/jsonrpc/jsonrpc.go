// Package jsonrpc speaks JSON-RPC 2.0 over a Unix stream socket, one JSON object
// per line, with file descriptors beside the message that declares them. The
// broker and the executors serve it; the daemon and the command line call it.
//
// Every limit is applied before a value is decoded: length of a frame, UTF-8,
// nesting, the envelope, and the number of descriptors. A peer that breaks the
// framing loses the connection, and no descriptor that it sent stays open.
//
// The package must not know any method, and it must not import more than
// encoding/json and the system calls it needs: it is linked into every executor.
package jsonrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

// One connection, two equal peers. Either side may call the other.
//
//	A                                                      B
//	│ {"jsonrpc":"2.0","id":1,"method":"exec","fds":1,     │
//	│  "params":{…}}\n            + SCM_RIGHTS [stdin]     │
//	├─────────────────────────────────────────────────────►│ handler(ctx, req)
//	│ {"jsonrpc":"2.0","id":1,"fds":2,"result":{…}}\n      │
//	│                             + SCM_RIGHTS [out, err]  │
//	│◄─────────────────────────────────────────────────────┤
//	│ {"jsonrpc":"2.0","method":"exited","params":{…}}\n   │
//	│◄─────────────────────────────────────────────────────┤ no id: a notification
//	│ {"jsonrpc":"2.0","id":2,"error":{"code":-32003,      │
//	│  "message":"cannot …","data":{"kind":"not_found"}}}\n│
//	│◄─────────────────────────────────────────────────────┤
//
// Each frame is written by one sendmsg of its own, so that the descriptors arrive
// with its first byte. The kernel ends a read right after the first segment that
// carries descriptors; hence the descriptors of one read belong to the last frame
// that starts in it.
const (
	// DefaultMaxFrame bounds one frame in bytes, newline included.
	DefaultMaxFrame = 1 << 20
	// DefaultMaxInFlight bounds the requests of the peer that are being handled.
	DefaultMaxInFlight = 64
	// DefaultFrameTimeout is how long a started frame may take to arrive.
	DefaultFrameTimeout = 10 * time.Second
	// DefaultWriteTimeout is how long the peer may take to accept one frame.
	DefaultWriteTimeout = 10 * time.Second

	// maxSendFDs is SCM_MAX_FD of include/net/scm.h.
	maxSendFDs = 253
	// maxMessage bounds the text of an error on the wire.
	maxMessage = 8 << 10
)

// ErrClosed is what Err returns after Close.
var ErrClosed = errors.New("connection closed")

// Handler answers one request or notification. It runs in its own goroutine, so
// two messages may be handled in either order. ctx ends when the connection does
// or when the method's Timeout has passed.
//
// The handler owns req.FDs: those still in the slice when it returns are closed,
// and it takes one by setting its slot to nil. The fds it returns are sent with
// the reply and then closed; they are closed unsent if err is set or req is a
// notification. A handler that calls the peer and waits counts against MaxInFlight
// meanwhile.
type Handler func(ctx context.Context, c *Conn, req *Request) (result any, fds []*os.File, err error)

// Request is a request or a notification from the peer.
type Request struct {
	Method string
	// Params is one JSON object, or empty if the message had none.
	Params json.RawMessage
	FDs    []*os.File
	// Notification: there is no id and no reply will be sent.
	Notification bool

	c  *Conn
	in *incoming
}

// Later is the result of a handler that keeps its request and will call Reply on it. The
// descriptors that it left in req.FDs are closed as usual, and the method's Timeout no longer
// applies.
var Later = &struct{ later byte }{}

// Reply answers a request whose handler returned Later, with what a handler returns. It must be
// called exactly once, from any goroutine.
func (r *Request) Reply(result any, fds []*os.File, err error) {
	r.c.respond(r.in, result, fds, err)
}

// Decode reads the params into v. A member that is unknown, repeated or in another
// case, at any depth, a wrong type or a value out of range is an error of kind
// invalid_argument with code −32602. Absent params leave v as it is.
func (r *Request) Decode(v any) error {
	if len(r.Params) == 0 {
		return nil
	}
	if err := strictjson.Unmarshal(r.Params, v); err != nil {
		return &Error{
			Code: CodeInvalidParams, Message: fmt.Sprintf("cannot read the params of %s: %v", r.Method, err),
			kind: errdefs.ErrInvalidArgument,
		}
	}
	return nil
}

// Config holds the handler and the limits of a Conn. All fields are optional.
type Config struct {
	// Handler answers the peer. Without it every method is unknown.
	Handler Handler
	// MaxFrame bounds a received frame, in bytes with its newline. 0 means
	// DefaultMaxFrame.
	MaxFrame int
	// MaxSend bounds a sent frame. 0 means MaxFrame.
	MaxSend int
	// MaxFDs is the most descriptors accepted in one message.
	MaxFDs int
	// Room is asked before the buffer for what is read grows beyond 64 KiB, by so many bytes, and told a negative number when
	// it has shrunk; its error ends the connection. Nil is room.
	Room func(more int) error
	// MaxInFlight bounds how many messages of the peer are handled at once. Beyond
	// it the reader stops reading, which in the end blocks the peer's writes.
	// 0 means DefaultMaxInFlight.
	MaxInFlight int
	// Timeout returns the handling deadline of a method; 0 means none.
	Timeout func(method string) time.Duration
	// FrameTimeout and WriteTimeout replace the defaults above when not 0.
	FrameTimeout time.Duration
	WriteTimeout time.Duration
	// Stepped: New starts no goroutine. The owner calls Step whenever the socket is
	// readable, and handlers run inside Step, one after the other, and must not
	// block. For event loops in which a switch between threads is too slow.
	Stepped bool
	// Inline reports whether the handler of a method runs in the reader's goroutine,
	// before the next message is read. It must not block.
	Inline func(method string) bool
	// BeforeClose is called once, before the socket is closed.
	BeforeClose func()
	// OnClose is called once, after Done is closed, with what Err returns.
	OnClose func(error)
}

// Conn is one connection. Its methods may be called from any goroutine.
type Conn struct {
	cfg  Config
	sock socket

	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{}

	slots chan struct{} // has one element for each message being handled

	mu       sync.Mutex
	ended    bool
	err      error
	peerGone error // the peer will send no more: no reply can come
	draining bool  // half-closed: the last handler closes
	calls    map[uint64]*call
	nextID   uint64
	inFlight []*incoming

	w writer
	r reader
}

// New takes over c and starts its reader goroutine, which ends when the
// connection does. The caller must Close the Conn.
func New(c *net.UnixConn, cfg Config) *Conn {
	orDefault(&cfg.MaxFrame, DefaultMaxFrame)
	orDefault(&cfg.MaxSend, cfg.MaxFrame)
	orDefault(&cfg.MaxInFlight, DefaultMaxInFlight)
	orDefault(&cfg.FrameTimeout, DefaultFrameTimeout)
	orDefault(&cfg.WriteTimeout, DefaultWriteTimeout)
	if cfg.Handler == nil {
		cfg.Handler = func(_ context.Context, _ *Conn, r *Request) (any, []*os.File, error) {
			return nil, nil, MethodNotFound(r.Method)
		}
	}
	conn := &Conn{
		cfg:   cfg,
		done:  make(chan struct{}),
		slots: make(chan struct{}, cfg.MaxInFlight),
		calls: map[uint64]*call{},
	}
	conn.ctx, conn.cancel = context.WithCancelCause(context.Background())
	conn.w.init(conn)
	conn.r.init(conn)
	if cfg.Stepped {
		b, err := newBare(c)
		if err != nil {
			conn.sock = polled{UnixConn: c}
			conn.end(err)
			return conn
		}
		conn.sock = b
		return conn
	}
	rc, err := c.SyscallConn()
	conn.sock = polled{c, rc}
	if err != nil { // c is nil or already closed
		conn.end(err)
		return conn
	}
	go conn.r.run()
	return conn
}

// Descriptor returns the descriptor that the owner of a Stepped Conn polls. It is valid
// until the connection ends.
func (c *Conn) Descriptor() int {
	n := -1
	_ = c.sock.Control(func(fd uintptr) { n = int(fd) })
	return n
}

// Step reads and handles the messages that have arrived. It returns an error once the
// connection has ended. Only for a Stepped Conn, and only from one goroutine.
func (c *Conn) Step() error {
	if err := c.Err(); err != nil {
		return err
	}
	err := c.r.step()
	if err == nil {
		return c.Err()
	}
	c.r.stop()
	if errors.Is(err, io.EOF) {
		go func() { c.end(c.drain(err)) }() // drain waits for replies still to be sent
		return err
	}
	c.end(err)
	return err
}

func orDefault[T int | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// Close ends the connection at once: calls fail, handlers have their ctx
// cancelled, replies not yet written are dropped. It does not wait for handlers,
// so a handler may call it. Closing again does nothing.
func (c *Conn) Close() error {
	c.end(ErrClosed)
	return nil
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is nil until Done is closed, and then says why: ErrClosed, io.EOF if the
// peer closed between two frames, an *Error for a broken rule of the protocol,
// or the error of the socket.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// end closes the connection for the reason err; only the first call counts.
func (c *Conn) end(err error) {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return
	}
	c.ended, c.err = true, err
	calls := c.calls
	c.calls = nil
	c.mu.Unlock()

	c.cancel(err)
	if c.cfg.BeforeClose != nil {
		c.cfg.BeforeClose()
	}
	_ = c.sock.Close()
	close(c.done)
	for _, k := range calls {
		k.reply <- reply{err: unreachable(err)}
	}
	if c.cfg.OnClose != nil {
		c.cfg.OnClose(err)
	}
}

// unreachable returns the error of a call when the connection ended for the reason err.
func unreachable(err error) error {
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return fmt.Errorf("cannot reach the peer: it closed the connection: %w", errdefs.ErrUnavailable)
	default:
		return fmt.Errorf("cannot reach the peer: %s: %w", err.Error(), errdefs.ErrUnavailable)
	}
}

func closeAll(files []*os.File) {
	for i, f := range files {
		if f != nil {
			_ = f.Close()
			files[i] = nil
		}
	}
}
