// Package upkeep does what nobody asks for and has to be done: it finishes what was begun and left,
// ends workspaces that have lived their time, stops those in which nothing runs, removes what was kept for its time, and
// records what the broker put right.
//
// What it does passes the gate as principal system. Nothing here serves a caller's request but
// to look at what was put right, and to reload the policy.
package upkeep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
	"github.com/carrel-dev/carrel/internal/service/approvals"
	"github.com/carrel-dev/carrel/internal/service/archives"
	"github.com/carrel-dev/carrel/internal/service/audits"
	"github.com/carrel-dev/carrel/internal/service/events"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
	"github.com/carrel-dev/carrel/internal/state/store"
)

const (
	// tick is how often lifetimes are looked at.
	tick = time.Second
	// sumEvery is how often what was only observed is recorded in sums.
	sumEvery = 5 * time.Minute
	// compareEvery is how often what is known of the workspaces is compared with what the broker says.
	compareEvery = time.Minute
	// compareSoon is how often that is in the daemon's first minute: the broker may come late to the end of what it was asked for by
	// a daemon that was killed.
	compareSoon = 2 * time.Second
	// keepOutput is how long a detached command that has ended keeps its executor, which has
	// its output.
	keepOutput = time.Hour
	// keepAnswered bounds what is kept of the questions about one owner's workspaces that are
	// over, in bytes: the oldest go first.
	keepAnswered = 64 << 20
)

// Config holds the dependencies of New.
type Config struct {
	Gate      *gate.Gate
	Judge     *judge.Judge
	Records   *record.Writer
	Store     *store.Store
	Runtimes  runtime.ByBoundary
	Lifecycle *lifecycle.Lifecycle
	Archives  *archives.Archives
	Questions *approvals.Questions
	Auditing  *audits.Auditing
	Events    *events.Events
	// KeepArchives and KeepHomes are how long archives and homes of destroyed workspaces are
	// kept, 0 without an end.
	KeepArchives, KeepHomes time.Duration
	// Disk measures the file system of the daemon's state. Optional.
	Disk *diskreserve.Gauge
	Log  *slog.Logger
	// Network reads what holds for the network again, after the policy. It waits for no workspace without a deadline. Optional.
	Network func() error
}

// Upkeep keeps a daemon in order. Its methods may be called from any goroutine.
type Upkeep struct {
	cfg Config

	// mending is held while what a broker put right is recorded; mended is that, once it is.
	mending sync.Mutex
	mended  []workspace.Mended
	// compared is the start of each broker whose workspaces were compared with those that are known.
	compared map[workspace.Boundary]string
	// said is when it was last said that something waits for a broker, in Unix seconds.
	said atomic.Int64

	// Each is full when as many as may are under way.
	finishing, ending, idling, forgetting, measuring, comparing chan struct{}

	waiting sync.Mutex
	// waits are the workspaces for which something failed, and under those at which it is at work.
	waits map[id.Workspace]wait
	under map[id.Workspace]bool
}

// wait is when what failed is tried again, and how long it waited for that.
type wait struct {
	until time.Time
	long  time.Duration
}

// New returns the upkeep of a daemon.
func New(cfg Config) *Upkeep {
	places := func(n int) chan struct{} { return make(chan struct{}, n) }
	return &Upkeep{
		cfg: cfg, finishing: places(finishedAtOnce), ending: places(endedAtOnce), idling: places(idleAtOnce), forgetting: places(1),
		measuring: places(1), comparing: places(1), compared: map[workspace.Boundary]string{},
		waits: map[id.Workspace]wait{}, under: map[id.Workspace]bool{},
	}
}

// Tend keeps the daemon in order until ctx ends.
func (u *Upkeep) Tend(ctx context.Context) {
	var signing sync.WaitGroup
	signing.Go(func() { u.cfg.Auditing.Sign(ctx) })
	defer signing.Wait()
	t := time.NewTicker(tick)
	defer t.Stop()
	old := time.NewTicker(u.oldEvery())
	defer old.Stop()
	sums := time.NewTicker(sumEvery)
	defer sums.Stop()
	began := time.Now()
	compare := time.NewTimer(compareSoon)
	defer compare.Stop()
	forget := func(now time.Time) {
		u.begin(ctx, u.forgetting, "remove what was kept for its time", "", func(ctx context.Context) error {
			u.ForgetOld(ctx, now)
			return nil
		})
	}
	forget(time.Now())
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-old.C:
			forget(now)
		case <-sums.C:
			u.cfg.Auditing.Sum()
		case <-compare.C:
			if compare.Reset(compareSoon); time.Since(began) > compareEvery {
				compare.Reset(compareEvery)
			}
			u.begin(ctx, u.comparing, "compare what is known with what the broker says", "", func(ctx context.Context) error {
				_, err := u.cfg.Lifecycle.Reconcile(ctx)
				return err
			})
		case now := <-t.C:
			u.Round(ctx, now)
		}
	}
}

