package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/linux/pidfd"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// prepare makes the user, the group and the directories that are missing. It records what it
// made even if it fails, so that down finds it.
func (i *instance) prepare(ctx context.Context, lock *accounts) (who account, unlock func(), err error) {
	dirs, err := makeDirs(i.data)
	if err == nil {
		err = checkDir(i.data)
	}
	if err == nil {
		unlock, err = i.lock()
	}
	if err != nil {
		for _, d := range slices.Backward(dirs) {
			_ = os.Remove(d) // it is new, so it is empty
		}
		return who, nil, err
	}
	m, err := i.readMade()
	if err != nil {
		return who, unlock, err
	}
	if err := errors.Join(sweep(i.data), sweep(i.runtime)); err != nil {
		return who, unlock, err
	}
	crashpoint.Here("cli.up.data-made")
	if err := i.noteDirs(&m, dirs, i.data, 0o711); err != nil {
		return who, unlock, err
	}
	i.recall(m)
	who, err = i.make(ctx, &m, lock)
	return who, unlock, err
}

// noteDirs records the directories that were made, for down to remove, and then opens them.
func (i *instance) noteDirs(m *made, dirs []string, path string, mode fs.FileMode) error {
	for _, d := range dirs {
		if !slices.Contains(m.Dirs, d) {
			m.Dirs = append(m.Dirs, d)
		}
	}
	if err := i.writeMade(*m); err != nil {
		return err
	}
	crashpoint.Here("cli.up.noted")
	return openDirs(dirs, path, mode)
}

// make is the part of prepare that runs under the lock.
func (i *instance) make(ctx context.Context, m *made, lock *accounts) (who account, err error) {
	// A directory that somebody made for this, with mktemp -d for example, is closed.
	if st, err := os.Stat(i.data); err != nil || st.Mode()&0o011 != 0o011 {
		if err = errors.Join(err, os.Chmod(i.data, 0o711)); err != nil { //nolint:gosec // the daemon must pass through it
			return who, fmt.Errorf("cannot let the daemon into %s: %w", i.data, err)
		}
	}
	// Checked before the user is made: a new user can enter what everybody can enter.
	if who, err = findAccount(daemonUser); err != nil {
		who = account{noID, noID}
	}
	for _, p := range []string{i.daemonDir(), i.config} {
		if p == "" {
			continue
		}
		if err := enterable(p, who.uid, who.gid); err != nil {
			return who, err
		}
	}
	if who, err = ensureAccount(ctx, lock); err != nil {
		return who, err
	}
	crashpoint.Here("cli.up.account-made")
	dirs, err := makeDirs(i.runtime)
	if err == nil {
		err = i.noteDirs(m, dirs, i.runtime, 0o755)
	}
	if err == nil {
		err = errors.Join(checkDir(i.runtime), enterable(i.socket(), who.uid, who.gid))
	}
	if err != nil {
		return who, err
	}
	for _, d := range []string{i.logDir(), i.daemonDir()} {
		if err := makePrivate(d); err != nil {
			return who, err
		}
	}
	return who, give(i.daemonDir(), who)
}

// startBoth starts the parts that do not run: the broker first, because the daemon finds its
// executors through it.
func (i *instance) startBoth(ctx context.Context, programs map[string]string, who account, detach bool, relay *os.File) (
	[]*exec.Cmd, error,
) {
	daemonArgs := []string{"--data-dir", i.data, "--runtime-dir", i.runtime}
	if i.config != "" {
		daemonArgs = append(daemonArgs, "--config", i.config)
	}
	if i.prefix != "" {
		daemonArgs = append(daemonArgs, "--name-prefix", i.prefix)
	}
	var children []*exec.Cmd
	for _, p := range []program{
		{name: "broker", path: programs["carrel-broker"], args: []string{"--settings", i.settings()}},
		{name: "daemon", path: programs["carreld"], args: daemonArgs, as: &who, archiver: programs["carrel-archive"]},
	} {
		if i.answers(ctx, p.name) {
			continue
		}
		c, err := i.startOne(ctx, p, who, detach, relay)
		if err != nil {
			return nil, err
		}
		children = append(children, c)
	}
	return children, nil
}

