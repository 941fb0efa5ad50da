package audit_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

var testTime = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

// makeChain returns n valid lines.
func makeChain(n int) [][]byte {
	prev := audit.Genesis
	var all [][]byte
	for i := range n {
		line := audit.Line(intent(i), prev, int64(i+1), testTime)
		prev = string(line[9:73])
		all = append(all, line)
	}
	return all
}

func headOf(line []byte) audit.Head {
	r, err := audit.Decode(line)
	if err != nil {
		panic(err)
	}
	return audit.Head{Seq: r.Seq, Hash: r.Hash}
}

func clone(ls [][]byte) [][]byte {
	out := make([][]byte, len(ls))
	for i, l := range ls {
		out[i] = bytes.Clone(l)
	}
	return out
}

func TestVerifyNamesTheHarm(t *testing.T) {
	const n = 12
	all := makeChain(n)
	size := len(all[0]) // lines 1 to 9 are of one length
	relink := func(ls [][]byte, from int) [][]byte {
		prev := string(ls[from-1][9:73])
		for i := from; i < len(ls); i++ {
			ls[i] = audit.Line(intent(i), prev, int64(i+1), testTime)
			prev = string(ls[i][9:73])
		}
		return ls
	}
	for name, c := range map[string]struct {
		change func(ls [][]byte) [][]byte
		expect audit.Head
		want   audit.Bad
	}{
		"whole":                   {func(ls [][]byte) [][]byte { return ls }, audit.Head{}, audit.Bad{}},
		"whole, head expected":    {func(ls [][]byte) [][]byte { return ls }, headOf(all[n-1]), audit.Bad{}},
		"whole, earlier expected": {func(ls [][]byte) [][]byte { return ls }, headOf(all[3]), audit.Bad{}},
		"empty":                   {func([][]byte) [][]byte { return nil }, audit.Head{}, audit.Bad{}},
		"one letter changed": {func(ls [][]byte) [][]byte {
			ls[4] = bytes.Replace(ls[4], []byte("uid:1000"), []byte("uid:1001"), 1)
			return ls
		}, audit.Head{}, audit.Bad{Seq: 5, Line: 5, Harm: audit.Edited}},
		"hash changed": {func(ls [][]byte) [][]byte {
			ls[4][9] ^= 1
			return ls
		}, audit.Head{}, audit.Bad{Seq: 5, Line: 5, Harm: audit.Edited}},
		"edited and hashed anew": {func(ls [][]byte) [][]byte {
			ls[4] = audit.Line(intent(99), string(ls[3][9:73]), 5, testTime)
			return ls
		}, audit.Head{}, audit.Bad{Seq: 6, Line: 6, Harm: audit.Replaced}},
		"all after it hashed anew": {func(ls [][]byte) [][]byte {
			ls[4] = audit.Line(intent(99), string(ls[3][9:73]), 5, testTime)
			return relink(ls, 5)
		}, headOf(all[n-1]), audit.Bad{Seq: n, Line: n, Harm: audit.Replaced}},
		"deleted": {func(ls [][]byte) [][]byte {
			return append(ls[:4], ls[6:]...)
		}, audit.Head{}, audit.Bad{Seq: 5, Line: 5, Harm: audit.Deleted}},
		"swapped": {func(ls [][]byte) [][]byte {
			ls[4], ls[5] = ls[5], ls[4]
			return ls
		}, audit.Head{}, audit.Bad{Seq: 5, Line: 5, Harm: audit.Reordered}},
		"moved to the end": {func(ls [][]byte) [][]byte {
			moved := ls[4]
			return append(append(ls[:4:4], ls[5:]...), moved)
		}, audit.Head{}, audit.Bad{Seq: 5, Line: 5, Harm: audit.Reordered}},
		"repeated": {func(ls [][]byte) [][]byte {
			return append(ls[:5:5], append([][]byte{ls[4]}, ls[5:]...)...)
		}, audit.Head{}, audit.Bad{Seq: 5, Line: 6, Harm: audit.Inserted}},
		"inserted with a taken number": {func(ls [][]byte) [][]byte {
			forged := audit.Line(intent(99), string(ls[4][9:73]), 5, testTime)
			return append(ls[:5:5], append([][]byte{forged}, ls[5:]...)...)
		}, audit.Head{}, audit.Bad{Seq: 5, Line: 6, Harm: audit.Inserted}},
		"inserted with the next number": {func(ls [][]byte) [][]byte {
			forged := audit.Line(intent(99), string(ls[4][9:73]), 6, testTime)
			return append(ls[:5:5], append([][]byte{forged}, ls[5:]...)...)
		}, audit.Head{}, audit.Bad{Seq: 6, Line: 7, Harm: audit.Inserted}},
		"front cut off": {
			func(ls [][]byte) [][]byte { return ls[3:] },
			audit.Head{},
			audit.Bad{Seq: 1, Line: 1, Harm: audit.TruncatedFront},
		},
		"front forged": {func(ls [][]byte) [][]byte {
			ls[0] = audit.Line(intent(0), strings.Repeat("a", 64), 1, testTime)
			return ls
		}, audit.Head{}, audit.Bad{Seq: 1, Line: 1, Harm: audit.Replaced}},
		"end cut off": {
			func(ls [][]byte) [][]byte { return ls[:5] },
			headOf(all[n-1]),
			audit.Bad{Seq: 6, Line: 6, Harm: audit.Truncated},
		},
		"emptied": {
			func([][]byte) [][]byte { return nil },
			headOf(all[n-1]),
			audit.Bad{Seq: 1, Line: 1, Harm: audit.Truncated},
		},
		"torn": {
			func(ls [][]byte) [][]byte { ls[8] = ls[8][:50]; return ls[:9] },
			audit.Head{},
			audit.Bad{Seq: 9, Line: 9, Harm: audit.Torn},
		},
		"no last newline": {
			func(ls [][]byte) [][]byte { ls[8] = ls[8][:size-1]; return ls[:9] },
			audit.Head{},
			audit.Bad{Seq: 9, Line: 9, Harm: audit.Torn},
		},
		"not JSON": {
			func(ls [][]byte) [][]byte { ls[4] = []byte("hello\n"); return ls },
			audit.Head{},
			audit.Bad{Seq: 5, Line: 5, Harm: audit.NotJSON},
		},
		"binary": {
			func(ls [][]byte) [][]byte { ls[4] = bytes.Repeat([]byte{0}, 4096); return ls },
			audit.Head{},
			audit.Bad{Seq: 5, Line: 5, Harm: audit.NotJSON},
		},
		"empty line": {
			func(ls [][]byte) [][]byte { ls[4] = []byte("\n"); return ls },
			audit.Head{},
			audit.Bad{Seq: 5, Line: 5, Harm: audit.NotJSON},
		},
		"other JSON": {
			func(ls [][]byte) [][]byte { ls[4] = []byte(`{"seq":5}` + "\n"); return ls },
			audit.Head{},
			audit.Bad{Seq: 5, Line: 5, Harm: audit.NotRecord},
		},
		"too long": {func(ls [][]byte) [][]byte {
			r := intent(4)
			r.Error = strings.Repeat("x", audit.MaxRecord)
			ls[4] = audit.Line(r, string(ls[3][9:73]), 5, testTime)
			return ls
		}, audit.Head{}, audit.Bad{Seq: 5, Line: 5, Harm: audit.NotRecord}},
		"endless line": {func(ls [][]byte) [][]byte {
			return append(ls[:8:8], bytes.Repeat([]byte("x"), 5<<20))
		}, audit.Head{}, audit.Bad{Seq: 9, Line: 9, Harm: audit.NotRecord}},
		"a name twice, well hashed": {func(ls [][]byte) [][]byte {
			r := intent(4)
			r.Action = json.RawMessage(`{"a\":":[1,"\\"]},"seq":9`)
			ls[4] = audit.Line(r, string(ls[3][9:73]), 5, testTime)
			return ls
		}, audit.Head{}, audit.Bad{Seq: 5, Line: 5, Harm: audit.NotRecord}},
		"an escaped name, well hashed": {func(ls [][]byte) [][]byte {
			r := intent(4)
			r.Action = json.RawMessage(`{} , "s\u0065q" :9`)
			ls[4] = audit.Line(r, string(ls[3][9:73]), 5, testTime)
			return ls
		}, audit.Head{}, audit.Bad{Seq: 5, Line: 5, Harm: audit.NotRecord}},
		"names inside an action, twice": {func(ls [][]byte) [][]byte {
			r := intent(n - 1)
			r.Action = json.RawMessage(`{"seq":1,"SEQ":[{"seq":2}],"a\":":"\\","x":"\",\"seq\":3"}`)
			ls = append(ls, audit.Line(r, string(ls[n-1][9:73]), n+1, testTime))
			return ls
		}, audit.Head{}, audit.Bad{}},
		"invalid JSON, well hashed": {func(ls [][]byte) [][]byte {
			r := intent(4)
			r.Action = json.RawMessage(`{"kind":}`)
			ls[4] = audit.Line(r, string(ls[3][9:73]), 5, testTime)
			return ls
		}, audit.Head{}, audit.Bad{Seq: 5, Line: 5, Harm: audit.NotJSON}},
	} {
		t.Run(name, func(t *testing.T) {
			changed := bytes.Join(c.change(clone(all)), nil)
			v, err := audit.Verify(t.Context(), bytes.NewReader(changed), c.expect)
			if err != nil {
				t.Fatal(err)
			}
			if c.want.Harm == "" {
				if v.Bad != nil {
					t.Errorf("found %+v in a chain that holds", *v.Bad)
				}
				if v.Bytes != int64(len(changed)) || (v.Records == n && v.Head != headOf(all[n-1])) {
					t.Errorf("verdict %+v", v)
				}
				return
			}
			if v.Bad == nil {
				t.Fatalf("nothing found, want %+v", c.want)
			}
			if v.Bad.Detail == "" || v.Bad.Offset < 0 || v.Bad.Offset > int64(len(changed)) {
				t.Errorf("no detail or a wrong position: %+v", v.Bad)
			}
			if o := int(v.Bad.Offset); bytes.Count(changed[:o], []byte("\n"))+1 != int(v.Bad.Line) {
				t.Errorf("offset %d is not the start of line %d", o, v.Bad.Line)
			}
			got := *v.Bad
			got.Detail, got.Offset = "", 0
			if got != c.want {
				t.Errorf("found %+v (%s), want %+v", got, v.Bad.Detail, c.want)
			}
		})
	}
}

