package root_test

import (
	"strings"
	"testing"
)

// A destroy and a lifetime that meet a dead broker are finished when "carrel up" has started another,
// by the same daemon, and recorded once.
func TestADestroyOutlivesTheBroker(t *testing.T) {
	h := newHostFor(t)
	asked, short := h.desk(t), h.desk(t)
	asked.sh(t, "echo kept > file")
	short.sh(t, "true")
	daemon := h.part(t, "daemon")
	kill(t, h.part(t, "broker"))
	r := h.try(nil, "", "destroy", asked.Key)
	if r.code == 0 {
		t.Fatalf("it is destroyed without a broker: %+v", r)
	}
	h.carrel(t, "update", "--ttl", "1s", short.Key)
	until(t, "the end of a lifetime", func() bool { return strings.Count(h.carrel(t, "ls"), "destroying") == 2 })
	h.settled(t)
	mark := h.mark(t)

	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	if now := h.part(t, "daemon"); now != daemon {
		t.Errorf("the daemon was restarted: pid %d, now %d", daemon, now)
	}
	until(t, "the end of what was begun", func() bool { return strings.TrimSpace(h.carrel(t, "ls", "-q")) == "" })
	h.settled(t)
	for _, d := range []*desk{asked, short} {
		n := 0
		for _, rec := range h.since(t, mark) {
			if rec.Type == "intent" && strings.Contains(rec.raw, d.Name) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is recorded %d times:\n%v", d.Name, n, h.since(t, mark))
		}
		h.recorded(t, mark, `"type":"outcome"`, d.Name, `"status":"ok"`, "retained")
	}
	if out := h.carrel(t, "ls", "--retained"); !strings.Contains(out, asked.Name) || !strings.Contains(out, short.Name) {
		t.Errorf("the homes that are kept:\n%s", out)
	}
	if strings.Contains(passwd(t), asked.Name) {
		t.Error("its user is there still")
	}
}
