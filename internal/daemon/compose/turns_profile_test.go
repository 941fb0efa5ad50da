package compose_test

import (
	"context"
	"slices"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// A person is shown which profile holds each step on their machine, the client is told the same one, and an answer for
// one profile is none for another. Steps elsewhere have none.
func TestStepsShowTheirProfile(t *testing.T) {
	digests := map[string]bool{}
	for _, profile := range []string{"", "none", "workspace_write"} {
		h, told := proposing(t, judged, planText(onTarget("host", "touch a"), onTarget("remote web-1", "touch a")))
		d := &hostsDouble{local: true, remotes: []string{"web-1"}, profile: profile}
		var got []string
		d.run = func(_ context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
			got = append(got, c.Profile)
			return runtime.HostResult{Status: &execapi.Status{}}, nil
		}
		a := h.pendingOf(func() { h.turn(d) })
		if profile == "" {
			profile = "none"
		}
		want := []string{"1. host: touch a  [CONFIRM, risk 50, profile " + profile + "]", "2. remote web-1: touch a  [CONFIRM, risk 50]"}
		if !slices.Equal(a.Argv, want) {
			t.Errorf("%s: asked %q", profile, a.Argv)
		}
		digest, err := operation.Same(operation.Plan{Steps: []operation.PlanStep{{Target: "host", Command: "id", Profile: profile}}},
			operation.Target{Kind: operation.Host})
		if err != nil {
			t.Fatal(err)
		}
		digests[digest] = true
		if err := h.answerAt(alice, a, approval.Once, ""); err != nil {
			t.Fatal(err)
		}
		if r := next(t, told); r.Outcome != "done" || !slices.Equal(got, []string{profile, ""}) {
			t.Errorf("%s: %s %s, and the client was told %q", profile, r.Outcome, r.Why, got)
		}
	}
	if len(digests) != 2 {
		t.Errorf("an answer for one profile holds for another: %v", digests)
	}
}
