package root_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

// An administrator who changes the record: each kind of harm, done to a copy of a real
// log, is named with the first record that it touches.
func TestHarmToTheRecordIsNamed(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	for range 5 {
		d.sh(t, "true")
	}
	h.settled(t)
	h.carrel(t, "audit", "verify")
	original, err := h.readRecord()
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(bytes.TrimSuffix(original, []byte("\n")), []byte("\n"))
	lines[len(lines)-1] = append(bytes.Clone(lines[len(lines)-1]), '\n')
	n := len(lines)
	if n < 12 {
		t.Fatalf("only %d records", n)
	}
	if mode := fileMode(t, h.auditLog()); mode != 0o600 {
		t.Errorf("the log has mode %o", mode)
	}
	if mode := fileMode(t, filepath.Dir(h.auditLog())); mode != 0o700 {
		t.Errorf("its directory has mode %o", mode)
	}
	// The last record, as somebody who kept a checkpoint knows it.
	whole, err := audit.VerifyFile(t.Context(), h.auditLog(), audit.Head{})
	if err != nil || whole.Bad != nil {
		t.Fatalf("%+v, %v", whole, err)
	}
	with := func(change func(l [][]byte) [][]byte) []byte {
		l := make([][]byte, n)
		for i := range lines {
			l[i] = bytes.Clone(lines[i])
		}
		return bytes.Join(change(l), nil)
	}
	swap := func(old, new string) func(l [][]byte) [][]byte {
		return func(l [][]byte) [][]byte {
			for i := range l {
				if b := bytes.Replace(l[i], []byte(old), []byte(new), 1); i >= 5 && !bytes.Equal(b, l[i]) {
					l[i] = b
					return l
				}
			}
			t.Fatalf("%q is nowhere", old)
			return nil
		}
	}
	for _, c := range []struct {
		name   string
		change func(l [][]byte) [][]byte
		seq    int64 // 0: any
		harm   []audit.Harm
	}{
		{"nothing", func(l [][]byte) [][]byte { return l }, 0, nil},
		{"an argument edited", swap(`"true"`, `"tree"`), 0, []audit.Harm{audit.Edited}},
		{"a principal edited", swap(`"uid:0"`, `"uid:9"`), 0, []audit.Harm{audit.Edited}},
		{"an outcome edited", swap(`"status":"ok"`, `"status":"no"`), 0, []audit.Harm{audit.Edited}},
		{"a space added", swap(`"type":`, `"type": `), 0, []audit.Harm{audit.Edited}},
		{"a hash edited", func(l [][]byte) [][]byte { l[6][12] ^= 1; return l }, 7, []audit.Harm{audit.Edited}},
		{"one deleted", func(l [][]byte) [][]byte { return append(l[:6:6], l[7:]...) }, 0, []audit.Harm{audit.Deleted}},
		{"several deleted", func(l [][]byte) [][]byte { return append(l[:4:4], l[9:]...) }, 0, []audit.Harm{audit.Deleted}},
		{"two exchanged", func(l [][]byte) [][]byte { l[6], l[7] = l[7], l[6]; return l }, 0, []audit.Harm{audit.Reordered, audit.Deleted}},
		{"one doubled", func(l [][]byte) [][]byte { return append(l[:7:7], l[6:]...) }, 0, []audit.Harm{audit.Inserted}},
		{"one inserted", func(l [][]byte) [][]byte {
			forged := append(bytes.Clone(lines[6][:75]), bytes.Replace(lines[6][75:], []byte(`"seq":`), []byte(`"seq":9`), 1)...)
			return append(append(l[:7:7], forged), l[7:]...)
		}, 0, []audit.Harm{audit.Edited, audit.Inserted}},
		{"the front cut off", func(l [][]byte) [][]byte { return l[5:] }, 0, []audit.Harm{audit.TruncatedFront}},
		{"the end cut off", func(l [][]byte) [][]byte { return l[:n-2] }, 0, []audit.Harm{audit.Truncated}},
		{"all but nothing left", func([][]byte) [][]byte { return nil }, 0, []audit.Harm{audit.Truncated}},
		{"the last line torn", func(l [][]byte) [][]byte { l[n-1] = l[n-1][:40]; return l }, 0, []audit.Harm{audit.Torn}},
		{"a line of noise", func(l [][]byte) [][]byte { l[6] = []byte("noise\n"); return l }, 0, []audit.Harm{audit.NotJSON, audit.NotRecord}},
		{"an empty line", func(l [][]byte) [][]byte { return append(append(l[:6:6], []byte("\n")), l[6:]...) }, 0, []audit.Harm{
			audit.NotJSON, audit.NotRecord,
		}},
		// Its successor does not name it: one of the two was replaced.
		{"another log's record", func(l [][]byte) [][]byte {
			other, err := os.ReadFile(shared.auditLog())
			if err != nil {
				t.Fatal(err)
			}
			l[0] = bytes.SplitAfter(other, []byte("\n"))[0]
			return l
		}, 0, []audit.Harm{audit.Replaced, audit.Edited}},
	} {
		copied := filepath.Join(t.TempDir(), "audit.jsonl")
		text := with(c.change)
		if err := os.WriteFile(copied, text, 0o600); err != nil {
			t.Fatal(err)
		}
		v, err := audit.VerifyFile(t.Context(), copied, whole.Head)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if c.harm == nil {
			if v.Bad != nil {
				t.Errorf("%s: %+v", c.name, v.Bad)
			}
			continue
		}
		if v.Bad == nil {
			t.Errorf("%s: unseen", c.name)
			continue
		}
		// What comes before the first bad record is as it was.
		if !bytes.HasPrefix(original, text[:v.Bytes]) && c.name != "the front cut off" && v.Bad.Harm != audit.Replaced {
			t.Errorf("%s: the first bad record stands before %+v", c.name, v.Bad)
		}
		if first := firstDifference(original, text); v.Bad.Line != first && v.Bad.Harm != audit.Truncated &&
			(v.Bad.Harm != audit.Replaced || v.Bad.Line != first+1) {
			t.Errorf("%s: line %d is named, %d is the first that is not as it was", c.name, v.Bad.Line, first)
		}
		known := false
		for _, harm := range c.harm {
			known = known || v.Bad.Harm == harm
		}
		if !known || c.seq != 0 && v.Bad.Seq != c.seq {
			t.Errorf("%s: %+v, want %v", c.name, v.Bad, c.harm)
		}
		t.Logf("%s: %s: %s", c.name, v.Bad.Harm, v.Bad.Detail)
	}

	// In the daemon's own eyes, while it runs: the same words, over the API.
	if err := writeThrough(h.auditLog(), with(swap(`"true"`, `"tree"`))); err != nil {
		t.Fatal(err)
	}
	if r := h.try(nil, "", "audit", "verify"); r.code != 1 || !strings.Contains(r.out, "edited") {
		t.Errorf("%+v", r)
	}
	if err := writeThrough(h.auditLog(), original); err != nil {
		t.Fatal(err)
	}
	h.carrel(t, "audit", "verify")
}