// Every changed, dropped or doubled byte is found.
func TestVerifyFindsEveryByte(t *testing.T) {
	whole := bytes.Join(makeChain(2), nil)
	last := len(whole) - 1
	for i := range whole {
		for name, b := range map[string][]byte{
			"changed": append(append(bytes.Clone(whole[:i]), whole[i]^0x20), whole[i+1:]...),
			"dropped": append(bytes.Clone(whole[:i]), whole[i+1:]...),
			"doubled": append(bytes.Clone(whole[:i+1]), whole[i:]...),
		} {
			if v, err := audit.Verify(t.Context(), bytes.NewReader(b), audit.Head{}); err != nil || v.Bad == nil {
				t.Fatalf("byte %d of %d %s: not found (%v)", i, last, name, err)
			}
		}
	}
}

func TestVerifyLongChainInSmallReads(t *testing.T) {
	all := makeChain(8000) // several blocks
	whole := bytes.Join(all, nil)
	for name, r := range map[string]io.Reader{
		"whole": bytes.NewReader(whole), "half reads": iotest.HalfReader(bytes.NewReader(whole)),
		"data with error": iotest.DataErrReader(bytes.NewReader(whole)),
	} {
		v, err := audit.Verify(t.Context(), r, headOf(all[len(all)-1]))
		if err != nil || v.Bad != nil || v.Records != int64(len(all)) {
			t.Errorf("%s: %+v %v", name, v, err)
		}
	}
	// The first of two harms is reported, whichever block is checked first.
	whole[len(whole)/3] ^= 1
	whole[len(whole)-10] ^= 1
	v, err := audit.Verify(t.Context(), bytes.NewReader(whole), audit.Head{})
	if err != nil || v.Bad == nil || v.Bad.Offset > int64(len(whole)/3) || v.Bad.Offset < int64(len(whole)/3-1000) {
		t.Errorf("%+v %v", v.Bad, err)
	}
}

