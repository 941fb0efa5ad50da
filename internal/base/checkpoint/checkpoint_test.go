package checkpoint_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
)

// tree is the tree of a log in memory.
type tree []tlog.Hash

func (t tree) ReadHashes(at []int64) ([]tlog.Hash, error) {
	var out []tlog.Hash
	for _, i := range at {
		out = append(out, t[i])
	}
	return out, nil
}

func line(i int64) []byte { return fmt.Appendf(nil, `{"seq":%d}`, i+1) }

func grown(tb testing.TB, n int64) tree {
	tb.Helper()
	var t tree
	for i := range n {
		h, err := tlog.StoredHashes(i, line(i), t)
		if err != nil {
			tb.Fatal(err)
		}
		t = append(t, h...)
	}
	return t
}

func key(tb testing.TB, name string) (note.Signer, string) {
	tb.Helper()
	secret, public, err := checkpoint.NewKey(rand.Reader, name)
	if err != nil {
		tb.Fatal(err)
	}
	s, err := note.NewSigner(secret)
	if err != nil {
		tb.Fatal(err)
	}
	if again, err := checkpoint.Public(secret); err != nil || again != public {
		tb.Fatalf("the public key of %s is %q, not %q: %v", name, public, again, err)
	}
	return s, public
}

func sign(tb testing.TB, c checkpoint.Checkpoint, signers ...note.Signer) []byte {
	tb.Helper()
	var all []byte
	for _, s := range signers {
		b, err := checkpoint.Sign(c, s)
		if err == nil && all != nil {
			b, err = checkpoint.Join(all, b)
		}
		if err != nil {
			tb.Fatal(err)
		}
		all = b
	}
	return all
}

func TestSignatures(t *testing.T) {
	log, logKey := key(t, "carrel-audit-1")
	broker, brokerKey := key(t, "carrel-broker-1")
	forger, _ := key(t, "carrel-broker-1")
	root, _ := tlog.TreeHash(5, grown(t, 5))
	c := checkpoint.Checkpoint{Origin: log.Name(), Size: 5, Root: root}
	keys, err := checkpoint.ParseKeys(logKey+"\n", brokerKey)
	if err != nil {
		t.Fatal(err)
	}
	for what, x := range map[string]struct {
		note        []byte
		ok          bool
		log, broker bool
	}{
		"both":             {sign(t, c, log, broker), true, true, true},
		"the log":          {sign(t, c, log), true, true, false},
		"the broker":       {sign(t, c, broker), true, false, true},
		"a forger":         {sign(t, c, forger), false, false, false},
		"log and a forger": {sign(t, c, log, forger), true, true, false},
		"nobody":           {[]byte(c.Text() + "\n"), false, false, false},
		"another size":     {bytes.Replace(sign(t, c, log, broker), []byte("\n5\n"), []byte("\n6\n"), 1), false, false, false},
		"nothing":          {nil, false, false, false},
	} {
		s, err := checkpoint.Open(x.note, keys)
		if (err == nil) != x.ok || s.Log != x.log || s.Broker != x.broker {
			t.Errorf("signed by %s: %+v %v", what, s, err)
		}
		if err == nil && s.Checkpoint != c {
			t.Errorf("signed by %s: %+v", what, s)
		}
	}
	if _, err := checkpoint.Open(sign(t, c, log), checkpoint.Keys{}); err == nil {
		t.Error("believed without a key")
	}
	if _, err := checkpoint.Join(sign(t, c, log), sign(t, checkpoint.Checkpoint{Origin: "x", Size: 1}, broker)); err == nil {
		t.Error("joined notes on two texts")
	}
}

func TestSplitLeavesWhatIsTorn(t *testing.T) {
	log, _ := key(t, "log")
	one := append(sign(t, checkpoint.Checkpoint{Origin: "log", Size: 1}, log), '\n')
	two := append(sign(t, checkpoint.Checkpoint{Origin: "log", Size: 2}, log, log), '\n')
	all := append(bytes.Clone(one), two...)
	for n := range len(all) + 1 {
		notes, whole := checkpoint.Split(all[:n])
		want := 0
		if n >= len(one) {
			want = 1
		}
		if n == len(all) {
			want = 2
		}
		if len(notes) != want || whole != []int{0, len(one), len(all)}[want] {
			t.Fatalf("of %d bytes: %d notes in %d", n, len(notes), whole)
		}
	}
}

// The proof of each record of each tree is valid for that record only.
func TestProofs(t *testing.T) {
	log, public := key(t, "log")
	keys, err := checkpoint.ParseKeys(public, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int64{1, 2, 3, 8, 13} {
		g := grown(t, n)
		root, _ := tlog.TreeHash(n, g)
		signed := sign(t, checkpoint.Checkpoint{Origin: "log", Size: n, Root: root}, log)
		for i := range n {
			hashes, err := tlog.ProveRecord(n, i, g)
			if err != nil {
				t.Fatal(err)
			}
			p := checkpoint.Proof{Line: line(i), Index: i, Hashes: hashes, Note: signed}
			text := p.Marshal()
			again, err := checkpoint.ParseProof(text)
			if err != nil || string(again.Marshal()) != string(text) {
				t.Fatalf("%s\n%v", text, err)
			}
			if s, err := again.Check(keys); err != nil || s.Size != n {
				t.Errorf("%d of %d: %v", i, n, err)
			}
			for what, bad := range map[string]checkpoint.Proof{
				"another line":              {line(i + 1), i, hashes, signed},
				"another index":             {line(i), i + 1, hashes, signed},
				"an index of a larger tree": {line(i), n, hashes, signed},
				"a hash more":               {line(i), i, append(slices.Clip(hashes), root), signed},
				"no note":                   {line(i), i, hashes, nil},
			} {
				if _, err := bad.Check(keys); err == nil {
					t.Errorf("%s was believed at %d of %d", what, i, n)
				}
			}
			if bytes.Contains(text, []byte("\n\n\n")) || strings.Count(string(text), "\n\n") != 2 {
				t.Errorf("form:\n%s", text)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	log, _ := key(f, "log")
	root, _ := tlog.TreeHash(3, grown(f, 3))
	signed := sign(f, checkpoint.Checkpoint{Origin: "log", Size: 3, Root: root}, log)
	hashes, _ := tlog.ProveRecord(3, 1, grown(f, 3))
	f.Add(signed)
	f.Add(append(append(bytes.Clone(signed), '\n'), signed...))
	f.Add(checkpoint.Proof{Line: line(1), Index: 1, Hashes: hashes, Note: signed}.Marshal())
	f.Add([]byte("log\n-1\nAAAA\n"))
	_, public := key(f, "log")
	keys, err := checkpoint.ParseKeys(public, "") // of a key that signed nothing
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := checkpoint.ParseText(string(b)); err == nil && c.Text() != string(b) {
			t.Errorf("%q is read as %q", b, c.Text())
		}
		if p, err := checkpoint.ParseProof(b); err == nil {
			if string(p.Marshal()) != string(b) {
				t.Errorf("%q is read as %q", b, p.Marshal())
			}
			if _, err := p.Check(keys); err == nil {
				t.Error("believed")
			}
		}
		if _, err := checkpoint.Open(b, keys); err == nil {
			t.Error("believed")
		}
		notes, whole := checkpoint.Split(b)
		n := 0
		for _, one := range notes {
			n += len(one) + 1
		}
		if n != whole || whole > len(b) {
			t.Errorf("%d notes of %d bytes in %d", len(notes), n, whole)
		}
		_, _ = checkpoint.Public(string(b))
		_, _ = checkpoint.ParseKeys(string(b), "")
	})
}
