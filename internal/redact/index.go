package redact

import (
	"slices"
	"sort"
	"strings"
)

// index finds which of many words begin at a place of a text, in a time that does not grow
// with their number but by its logarithm, and that only where four bytes agree.
type index struct {
	words []string // sorted, each once
	// shorter has for each word the longest other one that it begins with, -1 if none.
	shorter []int
	// starts has a bit for what the first four bytes of a word give; see startBit.
	starts [1 << 10]uint64
}

// leastIndexed is how many bytes of a word the index looks at first.
const leastIndexed = 4

// newIndex takes words of at least leastIndexed bytes. It returns nil if there are none.
func newIndex(words []string) *index {
	if len(words) == 0 {
		return nil
	}
	x := &index{words: slices.Compact(slices.Sorted(slices.Values(words)))}
	x.shorter = make([]int, len(x.words))
	for i, w := range x.words {
		// In their order, what w begins with stands before it, and all between begin with
		// that too.
		s := i - 1
		for s >= 0 && !strings.HasPrefix(w, x.words[s]) {
			s = x.shorter[s]
		}
		x.shorter[i] = s
		at, bit := startBit(w)
		x.starts[at] |= bit
	}
	return x
}

func startBit(s string) (at uint32, bit uint64) {
	h := (uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24) * 0x9E3779B1 >> 16
	return h / 64, 1 << (h % 64)
}

// begins reports whether a word begins with s, which is no shorter than leastIndexed.
func (x *index) begins(s string) bool {
	if x == nil {
		return false
	}
	if at, bit := startBit(s); x.starts[at]&bit == 0 {
		return false
	}
	i := sort.SearchStrings(x.words, s)
	return i < len(x.words) && strings.HasPrefix(x.words[i], s)
}

// at reports how long the longest word is that s begins with; 0 is none.
func (x *index) at(s string) int {
	if x == nil || len(s) < leastIndexed {
		return 0
	}
	if at, bit := startBit(s); x.starts[at]&bit == 0 {
		return 0
	}
	// Any word that s begins with stands before s, and the last before s begins with it.
	i := sort.SearchStrings(x.words, s)
	if i < len(x.words) && x.words[i] == s {
		return len(s)
	}
	for i--; i >= 0; i = x.shorter[i] {
		if strings.HasPrefix(s, x.words[i]) {
			return len(x.words[i])
		}
	}
	return 0
}
