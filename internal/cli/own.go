package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/pidfd"
	"github.com/carrel-dev/carrel/internal/rootless/paths"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// rootlessEnv, set to 1, is --rootless.
const rootlessEnv = "CARREL_ROOTLESS"

// ownTimeout bounds the wait while the caller's own carrel starts or ends.
const ownTimeout = time.Minute

// target is the carrel that a command uses, and the reason for the choice.
type target struct {
	// host is a running daemon, or "" for the caller's own, which may have to be started.
	host string
	// context is the context that names host, if one does.
	context connectTo
	own     paths.Paths
	why     string
}

// target chooses the carrel. If the chosen one does not answer, no other is tried:
//
//	--host, CARREL_HOST          the one named
//	--rootless, CARREL_ROOTLESS  the caller's own
//	--context, CARREL_CONTEXT, or a context in use: that of the context
//	root                         the system's
//	the system's socket does not exist, or is closed to the caller: the caller's own
//	otherwise                    the system's, even if nothing listens on its socket
func (a *app) target() (target, error) {
	forced := a.rootless || os.Getenv(rootlessEnv) == "1"
	name, named, to, err := a.chosenContext()
	switch {
	case err != nil:
		return target{}, err
	case name != "":
		return target{host: to.Host, context: to, why: named}, nil
	case a.host != "" && a.rootless:
		return target{}, fmt.Errorf("cannot use --host and --rootless together: leave one out: %w", errdefs.ErrInvalidArgument)
	case a.host != "":
		return target{host: a.host, why: "--host names it"}, nil
	case os.Getenv(carrel.HostEnv) != "":
		return target{host: os.Getenv(carrel.HostEnv), why: carrel.HostEnv + " names it"}, nil
	case os.Geteuid() == 0 && forced:
		return target{}, fmt.Errorf("cannot use a carrel without root as root: leave --rootless and %s out, or run this as an ordinary user: %w",
			rootlessEnv, errdefs.ErrInvalidArgument)
	case os.Geteuid() == 0:
		return target{host: carrel.DefaultHost, why: "root uses the system's"}, nil
	}
	why := "--rootless or " + rootlessEnv + " asks for your own"
	if !forced {
		system := strings.TrimPrefix(carrel.DefaultHost, "unix://")
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: system, Net: "unix"})
		switch {
		case err == nil:
			c.Close()
			return target{host: carrel.DefaultHost, why: "the system's answers"}, nil
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			why = "there is no system's at " + system
		case errors.Is(err, unix.EACCES) && !unopened(system):
			why = "the system's at " + system + " is closed to you"
		default:
			why = "the system's is at " + system + ", though it does not answer; --rootless uses your own"
			return target{host: carrel.DefaultHost, why: why}, nil
		}
	}
	p, err := paths.Find()
	return target{own: p, why: why}, err
}

// unopened reports whether a daemon that starts has made its socket and not yet opened it to those who may use it.
func unopened(socket string) bool {
	i, err := os.Lstat(socket)
	return err == nil && i.Mode().Perm() == 0
}

// client returns the SDK's client of the daemon that the flags name, or of the caller's own,
// which is started if it does not run. All calls of a run share it.
func (a *app) client() (*carrel.Client, error) {
	if a.connected != nil {
		return a.connected, nil
	}
	t, err := a.target()
	if err != nil {
		return nil, err
	}
	if t.host == "" {
		ctx, cancel := context.WithTimeout(context.Background(), ownTimeout)
		defer cancel()
		if t.host, err = a.startOwn(ctx, t.own); err != nil {
			return nil, err
		}
	}
	a.connected, err = a.connection(t)
	return a.connected, err
}

// errNotUp reports that the caller's own carrel does not run, which is normal.
var errNotUp = fmt.Errorf("cannot use your own carrel: it does not run; the first command that needs it starts it: %w",
	errdefs.ErrUnavailable)

