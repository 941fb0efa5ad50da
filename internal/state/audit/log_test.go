package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("AUDIT_TEST_CRASH_DIR"); dir != "" {
		crashChild(dir)
	}
	leaks.Main(m)
}

func logPath(t testing.TB) string { return filepath.Join(t.TempDir(), "audit", "audit.jsonl") }

func open(t testing.TB, o audit.Options) *audit.Log {
	t.Helper()
	l, err := audit.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func intent(i int) audit.Record {
	return audit.Record{
		Type: audit.Intent, Trace: "0123456789abcdef0123456789abcdef", Principal: "uid:1000", Workspace: "ws-2a97516c",
		Action:       json.RawMessage(fmt.Sprintf(`{"kind":"command.exec","argv":["/bin/true","%d"]}`, i)),
		ActionDigest: "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		Policy:       "none yet: passes everything", Approval: "none",
	}
}

func mustAppend(t testing.TB, l *audit.Log, r audit.Record) int64 {
	t.Helper()
	seq, err := l.Append(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

func lines(t testing.TB, path string) [][]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.SplitAfter(bytes.TrimSuffix(bytes.TrimRight(b, "\x00"), []byte("\n")), []byte("\n"))
}

func mustHold(t testing.TB, path string, records int64) audit.Verdict {
	t.Helper()
	v, err := audit.VerifyFile(t.Context(), path, audit.Head{})
	if err != nil || v.Bad != nil || (records >= 0 && v.Records != records) {
		t.Fatalf("verify: %+v, bad %+v, %v; want %d good records", v, v.Bad, err, records)
	}
	return v
}

func TestAppendWritesWhatTheStructSays(t *testing.T) {
	path := logPath(t)
	l := open(t, audit.Options{Path: path})
	full := audit.Record{
		Time: time.Date(2026, 11, 20, 1, 2, 3, 400, time.FixedZone("x", 3600)), Trace: "t", Type: audit.Outcome,
		Principal: "uid:1000", Workspace: "ws-2a97516c", Intent: 1, Action: json.RawMessage(`{"kind":"x"}`), ActionDigest: "sha256:00",
		Policy: "p", Approval: "a", Isolation: "i", Status: audit.StatusFailed,
		Error: "a \"quoted\"\nline, \x00, ü, \xff and </script>", ErrorKind: "not_found", Data: json.RawMessage(`{"code":1}`),
	}
	mustAppend(t, l, intent(0))
	if seq := mustAppend(t, l, full); seq != 2 {
		t.Fatalf("second record got seq %d", seq)
	}
	all := lines(t, path)
	got, err := audit.Decode(all[1])
	if err != nil {
		t.Fatal(err)
	}
	want := full
	want.Seq, want.Time = 2, full.Time.UTC()
	want.Error = strings.ToValidUTF8(full.Error, "\ufffd")
	want.Hash = got.Hash
	first, _ := audit.Decode(all[0])
	want.PrevHash = first.Hash
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("decoded record (-want +got):\n%s", d)
	}
	// The fields have the order of the struct.
	std, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := keys(t, std), keys(t, all[1]); !cmp.Equal(a, b) {
		t.Errorf("fields %v, struct order is %v", b, a)
	}
	if v := mustHold(t, path, 2); v.Head != l.Head() {
		t.Errorf("head of the file %v, of the log %v", v.Head, l.Head())
	}
	if fi, _ := os.Stat(path); fi.Mode().Perm() != 0o600 {
		t.Errorf("log has mode %v", fi.Mode())
	}
	if fi, _ := os.Stat(filepath.Dir(path)); fi.Mode().Perm() != 0o700 {
		t.Errorf("directory has mode %v", fi.Mode())
	}
}

func keys(t *testing.T, object []byte) []string {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(object))
	var ks []string
	for depth := 0; ; {
		tok, err := d.Token()
		if err != nil {
			return ks
		}
		switch v := tok.(type) {
		case json.Delim:
			if v == '{' || v == '[' {
				depth++
			} else {
				depth--
			}
		case string:
			if depth == 1 {
				ks = append(ks, v)
				var skip json.RawMessage
				if err := d.Decode(&skip); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func TestReopenContinuesTheChain(t *testing.T) {
	path := logPath(t)
	for i := range 5 {
		l := open(t, audit.Options{Path: path})
		if seq := mustAppend(t, l, intent(i)); seq != int64(i+1) {
			t.Fatalf("seq %d in round %d", seq, i)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	mustHold(t, path, 5)
}

func TestAsyncIsOrderedAndSyncedByTimer(t *testing.T) {
	path := logPath(t)
	l := open(t, audit.Options{Path: path})
	mustAppend(t, l, intent(0))
	if err := l.AppendAsync(audit.Record{Type: audit.Outcome, Intent: 1, Status: audit.StatusOK}); err != nil {
		t.Fatal(err)
	}
	if l.Head().Seq != 1 {
		t.Fatal("an async record was waited for")
	}
	// Read with follow gets it once the timer has made it durable.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	began, errGot := time.Now(), errors.New("got it")
	err := l.Read(ctx, 2, 0, true, func([][]byte) error { return errGot })
	if !errors.Is(err, errGot) {
		t.Fatal(err)
	}
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("async record took %v", d)
	}
	if err := l.AppendAsync(audit.Record{Type: audit.Lifecycle}); err != nil {
		t.Fatal(err)
	}
	if seq := mustAppend(t, l, intent(1)); seq != 4 || l.Head().Seq != 4 {
		t.Errorf("durable append after an async one: seq %d, head %v", seq, l.Head())
	}
	if err := l.AppendAsync(audit.Record{Type: audit.Outcome, Intent: 4}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	mustHold(t, path, 5)
}

func TestConcurrentAppendersShareSyncs(t *testing.T) {
	const workers, each = 32, 50
	path := logPath(t)
	var d *doubleDisk
	l := open(t, audit.Options{Path: path}.Wrap(func(f audit.File) audit.File { d = &doubleDisk{File: f}; return d }))
	var wg sync.WaitGroup
	seen := make([]bool, workers*each+1)
	var mu sync.Mutex
	for range workers {
		wg.Go(func() {
			for i := range each {
				seq, err := l.Append(t.Context(), intent(i))
				if err != nil {
					t.Error(err)
					return
				}
				if l.Head().Seq < seq {
					t.Errorf("record %d acknowledged before it was durable", seq)
				}
				mu.Lock()
				if seen[seq] {
					t.Errorf("seq %d given twice", seq)
				}
				seen[seq] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	mustHold(t, path, workers*each)
	if d.syncs >= workers*each/2 {
		t.Errorf("%d records took %d syncs: appenders do not share them", workers*each, d.syncs)
	}
}

// doubleDisk is a test double of the log's file: it counts syncs, and fails
// writes and syncs when told to.
type doubleDisk struct {
	audit.File
	mu        sync.Mutex
	syncs     int
	failSync  error
	failWrite error
}

func (d *doubleDisk) WriteAt(b []byte, at int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failWrite != nil {
		n, _ := d.File.WriteAt(b[:len(b)/2], at)
		return n, d.failWrite
	}
	return d.File.WriteAt(b, at)
}

func (d *doubleDisk) Datasync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.syncs++
	if d.failSync != nil {
		return d.failSync
	}
	return d.File.Datasync()
}

func TestFailurePoisonsTheLog(t *testing.T) {
	for _, c := range []struct {
		name string
		fail func(*doubleDisk)
	}{
		{"fdatasync", func(d *doubleDisk) { d.failSync = unix.EIO }},
		{"write", func(d *doubleDisk) { d.failWrite = unix.EIO }},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := logPath(t)
			var d *doubleDisk
			l := open(t, audit.Options{Path: path}.Wrap(func(f audit.File) audit.File { d = &doubleDisk{File: f}; return d }))
			mustAppend(t, l, intent(0))
			c.fail(d)
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					if _, err := l.Append(t.Context(), intent(i)); !errdefs.IsUnavailable(err) {
						t.Errorf("append on a failing disk: %v", err)
					}
				})
			}
			wg.Wait()
			// The disk works again, but its contents are not known.
			d.mu.Lock()
			d.failSync, d.failWrite = nil, nil
			d.mu.Unlock()
			if _, err := l.Append(t.Context(), intent(9)); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "restart carreld") {
				t.Errorf("append after a failure: %v", err)
			}
			if err := l.AppendAsync(intent(9)); !errdefs.IsUnavailable(err) {
				t.Errorf("async append after a failure: %v", err)
			}
			if l.Head().Seq != 1 {
				t.Errorf("head moved to %v", l.Head())
			}
			if err := l.Close(); !errdefs.IsUnavailable(err) {
				t.Errorf("close hid the failure: %v", err)
			}
			again := open(t, audit.Options{Path: path})
			mustAppend(t, again, intent(10))
			mustHold(t, path, -1)
		})
	}
}

// heldDisk is a test double of the log's file whose first sync waits for its result.
type heldDisk struct {
	audit.File
	began  chan struct{}
	ends   chan error
	writes atomic.Int32
}

func (d *heldDisk) WriteAt(b []byte, at int64) (int, error) {
	d.writes.Add(1)
	return d.File.WriteAt(b, at)
}

func (d *heldDisk) Datasync() error {
	if d.began == nil {
		return d.File.Datasync()
	}
	close(d.began)
	d.began = nil
	return <-d.ends
}

// TestGroupsFollowEachOther queues records while the first group is synced. They become
// durable together in one group. If the first group fails, they fail too, and nothing more is written.
func TestGroupsFollowEachOther(t *testing.T) {
	for _, fails := range []error{nil, unix.EIO} {
		path := logPath(t)
		began := make(chan struct{})
		d := &heldDisk{began: began, ends: make(chan error)}
		l := open(t, audit.Options{Path: path}.Wrap(func(f audit.File) audit.File { d.File = f; return d }))
		const more = 5
		errs := make(chan error, 1+more)
		add := func(i int) {
			_, err := l.Append(t.Context(), intent(i))
			errs <- err
		}
		go add(0)
		<-began
		for i := range more {
			go add(i + 1)
		}
		for l.Queued() < 1+more {
			runtime.Gosched()
		}
		if err := l.AppendAsync(audit.Record{Type: audit.Lifecycle}); err != nil {
			t.Fatal(err)
		}
		closed := make(chan error)
		go func() { closed <- l.Close() }()
		d.ends <- fails
		for range 1 + more {
			if err := <-errs; !errors.Is(err, fails) || (err == nil) != (fails == nil) {
				t.Errorf("append: %v, want %v", err, fails)
			}
		}
		if err := <-closed; !errors.Is(err, fails) || (err == nil) != (fails == nil) {
			t.Errorf("close: %v, want %v", err, fails)
		}
		wantWrites := int32(3) // the first group, what AppendAsync found pending, and what the second group has more: nothing
		if fails != nil {
			wantWrites = 2
		}
		if n := d.writes.Load(); n != wantWrites {
			t.Errorf("%d writes, want %d", n, wantWrites)
		}
		if fails == nil {
			mustHold(t, path, 2+more)
		}
	}
}

func TestAsyncFailureShowsInTheNextCall(t *testing.T) {
	var d *doubleDisk
	l := open(t, audit.Options{Path: logPath(t)}.Wrap(func(f audit.File) audit.File { d = &doubleDisk{File: f}; return d }))
	d.mu.Lock()
	d.failSync = unix.EIO
	d.mu.Unlock()
	if err := l.AppendAsync(audit.Record{Type: audit.Lifecycle}); err != nil {
		t.Fatal(err)
	}
	// The failure wakes a follower too.
	if err := l.Read(t.Context(), 1, 0, true, func([][]byte) error { return nil }); !errdefs.IsUnavailable(err) {
		t.Errorf("follower got %v", err)
	}
	if _, err := l.Append(t.Context(), intent(0)); !errors.Is(err, unix.EIO) {
		t.Errorf("append got %v", err)
	}
}
