package turns

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/fanout"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// looks is the order of steps that only read: a few at once, and none begins once one has failed.
var looks = fanout.Order{Forks: 4, MaxFailures: "0", NoCanary: true}

// quiet reports whether a step may run beside others: it only reads, nobody is asked about it, and it is on one place.
func (s *step) quiet() bool {
	return s.patch == nil && s.hosts == 1 && s.shown.ReadOnly && !s.shown.Background && !s.asks && s.shown.Level == rules.Safe.String()
}

// joinQuiet has steps that only read, with nothing between them and of one part of the plan, run together. They were judged.
func joinQuiet(steps []step) {
	for from := 0; from < len(steps); {
		to := from + 1
		for to < len(steps) && steps[from].quiet() && steps[to].quiet() && steps[to].shown.Part == steps[from].shown.Part {
			to++
		}
		if to-from > 1 {
			steps[from].shown.Together = to - from
			steps[from].shown.Order = fmt.Sprintf("as they only read, %d at once; if one fails, no further one", min(looks.Forks, to-from))
		}
		from = to
	}
}

// carrying is a plan that is being carried out.
type carrying struct {
	t     *Turns
	turn  *Turn
	steps []step
	reply Reply
	// failed are the remote hosts on which a step has failed that the plan goes on after, with its number: nothing more of the
	// plan is begun there.
	failed map[string]int
}

// runAll runs the steps in their order until one fails. The hosts of one step are worked on as the turn's order says. If next
// is not nil, each step is run by it: it calls the function once a person has let the step through.
func (t *Turns) runAll(ctx context.Context, turn *Turn, steps []step,
	next func(ctx context.Context, from, to int, run func(context.Context) error) error,
) (Reply, error) {
	c := &carrying{t: t, turn: turn, steps: steps, reply: Reply{Outcome: Done}, failed: map[string]int{}}
	ctx, cancel := turn.while(ctx)
	defer cancel()
	for from := 0; from < len(steps); {
		to := from + max(steps[from].shown.Together, 1)
		var why string
		run := func(ctx context.Context) (err error) {
			why, err = c.group(ctx, from, to)
			return err
		}
		var err error
		if next != nil {
			err = next(ctx, from, to, run)
		} else {
			err = run(ctx)
		}
		if no, ok := errors.AsType[*notLet](err); ok {
			c.reply.Outcome = no.Outcome
			c.reply.Why = fmt.Sprintf("of the plan's %d steps %d were begun: %s", len(steps), len(c.reply.Steps), no.Why)
			c.leave(from, len(steps), no.Why)
			break
		}
		if err != nil {
			return c.reply, err
		}
		if why != "" {
			c.reply.Outcome = Failed
			c.leave(to, len(steps), why)
			c.reply.Why = why + behind(len(steps)-to)
			break
		}
		from = to
	}
	if err := c.told(); err != nil {
		return c.reply, err
	}
	fit(&c.reply)
	return c.reply, nil
}

// behind says that steps were not run.
func behind(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "; the step behind it was not run"
	}
	return fmt.Sprintf("; the %d steps behind it were not run", n)
}

// leave notes that steps are not begun.
func (c *carrying) leave(from, to int, why string) {
	for i := from; i < to; i++ {
		c.reply.NotBegun = append(c.reply.NotBegun, NotBegun{Step: i + 1, Target: c.steps[i].shown.Target, Why: why})
	}
}

// told tells those who follow the turn of what was not begun.
func (c *carrying) told() error {
	if len(c.reply.NotBegun) == 0 {
		return nil
	}
	return c.turn.Note("not_begun", map[string]any{"steps": c.reply.NotBegun})
}

