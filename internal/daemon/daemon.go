// Package daemon assembles carreld: it reads the configuration, opens the stored state,
// connects gate, runtime and API, serves, and shuts everything down in order. Only its
// command imports it.
//
// It must not hold logic of its own beyond that order.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/runbooks"
	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/startup"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/boundary/runtime/namespace"
	"github.com/carrel-dev/carrel/internal/daemon/compose"
	"github.com/carrel-dev/carrel/internal/egress/keeper"
	"github.com/carrel-dev/carrel/internal/egress/ways"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
	"github.com/carrel-dev/carrel/internal/linux/logfile"
	"github.com/carrel-dev/carrel/internal/rootless/paths"
	"github.com/carrel-dev/carrel/internal/service/archiver"
	"github.com/carrel-dev/carrel/internal/service/audits"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/archivestore"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/config"
	"github.com/carrel-dev/carrel/internal/state/record"
	"github.com/carrel-dev/carrel/internal/state/secret"
	"github.com/carrel-dev/carrel/internal/state/store"
	_ "github.com/carrel-dev/carrel/internal/state/store/sqlite" // it opens the database
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/surface/e2b"
	"github.com/carrel-dev/carrel/internal/surface/taskmcp"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Streams are the output streams of the process.
type Streams struct {
	Out, Err io.Writer
}

// Run runs carreld. It returns when ctx has ended and everything is shut down, or with
// the error that kept it from starting. args do not include the program's name; environ is
// as os.Environ returns it.
func Run(ctx context.Context, args, environ []string, s Streams) error {
	o, err := parse(args, s.Err)
	if err != nil {
		return err
	}
	if o.version {
		_, err := fmt.Fprintln(s.Out, "carreld", build.Version())
		return err
	}
	if o.printSample {
		_, err := io.WriteString(s.Out, config.Sample())
		return err
	}
	if o.printMarks {
		return printMarks(ctx, s.Out)
	}
	var at paths.Paths
	sources := config.Sources{Flags: o.settings, Environ: environ, File: o.file}
	if o.rootless {
		if at, err = paths.Find(); err != nil {
			return err
		}
		sources.Default = at.Config
	}
	cfg, err := config.Load(sources)
	if err == nil && o.rootless {
		err = usePaths(cfg, at)
	}
	if err != nil {
		return err
	}
	switch {
	case o.printConfig:
		return printConfig(s.Out, cfg)
	case o.verifyAudit:
		return verifyAudit(ctx, s.Out, cfg)
	}
	if err := unprivileged(); err != nil {
		return err
	}
	if err := startup.Await(o.awaitFD); err != nil {
		return err
	}
	if s.Err, err = logfile.FromFDs(s.Err, o.oldLogFD); err != nil {
		return err
	}
	if o.rootless {
		return runOwn(ctx, cfg, o, at, environ, newLog(s.Err, cfg))
	}
	var broker *sudoBroker
	if cfg.Broker == config.BySudo {
		if broker, err = startBySudo(cfg, s.Err); err != nil {
			return err
		}
	}
	if err := harden(); err != nil {
		return err
	}
	boundMemory(environ)
	if broker == nil {
		return serve(ctx, cfg, o, backend{}, newLog(s.Err, cfg))
	}
	ctx, cancel := broker.watch(ctx)
	defer cancel()
	err = serve(ctx, cfg, o, backend{dial: broker.dial}, newLog(s.Err, cfg))
	select {
	case <-broker.ended:
		err = errors.Join(broker.err, err)
	default:
	}
	return err
}

