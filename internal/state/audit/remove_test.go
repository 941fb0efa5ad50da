package audit_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// fullLog is a log of several files with its checkpoints and an anchor.
type fullLog struct {
	*fixture
	t testing.TB
	l *audit.Log
	c *audit.Checkpoints
}

// long are bounds that all full files exceed at the time later.
var long = audit.Keep{Age: 24 * time.Hour}

func later() time.Time { return time.Now().Add(48 * time.Hour) }

func newFull(t testing.TB) *fullLog {
	t.Helper()
	s := &fullLog{fixture: newFixture(t), t: t}
	s.open()
	s.write(40)
	mustMake(t, s.c, s.l.Head().Seq)
	return s
}

func (s *fullLog) options() audit.CheckpointOptions {
	return audit.CheckpointOptions{Countersign: s.sign, Anchor: s.anchor}
}

func (s *fullLog) open() {
	s.t.Helper()
	s.l = open(s.t, audit.Options{Path: s.path, MaxSize: 4 << 10})
	s.c = s.checkpoints(s.t, s.l, s.options())
}

func (s *fullLog) close() {
	s.t.Helper()
	if err := errors.Join(s.c.Close(), s.l.Close()); err != nil {
		s.t.Fatal(err)
	}
}

func (s *fullLog) reopen() { s.t.Helper(); s.close(); s.open() }

// write appends n intents with their outcomes.
func (s *fullLog) write(n int) {
	s.t.Helper()
	for i := range n {
		seq := mustAppend(s.t, s.l, intent(i))
		mustAppend(s.t, s.l, audit.Record{Type: audit.Outcome, Intent: seq, Status: audit.StatusOK})
	}
}

