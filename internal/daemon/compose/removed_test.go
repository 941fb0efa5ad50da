package compose_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// Files of the record that were kept for their time are removed, with a record of that which is
// signed first; without the broker nothing is. A start then has no need of them, nor of the mark
// that was noted before.
func TestRecordsAreForgotten(t *testing.T) {
	h := newHouse(t)
	desk := filepath.Join(h.dir, "broker")
	if err := os.Mkdir(desk, 0o700); err != nil {
		t.Fatal(err)
	}
	away := false
	h.signing = &audit.CheckpointOptions{Countersign: func(_ context.Context, next checkpoint.Checkpoint, old int64,
		proof tlog.TreeProof,
	) (checkpoint.Countersigned, error) {
		if away {
			return checkpoint.Countersigned{}, errdefs.ErrUnavailable
		}
		dir, err := os.Open(desk)
		if err != nil {
			return checkpoint.Countersigned{}, err
		}
		defer dir.Close()
		c, err := broker.OpenCountersigner(dir)
		if err != nil {
			return checkpoint.Countersigned{}, err
		}
		signed, last, _, err := c.Sign(next, old, proof)
		return checkpoint.Countersigned{Note: signed, Key: c.Public(), Size: last.Size, Root: last.Root}, err
	}}
	h.maxSize, h.keep = 8<<10, audit.Keep{Age: 24 * time.Hour}
	h.crash()
	h.start()
	h.create(alice, "demo")
	ctx := t.Context()
	work := func() {
		t.Helper()
		for range 40 {
			if _, _, err := h.Run(ctx, alice, "demo", run("true")); err != nil {
				t.Fatal(err)
			}
		}
	}
	full := func() int {
		t.Helper()
		names, err := filepath.Glob(filepath.Join(h.dir, "audit", "audit-*.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	work()
	if _, err := h.Checkpoint(ctx, root, true); err != nil {
		t.Fatal(err)
	}
	before := full()
	if err := h.Auditing.Forget(ctx, time.Now()); err != nil || full() != before {
		t.Errorf("too early: %d of %d are left: %v", full(), before, err)
	}
	two := time.Now().Add(48 * time.Hour)
	away = true
	if err := h.Auditing.Forget(ctx, two); !errdefs.IsUnavailable(err) || full() != before {
		t.Errorf("without the broker: %d of %d are left: %v", full(), before, err)
	}
	away = false
	if err := h.Auditing.Forget(ctx, two); err != nil || full() >= before {
		t.Fatalf("%d of %d are left: %v", full(), before, err)
	}
	var said []audit.Removal
	for _, r := range h.records() {
		if r.Type == audit.Removed {
			var x audit.Removal
			if err := json.Unmarshal(r.Data, &x); err != nil || r.Principal != "system" || r.Status != audit.StatusOK {
				t.Errorf("%+v %v", r, err)
			}
			said = append(said, x)
		}
	}
	if len(said) != 2 || len(said[1].Files) != before || said[1].From != 1 || said[1].Event != "audit.removed" {
		t.Fatalf("%+v", said)
	}
	for range 2 {
		h.crash() // the mark is the one that was noted last
		h.start()
		work()
		if f, err := h.checks.Verify(ctx); err != nil || !f.OK || f.Records >= h.log.Head().Seq {
			t.Errorf("%+v %v", f, err)
		}
		if err := h.Auditing.Forget(ctx, two); err != nil {
			t.Error(err)
		}
	}
}
