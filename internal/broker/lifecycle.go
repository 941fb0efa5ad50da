package broker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
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

// Recover finishes or undoes what a crash or a reboot left. An error with one
// workspace is logged and does not keep the others from being served.
func (l *Lifecycle) Recover(ctx context.Context) error {
	for _, m := range l.host.Mended() {
		l.tell(m.Kind, "", m.Done, nil)
	}
	unsure, until := map[id.Workspace]bool{}, time.Now().Add(recoverAll)
	for _, e := range l.ledger.All() {
		var err error
		switch e.State {
		case workspace.StateCreating:
			l.log.Warn("undoing a create that was interrupted", "workspace", e.Name)
			if err = l.soon(ctx, until, func(ctx context.Context) error {
				return each(func() error { return l.endProcesses(ctx, e) }, func() error { return l.cleanUp(ctx, e) })
			}); err == nil {
				err = l.undoCreate(ctx, e)
			}
			l.tell(workspace.CreateUndone, e.Name, "a create had broken off; what it had made is removed", err)
		case workspace.StateDestroying:
			l.log.Warn("finishing a destroy that was interrupted", "workspace", e.Name)
			if err = l.soon(ctx, until, func(ctx context.Context) error { return l.empty(ctx, e) }); err == nil {
				e, err = l.finishDestroy(ctx, e)
			}
			done := "a destroy had broken off and is finished; the home is removed"
			if e.Retained != "" {
				done = "a destroy had broken off and is finished; the home is at " + e.Retained
			}
			l.tell(workspace.DestroyFinished, e.Name, done, err)
		case workspace.StateRunning, workspace.StatePaused:
			err = l.soon(ctx, until, func(ctx context.Context) error { return l.adopt(ctx, e) })
			unsure[e.Name] = err != nil
			if err != nil {
				l.tell(workspace.NotMended, e.Name, "", err)
			}
		case workspace.StateStopped, workspace.StateDestroyed: // nothing was under way
		case workspace.StateRestoring: // the daemon's; here it is stopped or running
		}
		if err != nil {
			l.log.Error("cannot bring a workspace in order", "workspace", e.Name, "state", e.State, "error", err)
		}
	}
	left, err := l.host.Leftovers()
	if err != nil {
		return err
	}
	for _, name := range left {
		if l.lives(name) || unsure[name] {
			continue
		}
		l.log.Warn("removing what a start left that was interrupted", "workspace", name)
		e, _ := l.ledger.Get(name)
		e.Name = name
		err := l.soon(ctx, until, func(ctx context.Context) error { return l.cleanUp(ctx, e) })
		l.tell(workspace.StartSwept, name, "a start had broken off; its control groups, socket and report are removed", err)
		if err != nil {
			l.log.Error("cannot clean up", "workspace", name, "error", err)
		}
	}
	return nil
}

// soon gives a step of a start its time, so that a process that cannot be ended keeps the
// broker from nobody.
func (l *Lifecycle) soon(ctx context.Context, until time.Time, step func(context.Context) error) error {
	ctx, cancel := bounded(ctx, max(min(recoverTimeout, time.Until(until)), recoverLeast))
	defer cancel()
	return step(ctx)
}

func (l *Lifecycle) adopt(ctx context.Context, e Entry) error {
	r, err := l.host.Adopt(e)
	if err == nil {
		l.follow(e.Name, r)
		// The crash may have come between a change and the line that says so, or after.
		if err := l.host.Limit(e, e.Limits); err != nil {
			return errors.Join(err, l.settle(ctx, e)) // it must not go on without
		}
		return l.freeze(ctx, e.Name, e.State == workspace.StatePaused)
	}
	if !errdefs.IsNotFound(err) {
		return err // it may live: nothing is taken down on a guess
	}
	l.log.Warn("a workspace is no longer running", "workspace", e.Name, "reason", err)
	why := err.Error()
	if err = l.settle(ctx, e); err == nil {
		l.tell(workspace.ExecutorLost, e.Name, "it is stopped: "+why, nil)
	}
	return err
}

// tell keeps what a start put right, or that it could not, for the daemon.
func (l *Lifecycle) tell(kind workspace.MendedKind, name id.Workspace, done string, err error) {
	if err != nil {
		kind, done = workspace.NotMended, err.Error()
	}
	if len(done) > brokerapi.MaxDone {
		done = strings.ToValidUTF8(done[:brokerapi.MaxDone], "") + "…"
	}
	if len(l.mended) == brokerapi.MaxMended-1 {
		l.unsaid++
		return
	}
	l.mended = append(l.mended, workspace.Mended{Kind: kind, Workspace: name, Done: strings.ToValidUTF8(done, "?")})
}

// Mended returns what Recover put right, and what tells this start from others.
func (l *Lifecycle) Mended() (start string, list []workspace.Mended) {
	list = l.mended
	if l.unsaid > 0 {
		list = append(slices.Clone(list), workspace.Mended{Kind: workspace.MoreMended, Done: fmt.Sprintf("%d more; the broker's log has them", l.unsaid)})
	}
	return l.start, list
}

// lives reports whether an executor of name is followed.
func (l *Lifecycle) lives(name id.Workspace) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.running[name]
	return ok
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
	return context.WithTimeoutCause(context.WithoutCancel(ctx), d, fmt.Errorf("it took longer than %v: %w", d, context.DeadlineExceeded))
}