// clientIfUp is client, but starts nothing.
func (a *app) clientIfUp() (*carrel.Client, error) {
	t, err := a.target()
	if err != nil {
		return nil, err
	}
	if t.host == "" {
		ctx, cancel := context.WithTimeout(context.Background(), doctorTimeout)
		defer cancel()
		if _, err := os.Lstat(t.own.State); err != nil {
			return nil, errNotUp
		}
		socket, err := t.own.Answers(ctx)
		if err == nil && socket == "" {
			err = errNotUp
		}
		if err != nil {
			return nil, err
		}
		t.host = "unix://" + socket
	}
	return a.connection(t)
}

// startOwn returns the host of the caller's own carrel, and starts it if it does not run. It
// keeps that carrel from ending before this command does.
func (a *app) startOwn(ctx context.Context, p paths.Paths) (host string, err error) {
	if err := p.Ensure(); err != nil {
		return "", err
	}
	if a.using == (paths.Lock{}) {
		if a.using, err = p.Using(ctx); err != nil {
			return "", err
		}
	}
	socket, err := p.Answers(ctx)
	if err != nil {
		return "", err
	}
	if socket != "" {
		return "unix://" + socket, nil
	}
	starting, err := p.Starting(ctx)
	if err != nil {
		return "", err
	}
	defer starting.Close()
	// Another may have started it meanwhile.
	if socket, err = p.Answers(ctx); err != nil {
		return "", err
	}
	if socket == "" {
		a.progress("Starting your carrel; its log is %s.", p.Log())
		if err := launchOwn(ctx, p); err != nil {
			return "", fmt.Errorf("cannot start your carrel: %w", err)
		}
		socket = p.Socket
	}
	return "unix://" + socket, nil
}

// maxOwnLog is the size in bytes from which a start empties the log.
const maxOwnLog = 1 << 20

// launchOwn starts the daemon in a new session, so that it does not end with this command or
// its terminal, and returns when it serves.
func launchOwn(ctx context.Context, p paths.Paths) error {
	program, err := findProgram("carreld")
	if err != nil {
		return err
	}
	log, err := os.OpenFile(p.Log(), os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open its log: %w", err)
	}
	defer log.Close()
	offset, err := log.Seek(0, io.SeekEnd)
	if err == nil && offset > maxOwnLog {
		offset, err = 0, log.Truncate(0)
	}
	if err != nil {
		return fmt.Errorf("cannot use its log: %w", err)
	}
	ready, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	c := &exec.Cmd{
		Path: program, Args: []string{filepath.Base(program), "--rootless", "--ready-fd", "3"},
		Env: environ(append(slices.Clone(authorities), "HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME")...),
		Dir: "/", Stdout: log, Stderr: log,
		ExtraFiles:  []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = c.Start()
	theirs.Close()
	if err != nil {
		return err
	}
	if err := awaitReady(ctx, ready); err != nil {
		_ = c.Process.Kill() // it may have ended by itself
		_ = c.Wait()
		return fmt.Errorf("%w%s", err, tail(log, offset))
	}
	return c.Process.Release()
}

// downOwn ends the caller's own carrel, and with it everything that runs in its workspaces.
func (a *app) downOwn(ctx context.Context, p paths.Paths) error {
	nothing := func() error { return text("Nothing to do: your own carrel does not run.\n").render(a.Out) }
	if _, err := os.Lstat(p.State); err != nil {
		return nothing()
	}
	ctx, cancel := context.WithTimeout(ctx, ownTimeout)
	defer cancel()
	if err := p.Ensure(); err != nil {
		return err
	}
	starting, err := p.Starting(ctx)
	if err != nil {
		return err
	}
	defer starting.Close()
	pid, err := p.Daemon(ctx)
	if err != nil {
		return err
	}
	if pid == 0 {
		return nothing()
	}
	held, err := hold(pid)
	if err != nil && !errors.Is(err, pidfd.ErrEnded) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot end your carrel (pid %d): %w", pid, err)
	}
	if err == nil {
		defer held.Close()
		if _, err := endProcess("daemon", process{PID: pid}, held); err != nil {
			return err
		}
	}
	err = say(a.Out, "Your carrel has ended. Homes and record stay in %s.\n", p.State)
	return err
}
