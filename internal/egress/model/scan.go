package model

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// Bounds of what a scanner keeps.
const (
	maxDepth = 512
	maxKey   = 256      // bytes of a member's name, as it is written
	maxKept  = 16 << 10 // bytes of a value
)

// errJSON is the error of a scanner.
var errJSON = errors.New("it is not one JSON object")

// member is a value that a scanner has kept.
type member struct {
	// raw is nil if the value has more than maxKept bytes.
	raw []byte
	// start and end are offsets of the last one there was.
	start, end int64
	times      int
	// odd: a name has other letter case than was asked for, which some programs take for the same.
	odd bool
}

// present reports whether there is a value other than null.
func (m *member) present() bool { return m != nil && string(m.raw) != "null" }

// scanner reads a JSON object as it comes and keeps a few of its members, so that the object need not be held. It accepts
// less than there is in JSON's grammar nowhere, and more only inside numbers and literals. What is not JSON, such as a
// comment or a control character in a string, is an error: no two programs shall read different objects.
type scanner struct {
	want  []string // names of members, and of members of those: "a/b"
	found map[string]*member
	// text counts the bytes of strings that are members with one of textNames.
	text int64
	// first is the offset of the opening brace.
	first int64

	state  byte // what comes next
	stack  []byte
	names  [2]string // of the members at the first two depths
	key    []byte    // the last name, as it is written
	at     int64
	escape byte // in a string: 0, 1 after a backslash, or 6 to 3 for the digits after \u
	isKey  bool
	isText bool
	keep   *member
	depth  int // of keep
	err    error
}

// What may come next.
const (
	wantObject byte = iota // at the beginning
	wantValue
	wantValueOrEnd // of an array
	wantKey
	wantKeyOrEnd
	wantColon
	wantComma // or the end of an object or array
	inString
	inScalar
	wantNothing // the object has ended
)

// textNames are members whose strings are text that a model wrote, in any of the APIs.
var textNames = map[string]bool{
	"text": true, "content": true, "thinking": true, "partial_json": true, "arguments": true, "delta": true, "refusal": true,
	"reasoning": true, "reasoning_content": true, "input": true, "signature": true, "encrypted_content": true,
}

func newScanner(want ...string) *scanner {
	return &scanner{want: want, found: map[string]*member{}}
}

// feed reads on. After an error it returns that.
func (s *scanner) feed(b []byte) error {
	for i := 0; i < len(b) && s.err == nil; i++ {
		if s.state == inString && s.escape == 0 { // most bytes are in strings
			i += s.plain(b[i:])
			if i == len(b) {
				break
			}
		}
		s.step(b[i])
		s.at++
	}
	return s.err
}

// plain reads the beginning of b that is inside a string and ordinary, and returns its length.
func (s *scanner) plain(b []byte) int {
	n := 0
	for n < len(b) && b[n] != '"' && b[n] != '\\' && b[n] >= ' ' {
		n++
	}
	s.kept(b[:n]...)
	if s.isKey {
		s.key = append(s.key, b[:min(n, max(0, maxKey+1-len(s.key)))]...)
	}
	if s.isText {
		s.text += int64(n)
	}
	s.at += int64(n)
	return n
}

// end returns an error unless the object is complete.
func (s *scanner) end() error {
	if s.err == nil && s.state != wantNothing {
		s.err = errJSON
	}
	return s.err
}

func (s *scanner) fail() { s.err = errJSON }

// kept appends to the value that is kept.
func (s *scanner) kept(b ...byte) {
	if s.keep == nil || s.keep.raw == nil {
		return
	}
	if len(s.keep.raw)+len(b) > maxKept {
		s.keep.raw = nil
		return
	}
	s.keep.raw = append(s.keep.raw, b...)
}

func (s *scanner) step(c byte) {
	switch s.state {
	case inString:
		s.inside(c)
		return
	case inScalar:
		if scalar(c) {
			s.kept(c)
			return
		}
		s.close()
	}
	if c == ' ' || c == '\t' || c == '\n' || c == '\r' {
		s.kept(c)
		return
	}
	switch s.state {
	case wantObject:
		if c != '{' {
			s.fail()
			return
		}
		s.first = s.at
		s.open(c)
	case wantValue, wantValueOrEnd:
		if c == ']' && s.state == wantValueOrEnd {
			s.pop(c)
			return
		}
		s.value(c)
	case wantKey, wantKeyOrEnd:
		switch {
		case c == '"':
			s.kept(c)
			s.key, s.isKey, s.state = s.key[:0], true, inString
		case c == '}' && s.state == wantKeyOrEnd:
			s.pop(c)
		default:
			s.fail()
		}
	case wantColon:
		if c != ':' {
			s.fail()
			return
		}
		s.kept(c)
		s.state = wantValue
	case wantComma:
		s.next(c)
	default:
		s.fail()
	}
}

