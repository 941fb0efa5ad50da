package compose_test

import (
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// A workspace for one use whose caller was killed goes by itself, with its home: once it is stopped, and older than any command in it
// may wait for a person. Others stay.
func TestLeftAfterOneUse(t *testing.T) {
	if lifecycle.OneUseKept <= approval.MaxWait {
		t.Error("a command may still wait for a person when its workspace is destroyed")
	}
	h := newHouse(t)
	h.crash()
	h.start()
	ctx := t.Context()
	for key, once := range map[id.Key]bool{"run:stopped": true, "run:running": true, "usual": false} {
		want := wanted(key, workspace.Limits{}, true)
		want.OneUse, want.Idle = once, workspace.Forever
		if w, _, err := h.Create(ctx, alice, want); err != nil || w.OneUse != once {
			t.Fatal(w, err)
		}
		if key != "run:running" {
			if _, err := h.Stop(ctx, alice, string(key)); err != nil {
				t.Fatal(err)
			}
		}
	}
	h.crash() // what is known of it is kept
	h.start()
	there := func() (n int) {
		for _, key := range []string{"run:stopped", "run:running", "usual"} {
			if _, err := h.Get(ctx, alice, key); err == nil {
				n++
			} else if !errdefs.IsNotFound(err) {
				t.Error(err)
			}
		}
		return n
	}
	h.Round(ctx, time.Now().Add(lifecycle.OneUseKept-time.Hour))
	if n := there(); n != 3 {
		t.Errorf("%d are there before", n)
	}
	h.Round(ctx, time.Now().Add(lifecycle.OneUseKept+time.Hour))
	if _, err := h.Get(ctx, alice, "run:stopped"); there() != 2 || !errdefs.IsNotFound(err) {
		t.Errorf("%d are there afterwards, %v", there(), err)
	}
	if r, err := h.Retained(ctx, alice); err != nil || len(r) > 0 {
		t.Errorf("its home is kept: %v, %v", r, err)
	}
}