func TestVerifyReportsReadErrors(t *testing.T) {
	broken := errors.New("disk on fire")
	_, err := audit.Verify(t.Context(), io.MultiReader(bytes.NewReader(makeChain(1)[0]), iotest.ErrReader(broken)), audit.Head{})
	if !errors.Is(err, broken) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := audit.Verify(ctx, bytes.NewReader(bytes.Join(makeChain(100), nil)), audit.Head{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// reference implements the specification in the simplest way: one line after the other,
// with encoding/json and without the package's own parsing. It returns the number of valid
// records and whether all are.
func reference(b []byte) (good int64, ok bool) {
	prev := audit.Genesis
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i < 0 || i+1 > audit.MaxRecord {
			return good, false
		}
		line := b[:i]
		b = b[i+1:]
		var r struct {
			Hash     string `json:"hash"`
			PrevHash string `json:"prev_hash"`
			Seq      int64  `json:"seq"`
			Time     string `json:"time"`
		}
		if !json.Valid(line) || json.Unmarshal(line, &r) != nil || len(line) < 75 {
			return good, false
		}
		if !bytes.HasPrefix(line, []byte(`{"hash":"`)) || string(line[73:75]) != `",` {
			return good, false
		}
		sum := sha256.Sum256(line[75:])
		if string(line[9:73]) != hex.EncodeToString(sum[:]) || r.PrevHash != prev || r.Seq != good+1 {
			return good, false
		}
		prev = string(line[9:73])
		good++
	}
	return good, true
}

func FuzzVerify(f *testing.F) {
	all := makeChain(3)
	f.Add(bytes.Join(all, nil))
	f.Add(bytes.Join(all[1:], nil))
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := audit.Verify(t.Context(), bytes.NewReader(b), audit.Head{})
		if err != nil {
			t.Fatal(err)
		}
		good, ok := reference(b)
		// A chain that is bad for the reference must not pass. The package is stricter
		// (order of the first fields): it may refuse lines that the reference accepts,
		// but only because of their form.
		if v.Bad == nil && (!ok || v.Records != good) {
			t.Fatalf("verify accepts %d records, the reference %d (%v)", v.Records, good, ok)
		}
		if v.Bad != nil && ok && v.Bad.Harm != audit.NotRecord {
			t.Fatalf("verify found %+v where the reference finds nothing", v.Bad)
		}
		if v.Bad != nil && (v.Bad.Offset > int64(len(b)) || v.Bad.Line < 1 || v.Bad.Detail == "") {
			t.Fatalf("bad position: %+v", v.Bad)
		}
	})
}

// FuzzEdit changes one part of a valid chain; Verify must notice.
func FuzzEdit(f *testing.F) {
	f.Add(uint32(100), uint16(1), []byte("x"))
	f.Add(uint32(0), uint16(0), []byte("{}\n"))
	f.Add(uint32(1300), uint16(60), []byte{})
	whole := bytes.Join(makeChain(6), nil)
	f.Fuzz(func(t *testing.T, at uint32, cut uint16, put []byte) {
		i := int(at) % (len(whole) + 1)
		j := min(i+int(cut), len(whole))
		b := append(append(bytes.Clone(whole[:i]), put...), whole[j:]...)
		v, err := audit.Verify(t.Context(), bytes.NewReader(b), audit.Head{})
		if err != nil {
			t.Fatal(err)
		}
		if v.Bad == nil && !bytes.HasPrefix(whole, b) {
			t.Fatalf("an edit at %d (%d bytes cut, %q put) went unnoticed", i, j-i, put)
		}
	})
}
