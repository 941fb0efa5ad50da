package operation_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// An answer to a plan is for the order in which its steps reach their hosts too.
func TestOrderIsInTheDigest(t *testing.T) {
	on := operation.Target{Kind: operation.Workspace, Name: "demo"}
	digest := func(order string) string {
		steps := []operation.PlanStep{{Part: "command", Target: "remote a", Command: "true", Together: 2, Order: order}, {Target: "remote b"}}
		d, err := operation.Same(operation.Plan{Number: 1, Steps: steps}, on)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if digest("batches of 1") == digest("batches of 2") {
		t.Error("the digest is the same for two orders")
	}
}
