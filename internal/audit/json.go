package audit

import (
	"bytes"
	"slices"
)

// maxNesting is how many arrays and objects may be open at once, as in encoding/json.
const maxNesting = 10_000

// checkJSON reports whether b is one JSON value, and whether the names of its outermost
// object are lower-case letters, digits and underscores, each used once. Otherwise two
// readers could take different values from one line, and Verify could look at another "seq"
// than the reader of a report. It takes exactly what json.Valid takes, in a fraction of the
// time: every line of a log passes through it.
func checkJSON(b []byte) (valid, plain bool) {
	s := scanner{b: b}
	valid = s.value()
	return valid, valid && !s.odd
}

func validJSON(b []byte) bool {
	valid, _ := checkJSON(b)
	return valid
}

// scanner walks over one JSON text (RFC 8259) without taking it apart.
type scanner struct {
	b     []byte
	at    int // the next byte
	depth int // how many arrays and objects are open
	// objects has a bit for each open level that is an object.
	objects [maxNesting/64 + 1]uint64

	outer names
	odd   bool // a name of the outermost object is not plain, or stands twice
}

// value takes all of b. Nesting is counted and not recursed into: the text may be hostile.
func (s *scanner) value() bool {
	for s.begin() {
		if done, ok := s.end(); done || !ok {
			return ok
		}
	}
	return false
}

// begin takes a value that has no parts, and before it the brackets and names that lead to
// it.
func (s *scanner) begin() bool {
	for {
		switch c := s.next(); {
		case c == '"':
			return s.text()
		case c == '-' || isDigit(c):
			return s.number(c)
		case c == '{':
			if !s.open(true) {
				return false
			}
			if s.peek() == '}' {
				return true // for end to close
			}
			if !s.name() {
				return false
			}
		case c == '[':
			if !s.open(false) {
				return false
			}
			if s.peek() == ']' {
				return true
			}
		case c == 't':
			return s.literal("rue")
		case c == 'f':
			return s.literal("alse")
		case c == 'n':
			return s.literal("ull")
		default:
			return false
		}
	}
}

// end takes what stands behind a value: brackets that close, and the comma and name before
// the next one. It reports done at the end of the text.
func (s *scanner) end() (done, ok bool) {
	for s.depth > 0 {
		object := s.objects[s.depth/64]&(1<<(s.depth%64)) != 0
		switch c := s.next(); {
		case c == ',' && object:
			return false, s.name()
		case c == ',':
			return false, true
		case c == '}' && object, c == ']' && !object:
			s.depth--
		default:
			return false, false
		}
	}
	s.space()
	return true, s.at == len(s.b)
}

func (s *scanner) open(object bool) bool {
	if s.depth++; s.depth > maxNesting {
		return false
	}
	if object {
		s.objects[s.depth/64] |= 1 << (s.depth % 64)
	} else {
		s.objects[s.depth/64] &^= 1 << (s.depth % 64)
	}
	return true
}

// name takes a name and its colon.
func (s *scanner) name() bool {
	if s.next() != '"' {
		return false
	}
	from := s.at
	if !s.text() {
		return false
	}
	if s.depth == 1 && !s.odd {
		s.odd = !s.outer.add(s.b[from : s.at-1])
	}
	return s.next() == ':'
}

// text takes the rest of a string behind its opening quote.
func (s *scanner) text() bool {
	end := textEnd(s.b, s.at)
	if end < 0 {
		return false
	}
	s.at = end
	return true
}

// special reports whether c is more than a part of its string.
func special(c byte) bool { return c < 0x20 || c == '"' || c == '\\' }

// specials marks the bytes of x that are special: the lowest mark is the highest bit of the
// first of them. A byte below 0x80 that is less than n has its highest bit set once n is taken
// from it, and one that equals n is less than 1 after exclusive or with n. What is borrowed
// from the bytes above can only make those look special that stand behind one that is.
func specials(x uint64) uint64 {
	const each, high = 0x0101010101010101, 0x8080808080808080
	quote, slash := x^each*'"', x^each*'\\'
	return ((x - each*0x20) | (quote - each) | (slash - each)) &^ x & high
}

// number takes the rest of a number that begins with c.
func (s *scanner) number(c byte) bool {
	if c == '-' {
		if c = s.byte(); !isDigit(c) {
			return false
		}
	}
	if c != '0' {
		s.digits()
	}
	if s.at < len(s.b) && s.b[s.at] == '.' {
		s.at++
		if !s.digits() {
			return false
		}
	}
	if s.at < len(s.b) && s.b[s.at]|0x20 == 'e' {
		s.at++
		if s.at < len(s.b) && (s.b[s.at] == '+' || s.b[s.at] == '-') {
			s.at++
		}
		return s.digits()
	}
	return true
}

// digits takes as many as there are, and reports whether there are any.
func (s *scanner) digits() bool {
	from := s.at
	for s.at < len(s.b) && isDigit(s.b[s.at]) {
		s.at++
	}
	return s.at > from
}

func (s *scanner) literal(rest string) bool {
	if !bytes.HasPrefix(s.b[s.at:], []byte(rest)) {
		return false
	}
	s.at += len(rest)
	return true
}

func (s *scanner) space() {
	if s.at < len(s.b) && s.b[s.at] > ' ' {
		return
	}
	s.spaces()
}

func (s *scanner) spaces() {
	for s.at < len(s.b) {
		switch s.b[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return
		}
	}
}

// byte takes the next byte. A zero stands for the end as well: no JSON has one outside of a
// string.
func (s *scanner) byte() byte {
	if s.at >= len(s.b) {
		return 0
	}
	s.at++
	return s.b[s.at-1]
}

// next takes the next byte that is no white space.
func (s *scanner) next() byte {
	s.space()
	return s.byte()
}

// peek looks at the next byte that is no white space.
func (s *scanner) peek() byte {
	s.space()
	if s.at >= len(s.b) {
		return 0
	}
	return s.b[s.at]
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isHex(c byte) bool { return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }

// names are those met in one object.
type names struct {
	first [24][]byte // more than the format has
	n     int
	more  [][]byte
	// marks has a bit for each, by its length and ends: one that is not set tells without
	// a comparison that a name is new.
	marks uint64
}

// add reports whether name is plain and new.
func (n *names) add(name []byte) bool {
	if !isPlain(name) {
		return false
	}
	mark := uint64(1) << ((7*len(name) + int(name[0]) + 3*int(name[len(name)-1])) % 64)
	same := func(o []byte) bool { return bytes.Equal(o, name) }
	if n.marks&mark != 0 && (slices.ContainsFunc(n.first[:n.n], same) || slices.ContainsFunc(n.more, same)) {
		return false
	}
	n.marks |= mark
	if n.n < len(n.first) {
		n.first[n.n] = name
		n.n++
	} else {
		n.more = append(n.more, name)
	}
	return true
}

func isPlain(name []byte) bool {
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return len(name) > 0
}
