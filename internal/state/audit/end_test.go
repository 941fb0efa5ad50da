package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

// stopped is the record of the end of a daemon.
func stopped() audit.Record {
	return audit.Record{
		Type: audit.Lifecycle, Principal: "system", Status: audit.StatusOK, Data: json.RawMessage(`{"event":"daemon.stopped","pid":7}`),
	}
}

// What is queued after the end is refused, also what waits for nothing.
func TestNothingFollowsTheEnd(t *testing.T) {
	path := logPath(t)
	l := open(t, audit.Options{Path: path})
	mustAppend(t, l, intent(0))
	m, err := l.End(t.Context(), stopped())
	if err != nil || m.Head.Seq != 2 || !m.Ended || !m.Sealed || len(m.Open) != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	if _, err := l.Append(t.Context(), intent(1)); !errdefs.IsUnavailable(err) {
		t.Errorf("append: %v", err)
	}
	if err := l.AppendAsync(intent(1)); !errdefs.IsUnavailable(err) {
		t.Errorf("append without waiting: %v", err)
	}
	if _, err := l.End(t.Context(), stopped()); !errdefs.IsUnavailable(err) {
		t.Errorf("a second end: %v", err)
	}
	if err := errors.Join(l.Flush(), l.Close()); err != nil {
		t.Error(err)
	}
	mustHold(t, path, 2)
	open(t, audit.Options{Path: path, Since: m}).Close()
}

// forger writes a log line by line, as who can write the file and has this code.
type forger struct {
	b    []byte
	prev string
	seq  int64
	at   []int // offsets of the lines
}

func (f *forger) add(r audit.Record, at time.Time) audit.Head {
	if f.prev == "" {
		f.prev = audit.Genesis
	}
	f.seq++
	f.at = append(f.at, len(f.b))
	line := audit.Line(r, f.prev, f.seq, at)
	f.prev = string(line[9:73])
	f.b = append(f.b, line...)
	return audit.Head{Seq: f.seq, Hash: f.prev}
}

