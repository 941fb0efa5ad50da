package intercept

import (
	"strings"
	"testing"
)

// Replacer is for tests.
type Replacer struct{ r replacer }

// Add adds a text and what replaces it.
func (r *Replacer) Add(from, to string) { r.r.add("", from, to) }

// Text replaces in a whole text.
func (r *Replacer) Text(s string) string { return r.r.text(s, ignore) }

// Parts replaces in a text that comes in parts of these lengths, and returns the most that was held back.
func (r *Replacer) Parts(s string, lengths func() int) (out string, held int) {
	var b strings.Builder
	var rest []byte
	for {
		n := min(lengths(), len(s))
		last := n == len(s)
		var part []byte
		part, rest = r.r.bytes(append(append([]byte{}, rest...), s[:n]...), last, ignore)
		b.Write(part)
		held = max(held, len(rest))
		if s = s[n:]; last {
			return b.String(), held
		}
	}
}

// SwapJSON passes a text by a swapper in parts of these lengths, and returns the most that was held back.
func SwapJSON(t testing.TB, s Secret, in string, lengths func() int) (out string, used bool, held int) {
	checked, err := check([]Secret{s})
	if err != nil {
		t.Fatal(err)
	}
	w := newSwapper(checked, func(string) { used = true })
	var b []byte
	for {
		n := min(lengths(), len(in))
		last := n == len(in)
		b = w.write(b, []byte(in[:n]), last)
		held = max(held, len(w.held))
		if in = in[n:]; last {
			return string(b), used, held
		}
	}
}
