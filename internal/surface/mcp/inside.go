package mcp

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds of a client that is a program in a workspace: it reads, writes and stops as it likes.
const (
	// maxInsideLine is the longest message, in bytes. Such a program writes larger files itself.
	maxInsideLine = 1 << 20
	// maxOpen is how many requests are taken that have no answer yet. The next one waits in its own write.
	maxOpen = 2 * maxCalls
)

// insidePatience says how long such a client may take for its first message, and to read what it is sent.
var insidePatience = struct{ first, read time.Duration }{time.Minute, 30 * time.Second}

// Accept serves one client that is a program in the workspace, until it goes, breaks a rule or ctx ends. It is Run with bounds that a
// client which runs as its user's does not need: nothing is read while an answer waits to be read, or too many requests are open.
func (s *Server) Accept(ctx context.Context, c net.Conn) error {
	return accept(ctx, s.mcp, c, func(x *sdk.ServerSession) { s.session(x).life.Store(&ctx) })
}

// accept is Accept for any server. begun is called with the session.
func accept(ctx context.Context, server *sdk.Server, c net.Conn, begun func(*sdk.ServerSession)) error {
	t := &wary{conn: c, closed: make(chan struct{}), open: map[any]bool{}, free: make(chan struct{}, 1)}
	t.transport = sdk.IOTransport{Reader: c, Writer: c, MaxLineLength: maxInsideLine}
	_ = c.SetReadDeadline(time.Now().Add(insidePatience.first)) // one that is gone is seen at once
	return run(ctx, server, t, c, maxInsideLine, begun)
}

// wary is the transport of one such client, and its connection.
type wary struct {
	transport sdk.IOTransport
	sdk.Connection
	conn   net.Conn
	closed chan struct{}
	once   sync.Once

	writing sync.Mutex

	mu    sync.Mutex
	heard bool
	open  map[any]bool // requests without an answer, by id
	busy  int          // answers that are being written, or wait for that
	free  chan struct{}
}

// Connect implements sdk.Transport.
func (t *wary) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := t.transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	t.Connection = c
	return t, nil
}

// Read implements sdk.Connection.
func (t *wary) Read(ctx context.Context) (jsonrpc.Message, error) {
	for !t.mayRead() {
		select {
		case <-t.free:
		case <-t.closed:
			return nil, net.ErrClosed
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	m, err := t.Connection.Read(ctx)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.heard {
		t.heard = true
		_ = t.conn.SetReadDeadline(time.Time{})
	}
	if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() {
		if t.open[r.ID.Raw()] {
			return nil, fmt.Errorf("it sent a request with the id of one that is open: %w", errdefs.ErrInvalidArgument)
		}
		t.open[r.ID.Raw()] = true
	}
	return m, nil
}

func (t *wary) mayRead() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.busy == 0 && len(t.open) < maxOpen
}

// Write implements sdk.Connection. A client that does not read within its time has ended its session.
func (t *wary) Write(ctx context.Context, m jsonrpc.Message) error {
	t.mu.Lock()
	t.busy++
	t.mu.Unlock()
	t.writing.Lock() // so that nobody who waits gives more time to who writes
	_ = t.conn.SetWriteDeadline(time.Now().Add(insidePatience.read))
	err := t.Connection.Write(ctx, m)
	if err != nil {
		_ = t.Close() // so that all other answers need not wait as long
	}
	t.writing.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy--
	if r, ok := m.(*jsonrpc.Response); ok {
		delete(t.open, r.ID.Raw())
	}
	select {
	case t.free <- struct{}{}:
	default:
	}
	return err
}

// Close implements sdk.Connection.
func (t *wary) Close() error {
	t.once.Do(func() { close(t.closed) })
	return t.Connection.Close()
}
