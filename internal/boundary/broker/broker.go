// Package broker is the one process of carrel that has root. It makes and removes the
// users, homes, control groups and executors of workspaces, as the daemon asks, by a
// closed table of operations.
//
// It does not trust the daemon: it validates every argument, composes every path, and
// keeps a ledger of its own. It must not parse YAML, shell, archives, images or policy,
// run any program but those that change the user database, the executor and carrel-egress, or
// stand in the way of a command's data.
package broker

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/startup"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/oom"
	"github.com/carrel-dev/carrel/internal/linux/logfile"
	"github.com/carrel-dev/carrel/internal/linux/sealed"
)

// A thread that joined a workspace's groups to start its executor leaves them when it
// ends, which the main thread never does. So the main goroutine keeps that thread, and
// no goroutine that starts an executor runs on it.
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
	// OldLogFD is what Log is rotated into, a file open for writing, if Log is a file too. Below 3
	// means that it is not rotated.
	OldLogFD int
	// Build is the release, for hello.
	Build string
	// Log gets the log.
	Log io.Writer
}

// Flags are the flags of carrel-broker, which set o.
func Flags(o *Options) *flag.FlagSet {
	f := flag.NewFlagSet("carrel-broker", flag.ExitOnError)
	f.StringVar(&o.Settings, "settings", DefaultSettings, "read the settings from `FILE`, which only root may be able to write")
	f.BoolVar(&o.Stdio, "stdio", false, "serve the socket that is standard input, for use with sudo")
	f.IntVar(&o.ReadyFD, "ready-fd", -1, "write a line to descriptor `N` once requests are served")
	f.IntVar(&o.AwaitFD, "await-fd", -1, "do nothing before a line comes from descriptor `N`, and end if it ends without")
	f.IntVar(&o.OldLogFD, "old-log-fd", -1, "rotate the log, which is standard error, into the file that is descriptor `N`")
	return f
}

const (
	// takeover is how long a broker that serves one connection waits for the one before it.
	takeover = 10 * time.Second
	// gcPercent keeps the heap small; live data is a few MiB.
	gcPercent = 50
	// memoryLimit is where the collector works harder. It must be far above what hundreds of
	// executors take, because each has goroutines, or the broker does nothing but collect.
	memoryLimit = 64 << 20
)

// Run serves until ctx ends, or, with Stdio, until the connection does. Executors live
// on when it returns.
func Run(ctx context.Context, o Options) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("cannot run as uid %d: carrel-broker makes users and namespaces and needs root; "+
			"use \"carrel up\" as root, or sudo: %w", os.Geteuid(), errdefs.ErrPermissionDenied)
	}
	if err := startup.Await(o.AwaitFD); err != nil {
		return err
	}
	// Modes are set where they matter; this one keeps what control groups show readable
	// to those inside, and nothing writable to others.
	unix.Umask(0o022)
	allowCoreLimit()
	debug.SetMemoryLimit(memoryLimit)
	debug.SetGCPercent(gcPercent)
	out, err := logfile.FromFDs(o.Log, o.OldLogFD)
	if err != nil {
		return err
	}
	paced := logfile.NewPaced(slog.NewTextHandler(out, nil))
	defer paced.Flush()
	log := slog.New(paced)
	settings, err := ReadSettings(o.Settings)
	if err != nil {
		return err
	}
	life, err := openLifecycle(ctx, settings, o.Stdio, log)
	// The broker of a daemon that has just ended finishes its operations.
	for end := time.Now().Add(takeover); o.Stdio && errdefs.IsUnavailable(err) && ctx.Err() == nil && time.Now().Before(end); {
		time.Sleep(takeover / 100)
		life, err = openLifecycle(ctx, settings, o.Stdio, log)
	}
	if err != nil {
		return err
	}
	s := &Server{Life: life, Settings: settings, Build: o.Build, Log: log}
	ready := func() error {
		if err := oom.Set(os.Getpid(), oom.Carrel); err != nil {
			log.Warn("when memory is full, the kernel may end the broker before a command", "error", err)
		}
		return startup.Ready(o.ReadyFD)
	}
	if o.Stdio {
		err = s.serveStdio(ctx, ready)
	} else {
		err = s.listen(ctx, ready)
	}
	return errors.Join(err, life.Close())
}

// openLifecycle makes the host and the ledger ready and finishes what a crash left.
func openLifecycle(ctx context.Context, s Settings, one bool, log *slog.Logger) (*Lifecycle, error) {
	if err := onlyRoots("executor", s.ExecutorPath); err != nil {
		return nil, err
	}
	binary, err := launch.Seal(s.ExecutorPath)
	if err != nil {
		return nil, fmt.Errorf("%w; set executor_path in the broker's settings", err)
	}
	egress, err := sealEgress(s.EgressPath)
	if err != nil {
		_ = binary.Close()
		return nil, err
	}
	host, err := OpenHost(HostConfig{Settings: s, Launch: launch.Start, Binary: binary, Egress: egress, OneConnection: one, Log: log})
	if err != nil {
		closeFiles(binary, egress)
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

// sealEgress reads carrel-egress. It is no error if there is none: only workspaces with a way out need it.
func sealEgress(path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		defer f.Close()
		err = onlyRoots("egress", path)
	}
	if err != nil {
		return nil, err
	}
	return sealed.Copy(f, "carrel-egress")
}

// onlyRoots checks that only root can change a program that is started with root's help.
func onlyRoots(what, path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("cannot use the %s %s: %w; set %[1]s_path in the broker's settings", what, path, err)
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return fmt.Errorf("cannot use the %s %s: others than root can change it; chown root and chmod go-w it: %w",
			what, path, errdefs.ErrPermissionDenied)
	}
	return nil
}

// allowCoreLimit lets executors set the limit of core files that their commands need, also where the host's
// is lower. Without CAP_SYS_RESOURCE that fails, and the control core-dumps says so.
func allowCoreLimit() {
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err == nil && core.Max < sandbox.CoreLimit {
		_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: core.Cur, Max: sandbox.CoreLimit})
	}
}
