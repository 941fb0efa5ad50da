package compose_test

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// A waiter returns when its workspace has stopped or was destroyed, and not before; it holds
// nothing up, and it has no record.
func TestWaitForAWorkspace(t *testing.T) {
	for _, end := range []struct {
		want workspace.State
		end  func(h *house) error
	}{
		{workspace.StateStopped, func(h *house) error { return failure(h.Stop(t.Context(), alice, "demo")) }},
		{workspace.StateDestroyed, func(h *house) error { return failure(h.Destroy(t.Context(), alice, "demo", true, "")) }},
	} {
		h := newHouse(t)
		h.create(alice, "demo")
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, state, err := h.Wait(short, alice, "demo", ""); err == nil {
			t.Fatalf("it returned %s while the workspace runs", state)
		}
		before := len(h.records())
		type result struct {
			state workspace.State
			err   error
		}
		done := make(chan result)
		go func() {
			_, state, err := h.Wait(t.Context(), alice, "demo", "")
			done <- result{state, err}
		}()
		if err := end.end(h); err != nil {
			t.Fatal(err)
		}
		if r := <-done; r.state != end.want || r.err != nil {
			t.Errorf("it returned %q and %v, not %s", r.state, r.err, end.want)
		}
		if n := len(h.records()) - before; n != 2 {
			t.Errorf("%d records of an operation on the workspace and of waiting for it, not an intent and an outcome", n)
		}
	}
}

func TestWaitForACommand(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	ended := &execapi.Status{Code: 7}
	h.rt.lists(execapi.Command{ID: "c-0000000000000001"}, execapi.Command{ID: "c-0000000000000002", Status: ended})
	if s, state, err := h.Wait(t.Context(), alice, "demo", "c-0000000000000002"); err != nil || s == nil || s.Code != 7 || state != "" {
		t.Errorf("one that has ended: %+v %q %v", s, state, err)
	}
	if _, _, err := h.Wait(t.Context(), alice, "demo", "c-0000000000000003"); !errdefs.IsNotFound(err) {
		t.Errorf("one that never was: %v", err)
	}
	done := make(chan *execapi.Status)
	go func() {
		s, _, err := h.Wait(t.Context(), alice, "demo", "c-0000000000000001")
		if err != nil {
			t.Error(err)
		}
		done <- s
	}()
	select {
	case s := <-done:
		t.Errorf("it returned %+v while the command runs", s)
	case <-time.After(50 * time.Millisecond):
	}
	h.rt.lists(execapi.Command{ID: "c-0000000000000001", Status: ended})
	if s := <-done; s == nil || s.Code != 7 {
		t.Errorf("it returned %+v", s)
	}
	// A workspace that does not run has no commands.
	if _, err := h.Stop(t.Context(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Wait(t.Context(), alice, "demo", id.Command("c-0000000000000001")); !errdefs.IsNotFound(err) {
		t.Errorf("in a stopped workspace: %v", err)
	}
}
