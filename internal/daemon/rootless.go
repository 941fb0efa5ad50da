package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/daemon/compose"
	"github.com/carrel-dev/carrel/internal/rootless"
	"github.com/carrel-dev/carrel/internal/rootless/paths"
	"github.com/carrel-dev/carrel/internal/rootless/userbroker"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/config"
	"github.com/carrel-dev/carrel/internal/surface/api"
)

// own is the backend of an ordinary user's daemon. It is nil for a daemon with a broker.
type own struct {
	// paths are the directories and the socket of that user.
	paths paths.Paths
	// broker does in this process what the broker does for other daemons.
	broker *userbroker.Broker
	// ending locks clients out from when the daemon is found idle until this process has ended.
	ending paths.Lock
}

// fixed are the settings that say where a daemon is and who reaches it. For the daemon of one
// user, the user's paths decide that.
var fixed = []string{"broker", "broker_path", "data_dir", "runtime_dir", "socket_mode", "socket_group", "listen", "tls_cert", "tls_key"}

// usePaths puts the user's paths into the configuration.
func usePaths(cfg *config.Config, at paths.Paths) error {
	for _, name := range fixed {
		if cfg.Chosen(name) {
			return fmt.Errorf(
				"cannot start without root: the setting %s is not for a carrel of one user, which XDG_STATE_HOME and XDG_RUNTIME_DIR place; "+
					"remove it: %w", name, errdefs.ErrInvalidArgument,
			)
		}
	}
	cfg.DataDir, cfg.RuntimeDir, cfg.SocketMode, cfg.SocketGroup = at.State, filepath.Dir(at.Socket), 0o600, ""
	if path := rootless.PolicyPath(); path != "" && !cfg.Chosen("policy.path") {
		cfg.PolicyPath = path
	}
	limits, _, err := rootless.HostLimits()
	if err != nil {
		return err
	}
	// Without control groups memory is limited for each process alone, by its address space:
	// the limits of a control group would be too low.
	if !cfg.Chosen("limits.memory") {
		cfg.Limits.MemoryBytes = limits.MemoryBytes
	}
	if !cfg.Chosen("limits.pids") {
		cfg.Limits.Pids = limits.Pids
	}
	return nil
}

// turnTimeout is how long a daemon waits for its predecessor to end.
const turnTimeout = 20 * time.Second

// runOwn is the rest of Run for an ordinary user.
func runOwn(ctx context.Context, cfg *config.Config, o options, at paths.Paths, environ []string, log *slog.Logger) error {
	executor, err := findProgram("carrel-executor")
	if err != nil {
		return err
	}
	egress, err := findProgram("carrel-egress")
	if err != nil {
		return err
	}
	if err := at.Ensure(); err != nil {
		return err
	}
	if err := hardenOwn(); err != nil {
		return err
	}
	boundMemory(environ)
	turn, cancel := context.WithTimeoutCause(ctx, turnTimeout,
		fmt.Errorf("another carreld serves this user with the state in %s; end it with \"carrel down\": %w", at.State, errdefs.ErrUnavailable))
	serving, err := at.Serving(turn)
	cancel()
	if err != nil {
		return err
	}
	defer serving.Close()
	d, err := userbroker.Open(ctx, userbroker.Config{
		State: at.State, Executor: executor, Egress: egress, MaxWorkspaces: cfg.MaxWorkspaces, Log: log,
	})
	if err != nil {
		return err
	}
	return serve(ctx, cfg, o, backend{own: &own{paths: at, broker: d}}, log)
}

// hardenOwn is harden for a daemon that starts executors itself. The daemon stays dumpable:
// otherwise the files of its children in /proc, such as their id maps, belong to root. It does
// not set no_new_privs, because it runs newuidmap, which is setuid. Each executor sets it.
func hardenOwn() error {
	// Executors inherit it, and their commands need a hard limit of 1: sandbox.CoreLimit.
	var core unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_CORE, &core)
	if err == nil {
		most := min(core.Max, 1)
		err = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: most, Max: most})
	}
	if err != nil {
		return fmt.Errorf("cannot forbid core files: %w", err)
	}
	// Executors and their commands inherit it. Private files lie in closed directories.
	unix.Umask(0o022)
	return nil
}

// candidates are where a program may be: beside this one, or where packages put it.
func candidates(name string) (paths []string) {
	if self, err := os.Executable(); err == nil {
		paths = append(paths, filepath.Join(filepath.Dir(self), name))
	}
	return append(paths, filepath.Join("/usr/libexec/carrel", name))
}

// findProgram returns the path of one of carrel's programs.
func findProgram(name string) (string, error) {
	for _, p := range candidates(name) {
		if unix.Access(p, unix.X_OK) == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("cannot find %s: it is in none of %v; install all of carrel's programs in one place: %w",
		name, candidates(name), errdefs.ErrNotFound)
}

// publish says where the daemon serves.
func (w *own) publish() error {
	if w == nil {
		return nil
	}
	return w.paths.Publish()
}

// idleTick is how often the daemon checks whether it is idle.
const idleTick = 250 * time.Millisecond

// idle returns a channel that is closed when nothing ran and nobody was connected for the time
// after, and no client is about to connect: clients take a lock before they look for the daemon.
func (w *own) idle(ctx context.Context, after time.Duration, g *compose.Flow, surface *api.Server, log *slog.Logger) <-chan struct{} {
	done := make(chan struct{})
	if w == nil || after == 0 {
		return done
	}
	inUse := func() bool {
		return surface.Connections() > 0 || len(g.Due(func(x *workspace.Workspace) bool { return x.State != workspace.StateStopped })) > 0
	}
	go func() {
		t := time.NewTicker(idleTick)
		defer t.Stop()
		since := time.Now()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-t.C:
				if inUse() {
					since = now
				}
				if now.Sub(since) < after {
					continue
				}
				l, ok, err := w.paths.Ending()
				if err != nil { // its state is gone, so no client finds it
					log.Error("ending without the lock against clients", "error", err)
				} else if !ok {
					since = now
					continue
				}
				w.ending = l
				close(done)
				return
			}
		}
	}()
	return done
}

// stopAll stops and records what runs, because executors end with this process.
func (w *own) stopAll(ctx context.Context, g *compose.Flow, log *slog.Logger) {
	if w == nil {
		return
	}
	var all errgroup.Group
	all.SetLimit(8)
	for _, x := range g.Due(func(x *workspace.Workspace) bool { return x.State.Live() }) {
		all.Go(func() error {
			if _, err := g.Stop(context.WithoutCancel(ctx), principal.Self(), string(x.Name)); err != nil {
				log.Error("cannot stop a workspace in order; it ends with this process", "workspace", x.Name, "error", err)
			}
			return nil
		})
	}
	_ = all.Wait() // each error is logged
}