// Plan is what a new workspace is to be.
type Plan struct {
	KeyDigest string
	Limits    workspace.Limits
	// Grant is the mounts asked for, or nil. It is used up only when there is no such
	// workspace yet.
	Grant *Grant
	// Start it as well. If that alone fails it is made, and stopped.
	Start bool
}

// Create makes a workspace, or returns the one there is for the key, with a proof if it
// has just been started.
func (l *Lifecycle) Create(ctx context.Context, name id.Workspace, p Plan, states ...workspace.State) (Entry, workspace.Report, error) {
	ctx, cancel := bounded(ctx, userTimeout+stopTimeout)
	defer cancel()
	var report workspace.Report
	unlock, err := l.lock(ctx, name)
	if err != nil {
		return Entry{}, report, err
	}
	defer unlock()
	e, found, err := l.plan(ctx, name, p, states)
	if err != nil || found {
		return e, report, err
	}
	crashpoint.Here("broker.create.allocated")
	// Adding the user takes as long as all the rest, and nothing of that needs it.
	ids, added := e.IDs, make(chan error, 1)
	go func() {
		err := l.host.AddUser(ctx, name, ids)
		crashpoint.Here("broker.create.user-added")
		added <- err
	}()
	err = l.host.MakeDirs(name, e.IDs)
	crashpoint.Here("broker.create.dirs-made")
	if err == nil && e.Limits.DiskBytes > 0 {
		err = l.host.MakeImage(ctx, name, e.IDs, e.Limits.DiskBytes)
	}
	e.State = workspace.StateStopped
	var r Running
	if err == nil && p.Start {
		var start error
		if r, report, start = l.host.Start(ctx, e); start != nil {
			l.log.Warn("a new workspace does not start", "workspace", name, "error", start)
		} else {
			e.State, e.Executor = workspace.StateRunning, &r.Executor
			crashpoint.Here("broker.create.started")
		}
	}
	if err = errors.Join(err, <-added); err == nil {
		err = l.ledger.Put(e)
	}
	if err != nil {
		undo, stop := bounded(ctx, userTimeout+stopTimeout)
		defer stop()
		return Entry{}, workspace.Report{}, alsoFailed(fmt.Errorf("cannot create %s: %w", name, err), l.undoCreate(undo, e))
	}
	if e.State == workspace.StateRunning {
		l.follow(name, r)
	}
	return e, report, nil
}

// plan finds the workspace that there is, or enters a new one into the ledger as
// creating. The lock is held.
func (l *Lifecycle) plan(ctx context.Context, name id.Workspace, p Plan, states []workspace.State) (e Entry, found bool, err error) {
	e, ok := l.ledger.Get(name)
	switch {
	case !ok && slices.Contains(states, absent), ok && e.State == workspace.StateDestroyed && slices.Contains(states, e.State):
	case e.KeyDigest != p.KeyDigest:
		return Entry{}, false, fmt.Errorf("cannot create %s: the name belongs to another key: %w", name, errdefs.ErrAlreadyExists)
	case e.State == workspace.StateCreating:
		// An undoing that failed: it has to succeed first.
		if err := l.undoCreate(ctx, e); err != nil {
			return Entry{}, false, err
		}
	case !slices.Contains(states, e.State):
		return Entry{}, false, fmt.Errorf("cannot create %s: it is %s; destroy it again to finish that: %w", name, e.State, errdefs.ErrFailedPrecondition)
	default:
		return e, true, nil
	}
	if err := l.host.NameFree(name); err != nil {
		return Entry{}, false, err
	}
	if p.Limits.DiskBytes > 0 {
		if err := l.host.HoldsDisk(); err != nil {
			return Entry{}, false, fmt.Errorf("cannot create %s with a disk limit: %w", name, err)
		}
	}
	var mounts []Mount
	if p.Grant != nil {
		if mounts, err = l.host.TakeMounts(ctx, name, p.Grant); err != nil {
			return Entry{}, false, fmt.Errorf("cannot create %s: %w", name, err)
		}
	}
	e, err = l.ledger.Allocate(Entry{Name: name, KeyDigest: p.KeyDigest, Limits: p.Limits, Home: l.host.Home(name), Mounts: mounts},
		l.settings.UIDFirst, l.settings.UIDCount, l.settings.MaxWorkspaces, l.host.IDsFree)
	return e, false, err
}

// undoCreate takes back what a create did, whether all of it or nothing. The ids stay
// spent.
func (l *Lifecycle) undoCreate(ctx context.Context, e Entry) error {
	err := each(
		func() error { return l.endProcesses(ctx, e) },
		func() error { return l.cleanUp(ctx, e) },
		func() error { return l.host.RemoveUser(ctx, e.Name, e.IDs) },
		func() error { crashpoint.Here("broker.undo.user-removed"); return nil },
		func() error { return l.host.UnmakeDirs(e.Name, e.IDs) },
	)
	if err != nil {
		return err
	}
	crashpoint.Here("broker.undo.dirs-removed")
	e.State, e.Executor = workspace.StateDestroyed, nil
	return l.ledger.Put(e)
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
		Home: e.Home, Limits: e.Limits, Executor: e.Executor, Retained: e.Retained,
	}
}