// next reads what follows a value.
func (s *scanner) next(c byte) {
	top := s.stack[len(s.stack)-1]
	switch {
	case c == ',' && top == '{':
		s.kept(c)
		s.state = wantKey
	case c == ',':
		s.kept(c)
		s.state = wantValue
	case c == '}' && top == '{', c == ']' && top == '[':
		s.pop(c)
	default:
		s.fail()
	}
}

// value begins a value.
func (s *scanner) value(c byte) {
	if s.keep == nil {
		s.begin()
	}
	switch {
	case c == '{' || c == '[':
		s.open(c)
	case c == '"':
		s.kept(c)
		s.isKey, s.isText = false, s.stack[len(s.stack)-1] == '{' && textNames[string(s.key)]
		s.state = inString
	case scalar(c):
		s.kept(c)
		s.state = inScalar
	default:
		s.fail()
	}
}

// begin has the value that begins kept, if that is wanted.
func (s *scanner) begin() {
	path := ""
	switch string(s.stack) {
	case "{":
		path = s.names[0]
	case "{{":
		path = s.names[0] + "/" + s.names[1]
	default:
		return
	}
	for _, w := range s.want {
		if !strings.EqualFold(w, path) {
			continue
		}
		m := s.found[w]
		if m == nil {
			m = &member{}
			s.found[w] = m
		}
		m.times++
		m.odd = m.odd || w != path
		m.raw, m.start = []byte{}, s.at
		s.keep, s.depth = m, len(s.stack)
		return
	}
}

func (s *scanner) open(c byte) {
	if len(s.stack) >= maxDepth {
		s.fail()
		return
	}
	s.kept(c)
	s.stack = append(s.stack, c)
	s.state = wantKeyOrEnd
	if c == '[' {
		s.state = wantValueOrEnd
	}
}

// pop ends an object or array.
func (s *scanner) pop(c byte) {
	s.kept(c)
	s.stack = s.stack[:len(s.stack)-1]
	if len(s.stack) == 0 {
		s.state = wantNothing
		return
	}
	s.at++ // the end of the value is behind c
	s.close()
	s.at--
}

// close ends a value.
func (s *scanner) close() {
	s.state = wantComma
	if s.keep != nil && s.depth == len(s.stack) {
		s.keep.end = s.at
		s.keep = nil
	}
}

// inside reads one byte of a string that is not plain.
func (s *scanner) inside(c byte) {
	if s.isKey && len(s.key) <= maxKey && (c != '"' || s.escape != 0) {
		s.key = append(s.key, c)
	}
	s.kept(c)
	switch {
	case s.escape == 1 && c == 'u':
		s.escape = 6
	case s.escape == 1:
		if strings.IndexByte(`"\/bfnrt`, c) < 0 {
			s.fail()
		}
		s.escape = 0
	case s.escape > 1:
		if !strings.ContainsRune("0123456789abcdefABCDEF", rune(c)) {
			s.fail()
		}
		if s.escape--; s.escape == 2 {
			s.escape = 0
		}
	case c == '\\':
		s.escape = 1
	case c < ' ':
		s.fail()
	case c == '"' && s.isKey:
		s.named()
	case c == '"':
		s.isText = false
		s.at++
		s.close()
		s.at--
	}
	if s.isText {
		s.text++
	}
}

// named ends the name of a member.
func (s *scanner) named() {
	s.isKey, s.state = false, wantColon
	name := ""
	if len(s.key) <= maxKey {
		name = string(s.key)
		if slices.Contains(s.key, '\\') && json.Unmarshal([]byte(`"`+name+`"`), &name) == nil {
			s.key = append(s.key[:0], name...)
		}
	}
	if depth := len(s.stack); depth <= len(s.names) {
		s.names[depth-1] = strings.ReplaceAll(name, "/", "\x00") // a path has slashes of its own
	}
}

// scalar reports whether a byte is part of a number, true, false or null.
func scalar(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == '-' || c == '+' || c == '.' || c == 'E'
}