// A log of every kind has one verdict: that of a start and that of VerifyLog.
func TestOneVerdict(t *testing.T) {
	connection := audit.Record{Type: audit.Connection, Principal: "system", Workspace: "ws-00000001", Status: audit.StatusOK}
	usage := audit.Record{Type: audit.Usage, Principal: "inside:ws-00000001", Owner: "uid:1", Workspace: "ws-00000001"}
	outcome := func(of int64) audit.Record {
		return audit.Record{Type: audit.Outcome, Principal: "uid:1000", Intent: of, Status: audit.StatusOK}
	}
	alter := func(r audit.Record, f func(*audit.Record)) audit.Record { f(&r); return r }
	const holds = audit.Harm("")
	type log struct {
		*forger
		mark  *audit.Mark // of the end; records 1 to 4: two intents, an outcome, the end
		known *audit.Head
		end   time.Time
	}
	behind := func(rs ...audit.Record) func(l log) {
		return func(l log) {
			for _, r := range rs {
				l.add(r, l.end.Add(time.Second))
			}
		}
	}
	unsealed := func(f func(l log)) func(l log) { return func(l log) { l.mark.Sealed = false; f(l) } }
	killed := func(f func(l log)) func(l log) { return func(l log) { *l.mark = audit.Mark{Head: audit.Head{}}; f(l) } }
	for _, c := range []struct {
		name string
		age  time.Duration // of the end, when the file is written
		do   func(l log)
		want audit.Harm
		late int64
	}{
		{"whole", 0, func(log) {}, holds, 0},
		{"whole, without a seal", 0, unsealed(func(log) {}), holds, 0},
		{"of a killed daemon", 0, killed(func(log) {}), holds, 0},
		{"of a killed daemon, with more than its mark", 0, killed(behind(intent(1), connection)), holds, 0},
		{"of a killed daemon, torn", 0, killed(func(l log) { l.b = append(l.b, `{"hash":"00`...) }), audit.Torn, 0},
		{"of a killed daemon, with zeros and a rest", 0, killed(func(l log) { l.b = append(l.b, "\x00\x00rest\n"...) }), audit.Torn, 0},
		{"of a killed daemon, edited in the middle", 0, killed(func(l log) { l.b[l.at[2]-5] ^= 1 }), audit.Edited, 0},
		{"of a killed daemon, edited at the end", 0, killed(func(l log) { l.b[len(l.b)-4] ^= 1 }), audit.Edited, 0},
		{"of a killed daemon, one deleted", 0, killed(func(l log) {
			l.b = append(l.b[:l.at[1]:l.at[1]], l.b[l.at[2]:]...)
		}), audit.Deleted, 0},
		{"of a killed daemon, cut before what is known", 0, killed(func(l log) {
			*l.known = audit.Head{Seq: 4, Hash: l.prev}
			l.b = l.b[:l.at[3]]
		}), audit.Truncated, 0},
		{"of a killed daemon, another record than is known", 0, killed(func(l log) {
			*l.known = audit.Head{Seq: 4, Hash: strings.Repeat("5", 64)}
		}), audit.Replaced, 0},
		{"cut before its end", 0, func(l log) { l.b = l.b[:l.at[3]] }, audit.Truncated, 0},
		{"another end", 0, func(l log) { l.mark.Head.Hash = strings.Repeat("5", 64) }, audit.Replaced, 0},
		{"its end edited", 0, func(l log) { l.b[len(l.b)-4] ^= 1 }, audit.Edited, 0},

		{"torn behind a sealed end", 0, func(l log) { l.b = append(l.b, `{"hash":"00`...) }, audit.Appended, 0},
		{"torn behind an end", 0, unsealed(func(l log) { l.b = append(l.b, `{"hash":"00`...) }), audit.Appended, 0},
		{"zeros and a rest behind an end", 0, unsealed(func(l log) { l.b = append(l.b, "\x00\x00rest\n"...) }), audit.Appended, 0},
		{"no JSON behind an end", 0, unsealed(func(l log) { l.b = append(l.b, "words\n"...) }), audit.Appended, 0},
		{"a connection behind a sealed end", 0, behind(connection), audit.Appended, 0},
		{"an outcome behind a sealed end", 0, behind(outcome(2)), audit.Appended, 0},

		{"a connection behind an end", 0, unsealed(behind(connection)), holds, 1},
		{"what an ending daemon wrote", 0, unsealed(behind(connection, usage, outcome(2), connection)), holds, 4},
		{"an intent behind an end", 0, unsealed(behind(intent(2))), audit.Appended, 0},
		{"an intent behind a connection", 0, unsealed(behind(connection, intent(2))), audit.Appended, 0},
		{"a repair behind an end", 0, unsealed(behind(audit.Record{Type: audit.Repair, Principal: "system"})), audit.Appended, 0},
		{"a start behind an end", 0, unsealed(behind(alter(stopped(), func(r *audit.Record) {
			r.Data = json.RawMessage(`{"event":"daemon.started"}`)
		}))), audit.Appended, 0},
		{"an outcome of what was closed", 0, unsealed(behind(outcome(1))), audit.Appended, 0},
		{"an outcome twice", 0, unsealed(behind(outcome(2), outcome(2))), audit.Appended, 0},
		{"a connection of somebody", 0, unsealed(behind(alter(connection, func(r *audit.Record) { r.Principal = "uid:0" }))), audit.Appended, 0},
		{"a connection of nothing", 0, unsealed(behind(alter(connection, func(r *audit.Record) { r.Workspace = "" }))), audit.Appended, 0},
		{"a connection too late", 0, unsealed(func(l log) { l.add(connection, l.end.Add(2*time.Minute)) }), audit.Appended, 0},
		{"a connection too early", 0, unsealed(func(l log) { l.add(connection, l.end.Add(-time.Second)) }), audit.Appended, 0},
		{"a connection in time, in a file that was written later", 2 * time.Minute, unsealed(behind(connection)), audit.Appended, 0},
		{"nothing, in a file that was written later", 2 * time.Minute, unsealed(func(log) {}), holds, 0},
		{"a connection behind something else than an end", 0, unsealed(func(l log) {
			l.mark.Head = l.add(intent(3), l.end)
			l.add(connection, l.end)
		}), audit.Appended, 0},
		{"a connection with another hash", 0, unsealed(func(l log) {
			l.add(connection, l.end)
			l.b[len(l.b)-4] ^= 1
		}), audit.Appended, 0},
		{"a connection of another chain", 0, unsealed(func(l log) {
			l.prev = strings.Repeat("5", 64)
			l.add(connection, l.end)
		}), audit.Appended, 0},
		{"a connection with another number", 0, unsealed(func(l log) {
			l.seq++
			l.add(connection, l.end)
		}), audit.Appended, 0},
		{"what the database knows behind an end", 2 * time.Minute, unsealed(func(l log) {
			l.add(connection, l.end)
			*l.known = l.add(intent(3), l.end)
		}), holds, 2},
		{"more than the database knows behind an end", 0, unsealed(func(l log) {
			*l.known = l.add(connection, l.end)
			l.add(intent(3), l.end)
		}), audit.Appended, 0},
		{"less than the database knows behind an end", 0, unsealed(func(l log) {
			*l.known = l.add(connection, l.end)
			l.b = l.b[:l.at[4]]
		}), audit.Truncated, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "audit")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "audit.jsonl")
			f, at := &forger{}, time.Now().Add(-c.age)
			f.add(intent(0), at)
			f.add(intent(1), at)
			f.add(outcome(1), at)
			mark := audit.Mark{Head: f.add(stopped(), at), Open: []int64{2}, Ended: true, Sealed: true}
			known := audit.Head{}
			c.do(log{f, &mark, &known, at})
			if err := os.WriteFile(path, f.b, 0o600); err != nil {
				t.Fatal(err)
			}
			v, err := audit.VerifyLog(t.Context(), path, audit.Trust{Since: mark, Known: known})
			if err != nil {
				t.Fatal(err)
			}
			harm := holds
			if v.Bad != nil {
				harm = v.Bad.Harm
			}
			if harm != c.want {
				t.Errorf("verified: %q, not %q: %+v", harm, c.want, v.Bad)
			}
			if n := lateIn(v.Late); v.Bad == nil && n != c.late {
				t.Errorf("verified: %d late records, not %d", n, c.late)
			}
			var told audit.Mark
			reopened := func(_ context.Context, m audit.Mark) error {
				if b, _ := os.ReadFile(path); !bytes.Equal(b, f.b) {
					t.Error("something was written before the mark was kept")
				}
				told = m
				return nil
			}
			o := audit.Options{Path: path, Since: mark, Known: known, Reopened: reopened, Room: 1 << 20}
			l, err := audit.Open(t.Context(), o)
			if refused := errors.Is(err, audit.ErrDamaged); refused != (c.want != holds && c.want != audit.Torn) || err != nil && !refused {
				t.Fatalf("the start: %v", err)
			}
			if err != nil {
				if c.want == audit.Appended && !strings.Contains(err.Error(), "forged append") {
					t.Errorf("the start: %v", err)
				}
				if b, _ := os.ReadFile(path); !bytes.Equal(b, f.b) {
					t.Error("a log that was refused was changed")
				}
				return
			}
			l.Close()
			if told.Late == nil != (c.late == 0) || told.Late != nil && (told.Ended || told.Head.Seq != v.Records) {
				t.Errorf("the mark is %+v", told)
			}
			if repairs(t, path) != min(c.late, 1) {
				t.Errorf("%d repairs with late records", repairs(t, path))
			}
			if c.late == 0 {
				return
			}
			// As it was started: nothing is told twice, and nothing is lost if the start was killed between mark and record.
			o.Since, o.Known = told, audit.Head{}
			open(t, o).Close()
			if n := repairs(t, path); n != 1 {
				t.Errorf("%d repairs after another start", n)
			}
			if err := os.WriteFile(path, f.b, 0o600); err != nil {
				t.Fatal(err)
			}
			open(t, o).Close()
			if n := repairs(t, path); n != 1 {
				t.Errorf("%d repairs after a start that was killed", n)
			}
		})
	}
}

func lateIn(l *audit.Late) (n int64) {
	if l != nil {
		for _, k := range l.Types {
			n += k
		}
	}
	return n
}

// repairs counts the records that say which late records were taken over.
func repairs(t *testing.T, path string) (n int64) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(bytes.TrimRight(b, "\x00")) {
		r, err := audit.Decode(line)
		if err != nil {
			t.Fatal(err)
		}
		var m audit.Mended
		if r.Type == audit.Repair && json.Unmarshal(r.Data, &m) == nil && m.Late != nil {
			n++
		}
	}
	return n
}

// A rotation that was killed left a second name of the current file, which is no damage.
func TestASecondNameIsNoDamage(t *testing.T) {
	path := logPath(t)
	l := open(t, audit.Options{Path: path})
	mustAppend(t, l, intent(0))
	l.Close()
	if err := os.Link(path, strings.TrimSuffix(path, ".jsonl")+"-000000000001-000000000001.jsonl"); err != nil {
		t.Fatal(err)
	}
	if v, err := audit.VerifyLog(t.Context(), path, audit.Trust{}); err != nil || v.Bad != nil {
		t.Errorf("%+v, %v", v.Bad, err)
	}
	open(t, audit.Options{Path: path}).Close()
}
