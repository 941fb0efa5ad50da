package audit_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// relink replaces record at and hashes the chain anew from there.
func relink(ls [][]byte, at, what int) [][]byte {
	ls = clone(ls)
	prev := string(ls[at-2][9:73])
	for i := at - 1; i < len(ls); i++ {
		n := i
		if i == at-1 {
			n = what
		}
		ls[i] = audit.Line(intent(n), prev, int64(i+1), testTime)
		prev = string(ls[i][9:73])
	}
	return ls
}

// resign makes checkpoints of other lines with the log's key, as anybody with that key can.
func (d *fixture) resign(t testing.TB, ls [][]byte, sizes ...int) {
	t.Helper()
	secret, err := os.ReadFile(d.file("checkpoint.key"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := note.NewSigner(strings.TrimSpace(string(secret)))
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, n := range sizes {
		b, err := checkpoint.Sign(checkpoint.Checkpoint{Origin: s.Name(), Size: int64(n), Root: rootOf(t, ls[:n])}, s)
		if err != nil {
			t.Fatal(err)
		}
		all = append(append(all, b...), '\n')
	}
	if err := errors.Join(os.WriteFile(d.file("checkpoints"), all, 0o600), os.Remove(d.file("audit.tree"))); err != nil {
		t.Fatal(err)
	}
}

// TestAttacks makes each harm in a log of a stopped daemon. A verification with the keys names it,
// and so does the next start or its first checkpoint.
func TestAttacks(t *testing.T) {
	type attack struct {
		name string
		// do changes the log; old is the log as it was at record 20.
		do   func(t *testing.T, d *fixture, ls [][]byte, old map[string][]byte)
		want audit.Bad // Seq, Line and Harm
		// late: the start accepts the log, and the broker does not.
		late bool
	}
	write := func(t *testing.T, d *fixture, ls [][]byte) {
		t.Helper()
		if err := os.WriteFile(d.path, bytes.Join(ls, nil), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range []attack{
		{"one letter", func(t *testing.T, d *fixture, ls [][]byte, _ map[string][]byte) {
			ls[4] = bytes.Replace(ls[4], []byte("uid:1000"), []byte("uid:1001"), 1)
			write(t, d, ls)
		}, audit.Bad{Seq: 5, Line: 5, Harm: audit.Edited}, true},
		{"hashed anew from a record on", func(t *testing.T, d *fixture, ls [][]byte, _ map[string][]byte) {
			write(t, d, relink(ls, 13, 99))
		}, audit.Bad{Seq: 13, Line: 13, Harm: audit.Replaced}, false},
		{"hashed anew, and the stored hashes removed", func(t *testing.T, d *fixture, ls [][]byte, _ map[string][]byte) {
			write(t, d, relink(ls, 13, 99))
			os.Remove(d.file("audit.tree"))
		}, audit.Bad{Seq: 11, Line: 11, Harm: audit.Replaced}, false},
		{"a record taken out, hashed anew", func(t *testing.T, d *fixture, ls [][]byte, _ map[string][]byte) {
			write(t, d, relink(ls, 13, 13)[:len(ls)-1])
		}, audit.Bad{Seq: 13, Line: 13, Harm: audit.Replaced}, false},
		{"a record put in, hashed anew", func(t *testing.T, d *fixture, ls [][]byte, _ map[string][]byte) {
			write(t, d, relink(append(clone(ls), ls[34]), 13, 77))
		}, audit.Bad{Seq: 13, Line: 13, Harm: audit.Replaced}, false},
		{"the end cut off", func(t *testing.T, d *fixture, ls [][]byte, _ map[string][]byte) {
			write(t, d, ls[:32])
		}, audit.Bad{Seq: 33, Line: 33, Harm: audit.Truncated}, false},
		{"emptied", func(t *testing.T, d *fixture, _ [][]byte, _ map[string][]byte) {
			write(t, d, nil)
		}, audit.Bad{Seq: 1, Line: 1, Harm: audit.Truncated}, false},
		{"the end cut off, of log and checkpoints", func(t *testing.T, d *fixture, ls [][]byte, old map[string][]byte) {
			write(t, d, ls[:25])
			os.WriteFile(d.file("checkpoints"), old["checkpoints"], 0o600)
		}, audit.Bad{Seq: 26, Line: 26, Harm: audit.Replayed}, true},
		{"an older copy of all", func(t *testing.T, d *fixture, _ [][]byte, old map[string][]byte) {
			for name, b := range old {
				os.WriteFile(d.file(name), b, 0o600)
			}
		}, audit.Bad{Seq: 21, Line: 21, Harm: audit.Replayed}, true},
		{"a checkpoint changed", func(t *testing.T, d *fixture, _ [][]byte, _ map[string][]byte) {
			b, _ := os.ReadFile(d.file("checkpoints"))
			os.WriteFile(d.file("checkpoints"), bytes.Replace(b, []byte("\n20\n"), []byte("\n19\n"), 1), 0o600)
		}, audit.Bad{Line: 2, Harm: audit.Forged}, true},
		{"checkpoints in another order", func(t *testing.T, d *fixture, _ [][]byte, _ map[string][]byte) {
			b, _ := os.ReadFile(d.file("checkpoints"))
			notes, _ := checkpoint.Split(b)
			notes[0], notes[1] = notes[1], notes[0]
			os.WriteFile(d.file("checkpoints"), append(bytes.Join(notes, []byte("\n")), '\n'), 0o600)
		}, audit.Bad{Line: 2, Harm: audit.Reordered}, true},
		// The attacks from here on use the log's own key.
		{"rewritten and signed with the log's key", func(t *testing.T, d *fixture, ls [][]byte, _ map[string][]byte) {
			ls = relink(ls, 13, 99)
			write(t, d, ls)
			d.resign(t, ls, 10, 20, 30, 35)
		}, audit.Bad{Seq: 1, Line: 1, Harm: audit.Replaced}, true},
		{"rewritten, with the checkpoints before it kept", func(t *testing.T, d *fixture, ls [][]byte, _ map[string][]byte) {
			b, _ := os.ReadFile(d.file("checkpoints"))
			notes, _ := checkpoint.Split(b)
			ls = relink(ls, 33, 99)
			write(t, d, ls)
			d.resign(t, ls, 35)
			mine, _ := os.ReadFile(d.file("checkpoints"))
			os.WriteFile(d.file("checkpoints"), append(append(bytes.Join(notes[:3], []byte("\n")), '\n'), mine...), 0o600)
		}, audit.Bad{Seq: 31, Line: 31, Harm: audit.Replaced}, true},
		{"cut and signed with the log's key", func(t *testing.T, d *fixture, ls [][]byte, _ map[string][]byte) {
			write(t, d, ls[:15])
			d.resign(t, ls, 10, 15)
		}, audit.Bad{Seq: 16, Line: 16, Harm: audit.Replayed}, true},
		{"grown after a rewriting, signed with the log's key", func(t *testing.T, d *fixture, ls [][]byte, _ map[string][]byte) {
			for range 5 {
				ls = append(ls, ls[30])
			}
			ls = relink(ls, 3, 99)
			write(t, d, ls)
			d.resign(t, ls, 10, 20, 30, 40)
		}, audit.Bad{Seq: 1, Line: 1, Harm: audit.Replaced}, true},
	} {
		t.Run(a.name, func(t *testing.T) {
			d := newFixture(t)
			d.fill(t, 20, d.options())
			old := map[string][]byte{}
			for _, name := range []string{"audit.jsonl", "checkpoints", "audit.tree"} {
				old[name], _ = os.ReadFile(d.file(name))
			}
			d.fill(t, 35, d.options())
			ls := lines(t, d.path)
			ls[34] = append(ls[34], '\n')
			a.do(t, d, ls, old)
			v, err := audit.VerifyLog(t.Context(), d.path, d.trust(t))
			if err != nil || v.Bad == nil {
				t.Fatalf("not found: %+v %v", v, err)
			}
			if got := (audit.Bad{Seq: v.Bad.Seq, Line: v.Bad.Line, Harm: v.Bad.Harm}); got != a.want || v.Bad.Detail == "" {
				t.Errorf("found %+v (%s), want %+v", got, v.Bad.Detail, a.want)
			}
			l, err := audit.Open(t.Context(), audit.Options{Path: d.path})
			if errors.Is(err, audit.ErrDamaged) {
				return // the chain shows it
			}
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			c, err := audit.OpenCheckpoints(t.Context(), l, d.options())
			if !a.late {
				if !errors.Is(err, audit.ErrDamaged) {
					t.Errorf("the next start: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			f, err := c.Verify(t.Context())
			if err != nil || f.OK {
				t.Errorf("verified by the daemon: %+v %v", f, err)
			}
		})
	}
}

// read is a log's file that does something before it is read, once.
type read struct {
	audit.File
	before *atomic.Pointer[func()]
}

func (r read) ReadAt(b []byte, off int64) (int, error) {
	if f := r.before.Swap(nil); f != nil {
		(*f)()
	}
	return r.File.ReadAt(b, off)
}

// What the daemon writes while it looks for what others have written is not that.
func TestWrittenWhileItLooks(t *testing.T) {
	d := newFixture(t)
	var before atomic.Pointer[func()]
	o := spread(t)
	o.Path = d.path
	l := open(t, o.Wrap(func(f audit.File) audit.File { return read{f, &before} }))
	c := d.checkpoints(t, l, d.options())
	mustAppend(t, l, intent(0))
	met := 0
	write := func() {
		met++
		mustAppend(t, l, intent(2))
	}
	for range 3 {
		mustAppend(t, l, intent(1))
		before.Store(&write)
		if _, err := c.Make(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if met != 3 {
		t.Errorf("it was met %d times", met)
	}
}

// A record in the file that the running daemon did not write is found and never signed.
func TestForgedAppend(t *testing.T) {
	d := newFixture(t)
	l := open(t, audit.Options{Path: d.path})
	c := d.checkpoints(t, l, d.options())
	for i := range 5 {
		mustAppend(t, l, intent(i))
	}
	mustMake(t, c, 5)
	f, err := os.OpenFile(d.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(audit.Line(intent(99), l.Head().Hash, 6, time.Now())); err != nil {
		t.Fatal(err)
	}
	v, err := c.Verify(t.Context())
	if err != nil || v.OK || v.Harm != string(audit.Appended) || v.BadSeq != 6 {
		t.Errorf("behind the last: %+v %v", v, err)
	}
	if s, err := c.Make(t.Context()); !errors.Is(err, audit.ErrDamaged) || s.Size != 5 {
		t.Errorf("it was signed: %+v %v", s, err)
	}
	if _, err := f.Write(audit.Line(intent(98), l.Head().Hash, 7, time.Now())); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, intent(5)) // takes the place of the first
	if s, err := c.Make(t.Context()); !errors.Is(err, audit.ErrDamaged) || s.Size != 5 {
		t.Errorf("behind the next it was signed: %+v %v", s, err)
	}
	if v, err := c.Verify(t.Context()); err != nil || v.OK || v.Harm != string(audit.Appended) || v.BadSeq != 7 {
		t.Errorf("behind the next: %+v %v", v, err)
	}
	mustAppend(t, l, intent(6))
	mustAppend(t, l, intent(7))
	mustMake(t, c, 8)
	if v, err := c.Verify(t.Context()); err != nil || !v.OK {
		t.Errorf("once the log has taken its place: %+v %v", v, err)
	}
}
