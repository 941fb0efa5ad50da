// Package broker is the one process of carrel that has root. It makes and removes the
// users, homes, control groups and executors of workspaces, as the daemon asks, by a
// closed table of operations.
//
// It does not trust the daemon: it validates every argument, composes every path, and
// keeps a ledger of its own. It must not parse YAML, shell, archives, images or policy,
// run any program but those that change the user database and the executor, or stand in
// the way of a command's data.
package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/jsonrpc"
	"github.com/carrel-dev/carrel/internal/peercred"
	"github.com/carrel-dev/carrel/internal/sandbox/launch"
)

// A thread that joined a workspace's groups to start its executor leaves them when it
// ends, which the main thread never does. So the main goroutine keeps that thread, and
// none that starts an executor can be given it.
func init() { runtime.LockOSThread() }

// Options is what the command line gives.
type Options struct {
	// Settings is the path of the settings.
	Settings string
	// Stdio serves one connection, on the socket that is standard input, instead of
	// listening.
	Stdio bool
	// ReadyFD gets the line "ready" once requests are served, and is closed. Negative
	// means none.
	ReadyFD int
	// AwaitFD is read for a line before anything is done; its end without one ends the
	// broker. Negative means none.
	AwaitFD int
	// Build is the release, for hello.
	Build string
	// Log gets the log.
	Log io.Writer
}

const (
	// maxConns bounds the connections served at once. The daemon needs one.
	maxConns = 16
	// takeover is how long a broker that serves one connection waits for the one before it.
	takeover = 10 * time.Second
	// grace is how long a stop waits for operations under way.
	grace = 30 * time.Second
	// gcPercent keeps the heap small; live data is a few MiB.
	gcPercent = 50
	// memory is where the collector works harder. It must be far above what hundreds of
	// executors take, as each has goroutines, or nothing else is done but collecting.
	memory = 64 << 20
)

// Run serves until ctx ends, or, with Stdio, until the connection does. Executors live
// on when it returns.
func Run(ctx context.Context, o Options) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("cannot run as uid %d: carrel-broker makes users and namespaces and needs root; use \"carrel up\" as root, or sudo: %w", os.Geteuid(), errdefs.ErrPermissionDenied)
	}
	if err := await(o.AwaitFD); err != nil {
		return err
	}
	// Modes are set where they matter; this one keeps what control groups show readable
	// to those inside, and nothing writable to others.
	unix.Umask(0o022)
	debug.SetMemoryLimit(memory)
	debug.SetGCPercent(gcPercent)
	log := slog.New(slog.NewTextHandler(o.Log, nil))
	settings, err := ReadSettings(o.Settings)
	if err != nil {
		return err
	}
	life, err := open(ctx, settings, o.Stdio, log)
	// The broker of a daemon that has just gone finishes what it was at.
	for end := time.Now().Add(takeover); o.Stdio && errdefs.IsUnavailable(err) && ctx.Err() == nil && time.Now().Before(end); {
		time.Sleep(takeover / 100)
		life, err = open(ctx, settings, o.Stdio, log)
	}
	if err != nil {
		return err
	}
	s := &Server{Life: life, Settings: settings, Build: o.Build, Log: log}
	ready := func() error { return tell(o.ReadyFD) }
	if o.Stdio {
		err = s.serveStdio(ctx, ready)
	} else {
		err = s.listen(ctx, ready)
	}
	return errors.Join(err, life.Close())
}

