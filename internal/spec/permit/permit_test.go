package permit_test

import (
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/permit"
)

func TestPermit(t *testing.T) {
	p, end := permit.Issue("ws-2a97516c")
	if name, err := p.Workspace(); name != "ws-2a97516c" || err != nil {
		t.Errorf("a fresh permit is for %q: %v", name, err)
	}
	none, _ := permit.Issue("")
	end()
	for what, p := range map[string]permit.Permit{"zero": {}, "without a workspace": none, "ended": p} {
		if name, err := p.Workspace(); name != "" || !errdefs.IsPermissionDenied(err) {
			t.Errorf("a permit that is %s is for %q: %v", what, name, err)
		}
	}
}
