package crash_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rotationPoints are those that TestRotationPoints arms, beside those of a checkpoint.
var rotationPoints = []string{
	"daemon.rotate.filled", "daemon.rotate.made", "daemon.rotate.written", "daemon.rotate.named", "daemon.rotate.replaced",
}

// The daemon is killed at every step of a rotation of the record, and of a checkpoint over files
// that are full. After each the chain and its tree hold, whatever was acknowledged is there, and
// what ran is in it.
func TestRotationPoints(t *testing.T) {
	h := newHost(t)
	config := filepath.Join(h.dir, "carreld.yaml")
	must(t, os.WriteFile(config, []byte("audit:\n  max_size: 24KiB\n"), 0o644))
	up := func() {
		t.Helper()
		if r := h.try(append([]string{"up", "--detach", "--prefix", h.prefix, "--config", config}, h.flags()...)...); r.code != 0 {
			t.Fatalf("cannot bring carrel up: %v", r)
		}
	}
	up()
	key := "crk " + rand.Text()[:10]
	h.carrel(t, "create", key)
	file := h.data + "/homes/" + h.name(t, key) + "/tokens"
	dir := h.data + "/daemon/audit"
	record := func() string {
		t.Helper()
		names, err := filepath.Glob(dir + "/audit*.jsonl")
		must(t, err)
		var all strings.Builder
		for _, n := range names {
			b, err := os.ReadFile(n)
			must(t, err)
			all.Write(b)
		}
		return all.String()
	}
	var words, told []string // what was requested, and what was reported as done
	for _, point := range append(rotationPoints, "daemon.checkpoint.signed", "daemon.checkpoint.countersigned",
		"daemon.checkpoint.written", "daemon.checkpoint.kept") {
		t.Run(point, func(t *testing.T) {
			mark := h.logEnd()
			h.arm(t, point, 1)
			for tries := 0; !h.fired(point, mark); tries++ {
				if tries == 200 {
					t.Fatalf("nothing ended at %s", point)
				}
				word := rand.Text()
				words = append(words, word)
				if r := h.try("exec", key, "--", "/bin/sh", "-c", "echo "+word+" >> tokens"); r.code == 0 {
					told = append(told, word)
				}
				if strings.HasPrefix(point, "daemon.checkpoint.") && tries%8 == 7 {
					_ = h.try("audit", "checkpoint")
				}
			}
			up()
			until(t, "the outcome of every intent", func() bool {
				all := record()
				return strings.Count(all, `"type":"intent"`) == strings.Count(all, `"type":"outcome"`)
			})
			if out := h.carrel(t, "audit", "verify"); !strings.Contains(out, "countersigned") {
				t.Errorf("%s", out)
			}
			for _, left := range []string{"audit.jsonl.new"} {
				if _, err := os.Stat(dir + "/" + left); err == nil {
					t.Errorf("%s is left", left)
				}
			}
		})
	}
	all := record()
	b, err := os.ReadFile(file)
	must(t, err)
	for _, word := range told {
		if !strings.Contains(all, word) || !strings.Contains(string(b), word) {
			t.Errorf("what was said to be done is not in the record, or not done: %s", word)
		}
	}
	for _, word := range words {
		intents, ran := strings.Count(all, `echo `+word+` `), strings.Count(string(b), word)
		if intents > 1 || ran > intents {
			t.Errorf("it ran %d times, by %d intents", ran, intents)
		}
	}
	if full, err := filepath.Glob(dir + "/audit-*.jsonl"); err != nil || len(full) < len(rotationPoints) {
		t.Errorf("%d files are full: %v", len(full), err)
	}
	h.carrel(t, "destroy", "--purge", key)
	h.gone(t)
}
