package crash_test

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/crash/check"
)

// A ledger loses its last lines, as to a disk that lied or to a copy from a backup, and one more is torn.
// What was cut is said, no acknowledged create is undone, no id is given out again, and nothing is left
// that nobody can remove.
func TestLedgerLosesItsEnd(t *testing.T) {
	t.Parallel()
	for lost := 1; lost <= times(t, 3); lost++ {
		h := newHostUp(t)
		for _, key := range []string{"crk a", "crk b", "crk gone"} {
			h.carrel(t, "create", "--pids", "99", "--no-start", key)
			h.carrel(t, "exec", key, "--", "/bin/sh", "-c", "echo kept > file")
		}
		gone := h.inspect(t, "crk gone")
		h.carrel(t, "destroy", "--purge", "crk gone")
		h.carrel(t, "create", "--pids", "99", "crk c")
		h.settled(t)
		h.end(t, "broker")
		if lost%2 == 0 {
			h.end(t, "daemon")
		}
		path := h.data + "/broker/ledger.jsonl"
		b, err := os.ReadFile(path)
		must(t, err)
		lines := bytes.SplitAfter(bytes.TrimRight(b, "\x00"), []byte("\n"))
		lines = lines[:len(lines)-1] // behind the last end
		torn := lines[len(lines)-lost]
		b = bytes.Join(lines[:len(lines)-lost], nil)
		must(t, os.WriteFile(path, append(b, torn[:len(torn)/2]...), 0o600))
		r := h.tryUp()
		if r.code != 0 || !strings.Contains(r.out, "ledger_cut") {
			t.Errorf("%d lines lost: up does not say what was cut: %v", lost, r)
		}
		want := map[string]bool{"crk a": true, "crk b": true, "crk c": true}
		for key := range h.states(t) {
			if !want[key] && key != gone.Name {
				t.Errorf("%d lines lost: there is %q", lost, key)
			}
			delete(want, key)
		}
		if len(want) > 0 {
			t.Errorf("%d lines lost: %v are gone", lost, want)
		}
		for _, key := range []string{"crk a", "crk b"} {
			if r := h.try("exec", key, "--", "cat", "file"); r.out != "kept\n" {
				t.Errorf("%d lines lost: %q: %v", lost, key, r)
			}
		}
		for _, key := range []string{"crk c", "crk new"} {
			for _, args := range [][]string{{"create", key}, {"exec", key, "--", "true"}} {
				if r := h.try(args...); r.code != 0 {
					t.Errorf("%d lines lost: %q: %v", lost, args, r)
				}
			}
		}
		h.settled(t)
		// The limits that the ledger had lost come back by the daemon, within a round or two.
		in, err := check.Read(h.data, h.prefix)
		must(t, err)
		in.Before = before
		until(t, "the limits that were lost", func() bool {
			left, err := in.Look(t.Context(), check.Expect{Any: true})
			must(t, err)
			return !slices.ContainsFunc(left, func(l check.Left) bool { return l.Kind == check.Lost })
		})
		h.look(t, check.Expect{Any: true})
		if t.Failed() {
			t.Fatalf("%d lines lost: %s", lost, r.out)
		}
		h.gone(t)
	}
}

// A ledger with a line that nobody can read keeps the broker down. doctor repairs it, while no broker runs,
// and up has everything again.
func TestDoctorRepairsTheLedger(t *testing.T) {
	t.Parallel()
	h := newHostUp(t)
	for _, key := range []string{"crk a", "crk b"} {
		h.carrel(t, "create", "--pids", "99", "--no-start", key)
		h.carrel(t, "exec", key, "--", "/bin/sh", "-c", "echo kept > file")
	}
	repair := append([]string{"doctor", "--repair"}, h.flags()...)
	if r := h.try(repair...); r.code == 0 || !strings.Contains(r.err, "another carrel-broker") {
		t.Errorf("beside a broker: %v", r)
	}
	h.end(t, "broker")
	path := h.data + "/broker/ledger.jsonl"
	b, err := os.ReadFile(path)
	must(t, err)
	lines := bytes.SplitAfter(bytes.TrimRight(b, "\x00"), []byte("\n"))
	for i := range 2 { // the whole life of the first
		copy(lines[1+i], "garbage")
	}
	must(t, os.WriteFile(path, bytes.Join(lines, nil), 0o600))
	if r := h.tryUp(); r.code == 0 || !strings.Contains(r.err, "carrel doctor --repair") {
		t.Errorf("up with a damaged ledger: %v", r)
	}
	out := h.carrel(t, repair...)
	if strings.Count(out, "dropped: ") != 2 || !strings.Contains(out, "ledger.jsonl.damaged-") {
		t.Errorf("%s", out)
	}
	h.up(t)
	for _, key := range []string{"crk a", "crk b"} {
		if out := h.carrel(t, "exec", key, "--", "cat", "file"); out != "kept\n" {
			t.Errorf("in %q is %q", key, out)
		}
	}
	h.settled(t)
	h.look(t, check.Expect{Any: true})
	h.gone(t)
}
