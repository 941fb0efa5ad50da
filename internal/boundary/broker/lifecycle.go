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

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// The life of a workspace, as the ledger sees it. A state in parentheses is written before
// the work that it names begins. If a crash comes in between, the next start finishes or
// undoes that work.
//
//	absent ──create──► (creating) ──► stopped ◄──start/stop──► running ◄──pause/resume──► paused
//	                       │             │                        │                         │
//	                  undone: destroyed  └──destroy──► (destroying) ◄────────────────────────┘
//	                                                       │
//	                                                   destroyed ──revive──► (destroying) ──► stopped
//
// A create that starts as well goes from creating to running; what it started is undone
// with the rest. A start has no line of its own: until running is written, what it made has no
// right to exist and is removed. Nor has a pause, a resume or a change of limits: the next
// broker that takes up the executor puts in force what the ledger says.

// Lifecycle carries the operations out, one at a time for each workspace. It serves the
// daemon's connections, and one user's own daemon without a connection.
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

	// start identifies this start; mended is what Recover put right.
	start  string
	mended []workspace.Mended
	unsaid int
}

// NewLifecycle takes over ledger and host.
func NewLifecycle(s Settings, ledger *Ledger, host Effects, log *slog.Logger) *Lifecycle {
	l := &Lifecycle{
		settings: s, ledger: ledger, host: host, log: log, start: rand.Text(),
		locks: map[id.Workspace]*nameLock{}, running: map[id.Workspace]Running{}, closing: make(chan struct{}),
	}
	l.close = sync.OnceValue(func() error {
		close(l.closing)
		l.watches.Wait()
		return errors.Join(l.host.Close(), l.ledger.Close())
	})
	return l
}

// Close releases everything, once. Executors go on running.
func (l *Lifecycle) Close() error { return l.close() }

// Entries returns every workspace that is not destroyed, by name.
func (l *Lifecycle) Entries() []Entry { return l.ledger.All() }

// nameLock is held while an operation works on a workspace.
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

// alone carries out an operation in its time, while no other works on the workspace.
func (l *Lifecycle) alone(ctx context.Context, method string, name id.Workspace, do func(context.Context) error) error {
	ctx, cancel := bounded(ctx, rules[method].timeout)
	defer cancel()
	unlock, err := l.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	return do(ctx)
}

// change is alone for an operation that the state of the workspace allows, and returns the
// workspace as it is afterwards.
func (l *Lifecycle) change(
	ctx context.Context, method string, name id.Workspace, do func(context.Context, Entry) (Entry, error),
) (w brokerapi.Workspace, err error) {
	err = l.alone(ctx, method, name, func(ctx context.Context) error {
		e, err := l.get(method, name)
		if err == nil {
			e, err = do(ctx, e)
		}
		w = l.show(e)
		return err
	})
	return w, err
}

// get returns the entry of a workspace if its state allows the operation.
func (l *Lifecycle) get(method string, name id.Workspace) (Entry, error) {
	e, _ := l.ledger.Get(name)
	r := rules[method]
	switch {
	case slices.Contains(r.states, e.State):
		return e, nil
	case e.State == absent:
		return e, fmt.Errorf("cannot %s %s: there is no such workspace: %w", r.verb, name, errdefs.ErrNotFound)
	case e.State == workspace.StateDestroyed:
		return e, fmt.Errorf("cannot %s %s: it has been destroyed: %w", r.verb, name, errdefs.ErrNotFound)
	}
	return e, fmt.Errorf("cannot %s %s: it is %s: %w", r.verb, name, e.State, errdefs.ErrFailedPrecondition)
}

// limits fills in the defaults and holds limits against what this host allows.
func (l *Lifecycle) limits(asked workspace.Limits) (workspace.Limits, error) {
	limits := asked.OrDefault()
	if err := limits.Validate(); err != nil {
		return limits, err
	}
	return limits, l.settings.allows(limits)
}

// show returns the entry as clients see it.
func (l *Lifecycle) show(e Entry) brokerapi.Workspace {
	var mounts []workspace.Mount
	for _, m := range e.Mounts {
		mounts = append(mounts, m.Mount)
	}
	w := brokerapi.Workspace{
		Mounts: mounts, Name: e.Name, KeyDigest: e.KeyDigest, State: e.State, User: string(e.Name), IDs: l.host.InForce(e.IDs),
		Home: e.Home, Limits: e.Limits, Executor: e.Executor, Retained: e.Retained, Allow: e.Allow,
	}
	if e.Executor != nil {
		w.Egress, w.Trust = e.Egress, e.Trust
	}
	return w
}

// follow keeps r, and marks the workspace stopped when r ends by itself.
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
			return // the operation that holds it finds the executor gone
		}
		defer unlock()
		e, ok := l.ledger.Get(name)
		if !ok || !slices.Contains(live, e.State) || e.Executor == nil || *e.Executor != r.Executor {
			return // it was stopped, or another one was started since
		}
		if err := l.settle(ctx, e, false); err != nil {
			l.log.Error("cannot clean up after an executor that ended", "workspace", name, "pid", r.Executor.PID, "error", err)
			return
		}
		l.log.Warn("an executor ended; its workspace is stopped", "workspace", name, "pid", r.Executor.PID)
	})
}

// followed returns the executor of name, if one is followed, and whether it runs.
func (l *Lifecycle) followed(name id.Workspace) (r Running, ok, alive bool) {
	l.mu.Lock()
	r, ok = l.running[name]
	l.mu.Unlock()
	if !ok {
		return r, false, false
	}
	select {
	case <-r.Exited:
		return r, true, false
	default:
		return r, true, true
	}
}

// settle makes a workspace stopped: nothing of it runs, and its groups are gone. With forGood it is
// not started again. The lock is held.
func (l *Lifecycle) settle(ctx context.Context, e Entry, forGood bool) error {
	if r, ok, _ := l.followed(e.Name); ok {
		if err := r.Kill(); err != nil {
			return fmt.Errorf("cannot end the executor of %s: %w", e.Name, err)
		}
		select {
		case <-r.Exited:
		case <-ctx.Done():
			return l.heldUp(e.IDs, fmt.Errorf("cannot end the executor of %s: it does not die: %w: %w",
				e.Name, context.Cause(ctx), errdefs.ErrUnavailable))
		}
	}
	crashpoint.Here("broker.stop.killed")
	if forGood {
		l.host.Reclaim(ctx, e.Name)
	}
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

// cleanUp is CleanUp of the host. Its error names the processes that the kernel cannot end.
func (l *Lifecycle) cleanUp(ctx context.Context, e Entry) error {
	return l.heldUp(e.IDs, l.host.CleanUp(ctx, e.Name))
}

// endProcesses is EndProcesses of the host. Its error names them too.
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

// bounded gives an operation its own timeout: it goes on when the daemon disconnects, so that
// no operation is left half done.
func bounded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return within(context.WithoutCancel(ctx), d)
}

// within gives a step of an operation at most d of the time that is left.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("it took longer than %v: %w", d, context.DeadlineExceeded))
}
