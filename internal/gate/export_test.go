package gate

import (
	"context"
	"time"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/policy"
	"github.com/carrel-dev/carrel/internal/redact"
)

// TendAll is one round of Tend.
func (g *Gate) TendAll(ctx context.Context, now time.Time) { g.tendAll(ctx, now) }

// ForgetHomes removes the homes that have been kept for their time by now.
func (g *Gate) ForgetHomes(ctx context.Context, now time.Time) error { return g.forgetHomes(ctx, now) }

// JudgeAgain asks the policy in force, or the memory of what it said.
func JudgeAgain(g *Gate, q *policy.Question) error {
	f, err := g.rules()
	if err == nil {
		_, err = f.ask(q)
	}
	return err
}

// ForgetRecords removes files of the audit log that have been kept for their time by now.
func (g *Gate) ForgetRecords(ctx context.Context, now time.Time) error {
	return g.forgetRecords(ctx, now)
}

// SetClock has approvals go by another clock: the host's at the start, and how long ago that is.
func (g *Gate) SetClock(start time.Time, elapsed func() time.Duration) {
	g.approvals.start, g.approvals.elapsed = start, elapsed
}

// Admitter admits questions that may wait, as of one gate.
func Admitter() func(*approval.Approval, int64) error {
	a := newApprovals()
	return func(q *approval.Approval, size int64) error {
		_, err := a.admit(q, size)
		return err
	}
}

// Without is what a record has of an action, and whether anything was taken out of it.
func Without(a action.Action, r *redact.Redactor) (action.Action, bool) {
	return without(&a, r, r.Argv(a.Argv))
}