// group runs the steps from one to another that belong together. It returns why the plan ends with them, "" if it goes on.
func (c *carrying) group(ctx context.Context, from, to int) (why string, err error) {
	steps := c.steps[from:to]
	way, err := c.turn.wayOf(steps) // the one that was shown
	if steps[0].hosts == 1 && len(steps) > 1 {
		way, err = looks.Of(len(steps))
	}
	if err != nil {
		return "", err
	}
	var at []int // the places of those that are to begin
	for i := range steps {
		if n := c.failed[steps[i].shown.Target]; n > 0 {
			c.leave(from+i, from+i+1, fmt.Sprintf("step %d failed there", n))
			continue
		}
		at = append(at, i)
	}
	lost := len(steps) - len(at)
	f := fan{t: c.t, turn: c.turn, way: way.Less(len(at)), lost: lost, inOrder: steps[0].hosts == 1}
	f.note = func(r *StepResult) error {
		err := c.turn.Note("step", *r)
		crashpoint.Here("daemon.plan.step-told")
		return err
	}
	for _, i := range at {
		f.steps = append(f.steps, &steps[i])
		f.numbers = append(f.numbers, from+i+1)
	}
	results, err := f.run(ctx)
	var first *StepResult
	well := 0
	for i, r := range results {
		switch {
		case r == nil:
			c.leave(f.numbers[i]-1, f.numbers[i], f.why)
			continue
		case !r.failed():
			well++
		case first == nil:
			first = r
		}
		c.reply.Steps = append(c.reply.Steps, *r)
		if r.failed() && len(steps) > 1 {
			c.failed[r.Target] = r.Step
		}
	}
	failed := lost + f.failed
	if err != nil || f.why == "" && way.Passed(failed, well) {
		return "", err
	}
	switch {
	case first == nil && f.why != "": // none of them has begun, or all that have went well
		return f.why, nil
	case first == nil:
		return fmt.Sprintf("step %d was not begun: %s", from+1, c.reply.NotBegun[len(c.reply.NotBegun)-1].Why), nil
	case failed == 1:
		return fmt.Sprintf("step %d failed on %s", first.Step, first.Target), nil
	}
	return fmt.Sprintf("step %d failed on %s, and %d of those that run with it failed in all", first.Step, first.Target, failed), nil
}

// fan is steps that are not run one after the other.
type fan struct {
	t     *Turns
	turn  *Turn
	way   fanout.Way
	steps []*step
	// numbers are those of the steps, as people count them.
	numbers []int
	// lost is how many hosts have failed before, and are not among the steps.
	lost int
	// inOrder: what became of them is told in their order, and not as they end.
	inOrder bool
	note    func(r *StepResult) error

	failed int
	// why no further step begins; "" if all have begun.
	why string
}

// run runs the steps and returns what became of each, nil for those that were not begun. Of each that ended it keeps a note.
func (f *fan) run(ctx context.Context) ([]*StepResult, error) {
	type ending struct {
		i int
		r StepResult
	}
	results := make([]*StepResult, len(f.steps))
	endings := make(chan ending)
	var broken error
	next, running, ended, told := 0, 0, 0, 0
	for end := f.way.Next(0); ; {
		for next < end && running < f.way.Forks() && broken == nil && f.may(ctx, ended, false, f.steps[next]) {
			go func(i int) {
				crashpoint.Here("daemon.plan.step-begins")
				r := f.t.run(ctx, f.turn, f.steps[i])
				r.Step = f.numbers[i]
				crashpoint.Here("daemon.plan.step-ended")
				endings <- ending{i, r}
			}(next)
			next++
			running++
		}
		if running == 0 {
			if next == len(f.steps) || broken != nil || !f.may(ctx, ended, true, f.steps[next]) {
				return results, broken
			}
			end = f.way.Next(next)
			continue
		}
		e := <-endings
		running--
		ended++
		results[e.i] = &e.r
		if e.r.failed() {
			f.failed++
		}
		switch {
		case broken != nil:
		case !f.inOrder:
			broken = f.note(&e.r)
		default:
			for ; broken == nil && told < len(results) && results[told] != nil; told++ {
				broken = f.note(results[told])
			}
		}
	}
}

// may reports whether a step may begin, and keeps why it may not. between: none of its batch runs.
func (f *fan) may(ctx context.Context, ended int, between bool, s *step) bool {
	failed := f.failed + f.lost
	switch {
	case f.why != "": // the first reason stays
	case ctx.Err() != nil:
		f.why = strings.TrimSuffix(context.Cause(ctx).Error(), ": "+errdefs.ErrAborted.Error())
	case f.way.Canary() && ended == 1 && f.failed == 1:
		f.why = "the host that goes first failed"
	case f.way.Over(failed, between) && f.inOrder:
		f.why = counted(failed, "step", "steps") + " failed"
	case f.way.Over(failed, between):
		f.why = counted(failed, "host", "hosts") + " failed"
	case s.on.Kind != operation.Workspace && f.turn.Hosts() == nil:
		f.why = "the client that serves hosts has gone"
	default:
		return true
	}
	return false
}

// counted is a number of things.
func counted(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}
