package gate

import (
	"bytes"
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/store"
)

// What becomes of a question that nobody answers in time, under a running daemon and at a
// start, and what is on disk after each step:
//
//	ended ─► its end recorded ─► that noted
//	  └─ found without the note at a start: if the record has the end it is noted, else recorded
//
// So the record has it once, wherever a crash comes.

// endsAtOnce is how many ends are read, and recorded by one sync, at a start.
const endsAtOnce = 64

// expire ends a question whose time is over, unless its answer was quicker.
func (g *Gate) expire(name id.Approval) {
	if err := g.endQuestion(context.Background(), name); err != nil {
		g.cfg.Log.Error("cannot record that nobody answered in time; the next start does", "approval", name, "error", err)
	}
}

func (g *Gate) endQuestion(ctx context.Context, name id.Approval) error {
	g.approvals.answering.Lock()
	defer g.approvals.answering.Unlock()
	if !g.approvals.finish(name) {
		return nil
	}
	ended, err := g.cfg.Store.EndApproval(ctx, name)
	if err != nil || !ended {
		return err
	}
	crashpoint.Here("daemon.approval.ended")
	a, err := g.cfg.Store.Approval(ctx, name)
	if err != nil {
		return err
	}
	seq, err := g.recordEnd(ctx, a)
	if err != nil {
		return err
	}
	return g.cfg.Store.NoteEnds(ctx, map[id.Approval]int64{name: seq})
}

// recordEnd records and tells that nobody answered.
func (g *Gate) recordEnd(ctx context.Context, a store.Approval) (int64, error) {
	q := shownOf(a)
	seq, err := g.record.Append(ctx, answerRecord(a.Approval, q.Trace, principal.Self()))
	if err != nil {
		return 0, err
	}
	crashpoint.Here("daemon.approval.end-recorded")
	g.changed(a.Approval, q.Question, "approval.expired", "failed")
	return seq, nil
}

// tendApprovals ends the questions that nobody waits for, once their time is over.
func (g *Gate) tendApprovals() {
	now := g.approvals.now()
	var over []id.Approval
	g.approvals.mu.Lock()
	for name, x := range g.approvals.open {
		if x.waiters == 0 && !now.Before(x.until) {
			over = append(over, name)
		}
	}
	g.approvals.mu.Unlock()
	for _, name := range over {
		g.expire(name)
	}
}

// recoverApprovals ends the questions whose time passed while no daemon ran, takes up the
// others with the time that they have left, and settles what was being spent.
func (g *Gate) recoverApprovals(ctx context.Context) error {
	if err := g.settleLeft(ctx); err != nil {
		return fmt.Errorf("cannot tell which approvals were used: %w", err)
	}
	if err := g.endLeft(ctx); err != nil {
		return fmt.Errorf("cannot record which approvals nobody answered in time: %w", err)
	}
	f := store.ApprovalFilter{State: approval.Pending, Now: g.approvals.now(), Limit: 500}
	for {
		list, next, err := g.cfg.Store.Approvals(ctx, f)
		if err != nil {
			return err
		}
		for _, a := range list {
			size, err := a.Bytes()
			if err != nil {
				return err
			}
			g.approvals.add(&a.Approval, size) // one that is over by now tendApprovals ends
		}
		if next == "" {
			return nil
		}
		f.After = next
	}
}

// endLeft ends what is over, and finishes what a crash left of such ends.
func (g *Gate) endLeft(ctx context.Context) error {
	names, err := g.cfg.Store.EndingNames(ctx)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		found, err := g.endsOf(ctx, names)
		if err == nil {
			err = g.cfg.Store.NoteEnds(ctx, found)
		}
		if err != nil {
			return err
		}
	}
	if err := g.cfg.Store.EndOverdue(ctx, g.approvals.now()); err != nil {
		return err
	}
	crashpoint.Here("daemon.recover.ended")
	for {
		list, err := g.cfg.Store.EndingApprovals(ctx, endsAtOnce)
		if err != nil || len(list) == 0 {
			return err
		}
		seqs := make([]int64, len(list))
		var all errgroup.Group
		for i, a := range list {
			all.Go(func() (err error) {
				seqs[i], err = g.recordEnd(ctx, a)
				return err
			})
		}
		if err := all.Wait(); err != nil {
			return err
		}
		at := make(map[id.Approval]int64, len(list))
		for i, a := range list {
			at[a.ID] = seqs[i]
		}
		if err := g.cfg.Store.NoteEnds(ctx, at); err != nil {
			return err
		}
	}
}

// endsOf finds which of these questions the record says nobody answered, and where.
func (g *Gate) endsOf(ctx context.Context, names map[id.Approval]bool) (map[id.Approval]int64, error) {
	found := map[id.Approval]int64{}
	is := []byte(`"` + expired + `"`)
	err := g.cfg.Audit.Read(ctx, 0, 0, false, func(lines [][]byte) error {
		for _, line := range lines {
			if !bytes.Contains(line, is) { // most are not decoded
				continue
			}
			r, err := audit.Decode(line)
			if err != nil {
				return err
			}
			if name := id.Approval(r.Approval); r.Type == audit.Approval && names[name] && answerOf(r).Kind == expired {
				found[name] = r.Seq
			}
		}
		return nil
	})
	return found, err
}
