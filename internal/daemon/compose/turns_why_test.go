package compose_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/approval"
)

// The question about a plan says of each step what the policy asks about it for: once for several hosts, by the number that the step has in
// the whole plan, and not that a model wrote it, which is so of all of them.
func TestPlanSaysWhy(t *testing.T) {
	h, _ := proposing(t, "rules: []\n", planText(onTarget("host", "id"), onTarget("remote web-1 web-2", "rm -rf /srv/old"),
		onTarget("host", "systemctl stop nginx")))
	d := &hostsDouble{local: true, remotes: []string{"web-1", "web-2"}}
	of := func(a *approval.View) (why []string) {
		for _, r := range a.Decision.Reasons {
			if strings.HasPrefix(r, "step ") {
				why = append(why, r)
			}
		}
		return why
	}
	a := h.pendingOf(func() { h.turn(d) })
	want := []string{
		"step 2: removes or empties files: /srv/old; changes the system's directories: /srv/old (the system's directories)",
		"step 4: changes what services do: systemctl stop nginx",
	}
	if got := of(&a); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if err := h.answerAt(alice, a, approval.Steps, ""); err != nil {
		t.Fatal(err)
	}
	a = h.pendingOf(func() {})
	if got := of(&a); !slices.Equal(got, want[:1]) {
		t.Errorf("of a step by itself: %q", got)
	}
}

// However many steps a plan has, and however long what they are about is, the reasons stay few and short.
func TestPlanSaysWhyBriefly(t *testing.T) {
	var steps []map[string]any
	for i := range 20 {
		steps = append(steps, onTarget("host", fmt.Sprintf("rm /srv/%d", i)))
	}
	steps[0] = onTarget("host", "rm /srv/"+strings.Repeat("é", 500))
	h, _ := proposing(t, judged, planText(steps...))
	a := h.pendingOf(func() { h.turn(&hostsDouble{local: true}) })
	all := strings.Join(a.Decision.Reasons, "\n")
	if len(a.Decision.Reasons) > 19 || len(all) > 4<<10 || !strings.Contains(all, "4 steps more have reasons of their own") ||
		!strings.Contains(all, "é…") {
		t.Errorf("%d reasons:\n%s", len(a.Decision.Reasons), all)
	}
}
