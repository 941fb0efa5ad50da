package approvals

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/store"
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
func (q *Questions) expire(ctx context.Context, name id.Approval) {
	if err := q.end(ctx, name); err != nil {
		q.cfg.Log.Error("cannot record that nobody answered in time; the next start does", "approval", name, "error", err)
	}
}

func (q *Questions) end(ctx context.Context, name id.Approval) error {
	defer q.answering.lock(name)()
	if !q.waiting.finish(name, false) {
		return nil
	}
	ended, err := q.cfg.Store.EndApproval(ctx, name)
	if err != nil || !ended {
		return err
	}
	crashpoint.Here("daemon.approval.ended")
	a, err := q.cfg.Store.Approval(ctx, name)
	if err != nil {
		return err
	}
	seq, err := q.recordEnd(ctx, a)
	if err != nil {
		return err
	}
	return q.cfg.Store.NoteEnds(ctx, map[id.Approval]int64{name: seq})
}

// recordEnd records and tells that nobody answered.
func (q *Questions) recordEnd(ctx context.Context, a store.Approval) (int64, error) {
	v := shownOf(a)
	seq, err := q.cfg.Records.Append(ctx, answerRecord(a.Approval, v.Question, principal.Self(), ""))
	if err != nil {
		return 0, err
	}
	crashpoint.Here("daemon.approval.end-recorded")
	q.show(v, int64(len(a.Shown)))
	q.tell(&v, "approval.expired", audit.StatusFailed)
	return seq, nil
}

// EndOverdue ends the questions that nobody waits for, once their time is over.
func (q *Questions) EndOverdue() {
	for _, name := range q.waiting.over(q.clock.now()) {
		q.expire(context.Background(), name)
	}
}

// Recover ends the questions whose time passed while no daemon ran, and those about connections, takes up the others
// with the time that they have left, and settles what was being spent.
func (q *Questions) Recover(ctx context.Context) error {
	if err := q.reloadRules(ctx); err != nil {
		return fmt.Errorf("cannot read what people allowed: %w", err)
	}
	if err := q.settleLeft(ctx); err != nil {
		return fmt.Errorf("cannot tell which approvals were used: %w", err)
	}
	if err := q.endLeft(ctx); err != nil {
		return fmt.Errorf("cannot record which approvals nobody answered in time: %w", err)
	}
	f := store.ApprovalFilter{State: approval.Pending, Now: q.clock.now(), Limit: 500}
	var connections []id.Approval
	for {
		list, next, err := q.cfg.Store.Approvals(ctx, f)
		if err != nil {
			return err
		}
		for _, a := range list {
			size, err := a.Bytes()
			if err != nil {
				return err
			}
			q.waiting.add(&a.Approval, size) // EndOverdue ends one that is over by now
			q.show(shownOf(a), size)
			if principal.IsInside(a.Subject.By) {
				connections = append(connections, a.ID)
			}
		}
		if next == "" {
			break
		}
		f.After = next
	}
	// Connections end with the daemon: an answer would let nothing through.
	for _, name := range connections {
		if err := q.end(ctx, name); err != nil {
			return fmt.Errorf("cannot end the question about a connection that is gone: %w", err)
		}
	}
	return nil
}

// LastRun has the clock not begin before the last run was seen to work. It comes before
// anything is recorded.
func (q *Questions) LastRun(ctx context.Context) error {
	const few = 64 // the newest
	return q.cfg.Audit.Read(ctx, 0, few, false, func(lines [][]byte) error {
		for _, line := range lines {
			r, err := audit.Decode(line)
			if err != nil {
				return err
			}
			q.clock.notBefore(r.Time)
		}
		return nil
	})
}

// settleLeft finds for approvals that were spent whether the record has their intent. One
// whose intent was not written let nothing pass: it is approved as before.
func (q *Questions) settleLeft(ctx context.Context) error {
	left, err := q.cfg.Store.UnsettledApprovals(ctx)
	if err != nil || len(left) == 0 {
		return err
	}
	found, err := q.intentsOf(ctx, left)
	if err != nil {
		return err
	}
	for _, a := range left {
		if seq := found[a.ID]; seq != 0 {
			if err := q.cfg.Store.SettleApproval(ctx, a.ID, seq); err != nil {
				return err
			}
			continue
		}
		q.cfg.Log.Warn("an approval was not used before the last end; it is as before", "approval", a.ID)
		if _, err := q.cfg.Store.ChangeApproval(ctx, a.ID, func(a approval.Approval) (approval.Approval, error) {
			a.State = approval.Approved
			return a, nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// endLeft ends what is over, and finishes what a crash left of such ends.
func (q *Questions) endLeft(ctx context.Context) error {
	names, err := q.cfg.Store.EndingNames(ctx)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		found, err := q.endsOf(ctx, names)
		if err == nil {
			err = q.cfg.Store.NoteEnds(ctx, found)
		}
		if err != nil {
			return err
		}
	}
	if err := q.cfg.Store.EndOverdue(ctx, q.clock.now()); err != nil {
		return err
	}
	crashpoint.Here("daemon.recover.ended")
	for {
		list, err := q.cfg.Store.EndingApprovals(ctx, endsAtOnce)
		if err != nil || len(list) == 0 {
			return err
		}
		seqs := make([]int64, len(list))
		var all errgroup.Group
		for i, a := range list {
			all.Go(func() (err error) {
				seqs[i], err = q.recordEnd(ctx, a)
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
		if err := q.cfg.Store.NoteEnds(ctx, at); err != nil {
			return err
		}
	}
}

// intentsOf finds in the record the intents that approvals were spent on.
func (q *Questions) intentsOf(ctx context.Context, list []store.Approval) (map[id.Approval]int64, error) {
	found := map[id.Approval]int64{}
	any := func(line []byte) bool {
		return slices.ContainsFunc(list, func(a store.Approval) bool { return bytes.Contains(line, []byte(a.ID)) })
	}
	err := q.search(ctx, any, func(r audit.Record) {
		name, _, spent := strings.Cut(r.Approval, " ")
		if r.Type == audit.Intent && spent {
			found[id.Approval(name)] = r.Seq
		}
	})
	return found, err
}

// endsOf finds which of these questions the record says nobody answered, and where.
func (q *Questions) endsOf(ctx context.Context, names map[id.Approval]bool) (map[id.Approval]int64, error) {
	found := map[id.Approval]int64{}
	is := []byte(`"` + expired + `"`)
	err := q.search(ctx, func(line []byte) bool { return bytes.Contains(line, is) }, func(r audit.Record) {
		if name := id.Approval(r.Approval); r.Type == audit.Approval && names[name] && answerOf(r).Kind == expired {
			found[name] = r.Seq
		}
	})
	return found, err
}

// search decodes the records whose line matches, and no others.
func (q *Questions) search(ctx context.Context, match func(line []byte) bool, f func(audit.Record)) error {
	return q.cfg.Audit.Read(ctx, 0, 0, false, func(lines [][]byte) error {
		for _, line := range lines {
			if !match(line) {
				continue
			}
			r, err := audit.Decode(line)
			if err != nil {
				return err
			}
			f(r)
		}
		return nil
	})
}
