package crash_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
)

// A daemon that ends right after the answer to a change of what there is has told the truth: the record
// says how the change ended, and not that it was interrupted.
func TestOutcomesThatLast(t *testing.T) {
	t.Parallel()
	h := newHostUp(t)
	const key = "crk lasts"
	for _, c := range []struct{ kind, verb string }{
		{"workspace.create", "create"},
		{"workspace.pause", "pause"},
		{"workspace.resume", "resume"},
		{"workspace.stop", "stop"},
		{"workspace.start", "start"},
		{"workspace.update", "update"},
		{"workspace.archive", "archive"},
		{"workspace.destroy", "destroy"},
	} {
		args := []string{c.verb, key}
		switch c.verb {
		case "update":
			args = []string{c.verb, "--pids", "99", key}
		case "archive":
			h.carrel(t, "stop", key)
			args = []string{c.verb, "create", key}
		}
		h.arm(t, "daemon.outcome.written", 1)
		if r := h.try(args...); r.code == 0 {
			t.Errorf("carrel %q did not meet the end of the daemon", args)
		}
		h.up(t)
		if got := h.outcomeOf(t, c.kind); got != "ok" {
			t.Errorf("%s: the record says %q", c.kind, got)
		}
	}
}

// A daemon that is killed right after the answer to a command leaves its outcome in the record.
func TestOutcomesOfCommands(t *testing.T) {
	t.Parallel()
	h := newHostUp(t)
	h.carrel(t, "create", "crk outcome")
	for range 10 {
		daemon, err := h.part("daemon")
		must(t, err)
		h.carrel(t, "exec", "crk outcome", "--", "true")
		must(t, kill(daemon))
		h.up(t)
		if got := h.outcomeOf(t, "command.exec"); got != "ok" {
			t.Errorf("the record says %q", got)
		}
	}
}

// outcomeOf is the status with which the last operation of a kind ended, "" if the record does not say.
func (h *host) outcomeOf(t *testing.T, kind string) (status string) {
	t.Helper()
	b, err := os.ReadFile(h.data + "/daemon/audit/audit.jsonl")
	must(t, err)
	var last int64
	for line := range bytes.Lines(bytes.TrimRight(b, "\x00")) {
		var r struct {
			Seq, Intent  int64
			Type, Status string
			Action       json.RawMessage
		}
		must(t, json.Unmarshal(line, &r))
		switch {
		case r.Type == "intent" && bytes.Contains(r.Action, []byte(`"`+kind+`"`)):
			last, status = r.Seq, ""
		case r.Type == "outcome" && r.Intent == last:
			status = r.Status
		}
	}
	return status
}