// oldEvery is how often what is kept for a time is looked at: each hour, or as often as the
// shortest time is long.
func (u *Upkeep) oldEvery() time.Duration {
	every := time.Hour
	for _, keep := range []time.Duration{u.cfg.KeepArchives, u.cfg.KeepHomes} {
		if keep > 0 {
			every = min(every, max(keep, time.Second))
		}
	}
	return every
}

// ForgetOld removes what has been kept for its time. What cannot be removed does not keep the
// rest.
func (u *Upkeep) ForgetOld(ctx context.Context, now time.Time) {
	for _, of := range []struct {
		what string
		do   func() error
	}{
		{"archives", func() error { return u.cfg.Archives.Forget(ctx, now) }},
		{"homes of destroyed workspaces", func() error { return u.ForgetHomes(ctx, now) }},
		{"files of the audit log", func() error { return u.cfg.Auditing.Forget(ctx, now) }},
		{"approvals", func() error { return u.cfg.Store.ForgetApprovals(ctx, now, keepAnswered) }},
	} {
		if err := of.do(); err != nil {
			u.cfg.Log.Error("cannot remove what was kept for its time", "what", of.what, "error", err)
		}
	}
}

// ForgetHomes removes the homes of destroyed workspaces that have been kept for their time.
func (u *Upkeep) ForgetHomes(ctx context.Context, now time.Time) error {
	if u.cfg.KeepHomes <= 0 {
		return nil
	}
	all, err := u.cfg.Store.Retained(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range all {
		if now.Sub(time.UnixMilli(r.DestroyedAtMS)) > u.cfg.KeepHomes && ctx.Err() == nil {
			errs = append(errs, u.cfg.Lifecycle.RemoveHome(ctx, r))
		}
	}
	return errors.Join(errs...)
}

// Bounds of a round: how many workspaces are ended at the same time because they have lived
// their time, or looked at because they may be idle; and how long a round waits for them. What
// takes longer goes on, and holds up nothing but its own workspace.
const (
	finishedAtOnce = 16
	endedAtOnce    = 64
	idleAtOnce     = 16
	roundWait      = 100 * time.Millisecond
)

// What failed is tried again after firstWait, and then after twice as long each time, up to lastWait.
// Where the host has something that a person has to mend, nobody is to be disturbed at that, and it
// waits from lastWait to mendWait.
const (
	firstWait = time.Second
	lastWait  = time.Minute
	mendWait  = time.Hour
)

// Round is one round of Tend over what lives. What was begun and left comes first, as when the broker
// had gone, and then those that have lived their time.
func (u *Upkeep) Round(ctx context.Context, now time.Time) {
	u.cfg.Questions.EndOverdue()
	life := u.cfg.Lifecycle
	var begun []<-chan struct{}
	begin := func(places chan struct{}, what string, name id.Workspace, f func(context.Context) error) {
		if !u.due(name, now) {
			return
		}
		done := u.begin(ctx, places, what, name, func(ctx context.Context) error {
			err := f(ctx)
			u.tried(name, now, err)
			return err
		})
		if done == nil {
			u.leave(name)
			return
		}
		begun = append(begun, done)
	}
	if u.cfg.Disk != nil {
		begin(u.measuring, "measure the disk", "", func(ctx context.Context) error { u.cfg.Disk.Look(ctx, now); return nil })
	}
	for _, w := range life.Due(life.Unsettled) {
		begin(u.finishing, "finish what was begun", w.Name, func(ctx context.Context) error { return life.Finish(ctx, w.Name) })
	}
	for _, w := range life.Due(func(w *workspace.Workspace) bool { return lifecycle.Expired(w, now) }) {
		begin(u.ending, "end what has lived its time", w.Name, func(ctx context.Context) error { return life.DestroyExpired(ctx, w.Name, now) })
	}
	for _, w := range life.Due(func(w *workspace.Workspace) bool { return !lifecycle.Expired(w, now) && life.Left(w, now) }) {
		begin(u.ending, "end what was left", w.Name, func(ctx context.Context) error { return life.DestroyLeft(ctx, w.Name, now) })
	}
	for _, w := range life.Due(func(w *workspace.Workspace) bool { return !lifecycle.Expired(w, now) && life.Idle(w, now) }) {
		begin(u.idling, "stop what is idle", w.Name, func(ctx context.Context) error {
			return life.StopIdle(ctx, w.Name, now, func(ctx context.Context, w workspace.Workspace) (bool, error) { return u.busy(ctx, w, now) })
		})
	}
	over := time.NewTimer(roundWait)
	defer over.Stop()
	for _, done := range begun {
		select {
		case <-done:
		case <-over.C:
			return
		}
	}
}

// begin runs f if there is a place for it, and returns what is closed at its end; nil if there
// is none, and the next round tries again.
func (u *Upkeep) begin(ctx context.Context, places chan struct{}, what string, name id.Workspace,
	f func(context.Context) error,
) <-chan struct{} {
	select {
	case places <- struct{}{}:
	default:
		return nil
	}
	done := make(chan struct{})
	u.cfg.Gate.Later(func() {
		defer func() { <-places; close(done) }()
		err := f(ctx)
		if err == nil {
			return
		}
		if !errdefs.IsUnavailable(err) || u.maySay(time.Now()) {
			u.cfg.Log.Error("cannot do what is due, which is tried again", "what", what, "workspace", name, "error", err)
		}
		if name != "" {
			u.cfg.Lifecycle.Touch(name) // not again at once
		}
	})
	return done
}

// maySay reports whether a minute has passed since it was said that something waits: one line is enough
// for all workspaces that wait for a broker.
func (u *Upkeep) maySay(now time.Time) bool {
	last := u.said.Load()
	return now.Unix()-last >= int64(lastWait.Seconds()) && u.said.CompareAndSwap(last, now.Unix())
}

// due reports whether something may be tried with a workspace, again or for the first time, and if so
// keeps others from it until tried or leave.
func (u *Upkeep) due(name id.Workspace, now time.Time) bool {
	u.waiting.Lock()
	defer u.waiting.Unlock()
	w, tried := u.waits[name]
	if !tried && u.cfg.Lifecycle.Refused(name) { // to whoever asked for it
		u.waits[name] = wait{now.Add(lastWait), lastWait}
		return false
	}
	if u.under[name] || now.Before(w.until) {
		return false
	}
	u.under[name] = true
	return true
}

func (u *Upkeep) leave(name id.Workspace) {
	u.waiting.Lock()
	defer u.waiting.Unlock()
	delete(u.under, name)
}

// tried notes how an attempt with a workspace ended that began at now.
func (u *Upkeep) tried(name id.Workspace, now time.Time, err error) {
	u.waiting.Lock()
	defer u.waiting.Unlock()
	delete(u.under, name)
	if err == nil {
		delete(u.waits, name)
		return
	}
	first, last := firstWait, lastWait
	if u.cfg.Lifecycle.Refused(name) {
		first, last = lastWait, mendWait
	}
	long := min(max(first, 2*u.waits[name].long), last)
	u.waits[name] = wait{now.Add(long), long}
	// Of one that is gone nobody tells.
	maps.DeleteFunc(u.waits, func(_ id.Workspace, w wait) bool { return now.Sub(w.until) > lastWait })
}

// busy reports whether something runs in a workspace, or is to be kept there. One whose
// executor has gone is not busy: its stop could not be finished.
func (u *Upkeep) busy(ctx context.Context, w workspace.Workspace, now time.Time) (bool, error) {
	rt, err := u.cfg.Lifecycle.Runtime(w.Boundary)
	if err != nil {
		return false, err
	}
	list, err := rt.Commands(ctx, w.Name)
	if errors.Is(err, runtime.ErrNotRunning) {
		return false, nil
	}
	for _, c := range list {
		if c.Status == nil || now.Sub(time.Unix(0, c.Status.EndedNS)) < keepOutput {
			return true, err
		}
	}
	return false, err
}

const (
	// metaBroker is where the store keeps which start of the broker was recorded last.
	metaBroker = "broker_start"
	// brokerMended is the kind of its events and records.
	brokerMended = "broker.mended"
)

// loaded is the Data of a record about other rules.
type loaded struct {
	Event string `json:"event"`
	Old   string `json:"old"`
	New   string `json:"new,omitempty"`
	Rules int    `json:"rules,omitempty"`
}

// ReloadPolicy reads the rules again and puts them in force. Rules that cannot be used, or
// whose load cannot be recorded, leave the ones before in force.
func (u *Upkeep) ReloadPolicy(ctx context.Context, p principal.Principal) (was, now string, rules int, err error) {
	if _, err := u.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: operation.Simple(operation.ReloadPolicy)}, nil); err != nil {
		return "", "", 0, err
	}
	was, now, rules, err = u.cfg.Judge.Reload(func(was, now string, rules int, err error) error {
		rec := audit.Record{Type: audit.Policy, Trace: id.NewTrace(), Principal: p.String(), Owner: record.OnBehalf(p), Status: audit.StatusOK}
		if err != nil {
			rec.Status, rec.Error, rec.ErrorKind = audit.StatusFailed, record.Clip(err.Error()), record.KindOf(err)
		}
		rec.Data, _ = json.Marshal(loaded{"policy.load", was, now, rules}) // texts and a number always marshal
		_, aerr := u.cfg.Records.Append(context.WithoutCancel(ctx), rec)   // also that they could not be used
		return aerr
	})
	if err != nil {
		return was, now, rules, err
	}
	u.cfg.Log.Info("the policy was reloaded", "old", was, "new", now, "rules", rules)
	if u.cfg.Network != nil {
		if err = u.cfg.Network(); err != nil {
			err = fmt.Errorf("the policy was reloaded, but not what holds for the network: %w", err)
		}
	}
	return was, now, rules, err
}
