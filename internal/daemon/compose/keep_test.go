package compose_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// A workspace that is kept at the end of its time is paused or stopped and has no end then, also if that was begun and not finished;
// who cannot tell keeps it as it is; and all others are destroyed.
func TestKeptAtTheEndOfItsTime(t *testing.T) {
	h := newHouse(t)
	as := map[id.Workspace]workspace.State{}
	unknown := errors.New("unknown")
	var failing error
	h.keeps = func(_ context.Context, name id.Workspace) (workspace.State, error) { return as[name], failing }
	h.crash()
	h.start()
	ctx, later := t.Context(), time.Now().Add(time.Hour)
	lives := func(key id.Key) workspace.Workspace {
		want := wanted(key, workspace.Limits{}, true)
		want.TTL = time.Minute
		w, _, err := h.Create(ctx, alice, want)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	begun := lives("begun")
	as[begun.Name] = workspace.StatePaused
	if _, err := h.Pause(ctx, alice, "begun"); err != nil { // and the daemon was killed
		t.Fatal(err)
	}
	for key, state := range map[id.Key]workspace.State{"paused": workspace.StatePaused, "stopped": workspace.StateStopped, "ended": ""} {
		as[lives(key).Name] = state
	}
	failing = unknown
	if err := h.DestroyExpired(ctx, begun.Name, later); !errors.Is(err, unknown) {
		t.Errorf("%v", err)
	}
	failing = nil
	for name := range as {
		if err := h.DestroyExpired(ctx, name, later); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	h.crash()
	h.start()
	for name, keep := range as {
		if keep == "" {
			continue
		}
		if err := h.DestroyExpired(ctx, name, later); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for key, want := range map[string]workspace.State{
		"begun": workspace.StatePaused, "paused": workspace.StatePaused, "stopped": workspace.StateStopped,
	} {
		if w, err := h.Get(ctx, alice, key); err != nil || w.State != want || !w.Expires.IsZero() {
			t.Errorf("%s: %s until %v, %v", key, w.State, w.Expires, err)
		}
	}
	if _, err := h.Get(ctx, alice, "ended"); err == nil {
		t.Error("one that nobody keeps is there")
	}
	if n := strings.Count(h.kinds(), "workspace.update"); n == 0 {
		t.Errorf("the record does not say that they have no end: %s", h.kinds())
	}
}

// Where nothing can be paused, a workspace that was to be is stopped; what is only out of reach is tried again.
func TestStoppedWhereNothingCanBePaused(t *testing.T) {
	h := newHouse(t)
	h.keeps = func(context.Context, id.Workspace) (workspace.State, error) { return workspace.StatePaused, nil }
	h.crash()
	h.start()
	ctx, later := t.Context(), time.Now().Add(time.Hour)
	want := wanted("demo", workspace.Limits{}, true)
	want.TTL = time.Minute
	w, _, err := h.Create(ctx, alice, want)
	if err != nil {
		t.Fatal(err)
	}
	failing := error(errdefs.ErrUnavailable)
	h.rt.hook = func(op string, _ id.Workspace) error {
		if op == "pause" {
			return failing
		}
		return nil
	}
	if err := h.DestroyExpired(ctx, w.Name, later); !errdefs.IsUnavailable(err) {
		t.Errorf("%v", err)
	}
	if v, err := h.Get(ctx, alice, "demo"); err != nil || v.State != workspace.StateRunning || v.Expires.IsZero() {
		t.Errorf("out of reach: %s until %v, %v", v.State, v.Expires, err)
	}
	failing = errdefs.ErrNotFound // as without control groups
	if err := h.DestroyExpired(ctx, w.Name, later); err != nil {
		t.Error(err)
	}
	if v, err := h.Get(ctx, alice, "demo"); err != nil || v.State != workspace.StateStopped || !v.Expires.IsZero() {
		t.Errorf("where nothing can be paused: %s until %v, %v", v.State, v.Expires, err)
	}
}
