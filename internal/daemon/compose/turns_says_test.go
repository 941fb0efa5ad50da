package compose_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// A question says as whom and where each step runs, and what the agent says of its plan. So does the record of what came of a step, with
// what held it.
func TestPlanSaysAsWhom(t *testing.T) {
	var p map[string]any
	if err := json.Unmarshal([]byte(planText(onTarget("host", "touch /tmp/a"), onTarget("remote web-1", "touch /tmp/b"))), &p); err != nil {
		t.Fatal(err)
	}
	p["risk_summary"], p["requires_root"], p["expected_side_effects"] = "may hurt", true, []string{"sessions end", "mails go out"}
	b, _ := json.Marshal(p)
	h, told := proposing(t, "rules: []", string(b))
	d := &hostsDouble{local: true, remotes: []string{"web-1"}, as: "root, who may do everything, on box, in /srv"}
	d.run = func(context.Context, runtime.HostCommand) (runtime.HostResult, error) {
		return runtime.HostResult{Status: &execapi.Status{}, Held: "what held it"}, nil
	}
	at := len(h.records())
	a := h.pendingOf(func() { h.turn(d) })
	want := []string{
		"1. host: touch /tmp/a  [CONFIRM, risk 50, profile none, as root, who may do everything, on box, in /srv]",
		"2. remote web-1: touch /tmp/b  [CONFIRM, risk 50, as root, who may do everything, on box, in /srv web-1]",
	}
	if !slices.Equal(a.Argv, want) {
		t.Errorf("asked %q", a.Argv)
	}
	for _, says := range []string{
		"the agent says of its risk: may hurt", "the agent says that it needs root", "the agent says that it also does this: sessions end",
		"the agent says that it also does this: mails go out",
	} {
		if !slices.Contains(a.Decision.Reasons, says) {
			t.Errorf("nothing says %q: %q", says, a.Decision.Reasons)
		}
	}
	if err := h.answerAt(alice, a, approval.Once, ""); err != nil {
		t.Fatal(err)
	}
	if r := next(t, told); r.Outcome != "done" {
		t.Errorf("%+v", r)
	}
	plans, outcomes := 0, 0
	for _, r := range h.records()[at:] {
		if r.Type == "intent" && strings.Contains(string(r.Action), `"as":"root, who may do everything, on box, in /srv"`) {
			plans++
		}
		if r.Type == "outcome" && strings.Contains(string(r.Data), `"held":"what held it","as":"root, who may do everything, on box`) {
			outcomes++
		}
	}
	if plans != 1 || outcomes != 2 {
		t.Errorf("%d plans and %d outcomes say it in the record", plans, outcomes)
	}
}

// A change that is to make new files touches no other, whatever its diff is.
func TestCreateChangesNothing(t *testing.T) {
	text := strings.Replace(changing("host", "f"), `"request_intent":"update"`, `"request_intent":"create"`, 1)
	h, told := proposing(t, judged, text)
	d := &hostsDouble{local: true, patch: func(runtime.HostPatch) (runtime.HostPatched, error) {
		t.Error("it was computed")
		return runtime.HostPatched{}, nil
	}}
	h.turn(d)
	if r := next(t, told); r.Outcome != "refused" || !strings.Contains(r.Why, "request_intent create") {
		t.Errorf("%+v", r)
	}
}

// other is a question that waits and is another one.
func (h *house) other(than approval.View) (found approval.View) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 20*time.Second)
	defer cancel()
	err := h.WatchApprovals(ctx, root, func(a *approval.View) error {
		if a == nil || a.State != approval.Pending || a.ID == than.ID {
			return nil
		}
		found = *a
		return errFound
	})
	if !errors.Is(err, errFound) {
		h.t.Fatal("nobody was asked anew: ", err)
	}
	return found
}

var errFound = errors.New("found")

// A policy that changes while a person is asked has the question put anew, with what it says of each step. One that blocks a step ends
// the plan.
func TestPlanIsPutAnew(t *testing.T) {
	current := "rules: []"
	h, told := proposing(t, current, planText(onTarget("host", "touch /tmp/a")), planText(onTarget("host", "touch /tmp/b")))
	h.policy = func() (*rules.Engine, error) { return rulesOf(current)() }
	h.crash()
	h.start()
	d := &hostsDouble{local: true}
	reload := func(level string) {
		current = "rules: [{id: other, level: " + level + ", risk_score: 90, reason: \"a new reason\", match: {command: [touch]}}]"
		if _, _, _, err := h.ReloadPolicy(t.Context(), root); err != nil {
			t.Error(err)
		}
	}
	was := h.pendingOf(func() { h.turn(d) })
	reload("CONFIRM")
	now := h.other(was)
	shown := strings.Join(slices.Concat(now.Argv, now.Decision.Reasons), "\n")
	if !strings.Contains(shown, "[CONFIRM, risk 90") || !strings.Contains(shown, "a new reason") {
		t.Errorf("asked %q because of %q", now.Argv, now.Decision.Reasons)
	}
	if err := h.answerAt(alice, was, approval.Once, ""); err == nil {
		t.Error("the question of before was answered")
	}
	if err := h.answerAt(alice, now, approval.Once, ""); err != nil {
		t.Fatal(err)
	}
	if r := next(t, told); r.Outcome != "done" || !slices.Equal(d.all(), []string{"host: touch /tmp/a"}) {
		t.Errorf("%+v, ran %q", r, d.all())
	}
	h.other(now)
	reload("BLOCK")
	if r := next(t, told); r.Outcome != "refused" || !strings.Contains(r.Why, "a new reason") || len(d.all()) != 1 {
		t.Errorf("%+v, ran %q", r, d.all())
	}
}
