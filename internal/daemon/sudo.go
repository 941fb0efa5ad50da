package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/state/config"
)

// sudoBroker is a broker that this daemon started by sudo, with the one argument that the
// rule of "carrel setup --print-sudoers" allows. It is started before the daemon sets
// no_new_privs, and so only once: when it ends, the daemon ends.
type sudoBroker struct {
	conn  *net.UnixConn
	taken sync.Once
	// ended is closed when the broker has, and err says how.
	ended chan struct{}
	err   error
}

func startBySudo(cfg *config.Config, log io.Writer) (*sudoBroker, error) {
	wrap := func(err error) (*sudoBroker, error) {
		return nil, fmt.Errorf("cannot start the broker by sudo: %w", err)
	}
	sudo, err := exec.LookPath("sudo")
	if err != nil {
		return wrap(
			fmt.Errorf("there is no sudo; install it, or set broker to service and run \"carrel up\" as root: %w", errdefs.ErrFailedPrecondition),
		)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return wrap(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "broker"), os.NewFile(uintptr(pair[1]), "daemon")
	defer ours.Close()
	defer theirs.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		return wrap(err)
	}
	b := &sudoBroker{conn: c.(*net.UnixConn), ended: make(chan struct{})}
	// -n: it must not ask for a password, as nobody is there.
	cmd := exec.CommandContext(context.Background(), sudo, "-n", cfg.BrokerPath, "--stdio")
	cmd.Dir, cmd.Stdin, cmd.Stderr = "/", theirs, log
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	// Signals to the daemon's group are not for the broker, which ends with its connection.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		c.Close()
		return wrap(err)
	}
	go func() {
		err := cmd.Wait()
		b.err = fmt.Errorf("cannot go on: the broker that sudo started has ended; what it said is in the log: %w",
			errors.Join(err, errdefs.ErrUnavailable))
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 {
			b.err = fmt.Errorf("%w; if sudo refused it: \"carrel setup --print-sudoers\" has the rule that it needs", b.err)
		}
		close(b.ended)
	}()
	return b, nil
}

// dial returns the only connection, once.
func (b *sudoBroker) dial(context.Context) (*net.UnixConn, error) {
	var c *net.UnixConn
	b.taken.Do(func() { c = b.conn })
	if c == nil {
		return nil, errors.New("the connection to the broker that sudo started is gone")
	}
	return c, nil
}

// watch ends ctx when the broker has ended.
func (b *sudoBroker) watch(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-b.ended:
			cancel(b.err)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}
