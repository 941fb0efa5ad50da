package mcp_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unicode/utf8"

	"github.com/carrel-dev/carrel/internal/surface/mcp"
)

// What is kept is what was written, but for the middle of what is long.
func TestKept(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, total := range []int{0, 1, mcp.KeptHead, mcp.KeptHead + 1, mcp.KeptHead + mcp.KeptTail, mcp.KeptHead + mcp.KeptTail + 1, 1 << 20} {
		for _, most := range []int{1 << 10, 100 << 10, 600 << 10} {
			var k mcp.Kept
			all := make([]byte, total)
			for i := range all {
				all[i] = byte(r.Uint32())
			}
			for rest := all; len(rest) > 0; {
				n := min(len(rest), 1+r.IntN(most))
				_, _ = k.Write(rest[:n])
				rest = rest[n:]
			}
			for range 300 {
				offset, length := r.IntN(total+2), 1+r.IntN(200<<10)
				b, from := mcp.At(&k, int64(offset), length)
				switch {
				case from < int64(offset) && offset <= total, from > int64(total), len(b) > length:
					t.Fatalf("%d of %d at %d: %d bytes from %d", length, total, offset, len(b), from)
				case !bytes.Equal(b, all[from:int(from)+len(b)]):
					t.Fatalf("%d of %d at %d: other bytes from %d", length, total, offset, from)
				case from > int64(offset) && (offset < mcp.KeptHead || total <= mcp.KeptHead+mcp.KeptTail || int(from) != total-mcp.KeptTail):
					t.Fatalf("%d of %d at %d: it begins at %d", length, total, offset, from)
				case len(b) == 0 && offset < total:
					t.Fatalf("%d of %d at %d: nothing", length, total, offset)
				case total <= mcp.KeptHead+mcp.KeptTail && offset < total && len(b) != min(length, total-offset):
					t.Fatalf("%d of %d at %d: %d bytes", length, total, offset, len(b))
				}
			}
		}
	}
}

// Text is cut between characters.
func FuzzWhole(f *testing.F) {
	for _, s := range []string{"", "a", "é", "é\xc3", "€\xe2\x82", "𝄞\xf0\x9d\x84", "\x80\x80", "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		w := mcp.Whole(b)
		if !bytes.HasPrefix(b, w) || len(b)-len(w) >= utf8.UTFMax {
			t.Fatalf("%q: %q", b, w)
		}
		if utf8.Valid(b) && len(w) != len(b) {
			t.Fatalf("%q is whole: %q", b, w)
		}
		for i := range b { // the beginning of valid text loses the incomplete character alone
			if utf8.Valid(b) && !utf8.Valid(mcp.Whole(b[:i])) {
				t.Fatalf("%q: %q", b[:i], mcp.Whole(b[:i]))
			}
		}
	})
}

// A command that is shown to a person hides nothing.
func TestQuoted(t *testing.T) {
	for _, x := range []struct{ argv, want string }{
		{"a\x1b[2J", `'a\x1b[2J'`},
		{"a b", "'a b'"},
		{"\u202egpj.exe", `\u202egpj.exe`},
		{"a\nb", `'a\nb'`},
		{"", "''"},
		{"\xff", `\xff`},
		{"é", "é"},
		{"'; rm -rf /; '", `''\''; rm -rf /; '\'''`},
	} {
		if got := mcp.Quoted([]string{x.argv}); got != x.want {
			t.Errorf("%q: %s, want %s", x.argv, got, x.want)
		}
	}
}
