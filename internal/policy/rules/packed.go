package rules

import (
	_ "embed"
	"fmt"

	"github.com/containerd/errdefs"
)

// packed is the built-in knowledge and rules, parsed and laid out so that one entry can be
// decoded without the others. Parsing the YAML files would take a hundred times as long as
// judging one command does (benchmark "carrel run"). Tests hold that both say the same.
//
//go:generate go test -run ^TestPacked$ -count=1 -packed .
//go:embed builtin.bin
var packed string

// A packed file is a pack of the sections below. A pack starts with the number of its entries and
// the end of each, four bytes each, little-endian; all other numbers are unsigned varints.
//
//	pack   = count { end } { entry }
//	table  = pack of: slots, then {len key, key, count, {number}}
//	slots  = { number of an entry, 0 for none }, four bytes each, by hash of the key
//	node   = kind | quoted<<3, line, column, value
//	value  = len text                        of a scalar
//	       | len { count { node } }          of a list
//	       | len { count { node node } }     of a mapping: keys with their values
const packedQuoted = 1 << 3

// The sections.
const (
	packDigests   = iota // of the knowledge, of the rules
	packSources          // names of the sources
	packPrograms         // of each: source, key, node
	packNames            // table: name of a program, its number
	packFamilies         // prefix, number of the program; the longest prefix first
	packClasses          // of each class of paths: source, node
	packParts            // table: part of a path; pairs of class and number of the pattern
	packEndings          // the same for endings of names
	packAnywhere         // such pairs for patterns with neither
	packVariables        // of each: source, key, node
	packVarNames         // table: name of a variable, its number
	packRules            // of each: source, node
	packByProgram        // tables of the index of rules: program
	packByPair           // program, zero, word
	packByWord           //
	packByGram           // three bytes
	packByCap            // the capability's number as one byte
	packAlways           // numbers of rules
	packSections
)

// pack is a list of entries.
type pack string

func (p pack) number(at int) int {
	if at < 0 || at+4 > len(p) {
		return -1
	}
	return int(uint32(p[at]) | uint32(p[at+1])<<8 | uint32(p[at+2])<<16 | uint32(p[at+3])<<24)
}

// size returns the number of entries.
func (p pack) size() int { return max(p.number(0), 0) }

// entry returns an entry, "" if there is none.
func (p pack) entry(i int) string {
	n := p.size()
	if i < 0 || i >= n {
		return ""
	}
	first := 4 + 4*n
	from, to := first, first+p.number(4+4*i)
	if i > 0 {
		from = first + p.number(4*i)
	}
	if from < first || to < from || to > len(p) {
		return ""
	}
	return string(p[from:to])
}

// find returns the number of values of a key in a table and an unpacker for them; none if the key
// is missing.
func (p pack) find(key string) (u unpacker, n int) {
	slots := pack(p.entry(0))
	count := len(slots) / 4
	for at, tries := int(hashKey(key)), 0; tries < count; at, tries = at+1, tries+1 {
		i := slots.number(4 * (at & (count - 1)))
		if i <= 0 {
			break
		}
		u.text = p.entry(i)
		if u.take(u.number()) == key {
			return u, u.number()
		}
	}
	return unpacker{}, 0
}

// hashKey is FNV-1a, cut to 31 bits.
func hashKey(key string) uint32 {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return (h ^ h>>16) & (1<<31 - 1)
}

// unpacker decodes an entry. The texts it returns are substrings of the entry.
type unpacker struct {
	text string
	bad  bool
}

func (u *unpacker) number() int {
	var n uint64
	for shift := uint(0); shift < 64; shift += 7 {
		if u.text == "" {
			break
		}
		c := u.text[0]
		u.text = u.text[1:]
		n |= uint64(c&0x7f) << shift
		if c < 0x80 {
			if n > maxSource {
				break
			}
			return int(n)
		}
	}
	u.bad = true
	return 0
}

func (u *unpacker) take(n int) string {
	if n > len(u.text) {
		u.bad, n = true, 0
	}
	s := u.text[:n]
	u.text = u.text[n:]
	return s
}

// node decodes a node and its children.
func (u *unpacker) node() *tree { return u.nested(maxDepth + 2) }

func (u *unpacker) nested(levels int) *tree {
	head := u.number()
	t := &tree{kind: kind(head & 7), quoted: head&packedQuoted != 0, line: u.number(), col: u.number()}
	switch t.kind {
	case scalar:
		t.text = u.take(u.number())
	case list, mapping:
		in := unpacker{text: u.take(u.number())}
		n := in.number()
		if n > len(in.text) || levels == 0 {
			u.bad = true
			return t
		}
		t.items = make([]*tree, n)
		if t.kind == mapping {
			t.keys = make([]*tree, n)
		}
		for i := range n {
			if t.kind == mapping {
				t.keys[i] = in.nested(levels - 1)
			}
			t.items[i] = in.nested(levels - 1)
		}
		u.bad = u.bad || in.bad || in.text != ""
	case null:
	default:
		u.bad = true
	}
	return t
}

func errPacked(what string) error {
	return fmt.Errorf("cannot read %s of the built-in policy: builtin.bin is damaged; run make generate and build again: %w", what,
		errdefs.ErrInternal)
}
