package redact

import (
	"slices"
	"sort"
	"strings"
)

// index finds the longest of many words that begins at an offset of a text, by a binary search, and
// only where the first four bytes match. A text may be hostile and the words many, so the time must
// not grow with their number.
type index struct {
	words []string // sorted, each once
	// shorter[i] is the longest other word that is a prefix of words[i], or -1.
	shorter []int
	// starts has a bit for each hash of a word's first four bytes; see startBit.
	starts [1 << 10]uint64
}

// leastIndexed is the number of a word's first bytes that are hashed.
const leastIndexed = 4

// newIndex takes words of at least leastIndexed bytes. It returns nil if there are none.
func newIndex(words []string) *index {
	if len(words) == 0 {
		return nil
	}
	x := &index{words: slices.Compact(slices.Sorted(slices.Values(words)))}
	x.shorter = make([]int, len(x.words))
	for i, w := range x.words {
		// In sorted order a prefix of w comes before w, and is a prefix of all words between.
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

// begins reports whether a word begins with s, which has at least leastIndexed bytes.
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

// at returns the length of the longest word that s begins with, or 0.
func (x *index) at(s string) int {
	if x == nil || len(s) < leastIndexed {
		return 0
	}
	if at, bit := startBit(s); x.starts[at]&bit == 0 {
		return 0
	}
	// In sorted order every word that s begins with comes before s, and is a prefix of the last
	// word before s or equal to it.
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