// answers reports whether a part runs and serves. One that a killed up has just started may not
// serve yet: answers waits until it serves or ends.
func (i *instance) answers(ctx context.Context, name string) bool {
	_, held, ok := i.running(name)
	if !ok {
		return false
	}
	defer held.Close()
	socket := i.socket()
	if name == "broker" {
		socket = filepath.Join(i.runtime, "broker.sock")
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for ctx.Err() == nil {
		c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err == nil {
			c.Close()
			return true
		}
		if errors.Is(err, unix.EAGAIN) { // its queue of connections is full: it serves
			return true
		}
		if pidfd.Ended(held, 20*time.Millisecond) {
			return false
		}
	}
	_, _ = i.stop(name) // it hangs; errors of the next one are reported
	return false
}

func (i *instance) startOne(ctx context.Context, p program, who account, detach bool, relay *os.File) (*exec.Cmd, error) {
	p.session, p.log = detach, relay
	if detach {
		log, err := i.openLog(p.name + ".log")
		if err != nil {
			return nil, err
		}
		defer log.Close()
		p.log = log
		if p.oldLog, err = i.openLog(p.name + ".log.1"); err != nil {
			return nil, err
		}
		defer p.oldLog.Close()
	}
	if p.as != nil {
		// The daemon may not write to the runtime directory at any time: what root reads there is
		// root's own.
		l, err := i.listen(who)
		if err != nil {
			return nil, fmt.Errorf("cannot make the daemon's socket: %w", err)
		}
		defer l.Close()
		p.listener = l
		crashpoint.Here("cli.up.socket-made")
	}
	c, err := i.start(ctx, p)
	if p.as != nil {
		crashpoint.Here("cli.up.daemon-started")
	}
	return c, err
}

// listen makes the daemon's socket in the runtime directory, where only root can write. The daemon
// owns it, so that it can say who may connect; until then nobody but root may.
func (i *instance) listen(who account) (*os.File, error) {
	if err := os.Remove(i.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot remove the socket of a daemon that has ended: %w", err)
	}
	old := unix.Umask(0o777)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: i.socket(), Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	if err := os.Lchown(i.socket(), int(who.uid), int(who.gid)); err != nil {
		return nil, err
	}
	return l.File()
}

// parts are the pids of those that run, by name.
func (i *instance) parts() map[string]int {
	pids := map[string]int{}
	for _, name := range []string{"broker", "daemon"} {
		if p, held, ok := i.running(name); ok {
			held.Close()
			pids[name] = p.PID
		}
	}
	return pids
}

// stopStarted ends the daemon and then the broker, which the daemon needs, but for those that ran
// before: people work with them, and one that is busy may not have answered in time. It is called
// after an error, which is reported instead of its own.
func (i *instance) stopStarted(before map[string]int) {
	for _, name := range []string{"daemon", "broker"} {
		p, held, ok := i.running(name)
		if !ok {
			continue
		}
		if p.PID != before[name] {
			if _, err := endProcess(name, p, held); err == nil {
				_ = os.Remove(i.pidFile(name))
			}
		}
		held.Close()
	}
}

// stay waits until a signal ends ctx or a part ends, and then takes the instance down.
func (a *app) stay(ctx context.Context, stop func(), i *instance, children []*exec.Cmd) error {
	died := make(chan string, len(children))
	for _, c := range children {
		go func() {
			err := c.Wait()
			died <- fmt.Sprintf("%s ended: %v", c.Args[0], err)
		}()
	}
	var unexpected error
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.Err)
	case what := <-died:
		unexpected = fmt.Errorf("cannot go on: %s; what it said last is above: %w", what, errdefs.ErrUnavailable)
	}
	// A second Ctrl-C ends the wait.
	stop()
	ctx, stop = signal.NotifyContext(context.Background(), syscall.SIGINT)
	defer stop()
	return errors.Join(unexpected, a.down(ctx, i, false))
}

// list returns the workspaces of an instance.
func (i *instance) list(ctx context.Context) ([]*carrelv1.Workspace, *carrel.Client, error) {
	client, err := carrel.New(carrel.Options{Host: i.host()})
	if err != nil {
		return nil, nil, err
	}
	m, err := askOf(ctx, client, workspaces.List, &carrelv1.ListRequest{})
	return m.GetWorkspaces(), client, err
}
