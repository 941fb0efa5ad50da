package root_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Real agents in the place of carrel's own, each with a model that is a script: it has the agent propose a plan by carrel's tool, which
// runs once it is approved, and its words are the answer.
func TestSeatOfACPAgents(t *testing.T) {
	needRoot(t)
	dir := os.Getenv(agentsEnv)
	if dir == "" {
		t.Skipf("skipped: %s is not set to a directory with ACP agents", agentsEnv)
	}
	script, err := os.ReadFile("testdata/acp-model.js")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile(filepath.Join("..", "permissive.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	h := newHostWith(t, func(dir string) string {
		path := filepath.Join(dir, "policy.yaml")
		asks := "  - {id: tests.asks, level: CONFIRM, risk_score: 40, capabilities: [git.mutate], reason: a test asks, match: {command: [git]}}\n"
		if err := os.WriteFile(path, append(rules, asks...), 0o644); err != nil {
			t.Fatal(err)
		}
		return "policy:\n  path: " + path + "\n"
	})
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	for name, x := range acpAgents("http://127.0.0.1:8123") {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat(filepath.Join(dir, "node_modules", x.program)); err != nil {
				t.Skipf("skipped: %v", err)
			}
			d, to := h.desk(t, "--memory", "3GiB", "-v", dir+":/agents:ro"), h.desk(t)
			d.put(t, "model.js", script, "644")
			plan, err := json.Marshal(plainPlan(planStep("workspace "+to.Key, "echo called-by-a-model > proof"+leaves, false)))
			if err != nil {
				t.Fatal(err)
			}
			d.put(t, "plan.json", plan, "644")
			for file, text := range x.files {
				d.put(t, file, []byte(text), "644")
			}
			d.detach(t, "/usr/bin/node", "model.js", "seat")
			until(t, "the model listens", func() bool { return d.try("test", "-e", "listening").code == 0 })
			env := map[string]string{}
			for _, e := range x.env {
				name, value, _ := strings.Cut(e, "=")
				env[name] = value
			}
			settings, err := json.Marshal(map[string]any{"agent": map[string]any{"command": x.argv, "environment": env}})
			if err != nil {
				t.Fatal(err)
			}
			home := t.TempDir()
			if err := os.Mkdir(filepath.Join(home, "carrel"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(home, "carrel", "agent.yaml"), settings, 0o600); err != nil {
				t.Fatal(err)
			}
			mark := d.h.mark(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c := d.h.command(ctx, nil, "ask", "--agent", d.Key, "--on", "none", "--wait", "3m", "--timeout", "4m", "prove it")
			c.Env = append(c.Environ(), "XDG_CONFIG_HOME="+home)
			ended := make(chan result, 1)
			go func() { ended <- finish(c, "") }()
			var r result
			asked := false
			slowly(t, "its end", func() bool {
				for a, what := range d.asks(t) { // the plan, and what an agent asks before it uses a tool
					asked = asked || strings.Contains(what, "called-by-a-model") && strings.Contains(what, "1. workspace")
					d.h.try(nil, "", "approvals", "approve", a) // another look may have been quicker
				}
				select {
				case r = <-ended:
					return true
				default:
					return false
				}
			})
			if r.code != 0 || !asked || !strings.Contains(r.out, "scripted answer") || to.sh(t, "cat proof") != "called-by-a-model" {
				t.Errorf("asked %v, %+v\nthe model's log: %s", asked, r, d.try("cat", "model.log").out)
			}
			d.h.recorded(t, mark, `"plan.run"`, "called-by-a-model")
		})
	}
}
