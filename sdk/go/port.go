package carrel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

// PublishedPort is a port of a workspace that this process keeps open. Nobody else can connect to it but who has published it too.
type PublishedPort struct {
	cancel context.CancelFunc
	over   chan struct{} // closed once err is set
	err    error
}

// PublishPort keeps a TCP port of the loopback of workspace, which is a key or a derived name, open until Close. Nothing needs to
// listen on it yet. One record of the audit log says how long it was open and what went through it; DialPort without it has such a
// record too, which ends a minute after the last connection.
//
// Errors: failed_precondition: the workspace does not run.
func (c *Client) PublishPort(ctx context.Context, workspace string, port int) (*PublishedPort, error) {
	number, err := checkPort(port)
	if err != nil {
		return nil, err
	}
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	s, err := c.Ports().Publish(whole, connect.NewRequest(&carrelv1.PublishRequest{Workspace: workspace, Port: number}))
	if err != nil {
		cancel()
		return nil, err
	}
	more := s.Receive()
	if !stop() {
		cancel()
		return nil, context.Cause(ctx)
	}
	if !more {
		cancel()
		return nil, orClosed(s.Err())
	}
	p := &PublishedPort{cancel: cancel, over: make(chan struct{})}
	go func() {
		defer close(p.over)
		defer cancel()
		for s.Receive() { // there is nothing more to be told
		}
		p.err = orClosed(s.Err())
	}()
	return p, nil
}

// orClosed is the error of a stream that ended, also of one that ended in order.
func orClosed(err error) error {
	if err == nil {
		return fmt.Errorf("cannot keep the port open: the daemon has closed the stream: %w", errdefs.ErrUnavailable)
	}
	return err
}

// checkPort is a port as the API has it.
func checkPort(port int) (uint32, error) {
	if port < 1 || port > 65535 {
		return 0, fmt.Errorf("cannot use port %d: a port is from 1 to 65535: %w", port, errdefs.ErrInvalidArgument)
	}
	return uint32(port), nil
}

// Done is closed when the port is open no more, and Err says why then: the workspace stopped, a token ended, the daemon went.
func (p *PublishedPort) Done() <-chan struct{} { return p.over }

// Err waits for the end and returns why it came.
func (p *PublishedPort) Err() error {
	<-p.over
	return p.err
}

// Close closes the port. Connections that are there go on.
func (p *PublishedPort) Close() error {
	p.cancel()
	<-p.over
	return nil
}

// PortConn is a connection to a port of a workspace. One goroutine may read while another writes.
type PortConn struct {
	stream *connect.BidiStreamForClient[carrelv1.ConnectRequest, carrelv1.ConnectResponse]
	cancel context.CancelFunc

	sending sync.Mutex // Connect allows one sender at a time
	// closed: nothing more is written.
	closed atomic.Bool
	// heard: the service has ended its side, after which nobody reads any more.
	heard atomic.Bool

	// The reader's own.
	rest  []byte
	ended error
}

var _ io.ReadWriteCloser = (*PortConn)(nil)

// DialPort connects to a TCP port of the loopback of workspace, by 127.0.0.1 there and else by ::1. The connection outlives ctx.
//
// Errors: unavailable: nothing listens there. deadline_exceeded: what listens has accepted no connection for 10 seconds.
// failed_precondition: the workspace does not run. resource_exhausted: too many are open.
func (c *Client) DialPort(ctx context.Context, workspace string, port int) (*PortConn, error) {
	number, err := checkPort(port)
	if err != nil {
		return nil, err
	}
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	x := &PortConn{stream: c.Ports().Connect(whole), cancel: cancel}
	err = x.stream.Send(&carrelv1.ConnectRequest{Message: &carrelv1.ConnectRequest_Start{
		Start: &carrelv1.ConnectStart{Workspace: workspace, Port: number},
	}})
	if err == nil || errors.Is(err, io.EOF) { // the answer says why it was refused
		_, err = x.stream.Receive()
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return x, nil
}

// Read implements io.Reader. The end is io.EOF only if the service has ended its side; what broke off is another error.
func (x *PortConn) Read(b []byte) (int, error) {
	for len(x.rest) == 0 {
		if x.ended != nil {
			return 0, x.ended
		}
		m, err := x.stream.Receive()
		switch {
		case errors.Is(err, io.EOF):
			x.ended = fmt.Errorf("cannot read further: the connection was closed before the service had ended it: %w", errdefs.ErrAborted)
		case err != nil:
			x.ended = err
		case m.GetEnd():
			x.ended = io.EOF
			x.heard.Store(true)
		default:
			x.rest = m.GetData()
		}
	}
	n := copy(b, x.rest)
	x.rest = x.rest[n:]
	return n, nil
}

// maxPiece is how much of what is written one message carries.
const maxPiece = 32 << 10

// Write implements io.Writer.
func (x *PortConn) Write(b []byte) (n int, err error) {
	x.sending.Lock()
	defer x.sending.Unlock()
	for n < len(b) {
		piece := b[n:min(len(b), n+maxPiece)]
		if err := x.stream.Send(&carrelv1.ConnectRequest{Message: &carrelv1.ConnectRequest_Data{Data: piece}}); err != nil {
			return n, fmt.Errorf("cannot write to the port: the connection is over: %w", errdefs.ErrAborted)
		}
		n += len(piece)
	}
	return n, nil
}

// CloseWrite says that nothing more is written. What the service still sends can be read.
func (x *PortConn) CloseWrite() error {
	x.sending.Lock()
	defer x.sending.Unlock()
	if x.closed.Load() {
		return nil
	}
	err := x.stream.CloseRequest()
	x.closed.Store(true)
	return err
}

// closing is how long Close waits for the daemon to agree.
const closing = 10 * time.Second

// Close ends the connection. Unless both sides have ended, it breaks off: the service sees a reset.
func (x *PortConn) Close() error {
	if x.closed.Load() && x.heard.Load() { // else what the service has not read yet would be lost with the reset
		t := time.AfterFunc(closing, x.cancel)
		for {
			if _, err := x.stream.Receive(); err != nil {
				break
			}
		}
		t.Stop()
	}
	x.cancel()
	return nil
}
