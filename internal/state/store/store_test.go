package store_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/store"
	_ "github.com/carrel-dev/carrel/internal/state/store/sqlite"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func open(t testing.TB, path string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func dbPath(t testing.TB) string { return filepath.Join(t.TempDir(), "a ?#% dir", "carrel.db") }

func newStore(t testing.TB) (*store.Store, string) {
	t.Helper()
	path := dbPath(t)
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	return open(t, path), path
}

func ws(key id.Key, n int) store.Workspace {
	return store.Workspace{
		Name: id.Derive("ws", key, n), Key: key, Owner: "uid:1000", Root: workspace.RootSystem, Boundary: workspace.BoundaryNamespace,
		Limits: workspace.DefaultLimits, Phase: workspace.Creating, CreatedAt: time.Unix(0, 1_700_000_000_123_456_789),
	}
}

func TestLife(t *testing.T) {
	s, path := newStore(t)
	ctx := t.Context()
	w := ws("demo 'ü", 0)
	if err := s.Insert(ctx, w, nil); err != nil {
		t.Fatal(err)
	}
	check := func(want store.Workspace) {
		t.Helper()
		for range 2 { // as it is now, and read anew
			byName, ok1 := s.ByName(want.Name)
			byKey, ok2 := s.ByKey(want.Key)
			if d := cmp.Diff(want, byName); !ok1 || !ok2 || d != "" || !cmp.Equal(byName, byKey) {
				t.Errorf("stored workspace (-want +got):\n%s", d)
			}
			s = reopen(t, s, path)
		}
	}
	check(w)
	if err := s.SetPhase(ctx, w.Name, workspace.Settled); err != nil {
		t.Fatal(err)
	}
	w.Phase = workspace.Settled
	check(w)
	if err := s.SetDestroying(ctx, w.Name, true); err != nil {
		t.Fatal(err)
	}
	w.Phase, w.Purge = workspace.Destroying, true
	check(w)
	if err := s.SetDestroyed(ctx, w.Name, "/kept"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, ok := s.ByName(w.Name); ok || s.Len() != 0 || len(s.Workspaces()) != 0 {
			t.Error("a destroyed workspace lives")
		}
		s = reopen(t, s, path)
	}
	if err := s.SetPhase(ctx, w.Name, workspace.Settled); !errdefs.IsNotFound(err) {
		t.Errorf("a destroyed workspace changed state: %v", err)
	}
	// The name stays taken, the key is free.
	if err := s.Insert(ctx, ws(w.Key, 0), nil); !errdefs.IsAlreadyExists(err) {
		t.Errorf("name of a destroyed workspace: %v", err)
	}
	n, err := s.FreeSuffix(ctx, "ws", w.Key)
	if err != nil || n != 1 {
		t.Fatalf("free suffix %d, %v", n, err)
	}
	if err := s.Insert(ctx, ws(w.Key, n), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Insert(ctx, ws(w.Key, 7), nil); !errdefs.IsAlreadyExists(err) {
		t.Errorf("key of a living workspace: %v", err)
	}
}

func reopen(t *testing.T, s *store.Store, path string) *store.Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, path)
}

