package flow_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/id"
)

// A plan that is approved one step at a time has only its first step run by that answer. Each of the others is asked about by
// itself, with its own digest and its own approval in the record, and one that is denied is the end.
func TestStepByStep(t *testing.T) {
	p := planText(onTarget("host", "touch a"), onTarget("remote web-1 web-2", "touch b"), onTarget("host", "touch a"),
		onTarget("host", "touch c"))
	h, told := proposing(t, judged, p, planText(onTarget("host", "touch a")), planText(onTarget("remote web-1 web-2", "touch b")))
	d := &hostsDouble{local: true, remotes: []string{"web-1", "web-2"}}
	at := len(h.records())
	a := h.pendingOf(func() { h.turn(d) })
	digests := map[string]bool{a.Subject.Digest: true}
	if !a.Steps || len(a.Argv) != 6 {
		t.Errorf("asked %+v", a)
	}
	for i, x := range []struct {
		lines  []string
		ran    []string // by the answer before
		answer approval.Kind
	}{
		{
			[]string{"2. remote web-1: touch b  [CONFIRM, risk 50]", "3. remote web-2: touch b  [CONFIRM, risk 50]", "2 to 3: the first host alone"},
			[]string{"host: touch a"},
			approval.Once,
		},
		{
			[]string{"4. host: touch a  [CONFIRM, risk 50, profile none]"},
			[]string{"host: touch a", "remote web-1: touch b", "remote web-2: touch b"},
			approval.Once,
		},
		{
			[]string{"5. host: touch c  [CONFIRM, risk 50, profile none]"},
			[]string{"host: touch a", "remote web-1: touch b", "remote web-2: touch b", "host: touch a"},
			approval.Deny,
		},
	} {
		before := a
		kind := approval.Once
		if i == 0 {
			kind = approval.Steps
		}
		if err := h.answerAt(alice, before, kind, ""); err != nil {
			t.Fatal(err)
		}
		a = h.pendingOf(func() {})
		if len(a.Argv) != len(x.lines) || a.Steps || digests[a.Subject.Digest] {
			t.Errorf("%d: asked %q, by steps %v", i, a.Argv, a.Steps)
		}
		digests[a.Subject.Digest] = true
		for j, l := range a.Argv {
			if !strings.HasPrefix(l, x.lines[j]) {
				t.Errorf("%d: asked %q", i, l)
			}
		}
		if got := d.all(); !slices.Equal(got, x.ran) {
			t.Errorf("%d: ran %q", i, got)
		}
		if err := h.answerAt(alice, a, approval.Steps, ""); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%d: a single step is approved by steps: %v", i, err)
		}
	}
	if err := h.answerAt(alice, a, approval.Deny, "enough"); err != nil {
		t.Fatal(err)
	}
	second := h.pendingOf(func() {})
	if r := next(t, told); r.Outcome != "denied" || len(r.Steps) != 4 || len(r.NotBegun) != 1 || !strings.Contains(r.Why, "enough") {
		t.Errorf("told %+v", r)
	}
	// What was approved is none of the next plan's.
	if second.Steps || len(d.all()) != 4 {
		t.Errorf("%+v, ran %q", second, d.all())
	}
	if err := h.answerAt(alice, second, approval.Deny, ""); err != nil {
		t.Fatal(err)
	}
	third := h.pendingOf(func() {})
	if third.Steps { // several hosts are one step
		t.Errorf("%+v", third)
	}
	approvals, covered := map[string]int{}, 0
	for _, r := range h.records()[at:] {
		if r.Type != audit.Intent || r.Approval == "none" {
			continue
		}
		if strings.Contains(string(r.Action), "plan.run") {
			approvals[r.Approval]++
		} else {
			covered++
		}
	}
	if len(approvals) != 3 || covered != 4 {
		t.Errorf("recorded %v, and %d commands by them", approvals, covered)
	}
}

// The first step alone is covered, whatever comes of the others: what would have to be asked about is not run by the answer.
func TestStepByStepNobodyAnswers(t *testing.T) {
	h, _ := proposing(t, judged, planText(onTarget("host", "touch a"), onTarget("host", "touch b")))
	d := &hostsDouble{local: true}
	a := h.pendingOf(func() { h.turn(d) })
	if err := h.answerAt(alice, a, approval.Steps, ""); err != nil {
		t.Fatal(err)
	}
	b := h.pendingOf(func() {})
	if _, err := h.StopTask(t.Context(), alice, "demo", id.Command(b.Subject.Thread)); err != nil {
		t.Fatal(err)
	}
	if got := d.all(); !slices.Equal(got, []string{"host: touch a"}) {
		t.Errorf("ran %q", got)
	}
}
