package store_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// A database of the first release opens with all that was in it.
func TestOldDatabase(t *testing.T) {
	script, err := os.ReadFile("migrations/0001_workspaces.sql")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "old.db")
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(t.Context(), db, fstest.MapFS{"migrations/0001_workspaces.sql": &fstest.MapFile{Data: script}}); err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{
		`INSERT INTO workspaces VALUES ('ws-00000001', 'one', 'uid:7', 'system', 'namespace', '{"pids":33}', 'running', 0, '', 5, 6)`,
		`INSERT INTO workspaces VALUES ('ws-00000002', 'two', 'uid:7', 'system', 'namespace', '{}', 'destroyed', 1, '/kept', 5, 6)`,
		`INSERT INTO meta VALUES ('audit_mark', '{}')`,
	} {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s := open(t, path)
	want := []store.Workspace{{
		Name: "ws-00000001", Key: "one", Owner: "uid:7", Root: "system", Boundary: "namespace",
		Limits: workspace.Limits{Pids: 33}, Phase: workspace.Settled, CreatedAt: time.Unix(0, 5),
	}}
	if d := cmp.Diff(want, s.Workspaces()); d != "" {
		t.Error(d)
	}
	if m, err := s.Meta(t.Context(), "audit_mark"); err != nil || m != "{}" {
		t.Errorf("meta %q, %v", m, err)
	}
	if n, err := s.FreeSuffix(t.Context(), "ws", "x"); err != nil || n != 0 {
		t.Errorf("suffix %d, %v", n, err)
	}
}

func TestUpdate(t *testing.T) {
	s, path := newStore(t)
	ctx := t.Context()
	for _, key := range []string{"a", "b"} {
		w := ws("a", 0)
		if key == "b" {
			w = ws("b", 0)
		}
		w.Phase, w.Profile = workspace.Settled, "chat"
		w.Reach = workspace.Reach{Allow: []string{"a.example", "@github"}, Deny: []string{"ü.example"}}
		if err := s.Insert(ctx, w, nil); err != nil {
			t.Fatal(err)
		}
	}
	a, _ := s.ByKey("a")
	expires := time.Unix(0, 1_800_000_000_000_000_001)
	if err := s.Update(ctx, a.Name, func(w *store.Workspace) {
		w.Key, w.Limits.Pids, w.Expires, w.Idle, w.Phase = "c", 99, expires, -1, workspace.Creating
	}); err != nil {
		t.Fatal(err)
	}
	reach := workspace.Reach{Allow: []string{"*.b.example:22"}}
	if err := s.Update(ctx, a.Name, func(w *store.Workspace) { w.Reach = reach }); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(ctx, a.Name, func(w *store.Workspace) { w.Key = "b" }); !errdefs.IsAlreadyExists(err) {
		t.Errorf("the key of another: %v", err)
	}
	check := func(s *store.Store) {
		t.Helper()
		if _, ok := s.ByKey("a"); ok {
			t.Error("the old key still leads somewhere")
		}
		got, ok := s.ByKey("c")
		want := a
		want.Key, want.Limits.Pids, want.Expires, want.Idle, want.Phase = "c", 99, expires, -1, workspace.Creating
		want.Reach = reach
		if d := cmp.Diff(want, got); !ok || d != "" {
			t.Error(d)
		}
		if b, ok := s.ByKey("b"); !ok || b.Name == a.Name || !b.Reach.Equal(a.Reach) || b.Reach.Empty() {
			t.Errorf("b is %+v", b)
		}
	}
	check(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check(open(t, path))
}

func TestRequests(t *testing.T) {
	s, path := newStore(t)
	ctx := t.Context()
	begin := func(principal, id, digest, want string) {
		t.Helper()
		got, err := s.Begin(ctx, store.RequestID{Principal: principal, ID: id}, digest, "ws-1")
		if err != nil || got.Answer != want || got.Own != "ws-1" {
			t.Errorf("%s %s: %+v, %v", principal, id, got, err)
		}
	}
	r := store.RequestID{Principal: "uid:1", ID: "r"}
	begin("uid:1", "r", "d", "")
	begin("uid:1", "r", "d", "") // under way, or cut off
	if err := s.Answer(ctx, r, `{"a":1}`); err != nil {
		t.Fatal(err)
	}
	begin("uid:1", "r", "d", `{"a":1}`)
	begin("uid:2", "r", "other", "") // somebody else's
	if _, err := s.Begin(ctx, r, "other", ""); !errdefs.IsAlreadyExists(err) {
		t.Errorf("another action under the same id: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	begin("uid:1", "r", "d", `{"a":1}`)
	if err := s.Forget(ctx, r); err != nil { // an answer stays
		t.Fatal(err)
	}
	begin("uid:1", "r", "d", `{"a":1}`)
	begin("uid:1", "s", "d", "")
	if err := s.Forget(ctx, store.RequestID{Principal: "uid:1", ID: "s"}); err != nil {
		t.Fatal(err)
	}
	begin("uid:1", "s", "other", "")
}
