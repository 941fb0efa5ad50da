package broker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// growing is a log of the tests: a tree over what its records say.
type growing struct{ stored []tlog.Hash }

func (g *growing) ReadHashes(at []int64) ([]tlog.Hash, error) {
	var out []tlog.Hash
	for _, i := range at {
		out = append(out, g.stored[i])
	}
	return out, nil
}

func grow(t testing.TB, n int, what string) *growing {
	t.Helper()
	g := &growing{}
	for i := range int64(n) {
		h, err := tlog.StoredHashes(i, fmt.Appendf(nil, "%s %d", what, i), g)
		if err != nil {
			t.Fatal(err)
		}
		g.stored = append(g.stored, h...)
	}
	return g
}

// rewritten is a log that agrees with grow(n, "record") in the first keep records.
func rewritten(t testing.TB, n, keep int) *growing {
	t.Helper()
	g := &growing{}
	for i := range int64(n) {
		what := "record"
		if i >= int64(keep) {
			what = "forged"
		}
		h, err := tlog.StoredHashes(i, fmt.Appendf(nil, "%s %d", what, i), g)
		if err != nil {
			t.Fatal(err)
		}
		g.stored = append(g.stored, h...)
	}
	return g
}

func (g *growing) ask(t testing.TB, origin string, size, old int64) brokerapi.CountersignParams {
	t.Helper()
	root, err := tlog.TreeHash(size, g)
	if err != nil {
		t.Fatal(err)
	}
	p := brokerapi.CountersignParams{Origin: origin, Size: size, Old: old, Root: root.String(), Proof: []string{}}
	if old > 0 && old < size {
		proof, err := tlog.ProveTree(size, old, g)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range proof {
			p.Proof = append(p.Proof, h.String())
		}
	}
	return p
}

const log = "carrel-audit-0123456789abcdef"

func TestCountersign(t *testing.T) {
	r := newRig(t, true)
	g := grow(t, 300, "record")
	var old int64
	var key string
	for _, size := range []int64{1, 2, 3, 7, 7, 8, 100, 300} {
		res, err := call[brokerapi.CountersignResult](t, r.conn, "countersign", g.ask(t, log, size, old))
		if err != nil {
			t.Fatalf("%d after %d: %v", size, old, err)
		}
		keys, err := checkpoint.ParseKeys("", res.Key)
		if err != nil {
			t.Fatal(err)
		}
		s, err := checkpoint.Open([]byte(res.Note), keys)
		if err != nil || !s.Broker || s.Size != size || s.Origin != log || res.Size != size || key != "" && res.Key != key {
			t.Fatalf("%d after %d: %+v %+v %v", size, old, s, res, err)
		}
		old, key = size, res.Key
	}
	// What a daemon says that does not know what it had signed: it is told, and nothing signed.
	res, err := call[brokerapi.CountersignResult](t, r.conn, "countersign", g.ask(t, log, 300, 7))
	if err != nil || res.Note != "" || res.Size != 300 {
		t.Errorf("a proof from elsewhere: %+v %v", res, err)
	}
	for what, p := range map[string]brokerapi.CountersignParams{
		"a smaller tree":                      g.ask(t, log, 299, 0),
		"a smaller tree, known":               g.ask(t, log, 100, 7),
		"another tree of this size":           rewritten(t, 300, 299).ask(t, log, 300, 300),
		"a tree that was rewritten":           rewritten(t, 400, 5).ask(t, log, 400, 300),
		"a tree rewritten in its last record": rewritten(t, 400, 299).ask(t, log, 400, 300),
		"another log":                         grow(t, 400, "record").ask(t, log+"0", 400, 300),
		"another log from the start":          grow(t, 400, "record").ask(t, log+"0", 400, 0),
	} {
		res, err := call[brokerapi.CountersignResult](t, r.conn, "countersign", p)
		if !errdefs.IsFailedPrecondition(err) || res.Note != "" {
			t.Errorf("%s: %+v %v", what, res, err)
		}
	}
	// The connection stands, and the log goes on.
	if _, err := call[brokerapi.CountersignResult](t, r.conn, "countersign", grow(t, 301, "record").ask(t, log, 301, 300)); err != nil {
		t.Error(err)
	}
}

