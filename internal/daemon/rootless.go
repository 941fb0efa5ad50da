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

	"github.com/carrel-dev/carrel/internal/api"
	"github.com/carrel-dev/carrel/internal/config"
	"github.com/carrel-dev/carrel/internal/flow"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/rootless"
	"github.com/carrel-dev/carrel/internal/rootless/paths"
	"github.com/carrel-dev/carrel/internal/rootless/userbroker"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// own is what the daemon of an ordinary user stands on: that user's place, and what stands
// where a broker does. A nil one is of a daemon with a broker.
type own struct {
	place paths.Paths
	desk  *userbroker.Broker
	// ending keeps clients from coming, from when it was found idle until this process has
	// ended.
	ending paths.Lock
}

// settled are the settings that say where a daemon is and who reaches it: of one user's
// daemon that is the place's.
var settled = []string{"broker", "broker_path", "data_dir", "runtime_dir", "socket_mode", "socket_group", "listen", "tls_cert", "tls_key"}

// settle puts the place into the configuration.
func settle(cfg *config.Config, at paths.Paths) error {
	for _, name := range settled {
		if cfg.Chosen(name) {
			return fmt.Errorf(
				"cannot start without root: the setting %s is not for a carrel of one user, whose place XDG_STATE_HOME and XDG_RUNTIME_DIR say; "+
					"take it out: %w", name, errdefs.ErrInvalidArgument,
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
	// Without control groups memory is bounded for each process alone, and what is held of
	// addresses counts: the bounds of a control group would be too low.
	if !cfg.Chosen("limits.memory") {
		cfg.Limits.MemoryBytes = limits.MemoryBytes
	}
	if !cfg.Chosen("limits.pids") {
		cfg.Limits.Pids = limits.Pids
	}
	return nil
}

// turnTimeout is how long a daemon waits for the one before it to end.
const turnTimeout = 20 * time.Second

// runOwn is the rest of Run for an ordinary user.
func runOwn(ctx context.Context, cfg *config.Config, o options, at paths.Paths, environ []string, log *slog.Logger) error {
	executor, err := beside("carrel-executor")
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
	d, err := userbroker.Open(ctx, userbroker.Config{State: at.State, Executor: executor, MaxWorkspaces: cfg.MaxWorkspaces, Log: log})
	if err != nil {
		return err
	}
	return serve(ctx, cfg, o, ground{own: &own{place: at, desk: d}}, log)
}

// hardenOwn is harden for a daemon that starts executors itself. It stays dumpable: the
// kernel gives what is in /proc of its children, their id maps among it, to root otherwise.
// Nor does it give up new privileges: newuidmap, which it runs, needs one. Each executor does.
func hardenOwn() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("cannot forbid core files: %w", err)
	}
	// Executors inherit it, and commands from them. What is private lies in closed directories.
	unix.Umask(0o022)
	return nil
}

// beside looks for a program beside this one, then where packages put it.
func beside(name string) (string, error) {
	var places []string
	if self, err := os.Executable(); err == nil {
		places = append(places, filepath.Join(filepath.Dir(self), name))
	}
	places = append(places, filepath.Join("/usr/libexec/carrel", name))
	for _, p := range places {
		if unix.Access(p, unix.X_OK) == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("cannot find %s: it is in none of %v; install all of carrel's programs in one place: %w",
		name, places, errdefs.ErrNotFound)
}

// publish says where the daemon serves.
func (w *own) publish() error {
	if w == nil {
		return nil
	}
	return w.place.Publish()
}

// idleTick is how often it is looked whether anything is there to stay for.
const idleTick = 250 * time.Millisecond

// idle is closed when nothing ran and nobody was connected for so long, and nobody can be
// about to connect: clients hold a lock from before they look for the daemon.
func (w *own) idle(ctx context.Context, after time.Duration, g *flow.Flow, surface *api.Server, log *slog.Logger) <-chan struct{} {
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
				l, ok, err := w.place.Ending()
				if err != nil { // its state is gone: nobody finds it any more
					log.Error("ending, though the lock against clients cannot be had", "error", err)
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

// stopAll stops what runs, in the record too: executors end with this process.
func (w *own) stopAll(ctx context.Context, g *flow.Flow, log *slog.Logger) {
	if w == nil {
		return
	}
	var all errgroup.Group
	all.SetLimit(8)
	for _, x := range g.Due(func(x *workspace.Workspace) bool { return x.State == workspace.StateRunning }) {
		all.Go(func() error {
			if _, err := g.Stop(context.WithoutCancel(ctx), principal.Self(), string(x.Name)); err != nil {
				log.Error("cannot stop a workspace in order; it ends with this process", "workspace", x.Name, "error", err)
			}
			return nil
		})
	}
	_ = all.Wait() // each has said what there is to say
}
