package turns

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// offerRollback asks a person about the rollback steps of a plan of which a step has failed, as a plan of its own. It has
// those for targets on which a step ran that may have changed something, and no others.
func (t *Turns) offerRollback(ctx context.Context, turn *Turn, p *proposal, failed operation.Plan, ran []step, reply *Reply) error {
	if ctx.Err() != nil || turn.over() {
		return nil
	}
	steps, left, err := t.rollbackOf(ctx, turn, p, touched(reply, ran))
	r := Reply{Outcome: Refused}
	switch {
	case err != nil:
		r.Why = "it cannot be undone as the plan says: " + errtext.Text(err)
	case len(steps) == 0 && len(left) == 0:
		return nil
	case len(steps) == 0:
		r.Why = "none of its rollback steps is for a place where something ran that changes anything"
	case turn.plans >= MaxPlans:
		r.Why = fmt.Sprintf("a turn has at most %d plans", MaxPlans)
	default:
		turn.plans++
		op := operation.Plan{
			ID: turn.Task, Number: turn.plans, Undoes: failed.Number,
			Goal: fmt.Sprintf("undo plan %d, of which a step failed: %s", failed.Number, failed.Goal),
		}
		// Its steps have their purposes in the plan that failed.
		if r, err = t.consider(ctx, turn, &proposal{}, op, steps); err != nil {
			return err
		}
	}
	if len(left) > 0 {
		r.Why = strings.TrimPrefix(r.Why+"; left out, because nothing ran there that changes anything: "+strings.Join(left, ", "), "; ")
	}
	reply.Rollback = &r
	if r.Outcome == Done || r.Outcome == Failed && len(left) == 0 {
		return nil
	}
	return turn.Note("refusal", map[string]string{"outcome": r.Outcome, "why": "rollback: " + r.Why})
}

// touched are the targets on which a step ran that may have changed something.
func touched(reply *Reply, ran []step) (targets []string) {
	for _, r := range reply.Steps {
		if !ran[r.Step-1].shown.ReadOnly {
			targets = append(targets, r.Target)
		}
	}
	return targets
}

// rollbackOf are the rollback steps of a plan for some targets. left are those for others.
func (t *Turns) rollbackOf(ctx context.Context, turn *Turn, p *proposal, targets []string) (steps []step, left []string, err error) {
	for i, s := range p.Rollback {
		all, err := t.resolveStep(ctx, turn, rollback, s)
		if err != nil {
			return nil, nil, fmt.Errorf("rollback %d: %w", i+1, err)
		}
		var kept []step
		for _, x := range all {
			x.shown.Together, x.shown.Order = 0, ""
			if slices.Contains(targets, x.shown.Target) {
				kept = append(kept, x)
			} else {
				left = append(left, x.shown.Target+": "+x.shown.Command)
			}
		}
		if err := turn.fan(kept); err != nil {
			return nil, nil, err
		}
		steps = append(steps, kept...)
	}
	return steps, left, nil
}

// over reports whether nobody waits for the turn any more.
func (turn *Turn) over() bool {
	select {
	case <-turn.Gone: // a nil channel is never ready
		return true
	default:
		return false
	}
}