func newLog(w io.Writer, cfg *config.Config) *slog.Logger {
	opts := &slog.HandlerOptions{Level: cfg.LogLevel}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// profiles are the profiles of every daemon. The limits of chat are those of the bots that
// carrel was first made for.
func profiles(cfg *config.Config) map[string]lifecycle.Profile {
	chat := lifecycle.Profile{Prefix: "chat", Allow: cfg.ChatAllow, Limits: workspace.Limits{MemoryBytes: 256 << 20, Pids: 200}}
	if cfg.ChatSkeleton != "" || cfg.ChatGit {
		s := &skeleton{dir: cfg.ChatSkeleton, git: cfg.ChatGit, scratch: filepath.Join(stateDir(cfg), "skeleton-chat")}
		chat.Skeleton = s.open
	}
	return map[string]lifecycle.Profile{"chat": chat}
}

// State is in <data_dir>/daemon, which is the daemon's alone; the broker has its
// own directory beside it.
func stateDir(cfg *config.Config) string { return filepath.Join(cfg.DataDir, "daemon") }

// backend is what does the work for a daemon: a broker, or the daemon itself.
type backend struct {
	// dial connects to the broker; nil connects to its socket.
	dial func(context.Context) (*net.UnixConn, error)
	// own, if set, takes the place of a broker.
	own *own
}

// serve starts everything from the bottom up, serves until ctx ends, and shuts it down from
// the top.
func serve(ctx context.Context, cfg *config.Config, o options, b backend, log *slog.Logger) (err error) {
	began := time.Now()
	hups, forget := hangups()
	defer forget()
	closing := func(what string, f func() error) {
		if cerr := f(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("cannot close the %s: %w", what, cerr))
		}
	}
	if err := privateDir(stateDir(cfg)); err != nil {
		return err
	}
	redactor, err := record.OpenRedactor(filepath.Join(stateDir(cfg), "redact.key"))
	if err != nil {
		return err
	}
	paced := logfile.NewPaced(cleanLog{log.Handler(), redactor})
	defer paced.Flush()
	log = slog.New(paced)
	secrets := heldSecrets{redactor, cfg, log}
	know, err := secrets.readFiles()
	if err != nil {
		return err
	}
	know()
	// The group comes first, because it is the most likely to be missing.
	peers, err := authn.New(cfg.SocketGroup)
	if err != nil {
		return err
	}
	if b.own != nil {
		peers = authn.Owner(uint32(os.Geteuid()))
	}
	sealer, err := secret.Open(secretsKey(cfg))
	if err != nil {
		return fmt.Errorf("secrets.key: %w", err)
	}
	db, err := store.Open(ctx, filepath.Join(stateDir(cfg), "carrel.db"))
	if err != nil {
		return err
	}
	defer closing("database", db.Close)
	crashpoint.Here("daemon.up.database-opened")
	reserve, err := openReserve(cfg)
	if err != nil {
		return err
	}
	defer closing("reserve of the disk", reserve.Close)
	db.UseReserve(reserve)
	files, err := archivestore.Open(filepath.Join(stateDir(cfg), "archives"))
	if err != nil {
		return err
	}
	defer closing("archives", files.Close)

	hooks, err := openHook(cfg, log)
	if err != nil {
		return err
	}
	seen, err := newObserver(ctx, cfg, redactor.Text, os.Stderr)
	if err != nil {
		return err
	}
	defer closing("spans", func() error { return seen.close(ctx) })
	var g *compose.Flow
	var tokens *authn.Tokens
	means := namespace.Config{
		RuntimeDir: cfg.RuntimeDir, Dial: b.dial, KeepBroker: b.own == nil, // the last checkpoint is made after everything else is closed
		// No executor is connected before g is set.
		OnLost:   func(name id.Workspace) { g.ExecutorLost(name) },
		OnSilent: func(name id.Workspace, since time.Time) { g.ExecutorSilent(name, since) },
		OnBroker: func() {
			if err := g.NoteMended(ctx); err != nil {
				log.Error("cannot record what the broker put right at its start", "error", err)
			}
		},
	}
	socket := filepath.Join(cfg.RuntimeDir, "carrel.sock")
	if b.own != nil {
		means.Broker, means.Executor, socket = b.own.broker, b.own.broker.Executor, b.own.paths.Socket
	}
	rt := namespace.New(means)
	peers.Inside(rt.HasID)
	signing := audit.CheckpointOptions{Anchor: cfg.AuditAnchor, AnchorRequired: cfg.AuditAnchorRequired}
	if b.own == nil { // without a broker the log's own key is all there is
		signing.Countersign = rt.Countersign
		defer closing("connection to the broker", rt.CloseBroker)
	}
	audited, checkpoints, err := openRecord(ctx, cfg, o, db, reserve, signing, log)
	if err != nil {
		return err
	}
	defer closing("audit log", audited.Close)
	defer closing("checkpoints", checkpoints.Close)
	crashpoint.Here("daemon.up.audit-opened")
	network, err := readNetwork(cfg)
	if err != nil {
		return err
	}
	out := ways.New(ways.Config{
		Open: rt.Egress, Conf: network, Records: record.NewWriter(audited, redactor), Seen: seen.connection, Log: log,
		Ask: func(ctx context.Context, name id.Workspace, q keeper.Question) keeper.Answer {
			to := operation.Connect{Host: q.Target.Host.String(), Port: q.Target.Port, Rule: q.Rule}
			allowed, why := g.Connect(name, to, egressapi.AskWithin, ctx.Done())
			return keeper.Answer{Allow: allowed, Reason: why}
		},
		Owner: func(name id.Workspace) string {
			kept, _ := db.ByName(name)
			return kept.Owner
		},
		Reserve: func(ctx context.Context, name id.Workspace, endpoint, model string) (func(egressapi.Usage), error) {
			return g.Reserve(ctx, name, endpoint, model)
		},
	})
	defer closing("ways out", func() error { // where the start failed before the gate, which closes them itself
		out.Shutdown()
		return nil
	})
	var handled requests
	disk := diskreserve.NewGauge(stateDir(cfg), log, audited, db, reserve)
	disk.Look(ctx, time.Now()) // a daemon that starts on a full disk is in that state from the start
	var written atomic.Pointer[func() []*runbooks.Runbook]
	program := archiverProgram(o.archiverFD)
	tools := taskmcp.New(taskmcp.Config{Program: program, Version: build.Version(), Log: log})
	reloading := &reload{cfg: cfg, log: log, secrets: secrets, ways: out, runbooks: &written}
	g = compose.New(compose.Config{
		Redact:   redactor,
		Runtimes: runtime.ByBoundary{workspace.BoundaryNamespace: rt}, Store: db, Audit: audited, Prefix: cfg.NamePrefix, Limits: cfg.Limits,
		Idle: cfg.IdleTimeout, Allow: cfg.Allow, Profiles: profiles(cfg), Keeps: e2b.Keeps(db),
		Files: files, Archiver: program, Tools: tools, KeepArchives: cfg.ArchiveRetention, KeepHomes: cfg.HomeRetention,
		Unpacking:   archiver.Limits{Bytes: cfg.RestoreMaxBytes, Entries: int64(cfg.RestoreMaxEntries), Ratio: int64(cfg.RestoreMaxRatio)},
		MaxArchives: cfg.MaxArchivesPerOwner, ArchiveBytes: cfg.ArchiveBytesPerOwner,
		Admission: lifecycle.Admission{
			Workspaces: cfg.MaxWorkspaces, PerOwner: cfg.MaxPerOwner, Hourly: cfg.MaxCreates, Running: cfg.MaxRunning,
			Memory: cfg.MaxRunningMemory, OwnerMemory: cfg.MaxRunningMemoryPerOwner,
		},
		Policy:       reloading.read,
		Runbooks:     func() []*runbooks.Runbook { return (*written.Load())() },
		Network:      reloading.commit,
		StepLimits:   stepLimits(cfg),
		ApprovalWait: cfg.ApprovalWait, SeparateApprovals: cfg.SeparateApprovals,
		Checkpoints: checkpoints, CheckpointEvery: cfg.AuditCheckpointEvery, CheckpointRecords: int64(cfg.AuditCheckpointRecords),
		RecordBudget:  gate.Budget{Rate: cfg.AuditOwnerRate, Daily: cfg.AuditOwnerDaily},
		KeepAudit:     audit.Keep{Age: cfg.AuditRetention, Size: cfg.AuditRetentionSize},
		Observe:       seen.passed,
		Models:        out.Conf,
		ModelCounted:  func(endpoint string, refused bool, tokens int64) { seen.model(out.Conf(), endpoint, refused, tokens) },
		Ways:          out,
		Requests:      handled.wait,
		CutWays:       out.Shutdown,
		Disk:          disk,
		Sealer:        sealer,
		TokensRevoked: func(ids []string) { tokens.Revoked(ids) },
		Log:           log, Version: build.Version(),
	})
	tokens = authn.NewTokens(g)
	defer closing("gate", func() error { return g.Close(context.WithoutCancel(ctx)) })
	if err := g.Recover(ctx); err != nil {
		return err
	}

	l, err := listen(socket, o.listenerFD, cfg.SocketMode, cfg.SocketGroup)
	if err != nil {
		return err
	}
	crashpoint.Here("daemon.up.socket-bound")
	far, err := listenTLS(ctx, cfg, log)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if err := secrets.readKeys(); err != nil {
		return errors.Join(err, l.Close(), closeFar(far))
	}
	seen.states(g, audited)
	opts := api.Options{
		Metrics: seen.handler(), Version: build.Version(), Commit: build.Commit(), Tokens: tokens, Log: log,
		StreamsPerOwner: cfg.MaxStreamsPerOwner, TerminalOrigins: strings.Split(cfg.TerminalOrigins, ","),
		Full: disk.Full, DiskLimit: cfg.Limits.DiskBytes,
	}
	if far != nil {
		opts.Address, opts.Fingerprint, opts.Hosts = far.address, far.keys.Fingerprint(), far.keys.IsFor
	}
	e2bAt, err := listenE2B(ctx, cfg, far)
	if err != nil {
		return errors.Join(err, l.Close(), closeFar(far))
	}
	opts.E2BURL, opts.E2BDomain = e2bAt.url(), cfg.E2BDomain
	surface := api.NewServer(g, opts)
	tools.Bind(g, surface)
	near := surface.HTTPServer(peers.ConnContext)
	near.Handler = handled.of(near.Handler)
	servers, failed := []*http.Server{near}, make(chan error, 3)
	go func() { failed <- near.Serve(authn.Fair(l)) }()
	if far != nil {
		server := surface.TLSServer(far.keys.Certificate)
		server.Handler = handled.of(server.Handler)
		servers = append(servers, server)
		go func() { failed <- server.ServeTLS(api.Strangers(far), "", "") }()
		log.Info("serving over TLS", "address", far.address, "fingerprint", opts.Fingerprint)
	}
	if e2bAt != nil {
		o := e2b.Options{Gate: g, Door: surface, Tokens: tokens, Book: db, History: g, Domain: cfg.E2BDomain}
		server, end, err := e2bAt.server(ctx, surface, o, db)
		if err != nil {
			return errors.Join(err, near.Close())
		}
		defer end()
		server.Handler = handled.of(server.Handler)
		servers = append(servers, server)
		go func() { failed <- e2bAt.serve(server) }()
		log.Info("serving programs of E2B", "url", e2bAt.url())
	}
	defer onHangup(hups, func() {
		if _, _, _, err := g.ReloadPolicy(context.WithoutCancel(ctx), principal.Self()); err != nil {
			log.Error("the policy was not reloaded", "error", err)
		}
	})()
	tending, rest := context.WithCancel(context.WithoutCancel(ctx))
	tended := make(chan struct{})
	go func() { defer close(tended); g.Tend(tending) }()
	told := make(chan struct{})
	go func() { defer close(told); hooks.run(tending, g) }()
	defer func() { rest(); <-tended; <-told }()
	debug.FreeOSMemory() // opening took more than serving needs
	idle := b.own.idle(tending, cfg.IdleExit, g, surface, log)
	log.Info(
		"serving", "socket", l.Addr(), "version", build.Version(), "workspaces", db.Len(), "start", time.Since(began).Round(time.Millisecond),
	)
	if err := errors.Join(b.own.publish(), startup.Ready(o.readyFD)); err != nil {
		log.Error("cannot say that the daemon is ready", "error", err)
	}
	giveBack()

	var broken error
	left := len(servers)
	select {
	case err := <-failed:
		left--
		broken = fmt.Errorf("cannot serve the API: %w", err)
	case <-ctx.Done():
	case <-idle:
		log.Info("nothing runs and nobody is connected", "for", cfg.IdleExit)
	case <-audited.Failed():
		// From here on the daemon could only refuse. Once the disk is mended, "carrel up" starts it;
		// executors and detached commands live on. A full disk is not this: see package diskreserve.
		broken = errors.New("the audit log can no longer be written: see to its disk and run \"carrel up\"")
		log.Error("stopping", "reason", broken)
		if err := audits.Part(context.WithoutCancel(ctx), db, time.Now()); err != nil {
			log.Error("cannot note which record of the audit log was the last: the next start may not see what is lost", "error", err)
		}
	}
	log.Info("stopping", "timeout", cfg.StopTimeout)
	g.StopAsking()
	stop(ctx, cfg.StopTimeout, surface, servers, log)
	b.own.stopAll(ctx, g, log)
	for range left {
		if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
			broken = errors.Join(broken, fmt.Errorf("cannot serve the API: %w", err))
		}
	}
	return broken
}

