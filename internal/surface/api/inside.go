package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// insideCalls are the procedures that are served to a program inside a workspace. The gate holds it to that workspace; this keeps
// it from what it has no use for.
var insideCalls = map[string]bool{
	carrelv1connect.WorkspaceServiceGetProcedure: true,

	carrelv1connect.CommandServiceStreamProcedure:       true,
	carrelv1connect.CommandServiceDetachProcedure:       true,
	carrelv1connect.CommandServiceExplainProcedure:      true,
	carrelv1connect.CommandServiceListCommandsProcedure: true,
	carrelv1connect.CommandServiceLogsProcedure:         true,
	carrelv1connect.CommandServiceSignalProcedure:       true,

	carrelv1connect.FileServiceReadFileProcedure:    true,
	carrelv1connect.FileServiceWriteFileProcedure:   true,
	carrelv1connect.FileServiceStatFileProcedure:    true,
	carrelv1connect.FileServiceListFilesProcedure:   true,
	carrelv1connect.FileServiceSearchFilesProcedure: true,
	carrelv1connect.FileServiceListChangesProcedure: true,

	carrelv1connect.ApprovalServiceGetApprovalProcedure:    true,
	carrelv1connect.ApprovalServiceWatchApprovalsProcedure: true,
}

// maxInner bounds the connections of one Inside. Its client needs one.
const maxInner = 4

// Inside serves a part of the API to a client in this process, which acts for a principal that is bound to a workspace. Each
// request is admitted as that of everybody: a token is looked up again, and counted.
type Inside struct {
	s    *Server
	by   principal.Principal
	from string
	http *http.Server

	ready  chan net.Conn
	closed chan struct{}
	once   sync.Once
	open   chan struct{} // a place for each connection
	served sync.WaitGroup
}

// Inside returns what serves by, who must be bound. from is for the record of logins by a token. The caller closes it.
func (s *Server) Inside(by principal.Principal, from string) (*Inside, error) {
	if by.Bound == nil {
		return nil, fmt.Errorf("cannot serve %s inside a workspace: it is bound to none: %w", by, errdefs.ErrInternal)
	}
	x := &Inside{
		s: s, by: by, from: from, ready: make(chan net.Conn), closed: make(chan struct{}), open: make(chan struct{}, maxInner),
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	x.http = &http.Server{
		Handler:           x,
		ConnContext:       func(ctx context.Context, _ net.Conn) context.Context { return authn.Arriving(ctx, from) },
		ConnState:         x.connState,
		Protocols:         &protocols,
		ReadHeaderTimeout: s.opts.HeaderTimeout,
		MaxHeaderBytes:    16 << 10,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 100},
		ErrorLog:          slog.NewLogLogger(httpLog{s.opts.Log.Handler()}, slog.LevelDebug),
	}
	x.served.Go(func() { _ = x.http.Serve(innerListener{x}) }) // it ends with Close
	return x, nil
}

// ServeHTTP implements http.Handler.
func (x *Inside) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rt, err := x.s.find(r)
	if err == nil && !insideCalls[r.URL.Path] {
		err = fmt.Errorf("cannot serve %s to a program inside a workspace: %w", r.URL.Path, errdefs.ErrPermissionDenied)
	}
	if err != nil {
		x.s.refuse(w, r, err)
		return
	}
	x.s.Admit(w, r, Entry{
		Enter: x.enter, Refuse: x.s.refuse, Handler: x.s.handlers[r.URL.Path], Stream: rt.stream, Counted: rt.counted,
		MaxRequest: rt.maxRequest,
	})
}

// enter returns a context with who calls. That of a token ends with the token, and when it does not reach the workspace any more.
func (x *Inside) enter(ctx context.Context) (entered context.Context, leave func(), err error) {
	if x.by.Kind != principal.Token {
		return authn.NewContext(ctx, x.by), func() {}, nil
	}
	if x.s.opts.Tokens == nil {
		return nil, nil, fmt.Errorf("cannot take a token here: this server knows none: %w", errdefs.ErrUnauthenticated)
	}
	ctx, over, err := x.s.opts.Tokens.EnterAs(ctx, token.ID(x.by.Grant.ID))
	if err != nil {
		return nil, nil, err
	}
	held, release := x.s.gate.Hold(ctx)
	now := authn.FromContext(ctx) // with what the token gives today
	return authn.NewContext(held, now.Bind(x.by.Bound.Workspace, x.by.Bound.Trace)), func() { release(); over() }, nil
}

// Hold returns a context that ends, with the reason as its cause, when the principal may not use the workspace any more. leave is
// for the end of what it is for.
func (x *Inside) Hold(ctx context.Context) (held context.Context, leave func(), err error) {
	held, leave, err = x.enter(authn.Arriving(ctx, x.from))
	if err != nil {
		return nil, nil, err
	}
	// What was reached is what is held.
	if _, err := x.s.gate.Get(held, authn.FromContext(held), string(x.by.Bound.Workspace)); err != nil {
		leave()
		return nil, nil, err
	}
	return held, leave, nil
}

// Dial connects to it.
func (x *Inside) Dial(ctx context.Context) (net.Conn, error) {
	select {
	case x.open <- struct{}{}:
	default:
		return nil, fmt.Errorf("cannot open another connection: there are %d: %w", maxInner, errdefs.ErrResourceExhausted)
	}
	near, far, err := pair()
	if err != nil {
		<-x.open
		return nil, fmt.Errorf("cannot connect inside the daemon: %w", err)
	}
	select {
	case x.ready <- far:
		return near, nil
	case <-x.closed:
		err = net.ErrClosed
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	<-x.open
	return nil, errors.Join(err, near.Close(), far.Close())
}

func (x *Inside) connState(_ net.Conn, state http.ConnState) {
	if state == http.StateClosed {
		<-x.open
	}
}

// innerListener is where the server of an Inside gets its connections.
type innerListener struct{ x *Inside }

// Accept implements net.Listener.
func (l innerListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.x.ready:
		return c, nil
	case <-l.x.closed:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (innerListener) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// Close implements net.Listener. The server calls it under its lock, from Inside.Close.
func (innerListener) Close() error { return nil }

// Close ends it, and the requests that are under way: their commands are hung up.
func (x *Inside) Close() error {
	x.once.Do(func() { close(x.closed) })
	err := x.http.Close()
	x.served.Wait()
	return err
}

// pair are the two ends of a connection. Sockets and not pipes in memory: each side may write before the other reads.
func pair() (near, far net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "inside")
		c, cerr := net.FileConn(f)
		err = errors.Join(err, cerr, f.Close())
		ends[i] = c
	}
	if err != nil {
		for _, c := range ends {
			if c != nil {
				c.Close()
			}
		}
		return nil, nil, err
	}
	return ends[0], ends[1], nil
}
