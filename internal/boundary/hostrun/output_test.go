package hostrun_test

import (
	"bytes"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
)

// However what is written is cut, its head and tail are kept.
func FuzzOutput(f *testing.F) {
	f.Add([]byte("some text that is longer"), 7, 3)
	f.Add([]byte("short"), 100, 2)
	f.Add([]byte("0123456789"), 1, 1)
	f.Add(bytes.Repeat([]byte("ab"), 5000), 64, 999)
	f.Fuzz(func(t *testing.T, all []byte, most, piece int) {
		if most < 1 || most > 1<<16 || piece < 1 {
			return
		}
		w, kept := hostrun.Keep(most)
		for rest := all; len(rest) > 0; {
			n := min(piece, len(rest))
			if c, err := w.Write(rest[:n]); c != n || err != nil {
				t.Fatalf("wrote %d of %d: %v", c, n, err)
			}
			rest = rest[n:]
		}
		o := kept()
		head := all[:min(len(all), most/2)]
		rest := all[len(head):]
		tail := rest[max(0, len(rest)-(most-most/2)):]
		if !bytes.Equal(o.Head, head) || !bytes.Equal(o.Tail, tail) || o.Lost != int64(len(all)-len(head)-len(tail)) {
			t.Errorf("of %q in pieces of %d, %d: %q, %q, lost %d", all, piece, most, o.Head, o.Tail, o.Lost)
		}
	})
}