// stop lets running requests finish until the deadline. It then cuts them off, which ends
// their commands. Detached commands live on.
func stop(ctx context.Context, timeout time.Duration, surface *api.Server, servers []*http.Server, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	drained := make(chan struct{})
	go func() {
		surface.Drain(ctx)
		close(drained)
	}()
	var all sync.WaitGroup
	for _, s := range servers {
		all.Go(func() {
			if err := s.Shutdown(ctx); err != nil && !errors.Is(err, net.ErrClosed) {
				log.Warn("requests were cut off", "error", err)
				_ = s.Close()
			}
		})
	}
	all.Wait()
	<-drained
}

// privateDir makes a directory that only this user may enter, or checks that it is one.
func privateDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot make the daemon's directory: %w; \"carrel up\" makes it, or as root: install -d -m 0700 -o carrel -g carrel %s",
			err, dir)
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("cannot use the daemon's directory: %w", err)
	}
	if !fi.IsDir() || fi.Mode().Perm() != 0o700 {
		return fmt.Errorf("cannot use the daemon's directory %s: it must be a directory with mode 0700 and is %v; as root: install -d -m 0700 "+
			"-o carrel -g carrel %s: %w",
			dir, fi.Mode(), dir, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// stepLimits bound an agent's steps on the host, as they are told to who runs them.
func stepLimits(cfg *config.Config) runtime.HostLimits {
	l := runtime.HostLimits{Memory: cfg.StepMemory, Processes: cfg.StepProcesses}
	if l.Processes == 0 {
		l.Processes = -1
	}
	return l
}
