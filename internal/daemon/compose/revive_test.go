package compose_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

func TestRevive(t *testing.T) {
	h := newHouse(t)
	h.admission = lifecycle.Admission{PerOwner: 1}
	h.crash()
	h.start()
	ctx := t.Context()
	w := h.create(alice, "demo")
	if _, err := h.Revive(ctx, alice, "demo"); !errdefs.IsNotFound(err) {
		t.Errorf("one that lives is brought back: %v", err)
	}
	destroy := func(ref string) {
		t.Helper()
		if kept, err := h.Destroy(ctx, alice, ref, false, ""); err != nil || kept == "" {
			t.Fatal(kept, err)
		}
	}
	destroy("demo")
	if _, err := h.Revive(ctx, bob, "demo"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("bob brings it back: %v", err)
	}
	h.create(alice, "other")
	if _, err := h.Revive(ctx, alice, "demo"); !errdefs.IsResourceExhausted(err) {
		t.Errorf("it counts for nothing: %v", err)
	}
	destroy("other")
	// What fails is destroyed as before, and its home is still kept.
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if strings.HasPrefix(op, "revive ") {
			return errors.New("no")
		}
		return nil
	})
	if _, err := h.Revive(ctx, alice, "demo"); err == nil || !strings.Contains(err.Error(), "no") {
		t.Errorf("%v", err)
	}
	if kept, err := h.Retained(ctx, alice); err != nil || len(kept) != 2 {
		t.Errorf("%+v, %v", kept, err)
	}
	h.rt.setHook(nil)
	v, err := h.Revive(ctx, alice, string(w.Name))
	if err != nil || v.Name != w.Name || v.Key != "demo" || v.State != workspace.StateStopped || v.Phase != workspace.Settled {
		t.Fatalf("%+v, %v", v, err)
	}
	if kept, err := h.Retained(ctx, alice); err != nil || len(kept) != 1 || kept[0].Key != "other" {
		t.Errorf("%+v, %v", kept, err)
	}
	if !strings.Contains(h.kinds(), "workspace.revive") {
		t.Errorf("recorded is %s", h.kinds())
	}
	// Another has the key.
	destroy("demo")
	h.create(alice, "demo")
	if _, err := h.Revive(ctx, alice, string(w.Name)); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a second one with a key: %v", err)
	}
}

// A lifetime that has ended does not end what is brought back.
func TestReviveAfterItsTime(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	want := wanted("demo", workspace.Limits{}, true)
	want.TTL = time.Second
	w, _, err := h.Create(ctx, alice, want)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.DestroyExpired(ctx, w.Name, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(w.Expires.Add(time.Millisecond))) //nolint:forbidigo // the lifetime has to be over
	if v, err := h.Revive(ctx, alice, "demo"); err != nil || !v.Expires.IsZero() {
		t.Errorf("%+v, %v", v, err)
	}
}
