package root_test

import (
	"context"
	"crypto/rand"
	"os/exec"
	"strings"
	"testing"
)

// newPerson is an operator with a model, and what runs carrel with their home.
func newPerson(t *testing.T) (m *modeled, o *operator, carrel func(args ...string) *exec.Cmd) {
	t.Helper()
	o = newOperator(t)
	m = newModeled(t, "")
	m.set(t, nil, "set", "SHARED_KEY", "planted-"+rand.Text(), "--host", "api.test:"+m.port)
	return m, o, func(args ...string) *exec.Cmd {
		c := m.command(context.Background(), o.Credential, args...)
		c.Dir = o.home
		c.Env = append(c.Environ(), "HOME="+o.home, "XDG_CONFIG_HOME=", "CARREL_LLM=m1")
		return c
	}
}

// A machine over a threshold is said by the check, and to the model if it is offered. What is not over is not told.
func TestAskOverThresholds(t *testing.T) {
	m, o, carrel := newPerson(t)
	const told = "The host is over a threshold that the person has set: "
	ask := func(on string) string {
		s := m.script(t, always(directly("it is fine")))
		if r := finish(carrel("ask", "--model", "house", "--on", on, "how is it?"), ""); r.code != 0 {
			t.Fatalf("%+v", r)
		}
		return s.said()[0]
	}
	o.write(t, ".config/carrel/agent.yaml", []byte("thresholds: {disk_used: 1, memory_available: 0, load_per_processor: 1000, inodes_used: 100}\n"))
	r := finish(carrel("agent", "check"), "")
	if r.code != 0 || !strings.Contains(r.out, "% of /") || !strings.Contains(r.out, "over: ") || !strings.Contains(r.out, "at least 0%") {
		t.Errorf("%+v", r)
	}
	if asked := ask("host"); !strings.Contains(asked, told+"disk_used is ") || strings.Contains(asked, told+"memory_available") {
		t.Errorf("the model was told %q", asked)
	}
	if asked := ask("none"); strings.Contains(asked, told) {
		t.Errorf("the model was told of a machine that is not offered: %q", asked)
	}
	o.write(t, ".config/carrel/agent.yaml", []byte("thresholds:\n  disk: 1\n"))
	if r := finish(carrel("agent", "check"), ""); r.code == 0 || !strings.Contains(r.err, "agent.yaml") || !strings.Contains(r.err, "[2:3]") {
		t.Errorf("%+v", r)
	}
}