// firstDifference is the number of the first line that differs.
func firstDifference(a, b []byte) int64 {
	x, y := bytes.SplitAfter(a, []byte("\n")), bytes.SplitAfter(b, []byte("\n"))
	for i := range min(len(x), len(y)) {
		if !bytes.Equal(x[i], y[i]) {
			return int64(i + 1)
		}
	}
	return int64(min(len(x), len(y)))
}

// writeThrough replaces the content of a file that somebody has open.
func writeThrough(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(content)
	return err
}

// What was appended after a daemon ended well keeps the next from starting, torn or whole.
func TestARecordBehindAnEnd(t *testing.T) {
	h := newHostFor(t)
	h.carrel(t, append([]string{"down"}, h.flags()...)...)
	before, err := h.readRecord()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.auditLog(), append(slices.Clone(before), `{"hash":"00112233`...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.up(); err == nil || !strings.Contains(err.Error(), "forged append") {
		t.Errorf("with something behind the end: %v", err)
	}
	if err := os.WriteFile(h.auditLog(), before, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	h.carrel(t, "audit", "verify")
}

// A record that a crash tore is cut off, and a record says so. One that was whole and
// is missing, or was edited, keeps the daemon from starting as if nothing had been.
func TestATornRecordIsRepairedByARecord(t *testing.T) {
	h := newHostFor(t)
	h.desk(t).sh(t, "true")
	h.settled(t)
	// It tears a record only by not coming to its end: what stands behind a daemon that did
	// is a forged append, as TestARecordBehindAnEnd has it.
	kill(t, h.part(t, "daemon"))
	f, err := os.OpenFile(h.auditLog(), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	const torn = `{"hash":"00112233`
	if _, err := f.WriteAt([]byte(torn), int64(h.mark(t))); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	mark := h.mark(t) - len(torn)
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	h.recorded(t, mark, `"type":"repair"`, fmt.Sprintf(`"cut_bytes":%d`, len(torn)))
	h.carrel(t, "audit", "verify")
}
