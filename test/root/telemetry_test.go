package root_test

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// metrics are what root reads.
func (h *host) metrics(t *testing.T) string {
	t.Helper()
	_, text := h.metricsFor(t, 0)
	return text
}

func (h *host) metricsFor(t *testing.T, uid uint32) (status int, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://carrel/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := h.client(t, uid).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// What passes the gate is counted and measured; who may not read the record may not read
// that, and no span holds what a user wrote.
func TestTelemetry(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	d.sh(t, "echo planted-in-a-command")
	mallory := user(t, "crt-mallory")
	if r := h.try(mallory, "", "exec", d.Key, "--", "true"); r.code == 0 {
		t.Errorf("%+v", r)
	}
	h.settled(t)
	text := h.metrics(t)
	for _, want := range []string{
		`carrel_actions_total{kind="command.exec",status="ok"} `, `carrel_action_duration_seconds_count{kind="command.exec"}`,
		`carrel_actions_total{kind="command.exec",status="denied"} 1`, `carrel_decisions_total{level="SAFE"} `,
		`carrel_workspaces{state="running"} 1`, "carrel_audit_records_total ",
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	if status, text := h.metricsFor(t, mallory.Uid); status == http.StatusOK || strings.Contains(text, "carrel_actions") {
		t.Errorf("a stranger reads %d %s", status, text)
	}
	end(t, h.part(t, "daemon"), unix.SIGTERM) // it writes what waits
	path := h.data + "/daemon/telemetry/spans.jsonl"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"name":"gate"`, `"name":"policy"`, `"name":"intent"`, `"name":"effect"`, `"carrel.kind":"command.exec"`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no span has %s", want)
		}
	}
	if strings.Contains(string(b), "planted-in-a-command") {
		t.Error("a span holds a command")
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
}
