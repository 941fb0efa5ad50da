package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/linux/peercred"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

const (
	// maxConns bounds the connections served at once. The daemon needs one.
	maxConns = 16
	// grace is how long a stop waits for operations under way.
	grace = 30 * time.Second
)

// Server serves connections.
type Server struct {
	Life     *Lifecycle
	Settings Settings
	Build    string
	Log      *slog.Logger

	mu       sync.Mutex
	conns    map[*jsonrpc.Conn]bool
	stopping bool
	requests sync.WaitGroup
}

func (s *Server) listen(ctx context.Context, ready func() error) error {
	path := s.Settings.RuntimeDir + "/" + socketFile
	l, err := bindSocket(s.Settings)
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	defer func() { _ = os.Remove(path) }() // the next broker removes what is left
	crashpoint.Here("broker.up.socket-bound")
	if err := ready(); err != nil {
		_ = l.Close()
		return err
	}
	s.Log.Info("serving", "socket", path)
	return s.Serve(ctx, l)
}

// socketFile is the broker's socket in the runtime directory.
const socketFile = "broker.sock"

// bindSocket makes the broker's socket.
func bindSocket(st Settings) (*net.UnixListener, error) {
	dir, err := ensureDir(st.RuntimeDir, 0o755, 0, 0, true)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := bindAt(dir, socketFile, st)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// Nobody can connect before listen, and by now mode and owner are set.
	if err := withFD(f, func(fd int) error { return unix.Listen(fd, maxConns) }); err != nil {
		return nil, err
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false) // its address is a path under /proc that means nothing later
	return u, nil
}

// Serve accepts connections until ctx ends, and then waits for what is under way.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer s.shutdown()
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			_ = l.Close()
			return fmt.Errorf("cannot accept connections: %w", err)
		}
		if _, err := s.Attach(c, nil); err != nil {
			s.Log.Warn("a connection was refused", "reason", err)
			_ = c.Close()
		}
	}
}

// Attach serves one connection, if its peer may speak to the broker. onClose is called
// when it has ended.
func (s *Server) Attach(c *net.UnixConn, onClose func(error)) (*jsonrpc.Conn, error) {
	peer, err := peercred.Of(c)
	if err != nil {
		return nil, err
	}
	if peer.UID != 0 && peer.UID != s.Settings.DaemonUID {
		return nil, fmt.Errorf("cannot serve uid %d: only root and uid %d (daemon_uid in the settings) are served: %w",
			peer.UID, s.Settings.DaemonUID, errdefs.ErrPermissionDenied)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= maxConns || s.stopping {
		return nil, fmt.Errorf("cannot serve another connection: there are %d: %w", len(s.conns), errdefs.ErrResourceExhausted)
	}
	if s.conns == nil {
		s.conns = map[*jsonrpc.Conn]bool{}
	}
	one := &session{
		life: s.Life, build: s.Build, sockets: s.Settings.RuntimeDir + "/x", uidFirst: s.Settings.UIDFirst,
		uidCount: s.Settings.UIDCount,
	}
	var conn *jsonrpc.Conn
	conn = jsonrpc.New(c, jsonrpc.Config{
		MaxFrame: maxRequest, MaxSend: maxReply, MaxFDs: 1, MaxInFlight: maxInFlight,
		Handler: func(ctx context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
			if !s.begin() {
				return nil, nil, fmt.Errorf("cannot begin %s: the broker is being stopped: %w", r.Method, errdefs.ErrUnavailable)
			}
			defer s.requests.Done()
			result, err := one.handle(ctx, r)
			if err != nil {
				s.Log.Warn("refused", "method", r.Method, "error", err)
			}
			if f, ok := result.(*os.File); ok && err == nil {
				return struct{}{}, []*os.File{f}, nil
			}
			return result, nil, err
		},
		OnClose: func(err error) {
			s.mu.Lock() // Attach holds it until conn is set
			delete(s.conns, conn)
			s.mu.Unlock()
			if !errors.Is(err, io.EOF) && !errors.Is(err, jsonrpc.ErrClosed) {
				s.Log.Warn("a connection ended", "reason", err)
			}
			if onClose != nil {
				onClose(err)
			}
		},
	})
	s.conns[conn] = true
	return conn, nil
}

// begin counts a request, unless the broker is being stopped.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.requests.Add(1)
	return true
}

// shutdown lets requests under way finish, and closes the connections.
func (s *Server) shutdown() {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.requests.Wait()
		close(done)
	}()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		s.Log.Error("stopping although operations are under way; the next start finishes or undoes them")
	}
	s.mu.Lock()
	var all []*jsonrpc.Conn
	for c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		_ = c.Close() // always nil
	}
}

// serveStdio serves the socket that is standard input.
func (s *Server) serveStdio(ctx context.Context, ready func() error) error {
	c, err := net.FileConn(os.Stdin)
	if err != nil {
		return fmt.Errorf("cannot serve standard input: it is not a socket; carrel starts the broker this way by itself: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return fmt.Errorf("cannot serve standard input: it is not a Unix socket: %w", errdefs.ErrInvalidArgument)
	}
	ended := make(chan struct{})
	if _, err := s.Attach(u, func(error) { close(ended) }); err != nil {
		_ = c.Close()
		return err
	}
	defer s.shutdown()
	if err := ready(); err != nil {
		return err
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
	return nil
}