// open makes the host and the ledger ready and finishes what a crash left.
func open(ctx context.Context, s Settings, one bool, log *slog.Logger) (*Lifecycle, error) {
	if err := onlyRoots(s.ExecutorPath); err != nil {
		return nil, err
	}
	binary, err := launch.Seal(s.ExecutorPath)
	if err != nil {
		return nil, fmt.Errorf("%w; set executor_path in the broker's settings", err)
	}
	host, err := OpenHost(HostConfig{Settings: s, Launch: launch.Start, Binary: binary, OneConnection: one, Log: log})
	if err != nil {
		_ = binary.Close()
		return nil, err
	}
	crashpoint.Here("broker.up.host-opened")
	for _, m := range host.Missing() {
		log.Warn("this host cannot limit something", "controller", m.Controller, "reason", m.Reason, "remedy", m.Remedy)
	}
	if err := host.HoldsDisk(); err != nil {
		log.Warn("this host cannot limit disk space", "reason", err)
	}
	dir, err := host.OpenState()
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	ledger, err := OpenLedger(dir)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	crashpoint.Here("broker.up.ledger-opened")
	life := NewLifecycle(s, ledger, host, log)
	if err := life.Recover(ctx); err != nil {
		return nil, errors.Join(err, life.Close())
	}
	crashpoint.Here("broker.up.recovered")
	return life, nil
}

// onlyRoots sees that nobody else can change a program that is started with root's help.
func onlyRoots(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("cannot use the executor %s: %w; set executor_path in the broker's settings", path, err)
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return fmt.Errorf("cannot use the executor %s: others than root can change it; chown root and chmod go-w it: %w", path, errdefs.ErrPermissionDenied)
	}
	return nil
}

// await waits for whoever started us to have noted that it did.
func await(fd int) error {
	if fd < 0 {
		return nil
	}
	f := os.NewFile(uintptr(fd), "await")
	if f == nil {
		return fmt.Errorf("cannot wait to be told to begin: descriptor %d is not open: %w", fd, errdefs.ErrInvalidArgument)
	}
	defer f.Close()
	if n, err := f.Read(make([]byte, 16)); n == 0 {
		return fmt.Errorf("cannot begin: whoever started the broker has ended: %w: %w", err, errdefs.ErrUnavailable)
	}
	return nil
}

// tell writes the line that whoever started us waits for.
func tell(fd int) error {
	if fd < 0 {
		return nil
	}
	f := os.NewFile(uintptr(fd), "ready")
	if f == nil {
		return fmt.Errorf("cannot say that the broker is ready: descriptor %d is not open: %w", fd, errdefs.ErrInvalidArgument)
	}
	_, err := f.WriteString("ready\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cannot say that the broker is ready: %w", err)
	}
	return nil
}

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

// socketFile is the broker's socket in the runtime directory.
const socketFile = "broker.sock"

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

// bindSocket makes the socket. Whoever is on an old one cannot be a broker: the ledger
// is locked.
func bindSocket(st Settings) (*net.UnixListener, error) {
	dir, err := ensureDir(st.RuntimeDir, 0o755, 0, 0, true)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), socketFile)
	defer f.Close()
	err = withFD(dir, func(d int) error {
		if err := unix.Unlinkat(d, socketFile, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		// Nobody can connect before listen, and by then mode and owner are set.
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d, socketFile)}); err != nil {
			return err
		}
		if err := unix.Fchmodat(d, socketFile, 0o600, 0); err != nil {
			return err
		}
		if err := unix.Fchownat(d, socketFile, int(st.DaemonUID), int(st.DaemonGID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		return unix.Listen(fd, maxConns)
	})
	if err != nil {
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
	cred, err := peercred.Of(c)
	if err != nil {
		return nil, err
	}
	if cred.UID != 0 && cred.UID != s.Settings.DaemonUID {
		return nil, fmt.Errorf("cannot serve uid %d: only root and uid %d (daemon_uid in the settings) are served: %w", cred.UID, s.Settings.DaemonUID, errdefs.ErrPermissionDenied)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= maxConns || s.stopping {
		return nil, fmt.Errorf("cannot serve another connection: there are %d: %w", len(s.conns), errdefs.ErrResourceExhausted)
	}
	if s.conns == nil {
		s.conns = map[*jsonrpc.Conn]bool{}
	}
	one := &session{life: s.Life, build: s.Build, sockets: s.Settings.RuntimeDir + "/x"}
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

// begin counts a request in, unless the broker is being stopped.
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
