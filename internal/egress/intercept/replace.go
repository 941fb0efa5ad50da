package intercept

import (
	"bytes"
	"net/http"
	"strings"
)

// replacer replaces texts by others. At each position the longest that is there counts, and what was written is not
// looked at again. It does not change once it is used.
type replacer struct{ pairs []pair }

type pair struct {
	name     string // of the secret
	from, to string
}

func (r *replacer) add(name, from, to string) {
	r.pairs = append(r.pairs, pair{name, from, to})
}

// same reports whether replacing never changes a length.
func (r *replacer) same() bool {
	for _, p := range r.pairs {
		if len(p.from) != len(p.to) {
			return false
		}
	}
	return true
}

// text returns s with everything replaced, and calls used with the name of each secret that was.
func (r *replacer) text(s string, used func(name string)) string {
	found := false
	for _, p := range r.pairs {
		found = found || strings.Contains(s, p.from)
	}
	if !found {
		return s
	}
	out, _ := r.bytes([]byte(s), true, used)
	return string(out)
}

// header replaces in all values of a header.
func (r *replacer) header(h http.Header) {
	for _, values := range h {
		for i, v := range values {
			values[i] = r.text(v, ignore)
		}
	}
}

func ignore(string) {}

// bytes returns b with everything replaced up to rest, which is the end of b that may be the beginning of a text to
// replace; it is empty if b is the last there is. Without anything to replace, out is part of b.
func (r *replacer) bytes(b []byte, last bool, used func(name string)) (out, rest []byte) {
	next := make([]int, len(r.pairs)) // where each is found next; len(b) if nowhere
	find := func(i, from int) {
		next[i] = len(b)
		if at := bytes.Index(b[from:], []byte(r.pairs[i].from)); at >= 0 {
			next[i] = from + at
		}
	}
	for i := range r.pairs {
		find(i, 0)
	}
	done, end := 0, len(b)
	if !last {
		end -= r.begun(b)
	}
	for {
		first := -1
		for i := range r.pairs {
			if next[i] < done {
				find(i, done)
			}
			if next[i] < len(b) && (first < 0 || next[i] < next[first] ||
				next[i] == next[first] && len(r.pairs[i].from) > len(r.pairs[first].from)) {
				first = i
			}
		}
		// What begins at the end and is not decided yet may be a text that holds this one, or is longer: it counts.
		if first < 0 || next[first] >= end {
			break
		}
		p := r.pairs[first]
		out = append(append(out, b[done:next[first]]...), p.to...)
		done = next[first] + len(p.from)
		used(p.name)
		if done > end {
			end = len(b) - r.begun(b[done:])
		}
	}
	if done == 0 {
		return b[:end], b[end:]
	}
	return append(out, b[done:end]...), b[end:]
}

// begun returns how many of the last bytes of b are the beginning of a text to replace.
func (r *replacer) begun(b []byte) (longest int) {
	for _, p := range r.pairs {
		for at := max(0, len(b)-len(p.from)+1); at < len(b)-longest; at++ {
			next := bytes.IndexByte(b[at:], p.from[0])
			if next < 0 {
				break
			}
			at += next
			if strings.HasPrefix(p.from, string(b[at:])) {
				longest = max(longest, len(b)-at)
			}
		}
	}
	return longest
}
