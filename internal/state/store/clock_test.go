package store_test

import (
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// The host's clock is set back and forward: what came later does not seem to have come
// before, also after a restart, and ids of requests are kept.
func TestClockSteps(t *testing.T) {
	ctx := t.Context()
	path := t.TempDir() + "/carrel.db"
	var s *store.Store
	now := time.Now()
	reopen := func() {
		t.Helper()
		if s != nil {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		if s, err = store.Open(ctx, path); err != nil {
			t.Fatal(err)
		}
		s.SetClock(func() time.Time { return now })
	}
	reopen()
	t.Cleanup(func() { s.Close() })
	w := store.Workspace{
		Name: "ws-00000001", Key: "demo", Owner: "uid:1000", Root: workspace.RootSystem, Boundary: workspace.BoundaryNamespace,
		Limits: workspace.DefaultLimits, Phase: workspace.Settled, CreatedAt: now,
	}
	r1, r2 := store.RequestID{Principal: "uid:1000", ID: "r1"}, store.RequestID{Principal: "uid:1000", ID: "r2"}
	if err := s.Insert(ctx, w, nil); err != nil {
		t.Fatal(err)
	}
	if was, err := s.Begin(ctx, r1, "digest", ""); err != nil || !was.Began.IsZero() {
		t.Fatal(was, err)
	}
	// It was asked for before, and is carried out when the clock is behind.
	now = now.Add(-24 * time.Hour)
	if err := s.SetDestroyed(ctx, w.Name, "/retained/x"); err != nil {
		t.Fatal(err)
	}
	reopen()
	was, err := s.Begin(ctx, r1, "digest", "")
	if err != nil || was.Answer != "" || was.Began.IsZero() {
		t.Fatalf("the request is not known any more: %+v, %v", was, err)
	}
	if got, retained, ok, err := s.Destroyed(ctx, "demo", was.Began); err != nil || !ok || got.Name != w.Name || retained != "/retained/x" {
		t.Errorf("the destroy of that request is not found: %+v, %v, %v", got, ok, err)
	}
	// A request that comes now began after that destroy, whatever the clock says.
	if _, err := s.Begin(ctx, r2, "digest", ""); err != nil {
		t.Fatal(err)
	}
	was, err = s.Begin(ctx, r2, "digest", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, ok, err := s.Destroyed(ctx, "demo", was.Began); err != nil || ok {
		t.Errorf("a destroy from before a request passes for its own: %v", err)
	}
	// A day forward forgets none that came within a day; more than that does.
	now = now.Add(24*time.Hour + 12*time.Hour)
	if _, err := s.Begin(ctx, store.RequestID{Principal: "uid:1000", ID: "r3"}, "digest", ""); err != nil {
		t.Fatal(err)
	}
	if was, err := s.Begin(ctx, r1, "digest", ""); err != nil || was.Began.IsZero() {
		t.Errorf("forgotten within a day: %v", err)
	}
	now = now.Add(14 * time.Hour)
	if _, err := s.Begin(ctx, store.RequestID{Principal: "uid:1000", ID: "r4"}, "digest", ""); err != nil {
		t.Fatal(err)
	}
	if was, err := s.Begin(ctx, r1, "digest", ""); err != nil || !was.Began.IsZero() {
		t.Errorf("kept for longer than a day: %v, %v", was.Began, err)
	}
}