func TestFreeSuffix(t *testing.T) {
	s, _ := newStore(t)
	for i, want := range []int{0, 1, 2} {
		n, err := s.FreeSuffix(t.Context(), "ws", "k")
		if err != nil || n != want {
			t.Fatalf("%d: %d, %v", i, n, err)
		}
		if err := s.Insert(t.Context(), ws("k", n), nil); err != nil {
			t.Fatal(err)
		}
		if err := s.SetDestroyed(t.Context(), id.Derive("ws", "k", n), ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Insert(t.Context(), ws("k", 41), nil); err != nil {
		t.Fatal(err)
	}
	if n, err := s.FreeSuffix(t.Context(), "ws", "k"); n != 42 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, other := range []struct {
		prefix string
		key    id.Key
	}{{"w", "k"}, {"ws", "kk"}, {"wsx", "k"}} {
		if n, err := s.FreeSuffix(t.Context(), other.prefix, other.key); n != 0 || err != nil {
			t.Errorf("%v: %d, %v", other, n, err)
		}
	}
}

func TestDelete(t *testing.T) {
	s, path := newStore(t)
	w := ws("k", 0)
	if err := s.Insert(t.Context(), w, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Delete(t.Context(), w.Name); err != nil {
			t.Fatal(err)
		}
	}
	s = reopen(t, s, path)
	if err := s.Insert(t.Context(), w, nil); err != nil {
		t.Errorf("name after delete: %v", err)
	}
}

func TestConcurrentInsertsOfOneKey(t *testing.T) {
	s, _ := newStore(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for i := range 16 {
		wg.Go(func() {
			err := s.Insert(t.Context(), ws("k", i), nil)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
			case !errdefs.IsAlreadyExists(err):
				t.Error(err)
			}
			if _, ok := s.ByKey("k"); !ok {
				t.Error("key unknown after insert")
			}
		})
	}
	wg.Wait()
	if won != 1 || s.Len() != 1 {
		t.Errorf("%d inserts won, %d workspaces", won, s.Len())
	}
}

func TestMeta(t *testing.T) {
	s, path := newStore(t)
	if v, err := s.Meta(t.Context(), "mark"); v != "" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	for _, v := range []string{"1", "2"} {
		if err := s.SetMeta(t.Context(), "mark", v); err != nil {
			t.Fatal(err)
		}
	}
	if v, err := reopen(t, s, path).Meta(t.Context(), "mark"); v != "2" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}

func TestFilesArePrivate(t *testing.T) {
	s, path := newStore(t)
	if err := s.SetMeta(t.Context(), "a", "b"); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if len(files) < 2 {
		t.Errorf("files: %v, want database and WAL", files)
	}
	for _, f := range files {
		if fi, err := os.Stat(f); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, fi.Mode(), err)
		}
	}
	link := filepath.Join(filepath.Dir(path), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if s, err := store.Open(t.Context(), link); err == nil {
		s.Close()
		t.Error("opened through a symbolic link")
	}
}

func TestPragmas(t *testing.T) {
	s, _ := newStore(t)
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "5000"} {
		if got := store.Pragma(t, s, pragma); got != want {
			t.Errorf("%s is %s, want %s", pragma, got, want)
		}
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	s, path := newStore(t)
	s.Close()
	db, err := sql.Open("sqlite", "file:"+strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23", " ", "%20").Replace(path))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `PRAGMA user_version = 99`); err != nil {
		t.Fatal(err)
	}
	db.Close()
	_, err = store.Open(t.Context(), path)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "version 99") || !strings.Contains(err.Error(), "newer carreld") {
		t.Errorf("newer schema: %v", err)
	}
}

func TestMigrationsAreAtomic(t *testing.T) {
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "m.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	good := &fstest.MapFile{Data: []byte(`CREATE TABLE a (x INTEGER);`)}
	bad := &fstest.MapFile{Data: []byte(`CREATE TABLE b (x INTEGER); INSERT INTO nowhere VALUES (1);`)}
	files := fstest.MapFS{"migrations/0001_a.sql": good, "migrations/0002_b.sql": bad}
	if err := store.Migrate(t.Context(), db, files); err == nil || !strings.Contains(err.Error(), "0002_b.sql") {
		t.Fatalf("bad migration: %v", err)
	}
	if tables := query(t, db, `SELECT count(*) FROM sqlite_master WHERE name = 'b'`); tables != "0" {
		t.Error("half a migration was kept")
	}
	if v := query(t, db, `PRAGMA user_version`); v != "1" {
		t.Errorf("version %s after one good migration", v)
	}
	bad.Data = []byte(`CREATE TABLE b (x INTEGER);`)
	for range 2 {
		if err := store.Migrate(t.Context(), db, files); err != nil {
			t.Fatal(err)
		}
	}
	if v := query(t, db, `PRAGMA user_version`); v != "2" {
		t.Errorf("version %s", v)
	}
	delete(files, "migrations/0001_a.sql")
	if err := store.Migrate(context.Background(), db, fstest.MapFS{
		"migrations/0003_c.sql": good, "migrations/0004_d.sql": good,
		"migrations/0005_e.sql": good,
	}); err == nil {
		t.Error("a gap in the numbers was accepted")
	}
}

func query(t *testing.T, db *sql.DB, q string) string {
	t.Helper()
	var v any
	if err := db.QueryRowContext(t.Context(), q).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(v)
}

func BenchmarkByKey(b *testing.B) {
	s, _ := newStore(b)
	if err := s.Insert(b.Context(), ws("k", 0), nil); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := s.ByKey("k"); !ok {
			b.Fatal("lost")
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	s, path := newStore(b)
	s.Close()
	for b.Loop() {
		s, err := store.Open(b.Context(), path)
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}
