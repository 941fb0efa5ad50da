package broker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/brokerapi"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// The life of a workspace, as the ledger sees it. What stands in parentheses is written
// before the work it names begins, and finished or undone at the next start if a crash
// comes between.
//
//	absent ──create──► (creating) ──► stopped ◄──start/stop──► running ◄──pause/resume──► paused
//	                       │             │                        │                         │
//	                  undone: destroyed  └──destroy──► (destroying) ◄────────────────────────┘
//	                                                       │
//	                                                   destroyed
//
// A create that starts as well goes from creating to running; what it started is undone
// with the rest. A start has no line of its own: until running is written, what it made has no right to
// exist and is swept away. Neither has a pause, a resume or a change of limits: what the
// ledger says is put in force again when an executor is taken up by the next broker.

// Lifecycle carries the operations out, one at a time for each workspace.
type Lifecycle struct {
	settings Settings
	ledger   *Ledger
	host     Effects
	log      *slog.Logger

	mu      sync.Mutex
	locks   map[id.Workspace]*nameLock
	running map[id.Workspace]Running
	watches sync.WaitGroup
	closing chan struct{}
	close   func() error

	// start tells this start from others; mended is what Recover put right.
	start  string
	mended []workspace.Mended
	unsaid int
}

// NewLifecycle takes over ledger and host.
func NewLifecycle(s Settings, ledger *Ledger, host Effects, log *slog.Logger) *Lifecycle {
	l := &Lifecycle{
		settings: s, ledger: ledger, host: host, log: log,
		locks: map[id.Workspace]*nameLock{}, running: map[id.Workspace]Running{}, closing: make(chan struct{}), start: rand.Text(),
	}
	l.close = sync.OnceValue(func() error {
		close(l.closing)
		l.watches.Wait()
		return errors.Join(l.host.Close(), l.ledger.Close())
	})
	return l
}

// Close lets go of everything, once. Executors live on.
func (l *Lifecycle) Close() error { return l.close() }

// nameLock is held by whoever works on a workspace.
type nameLock struct {
	held    chan struct{}
	waiting int
}

// lock waits for the workspace to be free; the returned function gives it up.
func (l *Lifecycle) lock(ctx context.Context, name id.Workspace) (func(), error) {
	l.mu.Lock()
	n := l.locks[name]
	if n == nil {
		n = &nameLock{held: make(chan struct{}, 1)}
		l.locks[name] = n
	}
	n.waiting++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		if n.waiting--; n.waiting == 0 {
			delete(l.locks, name)
		}
		l.mu.Unlock()
	}
	select {
	case n.held <- struct{}{}:
		return func() { <-n.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("cannot work on %s: another operation on it is under way: %w", name, context.Cause(ctx))
	}
}

// follow keeps r, and brings the workspace in order when it ends by itself.
func (l *Lifecycle) follow(name id.Workspace, r Running) {
	l.mu.Lock()
	l.running[name] = r
	l.mu.Unlock()
	l.watches.Go(func() {
		select {
		case <-l.closing:
			return
		case <-r.Exited:
		}
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		unlock, err := l.lock(ctx, name)
		if err != nil {
			return // whoever holds it finds the executor gone
		}
		defer unlock()
		e, ok := l.ledger.Get(name)
		if !ok || !slices.Contains(live, e.State) || e.Executor == nil || *e.Executor != r.Executor {
			return // it was stopped, or another one was started since
		}
		if err := l.settle(ctx, e); err != nil {
			l.log.Error("cannot clean up after an executor that ended", "workspace", name, "pid", r.Executor.PID, "error", err)
			return
		}
		l.log.Warn("an executor ended; its workspace is stopped", "workspace", name, "pid", r.Executor.PID)
	})
}

// settle makes a workspace stopped: nothing of it runs, and its groups are gone. The
// lock is held.
func (l *Lifecycle) settle(ctx context.Context, e Entry) error {
	l.mu.Lock()
	r, ok := l.running[e.Name]
	l.mu.Unlock()
	if ok {
		if err := r.Kill(); err != nil {
			return fmt.Errorf("cannot end the executor of %s: %w", e.Name, err)
		}
		select {
		case <-r.Exited:
		case <-ctx.Done():
			return l.heldUp(e.IDs, fmt.Errorf("cannot end the executor of %s: it does not die: %w: %w", e.Name, context.Cause(ctx), errdefs.ErrUnavailable))
		}
	}
	crashpoint.Here("broker.stop.killed")
	if err := l.cleanUp(ctx, e); err != nil {
		return err
	}
	crashpoint.Here("broker.stop.cleaned")
	l.mu.Lock()
	delete(l.running, e.Name)
	l.mu.Unlock()
	if !slices.Contains(live, e.State) {
		return nil
	}
	e.State, e.Executor = workspace.StateStopped, nil
	return l.ledger.Put(e)
}

// cleanUp is CleanUp of the host, with what holds it up.
func (l *Lifecycle) cleanUp(ctx context.Context, e Entry) error {
	return l.heldUp(e.IDs, l.host.CleanUp(ctx, e.Name))
}

