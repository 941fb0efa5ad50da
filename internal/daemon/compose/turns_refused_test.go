package compose_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// refusedPlan is a plan that the policy refuses: it says that it only reads, and writes.
func refusedPlan() string {
	s := onTarget("workspace work", "touch f")
	s["read_only"] = true
	return planText(s)
}

// Proposals that are refused one after the other end what is taken in a turn: the third does, the second says so, and one that was carried
// out in between begins anew.
func TestRefusedInARow(t *testing.T) {
	no, yes := refusedPlan(), planText(onTarget("workspace work", "true"))
	h, told := proposing(t, judged, no, yes, no, no, no, yes)
	h.turn(nil)
	var got []string
	var last answerTo
	for range 6 {
		last = next(t, told)
		got = append(got, last.Outcome)
		if len(got) == 4 && !strings.Contains(last.Why, "the next one ends the turn") {
			t.Errorf("the agent is not told before: %q", last.Why)
		}
		if len(got) == 5 && !strings.Contains(last.Why, "3 proposals in a row were refused, the last one because of step 1, ") {
			t.Errorf("%q", last.Why)
		}
	}
	if want := []string{"refused", "failed", "refused", "refused", "blocked", "blocked"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// A program that goes on after that ends its task.
func TestGoesOnAfterTheEnd(t *testing.T) {
	h, told := proposing(t, judged, slices.Repeat([]string{refusedPlan()}, 100)...)
	_, end := h.follows(h.turn(nil), 0)
	if end.State != workspace.TaskFailed || !strings.Contains(end.Reason, "goes on proposing after nothing more is taken") || len(told) > 7 {
		t.Errorf("%d were answered, %+v", len(told), end)
	}
}
