package compose_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
)

// The host's clock is set while no daemon runs, between a question, its answer and its use.
// Nothing that is over is answered or used, nothing is used twice, and a step back gives no
// time: what is left is counted from when the last run was last seen to work.
func TestClockStepsBetweenRuns(t *testing.T) {
	const long = 30 * 24 * time.Hour
	for _, c := range []struct {
		step time.Duration
		// The time that is left after it, of a question that was just asked and an answer
		// that was just given.
		question, answer time.Duration
	}{
		{0, approval.DefaultWait, approval.SpendWithin},
		{-time.Hour, approval.DefaultWait, approval.SpendWithin},
		{-time.Minute, approval.DefaultWait, approval.SpendWithin},
		{time.Hour, 0, 0},
		{5 * time.Minute, approval.DefaultWait - 5*time.Minute, approval.SpendWithin - 5*time.Minute},
		{long, 0, 0},
		{-long, 0, 0}, // no clock is known that it could be right by
	} {
		t.Run(fmt.Sprint(c.step), func(t *testing.T) {
			h := newHouse(t)
			h.create(alice, "demo")
			restart := func(clock time.Time) {
				t.Helper()
				h.crash()
				h.clock = clock
				h.start()
			}
			began := time.Now()
			// What the record shows of the time is from here to a moment later.
			const slack = time.Minute
			restart(began)
			n := 0
			type one struct {
				approval.View
				run func() error
			}
			asked := func() one {
				t.Helper()
				n++
				x := upload("llm", "")
				x.Argv, x.Asked.WaitMS = append(x.Argv, fmt.Sprint(n)), -1
				run := func() error {
					_, _, err := h.Run(t.Context(), alice, "demo", x)
					return err
				}
				err := run()
				_, rest, ok := strings.Cut(fmt.Sprint(err), "approval ap-")
				if !ok {
					t.Fatalf("it was not asked: %v", err)
				}
				a, err := h.Approval(t.Context(), root, id.Approval("ap-"+rest[:16]))
				if err != nil {
					t.Fatal(err)
				}
				return one{a, run}
			}
			answered := func() one {
				t.Helper()
				a := asked()
				h.answer(root, a.View, approval.Once)
				return a
			}
			answer := func(a one) error {
				_, err := h.Answer(t.Context(), root, a.ID, approval.Once, "", false)
				return err
			}
			early, late, used, unused, gone := asked(), asked(), answered(), answered(), answered()
			if err := gone.run(); err != nil {
				t.Fatal(err)
			}
			restart(began.Add(c.step))

			if err := gone.run(); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("it was used twice: %v", err)
			}
			if err := used.run(); (err == nil) != (c.answer > 0) {
				t.Errorf("an answer with %v left: %v", c.answer, err)
			}
			if err := answer(early); (err == nil) != (c.question > 0) || err != nil && !errdefs.IsFailedPrecondition(err) {
				t.Errorf("a question with %v left: %v", c.question, err)
			}
			h.elapsed = c.answer + slack
			if err := unused.run(); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("an answer was used after its time: %v", err)
			}
			h.elapsed = c.question + slack
			if err := answer(late); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("a question was answered after its time: %v", err)
			}
			ran := 0
			if c.answer > 0 {
				ran++
			}
			if got := h.rt.count("run"); got != 1+ran {
				t.Errorf("%d ran", got)
			}
			// It goes on to work by that clock.
			x := answered()
			if err := x.run(); err != nil {
				t.Error(err)
			}
		})
	}
}

// While a daemon runs its approvals go by time that passes: to the end of a question and of an
// answer, and not a moment longer.
func TestTimeOfApprovals(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	h.crash()
	h.clock = time.Now()
	h.start()
	e := upload("llm", "")
	a := h.askNow(alice, e)
	h.elapsed = approval.DefaultWait - 1
	h.answer(root, a, approval.Once)
	h.elapsed += approval.SpendWithin - 1
	if _, _, err := h.Run(t.Context(), alice, "demo", e); err != nil {
		t.Error(err)
	}
	b := h.askNow(alice, e)
	h.answer(root, b, approval.Once)
	h.elapsed += approval.SpendWithin
	c := h.askNow(alice, e)
	if b.ID == c.ID {
		t.Error("an answer was used after its time")
	}
	at := len(h.records())
	h.elapsed += approval.DefaultWait
	if _, err := h.Answer(t.Context(), root, c.ID, approval.Once, "", false); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("answered after its time: %v", err)
	}
	h.Round(t.Context(), time.Now())
	h.expect(at, "approval denied")
	if list, _, err := h.Approvals(t.Context(), root, approval.Filter{State: approval.Pending, Limit: 9}); err != nil || len(list) != 0 {
		t.Errorf("%d wait: %v", len(list), err)
	}
}
