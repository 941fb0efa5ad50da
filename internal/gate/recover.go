package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/checkpoint"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/runtime"
	"github.com/carrel-dev/carrel/internal/store"
	"github.com/carrel-dev/carrel/internal/workspace"
)

const (
	// metaMark is where the store keeps how far the audit log is known.
	metaMark = "audit_mark"
	// markEvery is after how many intents that is noted again.
	markEvery = 4096
)

// LoadMark returns what the store last noted of the audit log, for audit.Open.
func LoadMark(ctx context.Context, s *store.Store) (audit.Mark, error) {
	var m audit.Mark
	text, err := s.Meta(ctx, metaMark)
	if err != nil || text == "" {
		return m, err
	}
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return m, fmt.Errorf("cannot read how far the audit log is known: %w: %w", err, errdefs.ErrDataLoss)
	}
	return m, nil
}

// mark notes how far the audit log is known. What lies before is not read again
// at the next start, and a log that ends before has been cut.
//
// ended says that nothing is written behind it until the next start.
func (g *Gate) mark(ctx context.Context, ended bool) error {
	g.marking.Lock()
	defer g.marking.Unlock()
	m, err := g.cfg.Audit.Mark()
	if err != nil {
		return err
	}
	m.Ended = ended
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("cannot note how far the audit log is known: %w", err)
	}
	return g.cfg.Store.SetMeta(ctx, metaMark, string(text))
}

// countIntent notes the mark now and then, away from the request that is due.
func (g *Gate) countIntent() {
	if g.cfg.Store == nil {
		return // nowhere to keep a mark
	}
	if g.intents.Add(1)%markEvery != 0 {
		return
	}
	g.later(func() {
		if err := g.mark(context.Background(), false); err != nil {
			g.cfg.Log.Error("cannot note how far the audit log is known", "error", err)
		}
	})
}

func (g *Gate) lifecycle(event string) audit.Record {
	digest := ""
	if f := g.policy.Load(); f != nil {
		digest = f.engine.Digest()
	}
	data, _ := json.Marshal(struct { // strings and a number always marshal
		Event   string `json:"event"`
		Version string `json:"version,omitempty"`
		PID     int    `json:"pid"`
		// Policy is the digest of the rules in force.
		Policy string `json:"policy,omitempty"`
	}{event, g.cfg.Version, os.Getpid(), digest})
	return audit.Record{Type: audit.Lifecycle, Principal: principal.Self().String(), Status: audit.StatusOK, Data: data}
}

// lastKnown finds when the last run was last seen to work, for the clock of approvals.
func (g *Gate) lastKnown(ctx context.Context) error {
	const few = 64 // the newest may be of this start already
	return g.cfg.Audit.Read(ctx, 0, few, false, func(lines [][]byte) error {
		for _, line := range lines {
			r, err := audit.Decode(line)
			if err != nil {
				return err
			}
			g.approvals.notBefore(r.Time)
		}
		return nil
	})
}

