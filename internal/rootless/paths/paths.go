// Package paths says where one user's carrel keeps its state and its socket, and has the locks
// by which the command line and the daemon agree on when the daemon starts and ends.
//
// It must not start or end anything, and it must not trust a directory that another user
// could have put there.
package paths

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// maxSocket is how long the path of a Unix socket may be (unix(7)).
const maxSocket = 107

// Names below the state directory.
const (
	socketName = "api.sock"
	pointer    = "daemon.socket"
	startLock  = "start.lock"
	useLock    = "use.lock"
	serveLock  = "serve.lock"
	logName    = "daemon.log"
)

// Paths are the files of one user's carrel.
type Paths struct {
	// State is $XDG_STATE_HOME/carrel, what survives a restart.
	State string
	// Socket is where the API is served, $XDG_RUNTIME_DIR/carrel/api.sock. Without
	// XDG_RUNTIME_DIR it is below State.
	Socket string
	// Config is the user's configuration file, which need not exist.
	Config string
}

// Find returns the paths of the calling user, by the XDG Base Directory Specification. It
// makes nothing.
func Find() (Paths, error) {
	state, err := base("XDG_STATE_HOME", ".local/state")
	if err != nil {
		return Paths{}, err
	}
	config, err := ConfigDir()
	if err != nil {
		return Paths{}, err
	}
	p := Paths{State: filepath.Join(state, "carrel"), Config: filepath.Join(config, "carreld.yaml")}
	p.Socket = filepath.Join(p.State, "run", socketName)
	if run := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(run) {
		p.Socket = filepath.Join(run, "carrel", socketName)
	}
	if len(p.Socket) > maxSocket {
		return p, fmt.Errorf("cannot use %s as a socket: its path is %d bytes long and may be %d; "+
			"set XDG_RUNTIME_DIR to a shorter directory of yours: %w", p.Socket, len(p.Socket), maxSocket, errdefs.ErrInvalidArgument)
	}
	return p, nil
}

// ConfigDir is the directory of the calling user's configuration, which need not exist.
func ConfigDir() (string, error) {
	dir, err := base("XDG_CONFIG_HOME", ".config")
	return filepath.Join(dir, "carrel"), err
}

// Contexts is the name, in ConfigDir, of the file of carrels that the user has named.
const Contexts = "contexts.yaml"

// base is a directory that a variable names, or that is below the home. A relative one is to
// be ignored (XDG Base Directory Specification).
func base(variable, below string) (string, error) {
	if v := os.Getenv(variable); filepath.IsAbs(v) {
		return filepath.Clean(v), nil
	}
	home := os.Getenv("HOME")
	if !filepath.IsAbs(home) {
		return "", fmt.Errorf("cannot find your carrel: neither %s nor HOME is an absolute path; set one: %w",
			variable, errdefs.ErrFailedPrecondition)
	}
	return filepath.Join(home, below), nil
}

// Ensure makes the directories and checks that nobody else can change them.
func (p Paths) Ensure() error {
	if err := ensureState(p.State); err != nil {
		return err
	}
	dir := filepath.Dir(p.Socket)
	if parent := filepath.Dir(dir); parent != p.State {
		// The specification has it the user's own with mode 0700. One that somebody else owns,
		// as after sudo or su, is theirs to put sockets in.
		if err := own(parent, "XDG_RUNTIME_DIR"); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot make the directory of the socket: %w; set XDG_RUNTIME_DIR to a directory of yours, or unset it", err)
	}
	return own(dir, "XDG_RUNTIME_DIR")
}

// State makes the state directory of the calling user, for callers that need no other path, and
// checks that nobody else can change it.
func State() (string, error) {
	dir, err := base("XDG_STATE_HOME", ".local/state")
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "carrel")
	return dir, ensureState(dir)
}

func ensureState(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the state directory: %w; set XDG_STATE_HOME to a directory that you can write", err)
	}
	return own(dir, "XDG_STATE_HOME")
}

// own refuses what is not a directory of the caller's that nobody else can enter. variable is
// what names another.
func own(dir, variable string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("cannot use %s: %w; set %s to a directory of yours, or unset it", dir, err, variable)
	}
	why := ""
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		why = "it is no directory"
	case st.Uid != uint32(os.Geteuid()):
		why = fmt.Sprintf("it belongs to uid %d and you are uid %d", st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		return fmt.Errorf("cannot use %s: others can enter it (mode %04o); run: chmod 700 %s: %w",
			dir, st.Mode&0o7777, dir, errdefs.ErrFailedPrecondition)
	default:
		return nil
	}
	return fmt.Errorf("cannot use %s: %s; set %s to a directory of yours with mode 0700, or unset it: %w",
		dir, why, variable, errdefs.ErrFailedPrecondition)
}

// Log is where the daemon's output goes.
func (p Paths) Log() string { return filepath.Join(p.State, logName) }

