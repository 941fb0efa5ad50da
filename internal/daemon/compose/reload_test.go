package compose_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// A question that is open when the rules change ends, and what it was about is judged by those.
func TestPolicyChangesMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		rules string
		check func(error) bool
	}{
		"it is blocked now": {"rules:\n  - {id: no.push, level: BLOCK, risk_score: 90, capabilities: [], reason: no push, match: {command: " +
			"[git]}}\n", errdefs.IsPermissionDenied},
		"it is safe now": {"rules:\n  - {id: workspace.network.out, level: SAFE, risk_score: 1, capabilities: [network.out], reason: " +
			"fine, match: {capability_any: [network.out], profile: [workspace]}}\n", func(err error) bool { return err == nil }},
	} {
		h := newHouse(t)
		h.policy = rulesOf("rules: []")
		h.crash()
		h.start()
		h.create(alice, "demo")
		text := "rules: []"
		h.policy = func() (*rules.Engine, error) { return rulesOf(text)() }
		h.crash()
		h.start()
		_, done := h.started(alice, upload("llm", "")) // a question that the other rules end
		text = c.rules
		was, now, _, err := h.ReloadPolicy(t.Context(), root)
		if err != nil || was == now {
			t.Fatal(was, now, err)
		}
		if err := <-done; !c.check(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReload(t *testing.T) {
	h := newHouse(t)
	text := "rules: []"
	h.policy = func() (*rules.Engine, error) { return rulesOf(text)() }
	h.crash()
	h.start()
	h.create(alice, "demo")
	ctx := t.Context()
	at := len(h.records())
	if _, _, _, err := h.ReloadPolicy(ctx, alice); !errdefs.IsPermissionDenied(err) {
		t.Error(err)
	}
	text = "rules:\n  - {id: x, level: HIGH}\n"
	before, after, _, err := h.ReloadPolicy(ctx, admin)
	if err == nil || before != after || !strings.Contains(err.Error(), "policy.yaml:2:") || !strings.Contains(err.Error(), "stays in force") {
		t.Error(before, after, err)
	}
	text = "rules:\n  - {id: no.ls, level: BLOCK, risk_score: 90, capabilities: [], reason: no, match: {command: [ls]}}\n"
	if _, _, err := h.Run(ctx, alice, "demo", run("ls")); err != nil {
		t.Error(err)
	}
	was, now, n, err := h.ReloadPolicy(ctx, principal.Self())
	if err != nil || was != before || now == was || n < 10 {
		t.Error(was, now, n, err)
	}
	if _, _, err := h.Run(ctx, alice, "demo", run("ls")); !errdefs.IsPermissionDenied(err) {
		t.Error(err)
	}
	h.expect(at, "denial policy.reload denied permission_denied", "policy failed invalid_argument", "intent command.exec", "outcome ok",
		"policy ok", "denial command.exec denied permission_denied")
	if r := h.records()[at+4]; !strings.Contains(string(r.Data), `"event":"policy.load","old":"`+was+`","new":"`+now+`"`) {
		t.Errorf("%s", r.Data)
	}
}

// Commands that run while the rules change are judged by the ones before or the ones after.
func TestReloadHasNoGap(t *testing.T) {
	h := newHouse(t)
	n := 0
	var mu sync.Mutex
	h.policy = func() (*rules.Engine, error) {
		mu.Lock()
		defer mu.Unlock()
		n++
		return rulesOf(fmt.Sprintf("rules:\n  - {id: never, level: BLOCK, risk_score: 9%d, capabilities: [], reason: no, match: {command: "+
			"[forbidden]}}\n", n%10))()
	}
	h.crash()
	h.start()
	h.create(alice, "demo")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, _, err := h.Run(t.Context(), alice, "demo", run("forbidden")); !errdefs.IsPermissionDenied(err) {
					t.Errorf("let pass: %v", err)
					return
				}
			}
		})
	}
	for range 20 {
		if _, _, _, err := h.ReloadPolicy(t.Context(), root); err != nil {
			t.Error(err)
		}
	}
	cancel()
	wg.Wait()
}
