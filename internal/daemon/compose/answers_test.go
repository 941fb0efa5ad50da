package compose_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/linux/lineage"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// The record of an answer names the process that gave it. One that carrel cannot tell from a step of its own gives none, and makes no
// rule and no token either; it may deny.
func TestAnswersNameTheirProcess(t *testing.T) {
	h, _ := proposing(t, "rules: []", planText(onTarget("host", "touch /tmp/a")))
	a := h.pendingOf(func() { h.turn(&hostsDouble{local: true}) })
	c := exec.CommandContext(t.Context(), "true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	at := len(h.records())
	gone := lineage.NewContext(t.Context(), lineage.Peer{PID: c.Process.Pid, Since: lineage.Now()})
	if _, err := h.Answer(gone, alice, a.ID, approval.Once, "", true); !errdefs.IsPermissionDenied(err) {
		t.Error(err)
	}
	if _, err := h.AllowCommand(gone, alice, "", []string{"true"}, false); !errdefs.IsPermissionDenied(err) {
		t.Error(err)
	}
	if _, _, err := h.CreateToken(gone, alice, principal.Wanted{Roles: principal.Operator}); !errdefs.IsPermissionDenied(err) {
		t.Error(err)
	}
	here := lineage.NewContext(t.Context(), lineage.Peer{PID: os.Getpid(), Since: lineage.Now()})
	if _, err := h.Answer(here, alice, a.ID, approval.Once, "", true); err != nil {
		t.Fatal(err)
	}
	denied, named := 0, 0
	for _, r := range h.records()[at:] {
		switch {
		case r.Type == "denial":
			denied++
		case r.Type == "approval" && strings.Contains(string(r.Data), `"process":"\"compose.test`):
			named++
		}
	}
	if denied != 3 || named != 1 {
		t.Errorf("%d denials and %d answers with a process are recorded", denied, named)
	}
}