// endProcesses is EndProcesses of the host, with what holds it up.
func (l *Lifecycle) endProcesses(ctx context.Context, e Entry) error {
	return l.heldUp(e.IDs, l.host.EndProcesses(ctx, e.IDs))
}

// heldUp adds to an error which processes the kernel cannot end.
func (l *Lifecycle) heldUp(ids workspace.IDs, err error) error {
	if err == nil || ids.Executor == 0 {
		return err
	}
	if why := l.host.HeldUp(ids); why != "" {
		return fmt.Errorf("%w; %s", err, why)
	}
	return err
}

// bounded gives an operation its own time: it goes on when the daemon goes away, so that
// no connection can leave half of one behind.
func bounded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return within(context.WithoutCancel(ctx), d)
}

// within gives a step of an operation at most d of the time that is left.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("it took longer than %v: %w", d, context.DeadlineExceeded))
}

// get returns the entry of a workspace that is in one of states.
func (l *Lifecycle) get(what string, name id.Workspace, states ...workspace.State) (Entry, error) {
	e, ok := l.ledger.Get(name)
	if !ok {
		return e, fmt.Errorf("cannot %s %s: there is no such workspace: %w", what, name, errdefs.ErrNotFound)
	}
	if slices.Contains(states, e.State) {
		return e, nil
	}
	if e.State == workspace.StateDestroyed {
		return e, fmt.Errorf("cannot %s %s: it has been destroyed: %w", what, name, errdefs.ErrNotFound)
	}
	return e, fmt.Errorf("cannot %s %s: it is %s: %w", what, name, e.State, errdefs.ErrFailedPrecondition)
}

// Start starts a workspace's executor, or returns the one that lives.
func (l *Lifecycle) Start(ctx context.Context, name id.Workspace, states ...workspace.State) (Entry, workspace.Report, error) {
	ctx, cancel := bounded(ctx, startTimeout+stopTimeout)
	defer cancel()
	unlock, err := l.lock(ctx, name)
	if err != nil {
		return Entry{}, workspace.Report{}, err
	}
	defer unlock()
	e, err := l.get("start", name, states...)
	if err != nil {
		return e, workspace.Report{}, err
	}
	if e.State == workspace.StateRunning {
		if l.alive(name) {
			report, err := l.host.Report(name)
			return e, report, err
		}
		if err := l.settle(ctx, e); err != nil {
			return e, workspace.Report{}, err
		}
		e.Executor = nil
	}
	r, report, err := l.host.Start(ctx, e)
	if err != nil {
		return e, report, err
	}
	crashpoint.Here("broker.start.launched")
	e.State, e.Executor = workspace.StateRunning, &r.Executor
	if err := l.ledger.Put(e); err != nil {
		l.mu.Lock()
		l.running[name] = r
		l.mu.Unlock()
		return e, report, alsoFailed(err, l.settle(ctx, Entry{Name: name}))
	}
	crashpoint.Here("broker.start.kept")
	l.follow(name, r)
	return e, report, nil
}

func (l *Lifecycle) alive(name id.Workspace) bool {
	l.mu.Lock()
	r, ok := l.running[name]
	l.mu.Unlock()
	if !ok {
		return false
	}
	select {
	case <-r.Exited:
		return false
	default:
		return true
	}
}

// Stop ends all that runs in a workspace. Asking the executor first is the daemon's
// part.
func (l *Lifecycle) Stop(ctx context.Context, name id.Workspace, states ...workspace.State) (Entry, error) {
	ctx, cancel := bounded(ctx, stopTimeout)
	defer cancel()
	unlock, err := l.lock(ctx, name)
	if err != nil {
		return Entry{}, err
	}
	defer unlock()
	e, err := l.get("stop", name, states...)
	if err != nil || e.State == workspace.StateStopped {
		return e, err
	}
	if err := l.settle(ctx, e); err != nil {
		return e, err
	}
	e.State, e.Executor = workspace.StateStopped, nil
	return e, nil
}

// List returns every workspace that is not destroyed.
func (l *Lifecycle) List() []Entry { return l.ledger.All() }

// Report returns the proof of a running workspace.
func (l *Lifecycle) Report(name id.Workspace, states ...workspace.State) (workspace.Report, error) {
	if _, err := l.get("report on", name, states...); err != nil {
		return workspace.Report{}, err
	}
	return l.host.Report(name)
}

// wire is the entry as it is sent.
func (e Entry) wire() brokerapi.Workspace {
	var mounts []workspace.Mount
	for _, m := range e.Mounts {
		mounts = append(mounts, m.Mount)
	}
	return brokerapi.Workspace{
		Mounts: mounts, Name: e.Name, KeyDigest: e.KeyDigest, State: e.State, User: string(e.Name), IDs: e.IDs,
		Home: e.Home, Limits: e.Limits, Executor: e.Executor, Retained: e.Retained, Allow: e.Allow,
	}
}