// Key and state outlive the broker, and nobody but root reads the key.
func TestCountersignLasts(t *testing.T) {
	dir := t.TempDir()
	l, err := broker.OpenLedger(openDir(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	g := grow(t, 9, "record")
	root, _ := tlog.TreeHash(5, g)
	five := checkpoint.Checkpoint{Origin: log, Size: 5, Root: root}
	first, _, _, err := l.Audit().Sign(five, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	pub, _ := os.ReadFile(filepath.Join(dir, "audit.pub"))
	l.Close()
	for name, mode := range map[string]os.FileMode{"audit.key": 0o600, "audit.json": 0o600, "audit.pub": 0o600} {
		if fi, err := os.Stat(filepath.Join(dir, name)); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%s: %v %v", name, fi, err)
		}
	}
	// What a crash leaves is passed over.
	if err := os.WriteFile(filepath.Join(dir, "audit.json.new"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err = broker.OpenLedger(openDir(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Audit().Last(); got != five {
		t.Errorf("after a start: %+v", got)
	}
	again, _, known, err := l.Audit().Sign(five, 5, nil)
	if err != nil || !known || string(again) != string(first) {
		t.Errorf("the same again: %q, first %q, %v %v", again, first, known, err)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "audit.pub")); string(b) != string(pub) {
		t.Errorf("another key: %s and %s", pub, b)
	}
	four, _ := tlog.TreeHash(4, g)
	if _, _, _, err := l.Audit().Sign(checkpoint.Checkpoint{Origin: log, Size: 4, Root: four}, 0, nil); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a smaller tree after a start: %v", err)
	}
	l.Close()
	// A state or a key that cannot be read is not passed over.
	for _, name := range []string{"audit.json", "audit.key"} {
		b, _ := os.ReadFile(filepath.Join(dir, name))
		for _, bad := range []string{"", "{}", strings.Repeat("x", 5000)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(bad), 0o600); err != nil {
				t.Fatal(err)
			}
			if l, err := broker.OpenLedger(openDir(t, dir)); err == nil {
				l.Close()
				t.Errorf("%s of %.10q was taken", name, bad)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// FuzzCountersign asks for a tree with a proof made of what the fuzzer gives: nothing is
// signed that does not begin with what was signed before.
func FuzzCountersign(f *testing.F) {
	f.Add(uint64(1), uint16(5), uint16(9), uint16(9), uint8(0))
	f.Add(uint64(2), uint16(5), uint16(9), uint16(3), uint8(1))
	f.Add(uint64(3), uint16(64), uint16(64), uint16(63), uint8(0))
	f.Add(uint64(4), uint16(300), uint16(5), uint16(300), uint8(7))
	f.Fuzz(func(t *testing.T, seed uint64, first, second, keep uint16, spoil uint8) {
		dir, err := os.MkdirTemp("/dev/shm", "broker-fuzz")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		d, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		c, err := broker.OpenCountersigner(d)
		if err != nil {
			t.Fatal(err)
		}
		a, b := int64(first%200)+1, int64(second%200)+1
		one, two := grow(t, int(a), "record"), rewritten(t, int(b), int(keep%200))
		rootA, _ := tlog.TreeHash(a, one)
		if _, _, _, err := c.Sign(checkpoint.Checkpoint{Origin: log, Size: a, Root: rootA}, 0, nil); err != nil {
			t.Fatal(err)
		}
		rootB, _ := tlog.TreeHash(b, two)
		var proof tlog.TreeProof
		if a < b {
			if proof, err = tlog.ProveTree(b, a, two); err != nil {
				t.Fatal(err)
			}
		}
		rnd := rand.New(rand.NewPCG(seed, 0))
		for range spoil % 4 {
			switch i := rnd.IntN(len(proof) + 1); {
			case i == len(proof):
				proof = append(proof, rootA)
			case rnd.IntN(2) == 0:
				proof = proof[:i]
			default:
				proof[i][rnd.IntN(32)] ^= 1
			}
		}
		signed, _, known, err := c.Sign(checkpoint.Checkpoint{Origin: log, Size: b, Root: rootB}, a, proof)
		honest := b >= a && int64(keep%200) >= a
		if b == a && rootA != rootB {
			honest = false
		}
		if (signed != nil) != (err == nil && known) || signed != nil && !honest {
			t.Fatalf("from %d to %d with %d kept: signed %q, %v %v", a, b, keep%200, signed, known, err)
		}
		if err != nil && !errors.Is(err, errdefs.ErrFailedPrecondition) {
			t.Fatal(err)
		}
		if honest && spoil%4 == 0 && signed == nil {
			t.Fatalf("from %d to %d was refused: %v", a, b, err)
		}
		if signed == nil && c.Last().Size != a {
			t.Fatalf("what was refused is the last: %+v", c.Last())
		}
	})
}
