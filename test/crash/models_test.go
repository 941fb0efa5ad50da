package crash_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/carrel-dev/carrel/test/crash/check"
)

// modelPoints are those that TestModelPoints arms.
var modelPoints = []string{"daemon.model.reserved"}

// The daemon is killed when a request to a model is counted and not yet granted: it counts, and no more are granted than the
// budget has. The model's host is denied, so that nothing goes out.
func TestModelPoints(t *testing.T) {
	h := newHostUp(t)
	value := filepath.Join(t.TempDir(), "value")
	must(t, os.WriteFile(value, []byte("no-key-of-anybody"), 0o600))
	h.carrel(t, "secret", "set", "ANTHROPIC_API_KEY", "--file", value)
	h.carrel(t, "create", "--model", "anthropic", "--deny", "api.anthropic.com", "--model-requests", "2", "desk")
	const one = `curl -sS -m 30 -o /dev/null -w '%{http_code} ' $ANTHROPIC_BASE_URL/v1/models || true; `
	mark := h.logEnd()
	h.arm(t, modelPoints[0], 1)
	h.try("exec", "desk", "--", "/bin/bash", "-c", one)
	h.up(t)
	if !h.fired(modelPoints[0], mark) {
		t.Fatalf("nothing ended at %s", modelPoints[0])
	}
	h.settled(t)
	if out := h.carrel(t, "exec", "desk", "--", "/bin/bash", "-c", one+one+one); out != "403 400 400 " {
		t.Errorf("after one of two requests: %q", out)
	}
	if out := h.carrel(t, "model", "usage", "desk"); out == "" {
		t.Error("nothing was used")
	}
	h.carrel(t, "destroy", "--purge", "desk")
	h.carrel(t, "secret", "rm", "ANTHROPIC_API_KEY")
	h.settled(t)
	h.look(t, check.Expect{})
	h.gone(t)
}