func (s *fullLog) plan(keep audit.Keep, now time.Time) *audit.Removal {
	s.t.Helper()
	r, err := s.c.PlanRemoval(s.t.Context(), keep, now)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// record writes the removed record of a plan, as the gate does.
func (s *fullLog) record(r *audit.Removal) int64 {
	s.t.Helper()
	data, err := json.Marshal(r)
	if err != nil {
		s.t.Fatal(err)
	}
	return mustAppend(s.t, s.l, audit.Record{Type: audit.Removed, Principal: "system", Status: audit.StatusOK, Data: data})
}

// remove does all steps of a removal.
func (s *fullLog) remove() *audit.Removal {
	s.t.Helper()
	r := s.plan(long, later())
	if r == nil {
		s.t.Fatal("nothing is to be removed")
	}
	seq := s.record(r)
	mustMake(s.t, s.c, seq)
	if err := s.c.Remove(r, seq); err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *fullLog) full() []string {
	s.t.Helper()
	names, err := filepath.Glob(s.file("audit-*.jsonl"))
	if err != nil {
		s.t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// verdict verifies the log with the public keys only.
func (s *fullLog) verdict() audit.Verdict {
	s.t.Helper()
	last, err := audit.BrokerState(filepath.Join(s.brokerDir, "audit.json"))
	if err != nil {
		s.t.Fatal(err)
	}
	v, err := audit.VerifyLog(s.t.Context(), s.path, audit.Trust{Keys: s.keys(s.t), Countersigned: last, Anchor: s.anchor})
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// holds checks that the log, from behind the record removed on, is valid for the daemon and for a
// stranger.
func (s *fullLog) holds(removed int64) {
	s.t.Helper()
	if v := s.verdict(); v.Bad != nil || v.Removed != removed ||
		v.Records != s.l.Head().Seq-removed || v.Head != s.l.Head() || v.Countersigned == 0 {
		s.t.Fatalf("%+v %+v", v, v.Bad)
	}
	f, err := s.c.Verify(s.t.Context())
	if err != nil || !f.OK || (removed > 0) != strings.Contains(f.Note, "carrel removed records") {
		s.t.Fatalf("%+v %v", f, err)
	}
}

func (s *fullLog) bad(harm audit.Harm, detail string) {
	s.t.Helper()
	v := s.verdict()
	if v.Bad == nil || v.Bad.Harm != harm || !strings.Contains(v.Bad.Detail, detail) {
		s.t.Errorf("%+v", v.Bad)
	}
}

func (s *fullLog) proof(seq int64) checkpoint.Proof {
	s.t.Helper()
	var got checkpoint.Proof
	err := s.c.Prove(s.t.Context(), seq, seq, audit.Filter{}, func(list []checkpoint.Proof) error {
		got = list[0]
		got.Line = slices.Clone(got.Line)
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return got
}

// Files past their bounds are removed. The rest of the log is valid, also after it is opened again
// and its tree is made anew. Proofs from before stay valid and new ones can be made. Then the same
// happens again.
func TestRemoval(t *testing.T) {
	s := newFull(t)
	s.holds(0)
	early := s.proof(3)
	all := s.full()
	r := s.remove()
	if left := s.full(); r.From != 1 || len(r.Files) != len(all) || len(left) != 0 || r.Bytes == 0 || r.Age != "24h0m0s" {
		t.Fatalf("%+v, %v are left of %v", r, left, all)
	}
	s.holds(r.To)
	if _, err := early.Check(s.keys(t)); err != nil {
		t.Errorf("a proof from before does not hold: %v", err)
	}
	if err := s.c.Prove(t.Context(), 3, 3, audit.Filter{}, func([]checkpoint.Proof) error { return nil }); !errdefs.IsNotFound(err) {
		t.Errorf("a record that was removed is proved: %v", err)
	}
	first := int64(0)
	if err := s.l.Read(t.Context(), 0, 0, false, func(lines [][]byte) error {
		if first == 0 {
			rec, err := audit.Decode(lines[0])
			first = rec.Seq
			return err
		}
		return nil
	}); err != nil || first != r.To+1 {
		t.Errorf("it is read from %d: %v", first, err)
	}
	for i := range 3 {
		s.reopen()
		s.holds(r.To)
		s.write(30)
		mustMake(t, s.c, s.l.Head().Seq)
		s.holds(r.To)
		for _, seq := range []int64{r.To + 1, r.To + 7, s.l.Head().Seq} {
			p := s.proof(seq)
			if _, err := p.Check(s.keys(t)); err != nil {
				t.Errorf("record %d: %v", seq, err)
			}
		}
		if i == 1 { // the tree is made anew from what is left
			s.close()
			if err := os.Remove(s.file("audit.tree")); err != nil {
				t.Fatal(err)
			}
			s.open()
			s.holds(r.To)
		}
		next := s.remove()
		if next.From != r.To+1 || next.To <= r.To {
			t.Fatalf("%+v behind %+v", next, r)
		}
		r = next
		s.holds(r.To)
	}
}

// Files that must not be removed stay.
func TestNothingIsRemovedTooEarly(t *testing.T) {
	s := newFull(t)
	if r := s.plan(audit.Keep{}, later()); r != nil {
		t.Errorf("without bounds: %+v", r)
	}
	if r := s.plan(long, time.Now()); r != nil {
		t.Errorf("too young: %+v", r)
	}
	if r := s.plan(audit.Keep{Size: 1}, time.Now()); r != nil {
		t.Errorf("what has just happened: %+v", r)
	}
	if r := s.plan(audit.Keep{Age: 1000 * time.Hour, Size: 1 << 30}, later()); r != nil {
		t.Errorf("within both bounds: %+v", r)
	}
	var total int64
	for _, name := range append(s.full(), s.path) {
		fi, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		total += fi.Size()
	}
	if r := s.plan(audit.Keep{Size: total - 1}, later()); r == nil || len(r.Files) != 1 {
		t.Errorf("more than its size by a byte: %+v", r)
	}
	// A file with an intent that waits for its outcome, and later files.
	files := len(s.full())
	waiting := mustAppend(t, s.l, intent(0))
	s.write(30)
	mustMake(t, s.c, s.l.Head().Seq)
	if r := s.plan(long, later()); r == nil || r.To >= waiting || len(r.Files) > files {
		t.Errorf("an intent without outcome: %+v", r)
	}
	mustAppend(t, s.l, audit.Record{Type: audit.Outcome, Intent: waiting, Status: audit.StatusOK})
	signed := s.l.Head().Seq
	mustMake(t, s.c, signed)
	// Files that the broker did not sign or the anchor does not have.
	s.write(30)
	s.down = true
	if _, err := s.c.Make(t.Context()); !errdefs.IsUnavailable(err) {
		t.Fatal(err)
	}
	r := s.plan(long, later())
	if r == nil || r.To > signed {
		t.Errorf("not countersigned: %+v", r)
	}
	seq := s.record(r)
	if err := s.c.Remove(r, seq); !errdefs.IsUnavailable(err) {
		t.Errorf("removed before that was signed: %v", err)
	}
	s.down = false
	if err := os.Rename(s.anchor, s.anchor+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(s.anchor, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.Make(t.Context()); !errdefs.IsUnavailable(err) {
		t.Fatal(err)
	}
	if err := s.c.Remove(r, seq); !errdefs.IsUnavailable(err) {
		t.Errorf("removed before that was anchored: %v", err)
	}
	// All files of a log that nobody countersigns.
	own := s.checkpoints(t, open(t, audit.Options{Path: filepath.Join(t.TempDir(), "a", "audit.jsonl")}), audit.CheckpointOptions{})
	if r, err := own.PlanRemoval(t.Context(), long, later()); r != nil || err != nil {
		t.Errorf("%+v %v", r, err)
	}
}

// A crash between two steps leaves a valid log, and the next removal continues.
func TestRemovalBrokenOff(t *testing.T) {
	for name, until := range map[string]int{"planned": 0, "recorded": 1, "signed": 2, "one of the files gone": 3} {
		t.Run(name, func(t *testing.T) {
			s := newFull(t)
			files := s.full()
			r := s.plan(long, later())
			var seq, gone int64
			if until >= 1 {
				seq = s.record(r)
			}
			if until >= 2 {
				mustMake(t, s.c, seq)
			}
			if until >= 3 {
				if err := os.Remove(files[0]); err != nil {
					t.Fatal(err)
				}
			}
			s.reopen()
			if until >= 3 {
				gone = s.verdict().Removed
				if gone == 0 || gone >= r.To {
					t.Errorf("%d are gone of %d", gone, r.To)
				}
			}
			mustMake(t, s.c, s.l.Head().Seq)
			s.holds(gone)
			next := s.remove()
			if next.From != gone+1 || next.To < r.To {
				t.Errorf("%+v behind %+v", next, r)
			}
			s.holds(next.To)
			// A torn line is ignored.
			b, err := os.ReadFile(s.file("removed"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.file("removed"), append(b, `{"to":7,"hash`...), 0o600); err != nil {
				t.Fatal(err)
			}
			s.write(30)
			mustMake(t, s.c, s.l.Head().Seq)
			s.holds(s.remove().To)
		})
	}
}

// Files that somebody else removes are reported, even if `removed` was forged too.
func TestRemovalByOthers(t *testing.T) {
	const unsaid = "no record that is signed says that carrel removed them"
	unlink := func(s *fullLog, n int) {
		s.t.Helper()
		for _, name := range s.full()[:n] {
			if err := os.Remove(name); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	t.Run("the first file", func(t *testing.T) {
		s := newFull(t)
		unlink(s, 1)
		s.bad(audit.TruncatedFront, "the log begins with record")
	})
	t.Run("planned, and no record", func(t *testing.T) {
		s := newFull(t)
		s.plan(long, later())
		unlink(s, 1)
		s.bad(audit.TruncatedFront, unsaid)
		unlink(s, len(s.full()))
		s.bad(audit.TruncatedFront, unsaid)
	})
	t.Run("a record that is not countersigned", func(t *testing.T) {
		s := newFull(t)
		r := s.plan(long, later())
		s.down = true
		s.record(r)
		if _, err := s.c.Make(t.Context()); !errdefs.IsUnavailable(err) {
			t.Fatal(err)
		}
		unlink(s, len(r.Files))
		s.bad(audit.TruncatedFront, unsaid)
	})
	t.Run("a record of something else that looks like it", func(t *testing.T) {
		s := newFull(t)
		r := s.plan(long, later())
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		x := intent(1)
		x.Action = json.RawMessage(`{"x":1,"type":"removed","y":` + string(data) + `}`)
		x.Data = data
		mustAppend(t, s.l, x)
		mustAppend(t, s.l, audit.Record{Type: audit.Removed, Principal: "system", Status: audit.StatusFailed, Data: data})
		mustMake(t, s.c, s.l.Head().Seq)
		unlink(s, len(r.Files))
		s.bad(audit.TruncatedFront, unsaid)
	})
	t.Run("more than was said", func(t *testing.T) {
		s := newFull(t)
		s.remove()
		s.write(40)
		mustMake(t, s.c, s.l.Head().Seq)
		s.plan(long, later())
		unlink(s, 1)
		s.bad(audit.TruncatedFront, unsaid)
	})
	t.Run("what it goes on from is gone", func(t *testing.T) {
		s := newFull(t)
		s.remove()
		if err := os.Remove(s.file("removed")); err != nil {
			t.Fatal(err)
		}
		s.bad(audit.TruncatedFront, "the log begins with record")
	})
	for name, change := range map[string]func(b map[string]any){
		"another hash": func(b map[string]any) { b["hash"] = strings.Repeat("a", 64) },
		"another tree": func(b map[string]any) {
			b["edges"].([]any)[0] = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
		},
		"one edge less": func(b map[string]any) { b["edges"] = b["edges"].([]any)[1:] },
	} {
		t.Run(name, func(t *testing.T) {
			s := newFull(t)
			s.remove()
			text, err := os.ReadFile(s.file("removed"))
			if err != nil {
				t.Fatal(err)
			}
			var out []byte
			for line := range strings.Lines(string(text)) {
				var b map[string]any
				if json.Unmarshal([]byte(line), &b) != nil {
					continue
				}
				change(b)
				one, err := json.Marshal(b)
				if err != nil {
					t.Fatal(err)
				}
				out = append(append(out, one...), '\n')
			}
			if err := os.WriteFile(s.file("removed"), out, 0o600); err != nil {
				t.Fatal(err)
			}
			if v := s.verdict(); v.Bad == nil || v.Removed > 0 && v.Bad.Harm != audit.Replaced {
				t.Errorf("%+v", v.Bad)
			}
		})
	}
	t.Run("without anybody's keys", func(t *testing.T) {
		s := newFull(t)
		s.remove()
		v, err := audit.VerifyFile(t.Context(), s.path, audit.Head{})
		if err != nil || v.Bad == nil || v.Bad.Harm != audit.TruncatedFront {
			t.Errorf("%+v %v", v.Bad, err)
		}
	})
}
