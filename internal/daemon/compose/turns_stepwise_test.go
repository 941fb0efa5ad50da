package compose_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/state/audit"
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

// A change to several files that is the first step of such a plan is asked about by itself, so that a person can choose from its files.
// The answer to the plan makes nothing of it, and what is made, covered, recorded and told is what they choose.
func TestStepByStepChoosesFiles(t *testing.T) {
	for name, x := range map[string]struct {
		files  []string // of the change
		answer func(*house, approval.View) error
		made   []string // the files; "all" is the change as it is
		out    []string
		next   bool // another step is asked about
	}{
		"some": {
			[]string{"f", "g", "h"},
			func(h *house, a approval.View) error { return h.choose(a, "h", "f") },
			[]string{"f", "h"},
			[]string{"g"},
			true,
		},
		"all": {
			[]string{"f", "g"},
			func(h *house, a approval.View) error { return h.answerAt(alice, a, approval.Once, "") },
			[]string{"all"},
			nil, true,
		},
		"none": {
			[]string{"f", "g"},
			func(h *house, a approval.View) error { return h.answerAt(alice, a, approval.Deny, "no") }, nil, nil, false,
		},
		"one file": {[]string{"f"}, nil, []string{"all"}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			h, told := proposing(t, judged, patchText("host"))
			var made [][]string
			d := &hostsDouble{local: true, patch: func(p runtime.HostPatch) (runtime.HostPatched, error) {
				if p.Digest == "" {
					return parts(x.files...), nil
				}
				if digest := parts(p.Only...).Digest; len(p.Only) > 0 && p.Digest != digest {
					t.Errorf("made with the digest %s, and not %s", p.Digest, digest)
				}
				if len(p.Only) == 0 {
					p.Only = []string{"all"}
				}
				made = append(made, p.Only)
				return runtime.HostPatched{Digest: p.Digest, ID: "u1"}, nil
			}}
			at := len(h.records())
			whole := h.pendingOf(func() { h.turn(d) })
			if err := h.answerAt(alice, whole, approval.Steps, ""); err != nil {
				t.Fatal(err)
			}
			if x.answer != nil {
				first := h.pendingOf(func() {})
				if len(made) > 0 || first.Steps || !slices.Equal(first.Files, x.files) || first.Subject.Digest == whole.Subject.Digest ||
					!strings.HasPrefix(first.Argv[0], "1. patch, host: change ") || !slices.Contains(first.Argv, "-a") {
					t.Errorf("made %q; asked %q, with %q", made, first.Argv, first.Files)
				}
				if err := h.choose(first, "x"); !errdefs.IsInvalidArgument(err) {
					t.Errorf("a file is chosen that there is not: %v", err)
				}
				if err := x.answer(h, first); err != nil {
					t.Fatal(err)
				}
			}
			if x.next {
				second := h.pendingOf(func() {})
				if !strings.HasPrefix(second.Argv[0], "2. verification, host: cat f") || len(second.Files) > 0 {
					t.Errorf("then asked %q", second.Argv)
				}
				if err := h.answerAt(alice, second, approval.Once, ""); err != nil {
					t.Fatal(err)
				}
			}
			r := next(t, told)
			if want := map[bool]string{true: "done", false: "denied"}[x.next]; r.Outcome != want || !slices.Equal(r.LeftOut, x.out) {
				t.Errorf("told %+v", r)
			}
			if (x.made == nil) != (made == nil) || x.made != nil && (len(made) != 1 || !slices.Equal(made[0], x.made)) {
				t.Errorf("made %q", made)
			}
			var applied []string
			for _, rec := range h.records()[at:] {
				if action := string(rec.Action); rec.Type == audit.Intent && strings.Contains(action, "patch.apply") {
					applied = append(applied, action)
					if x.answer != nil && strings.HasPrefix(rec.Approval, string(whole.ID)) {
						t.Errorf("made by the answer to the whole plan: %s", rec.Approval)
					}
				}
			}
			if len(applied) != len(made) || len(x.out) > 0 && strings.Contains(applied[0], "/home/alice/"+x.out[0]) {
				t.Errorf("recorded %q", applied)
			}
		})
	}
}
