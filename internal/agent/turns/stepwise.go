package turns

import (
	"context"

	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
)

// notLet is that a person did not let a step of a plan through.
type notLet struct{ Reply }

func (n *notLet) Error() string { return n.Why }

// stepwise asks a person about the steps of a plan that they let through one at a time. Each is a plan of its own to the
// gate, with its own digest, answer and record. The first has passed by their answer to the plan; a change to several files has not, and of
// what they choose from it the first of steps is made, and out are the files that they leave out.
func (t *Turns) stepwise(turn *Turn, whole operation.Plan, steps []step, out *[]string) func(context.Context, int, int,
	func(context.Context) error,
) error {
	return func(ctx context.Context, from, to int, run func(context.Context) error) error {
		if from < whole.Passing() {
			return run(ctx)
		}
		op := whole
		op.Steps, op.From, op.Whole, op.Asks = whole.Steps[from:to], from+1, len(whole.Steps), true
		op.Files, op.Part = nil, nil
		if from == 0 {
			chooseFrom(&op, steps[:to])
		}
		op.Keep = nil // who wants to see each step is asked about each
		digest, err := operation.Same(op, turn.On)
		if err != nil {
			return err
		}
		if err := turn.Note("asks", map[string]any{"digest": digest, "plan": op.Number, "step": op.From, "steps": len(op.Steps)}); err != nil {
			return err
		}
		authorised, err := t.authorise(ctx, turn, op)
		if err != nil {
			return err
		}
		a, err := authorised.Admit(ctx)
		if err != nil {
			r, err := unanswered(err)
			if err != nil {
				return err
			}
			return &notLet{r}
		}
		_, now, left, err := t.chosen(ctx, turn, a, op, steps[from:to])
		if err != nil {
			return err
		}
		copy(steps[from:to], now)
		*out = append(*out, left...)
		cover := a.Cover()
		defer cover.End()
		return a.Do(gate.Covered(ctx, cover), func(ctx context.Context, _ permit.Permit) (any, error) {
			return nil, run(ctx)
		})
	}
}
