package compose_test

import (
	"context"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// What carrel itself notes of a plan waits for no other message: three steps that take no time are noted within less than the 20 ms
// that a program's messages have between each other.
func TestStepsAreNotedAtOnce(t *testing.T) {
	const steps = 30
	var list []map[string]any
	for range steps {
		list = append(list, onTarget("host", "id -u"))
	}
	h, told := proposing(t, judged, planText(list...))
	d := &hostsDouble{local: true}
	d.run = func(context.Context, runtime.HostCommand) (runtime.HostResult, error) {
		return runtime.HostResult{Status: &execapi.Status{}}, nil
	}
	task := h.turn(d)
	if r := next(t, told); r.Outcome != "done" || len(r.Steps) != steps {
		t.Fatalf("told %+v", r)
	}
	var at []time.Time
	if _, err := h.FollowTask(t.Context(), alice, "demo", task.ID, 0, false, func(m workspace.TaskMessage, _ int64) error {
		if m.Kind == "step" {
			at = append(at, m.Time)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(at) != steps {
		t.Fatalf("%d steps were noted", len(at))
	}
	least := time.Hour
	for i := 3; i < len(at); i++ {
		least = min(least, at[i].Sub(at[i-3]))
	}
	if least >= 40*time.Millisecond { // with a pace it is 60, less what one step takes itself
		t.Errorf("three steps took %v at least", least)
	}
}