// Lock is held until Close.
type Lock struct{ f *os.File }

// Close releases it.
func (l Lock) Close() { l.f.Close() }

// Starting is held by the process that starts the daemon: of several at once one does, and the others
// find it started.
func (p Paths) Starting(ctx context.Context) (Lock, error) {
	return p.lock(ctx, startLock, unix.LOCK_EX)
}

// Using is held by a client as long as it needs the daemon, from before it looks for it. It
// waits for one that is ending.
func (p Paths) Using(ctx context.Context) (Lock, error) { return p.lock(ctx, useLock, unix.LOCK_SH) }

// Serving is held by the daemon: there is one for a user.
func (p Paths) Serving(ctx context.Context) (Lock, error) {
	return p.lock(ctx, serveLock, unix.LOCK_EX)
}

// Ending is taken by an idle daemon before it ends, and never released: ok says that nobody uses
// the daemon, and nobody can begin to until it has ended.
func (p Paths) Ending() (l Lock, ok bool, err error) {
	f, err := p.open(useLock)
	if err != nil {
		return Lock{}, false, err
	}
	err = Flock(f, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return Lock{}, false, nil
		}
		return Lock{}, false, err
	}
	return Lock{f}, true, nil
}

func (p Paths) open(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(p.State, name), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open a lock: %w", err)
	}
	return f, nil
}

// lockPause is how often a lock is tried that another process holds. A wait in the kernel could not
// be interrupted.
const lockPause = 10 * time.Millisecond

func (p Paths) lock(ctx context.Context, name string, how int) (Lock, error) {
	f, err := p.open(name)
	if err != nil {
		return Lock{}, err
	}
	t := time.NewTicker(lockPause)
	defer t.Stop()
	for {
		err := Flock(f, how|unix.LOCK_NB)
		if err == nil {
			return Lock{f}, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return Lock{}, fmt.Errorf("cannot lock %s: %w", f.Name(), err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			f.Close()
			return Lock{}, fmt.Errorf("cannot go on: your carrel is starting or ending, and %s is held: %w", f.Name(), context.Cause(ctx))
		}
	}
}

// Flock takes or gives up the lock of an open file, as flock(2).
func Flock(f *os.File, how int) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := rc.Control(func(fd uintptr) {
		for {
			if err = unix.Flock(int(fd), how); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	})
	return errors.Join(cerr, err)
}

// Publish records where the daemon serves, for commands whose XDG_RUNTIME_DIR is different, as in
// a cron job.
func (p Paths) Publish() error {
	path := filepath.Join(p.State, pointer)
	next := path + ".new"
	if err := os.WriteFile(next, []byte(p.Socket), 0o600); err != nil {
		return fmt.Errorf("cannot say where the daemon serves: %w", err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("cannot say where the daemon serves: %w", err)
	}
	return nil
}

// Answers returns the socket at which a daemon of this user accepts connections, "" if there
// is none.
func (p Paths) Answers(ctx context.Context) (string, error) {
	c, err := p.connect(ctx)
	if c == nil {
		return "", err
	}
	defer c.Close()
	return c.RemoteAddr().String(), nil
}

// Daemon returns the pid of the daemon, 0 if there is none.
func (p Paths) Daemon(ctx context.Context) (int, error) {
	c, err := p.connect(ctx)
	if c == nil {
		return 0, err
	}
	defer c.Close()
	rc, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	// Those of the process that listens (unix(7)).
	cerr := rc.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(cerr, err); err != nil {
		return 0, fmt.Errorf("cannot tell who serves at %s: %w", c.RemoteAddr(), err)
	}
	if cred.Uid != uint32(os.Geteuid()) || cred.Pid <= 1 {
		return 0, fmt.Errorf("cannot trust who serves at %s: it is process %d of uid %d: %w",
			c.RemoteAddr(), cred.Pid, cred.Uid, errdefs.ErrPermissionDenied)
	}
	return int(cred.Pid), nil
}

// Sockets are the places where a daemon of this user may serve.
func (p Paths) Sockets() []string {
	places := []string{p.Socket}
	if b, err := os.ReadFile(filepath.Join(p.State, pointer)); err == nil {
		if other := string(b); other != p.Socket && filepath.IsAbs(other) && !strings.Contains(other, "\x00") &&
			own(filepath.Dir(other), "") == nil {
			places = append(places, other)
		}
	}
	return places
}

// connect connects to the daemon of this user. It returns neither a connection nor an error if
// there is no daemon.
func (p Paths) connect(ctx context.Context) (*net.UnixConn, error) {
	for _, at := range p.Sockets() {
		c, err := new(net.Dialer).DialContext(ctx, "unix", at)
		if err == nil {
			return c.(*net.UnixConn), nil
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) {
			return nil, fmt.Errorf("cannot reach your carrel at %s: %w", at, err)
		}
	}
	return nil, nil //nolint:nilnil // as the comment says
}