// Recover puts right what the last run left, before anything is served: it closes
// the intents that have no outcome, finishes what was being made or ended,
// and takes up the executors that live. Nothing is run again.
func (g *Gate) Recover(ctx context.Context) error {
	// First: who cannot judge must not serve.
	if _, err := g.rules(); err != nil {
		return err
	}
	open, err := g.cfg.Audit.Unfinished()
	if err != nil {
		return err
	}
	if err := g.lastKnown(ctx); err != nil {
		return err
	}
	// From here on the log may be longer than the last stop left it.
	if err := g.mark(ctx, false); err != nil {
		return err
	}
	seq, err := g.cfg.Audit.Append(ctx, g.lifecycle(daemonStart))
	if err != nil {
		return err
	}
	g.events.add(workspace.Event{Time: time.Now(), Owner: principal.Self().String(), Kind: daemonStart, Status: "ok", Principal: principal.Self().String(), Intent: seq})
	for _, r := range open {
		if err := g.cfg.Audit.AppendAsync(audit.Record{
			Type: audit.Outcome, Trace: r.Trace, Principal: principal.Self().String(), Workspace: r.Workspace, Intent: r.Seq,
			Status: audit.StatusInterrupted, Error: "the daemon ended before the outcome was recorded; what was begun was not repeated",
		}); err != nil {
			return err
		}
	}
	if len(open) > 0 {
		g.cfg.Log.Warn("closed actions that the last run left without an outcome", "count", len(open))
	}
	crashpoint.Here("daemon.recover.closed")
	if err := g.recoverApprovals(ctx); err != nil {
		return err
	}
	real, err := g.cfg.Runtime.List(ctx)
	if err != nil {
		return fmt.Errorf("cannot learn which workspaces there are: %w", err)
	}
	// Before what it names is put right here too.
	if err := g.NoteMended(ctx); err != nil {
		return err
	}
	found := make(map[id.Workspace]runtime.Workspace, len(real))
	for _, rt := range real {
		found[rt.Name] = rt
		if _, known := g.cfg.Store.ByName(rt.Name); !known {
			if err := g.stray(ctx, rt); err != nil {
				g.cfg.Log.Error("cannot take up a workspace that only the broker knows; it stays as it is", "workspace", rt.Name, "home", rt.Home, "error", err)
			}
			continue
		}
		g.note(rt)
	}
	// Each that runs is asked for over sockets of its own, which is mostly waiting.
	until := time.Now().Add(recoverAll)
	var all errgroup.Group
	all.SetLimit(reconciledAtOnce)
	for _, w := range g.cfg.Store.Workspaces() {
		all.Go(func() error {
			rt, exists := found[w.Name]
			if err := g.reconcile(ctx, w, rt, exists, until); err != nil {
				return fmt.Errorf("cannot put workspace %s right: %w", w.Name, err)
			}
			crashpoint.Here("daemon.recover.reconciled")
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	if err := g.tidyShelf(ctx); err != nil {
		return err
	}
	return g.mark(ctx, false)
}

// stray takes care of a workspace that the broker has and the database does not know: a
// create whose daemon ended before it had the answer, or the rest of a database that was
// lost. One that nobody has used yet goes. Any other may hold somebody's data: it becomes
// an administrator's, under its own name as key, and so can be seen, renamed or destroyed.
// Whoever makes a workspace for the key that it was made for does not get it, because who
// it belonged to is not known.
func (g *Gate) stray(ctx context.Context, rt runtime.Workspace) error {
	w := store.Workspace{
		Name: rt.Name, Key: id.Key(rt.Name), Owner: principal.Self().String(), Root: workspace.RootSystem, Boundary: workspace.BoundaryNamespace,
		Limits: rt.Limits, State: rt.State, CreatedAt: time.Now(),
	}
	return g.recovering(ctx, w, func(ctx context.Context) error {
		if rt.State == workspace.StateStopped {
			err := g.cfg.Runtime.Discard(ctx, rt.Name)
			if !errdefs.IsFailedPrecondition(err) {
				return err
			}
		}
		if rt.State == workspace.StateCreating || rt.State == workspace.StateDestroying {
			return fmt.Errorf("it is %s; the next start of the broker finishes that: %w", rt.State, errdefs.ErrFailedPrecondition)
		}
		if err := g.cfg.Store.Insert(ctx, w); err != nil {
			return err
		}
		g.cfg.Log.Warn("the broker has a workspace that the database did not know; it belongs to the administrators now", "workspace", rt.Name, "home", rt.Home)
		g.note(rt)
		return nil
	})
}

// reconcile brings one workspace from where the last run left it to a state that
// can be used.
//
//	stored      with the broker   becomes
//	restoring   either            gone: what was unpacked is not known to be whole
//	creating    there             stopped: the creation is finished
//	creating    missing           gone: the creation is undone
//	destroying  either            destroyed: finished, with or without the home
//	stopped     live              live: it was being started
//	live        stopped, missing  stopped
//	live        live              as with the broker if the executor answers, else stopped
//
// Live is running or paused. Other limits than the database has are those of a change
// that was not finished: they are taken back.
func (g *Gate) reconcile(ctx context.Context, w store.Workspace, rt runtime.Workspace, exists bool, until time.Time) error {
	running := exists && live(rt.State)
	if exists && rt.State == workspace.StateCreating && w.State == workspace.StateCreating {
		// The broker is still at it, or could not undo it: this waits for its end.
		return g.tolerate(w, g.recovering(ctx, w, func(ctx context.Context) error { return g.unmake(ctx, w) }))
	}
	if settled := live(w.State) || w.State == workspace.StateStopped; settled && rt.Limits != w.Limits && (running || exists && rt.State == workspace.StateStopped) {
		if err := g.tolerate(w, g.recovering(ctx, w, func(ctx context.Context) error {
			now, err := g.cfg.Runtime.Limit(ctx, w.Name, w.Limits)
			if err == nil {
				g.note(now)
			}
			return err
		})); err != nil {
			return err
		}
	}
	switch {
	case w.State == workspace.StateDestroying:
		return g.soon(until, w, func() error {
			_, err := g.destroy(ctx, principal.Self(), w.Name, w.Purge, action.Recover)
			return err
		})
	case w.State == workspace.StateRestoring:
		return g.tolerate(w, g.recovering(ctx, w, func(ctx context.Context) error { return g.unmake(ctx, w) }))
	case w.State == workspace.StateCreating && !exists:
		return g.recovering(ctx, w, func(ctx context.Context) error { return g.cfg.Store.Delete(ctx, w.Name) })
	case !running:
		if w.State == workspace.StateStopped {
			return nil
		}
		if !exists {
			g.cfg.Log.Error("the broker does not know a workspace of the database; it cannot be started", "workspace", w.Name)
		}
		return g.recovering(ctx, w, func(ctx context.Context) error { return g.cfg.Store.SetState(ctx, w.Name, workspace.StateStopped) })
	}
	if w.State != rt.State {
		if err := g.recovering(ctx, w, func(ctx context.Context) error { return g.cfg.Store.SetState(ctx, w.Name, rt.State) }); err != nil {
			return err
		}
	}
	// A pause or a resume that broke off is finished with the executor, too.
	settle := g.cfg.Runtime.Resume
	if rt.State == workspace.StatePaused {
		settle = g.cfg.Runtime.Pause
	}
	if _, err := settle(ctx, w.Name); err != nil {
		g.cfg.Log.Warn("the executor of a workspace does not answer; the workspace is stopped", "workspace", w.Name, "error", err)
		return g.soon(until, w, func() error { return g.stop(ctx, principal.Self(), w.Name) })
	}
	return nil
}

// reconciledAtOnce is how many workspaces a start puts right at the same time.
const reconciledAtOnce = 16

// How long a start waits for one workspace to be stopped or destroyed, for each once all
// together have taken recoverAll, and that.
const (
	recoverTimeout = 5 * time.Second
	recoverLeast   = 500 * time.Millisecond
	recoverAll     = 15 * time.Second
)

// soon runs what may wait for processes that the kernel cannot end. What takes too long goes
// on while others are served: it has the workspace's slot, so that who comes waits for it.
func (g *Gate) soon(until time.Time, w store.Workspace, f func() error) error {
	done := make(chan error, 1)
	g.later(func() { done <- g.tolerate(w, f()) })
	t := time.NewTimer(max(min(recoverTimeout, time.Until(until)), recoverLeast))
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		g.cfg.Log.Warn("putting a workspace right takes long and goes on", "workspace", w.Name)
		return nil
	}
}

// tolerate keeps a workspace that cannot be put right from keeping all others down:
// it stays in its state, and the same operation can be asked for again.
func (g *Gate) tolerate(w store.Workspace, err error) error {
	if err == nil || errdefs.IsDataLoss(err) {
		return err
	}
	g.cfg.Log.Error("cannot put a workspace right; it stays as it is", "workspace", w.Name, "state", w.State, "error", err)
	return nil
}

func (g *Gate) recovering(ctx context.Context, w store.Workspace, f func(context.Context) error) error {
	return g.on(ctx, principal.Self(), w, action.Action{Kind: action.Recover}, func(ctx context.Context) (any, error) {
		return nil, f(ctx)
	})
}

// ExecutorLost is told by the runtime when the executor of a workspace went away
// by itself.
func (g *Gate) ExecutorLost(name id.Workspace) {
	if err := g.lost(context.Background(), name); err != nil {
		g.cfg.Log.Error("cannot clean up behind an executor that went away", "workspace", name, "error", err)
	}
}

// lost makes a workspace whose executor went away a stopped one, so that its next
// use starts it: who comes meanwhile waits for that. A workspace that answers after all
// is left alone.
func (g *Gate) lost(ctx context.Context, name id.Workspace) error {
	if g.ending(name) {
		return nil
	}
	err := g.exclusive(ctx, slot{name: name}, quiet, false, func(ctx context.Context) error {
		w, err := g.living(name)
		if err != nil || !live(w.State) || !errors.Is(g.cfg.Runtime.Ping(ctx, name), runtime.ErrNotRunning) {
			return err
		}
		g.cfg.Log.Warn("the executor of a workspace went away; the workspace is stopped", "workspace", name)
		return g.halt(ctx, principal.Self(), w)
	})
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot clean up behind the executor of workspace %s, which went away: %w", name, err)
	}
	return nil
}

// VerifyAudit walks the whole audit log. It is for administrators, as is ShowAudit.
func (g *Gate) VerifyAudit(ctx context.Context, p principal.Principal) (audit.Finding, error) {
	if err := g.Permit(ctx, p, action.Action{Kind: action.Audit}); err != nil {
		return audit.Finding{}, err
	}
	if g.cfg.Checkpoints != nil {
		return g.cfg.Checkpoints.Verify(ctx)
	}
	v, err := g.cfg.Audit.Verify(ctx)
	return v.Finding(), err
}

// ShowAudit passes on the lines of the audit log that f names; see audit.Log.Read.
func (g *Gate) ShowAudit(ctx context.Context, p principal.Principal, from, n int64, follow bool, f audit.Filter, emit func(lines [][]byte) error) error {
	if err := g.Permit(ctx, p, action.Action{Kind: action.Audit}); err != nil {
		return err
	}
	if f.Empty() {
		return g.cfg.Audit.Read(ctx, from, n, follow, emit)
	}
	some := func(lines [][]byte) error {
		if lines = f.Lines(lines); len(lines) == 0 {
			return nil
		}
		return emit(lines)
	}
	if n > 0 {
		// The newest that are named stand anywhere: all is read, and so many kept.
		var last [][]byte
		head := g.cfg.Audit.Head().Seq
		if err := g.cfg.Audit.Read(ctx, from, 0, false, func(lines [][]byte) error {
			for _, l := range f.Lines(lines) {
				last = append(last, bytes.Clone(l))
			}
			last = last[max(0, int64(len(last))-n):]
			return nil
		}); err != nil {
			return err
		}
		if len(last) > 0 {
			if err := emit(last); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		from = head + 1
	}
	return g.cfg.Audit.Read(ctx, from, 0, follow, some)
}

// ProveAudit passes on records with their proofs; see audit.Checkpoints.Prove. It is for
// administrators.
func (g *Gate) ProveAudit(ctx context.Context, p principal.Principal, from, to int64, f audit.Filter, emit func([]checkpoint.Proof) error) error {
	if err := g.Permit(ctx, p, action.Action{Kind: action.Audit}); err != nil {
		return err
	}
	if g.cfg.Checkpoints == nil {
		return errNoCheckpoints
	}
	return g.cfg.Checkpoints.Prove(ctx, from, to, f, emit)
}
