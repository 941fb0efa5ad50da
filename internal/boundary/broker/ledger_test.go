package broker_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

func openLedger(t testing.TB, dir string) *broker.Ledger {
	t.Helper()
	l, err := broker.OpenLedger(openDir(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func entry(n int, s workspace.State) broker.Entry {
	return broker.Entry{
		Name: id.Workspace(fmt.Sprintf("cbt-%08x", n)), KeyDigest: digest, State: s,
		IDs: workspace.IDsFrom(first + 3*uint32(n)), Limits: workspace.DefaultLimits,
	}
}

func put(t testing.TB, l *broker.Ledger, all ...broker.Entry) {
	t.Helper()
	for _, e := range all {
		if err := l.Put(e); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLedgerRemembers(t *testing.T) {
	dir := t.TempDir()
	l := openLedger(t, dir)
	put(t, l, entry(1, workspace.StateCreating), entry(1, workspace.StateStopped), entry(0, workspace.StateRunning),
		entry(9, workspace.StateDestroyed))
	if _, err := broker.OpenLedger(openDir(t, dir)); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "another carrel-broker") {
		t.Errorf("a second opener got %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = openLedger(t, dir)
	defer l.Close()
	all := l.All()
	if len(all) != 2 || all[0].State != workspace.StateRunning || all[1].State != workspace.StateStopped {
		t.Errorf("got %+v", all)
	}
	if l.NextUID() != first+30 {
		t.Errorf("the next id is %d", l.NextUID())
	}
	st, err := os.Stat(filepath.Join(dir, "ledger.jsonl"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

// TestLedgerTorn cuts the file at every byte: what was acknowledged before the last line
// is there, and the ledger goes on.
func TestLedgerTorn(t *testing.T) {
	dir := t.TempDir()
	l := openLedger(t, dir)
	put(t, l, entry(1, workspace.StateStopped), entry(2, workspace.StateStopped))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "ledger.jsonl")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	second := strings.Index(string(whole), "\n") + 1
	for n := range len(whole) + 1 {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		l := openLedger(t, dir)
		want := 0
		if n >= second {
			want++
		}
		if n == len(whole) {
			want++
		}
		if got := len(l.All()); got != want {
			t.Fatalf("cut at %d: %d entries, want %d", n, got, want)
		}
		put(t, l, entry(3, workspace.StateStopped))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = openLedger(t, dir)
		if got := len(l.All()); got != want+1 {
			t.Fatalf("cut at %d and written on: %d entries", n, got)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLedgerDamaged(t *testing.T) {
	good := `{"workspace":{"name":"cbt-00000001","state":"stopped","ids":{"executor":1880000000,"work":1880000001,"agent":1880000002}}}` + "\n"
	for _, c := range []struct{ what, text string }{
		{"not JSON in the middle", good + "garbage\n" + good},
		{"not JSON at the end, whole", good + "garbage\n"},
		{"unknown field", `{"workspac":{}}` + "\n"},
		{"a member twice", `{"next_uid":1880000000,"next_uid":1}` + "\n"},
		{"a member in another case", `{"Next_uid":1}` + "\n"},
		{"a bad name", strings.Replace(good, "cbt-00000001", "../x", 1)},
		{"ids of root", strings.Replace(good, "1880000000", "0", 1)},
		{"ids that do not follow", strings.Replace(good, "1880000002", "5", 1)},
		{"a line too long", `{"workspace":{"name":"` + strings.Repeat("x", 20_000) + `"}}` + "\n"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "ledger.jsonl"), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if l, err := broker.OpenLedger(openDir(t, dir)); err == nil {
			_ = l.Close()
			t.Errorf("%s was accepted", c.what)
		} else if !strings.Contains(err.Error(), "line ") {
			t.Errorf("%s: %v", c.what, err)
		}
		// Repaired it can be opened, with what was good, and is kept as it was.
		kept, dropped, err := broker.RepairLedger(openDir(t, dir))
		if err != nil || len(dropped) != 1 {
			t.Errorf("%s: dropped %q, %v", c.what, dropped, err)
			continue
		}
		if b, err := os.ReadFile(kept); err != nil || string(b) != c.text {
			t.Errorf("%s: kept %q, %v", c.what, b, err)
		}
		l := openLedger(t, dir)
		if kept, _, err := broker.RepairLedger(openDir(t, dir)); err == nil || kept != "" {
			t.Errorf("%s: repaired while it is used: %v", c.what, err)
		}
		if want := min(strings.Count(c.text, good), 1); len(l.All()) != want {
			t.Errorf("%s: %+v", c.what, l.All())
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if kept, dropped, err := broker.RepairLedger(openDir(t, dir)); kept != "" || len(dropped) > 0 || err != nil {
			t.Errorf("%s: repaired again: %q, %q, %v", c.what, kept, dropped, err)
		}
	}
}

func TestLedgerIsNotALink(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "ledger.jsonl")); err != nil {
		t.Fatal(err)
	}
	if l, err := broker.OpenLedger(openDir(t, dir)); err == nil {
		_ = l.Close()
		t.Error("a symbolic link was followed")
	}
}

// TestLedgerCompacts: a ledger of mostly old lines shrinks, forgets no living workspace
// and no id, and remembers the last destroyed ones.
func TestLedgerCompacts(t *testing.T) {
	dir := t.TempDir()
	var text strings.Builder
	line := func(n int, state string) {
		fmt.Fprintf(&text, `{"workspace":{"name":"cbt-%08x","key_digest":"%s","state":"%s","ids":{"executor":%d,"work":%d,"agent":%d}}}`+"\n",
			n, digest, state, first+3*n, first+3*n+1, first+3*n+2)
	}
	line(7000, "running")
	for n := range 2500 {
		line(n, "creating")
		line(n, "stopped")
		line(n, "destroyed")
	}
	path := filepath.Join(dir, "ledger.jsonl")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	l := openLedger(t, dir)
	put(t, l, entry(7001, workspace.StateStopped))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Size() > int64(text.Len())/4 {
		t.Errorf("%d bytes became %d", text.Len(), st.Size())
	}
	l = openLedger(t, dir)
	defer l.Close()
	if all := l.All(); len(all) != 2 || l.NextUID() != first+3*7001+3 {
		t.Errorf("got %d entries, next id %d", len(all), l.NextUID())
	}
	if _, ok := l.Get(entry(2499, "").Name); !ok {
		t.Error("the last destroyed one is forgotten")
	}
	if _, ok := l.Get(entry(0, "").Name); ok {
		t.Error("the first destroyed one is not forgotten")
	}
}

// TestLedgerCompactsWhileItRuns: however much is written it stays small, and what is written while it is
// rewritten is not lost.
func TestLedgerCompactsWhileItRuns(t *testing.T) {
	dir := t.TempDir()
	if _, err := os.Stat("/dev/shm"); err == nil { // each line is synced, and this is no disk
		if dir, err = os.MkdirTemp("/dev/shm", "broker-ledger"); err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
	}
	l := openLedger(t, dir)
	padding := strings.Repeat("x", 4000)
	const writers, rounds = 8, 400
	name := filepath.Join(dir, "ledger.jsonl")
	before, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var largest atomic.Int64
	var last [writers]int // round of each writer
	began := time.Now()
	for w := range writers {
		wg.Go(func() {
			rewritten := false
			for n := 0; n < rounds || !rewritten && time.Since(began) < time.Minute; n++ { // who rewrites may get no processor
				e := entry(w, workspace.StateStopped)
				e.Home = fmt.Sprint(n, padding)
				done := entry(100+n*writers+w, workspace.StateDestroyed)
				if err := errors.Join(l.Put(e), l.Put(done)); err != nil {
					t.Error(err)
				}
				if st, err := os.Stat(name); err == nil {
					largest.Store(max(largest.Load(), st.Size()))
					rewritten = rewritten || !os.SameFile(before, st)
				}
				last[w] = n
			}
		})
	}
	wg.Wait()
	if after, err := os.Stat(name); err != nil || os.SameFile(before, after) {
		t.Errorf("it was not rewritten while it ran (%v)", err)
	}
	highest, put := 0, 0
	for w, n := range last {
		highest, put = max(highest, 100+n*writers+w), put+n+1
	}
	for range 2 {
		for w := range writers {
			if e, ok := l.Get(entry(w, "").Name); !ok || e.Home != fmt.Sprint(last[w], padding) {
				t.Errorf("of workspace %d the last line is lost: %.10s", w, e.Home)
			}
		}
		if n := len(l.All()); n != writers {
			t.Errorf("%d entries", n)
		}
		if want := uint32(first + 3*(highest+1)); l.NextUID() != want {
			t.Errorf("the next id is %d, want %d", l.NextUID(), want)
		}
		if _, ok := l.Get(entry(100, "").Name); ok {
			t.Error("the first destroyed one is not forgotten")
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = openLedger(t, dir)
	}
	_ = l.Close()
	// Those who write do not wait for who rewrites, so only what they wrote in all is a sure bound.
	if n := largest.Load(); n < 1<<20 || n >= int64(put*len(padding)) {
		t.Errorf("the ledger had up to %d bytes", n)
	}
	if _, err := os.Stat(filepath.Join(dir, "ledger.new")); err == nil {
		t.Error("a part of a rewritten ledger is left")
	}
}

func TestLedgerThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	l := openLedger(t, dir)
	defer l.Close()
	// A line beyond what a reader would take is refused before it is written; from then
	// on nothing is accepted.
	bad := entry(1, workspace.StateStopped)
	bad.Home = strings.Repeat("x", 20_000)
	if err := l.Put(bad); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
	if err := l.Put(entry(2, workspace.StateStopped)); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "earlier write") {
		t.Errorf("got %v", err)
	}
	if len(l.All()) != 0 {
		t.Error("what was not written is remembered")
	}
}

func TestAllocate(t *testing.T) {
	l := openLedger(t, t.TempDir())
	defer l.Close()
	free := func(workspace.IDs) (bool, error) { return true, nil }
	ids := func(first, count uint32, limit int) broker.Settings {
		return broker.Settings{UIDFirst: first, UIDCount: count, MaxWorkspaces: limit}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	seen := map[uint32]bool{}
	for n := range 20 {
		wg.Go(func() {
			e, err := l.Allocate(entry(n, ""), ids(first, 61, 100), free)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || seen[e.IDs.Executor] || e.State != workspace.StateCreating {
				t.Errorf("got %+v, %v", e, err)
			}
			seen[e.IDs.Executor] = true
		})
	}
	wg.Wait()
	if _, err := l.Allocate(entry(50, ""), ids(first, 61, 100), free); !errdefs.IsResourceExhausted(err) ||
		!strings.Contains(err.Error(), "uid_count") {
		t.Errorf("beyond the range: %v", err)
	}
	if _, err := l.Allocate(entry(50, ""), ids(first, 600, 20), free); !errdefs.IsResourceExhausted(err) ||
		!strings.Contains(err.Error(), "max_workspaces") {
		t.Errorf("beyond the number: %v", err)
	}
	planted := errors.New("planted")
	if _, err := l.Allocate(entry(50, ""), ids(first, 600, 100), func(workspace.IDs) (bool, error) {
		return false,
			planted
	}); !errors.Is(err, planted) {
		t.Errorf("got %v", err)
	}
	// A range further up is used from its start.
	if e, err := l.Allocate(entry(51, ""), ids(first+3000, 600, 100), free); err != nil || e.IDs.Executor != first+3000 {
		t.Errorf("got %+v, %v", e.IDs, err)
	}
}
