package compose_test

import (
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// Who asks for what is not theirs again and again is refused each time, and cannot fill
// the record; how often stands in it.
func TestRefusalsDoNotFillTheRecord(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	before := len(h.records())
	const times = 5000
	for range times {
		if _, err := h.Get(t.Context(), bob, "demo"); !errdefs.IsPermissionDenied(err) {
			t.Fatal(err)
		}
	}
	denials := len(h.records()) - before
	if denials < 100 || denials > 1000 {
		t.Errorf("%d refusals are recorded of %d", denials, times)
	}
	// Another one's are recorded as before.
	if _, err := h.Get(t.Context(), root, "demo"); err != nil {
		t.Fatal(err)
	}
	// On a slow disk all that were recorded so far may have come before the first that was
	// not: the next tells of those that were not.
	told := 0
	for end := time.Now().Add(10 * time.Second); told == 0 && time.Now().Before(end); {
		if _, err := h.Get(t.Context(), bob, "demo"); !errdefs.IsPermissionDenied(err) {
			t.Fatal(err)
		}
		for _, r := range h.records() {
			if strings.Contains(string(r.Data), "refusals_not_recorded") {
				told++
			}
		}
	}
	if told == 0 {
		t.Error("what was not recorded is not counted")
	}
}
