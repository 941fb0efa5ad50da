package jsonrpc

import (
	"slices"
	"unicode/utf8"
)

const (
	// maxDepth is how deep arrays and objects may nest, the envelope included.
	maxDepth = 64
	// maxID and maxMethod bound an id and a method name as they stand on the wire.
	maxID     = 128
	maxMethod = 64
)

// envelope is one message taken apart. The slices point into the frame; those of
// members that the message does not have are nil.
type envelope struct {
	id, method, params, result, errObj []byte
	fds                                int
}

// violation is a broken rule. fatal ones end the connection.
type violation struct {
	code  int
	text  string
	fatal bool
}

func malformed(text string) *violation { return &violation{CodeParse, text, true} }
func invalid(text string) *violation   { return &violation{CodeInvalidRequest, text, true} }

// parseEnvelope reads a frame without its newline. It looks at every byte once:
// the frame is then known to be valid UTF-8 and one valid JSON object of bounded
// depth. The id is set in the envelope whenever it could be read.
func parseEnvelope(frame []byte, maxFDs int) (envelope, *violation) {
	var e envelope
	if !utf8.Valid(frame) {
		return e, malformed("the frame is not valid UTF-8")
	}
	s := scanner{b: frame}
	s.space()
	switch s.peek() {
	case '{':
	case '[':
		if !s.value(1) || !s.atEnd() {
			return e, s.why()
		}
		return e, invalid("the frame is an array; batches are not served")
	default:
		if !s.value(1) || !s.atEnd() {
			return e, s.why()
		}
		return e, invalid("the frame is not an object")
	}

	var version, fds []byte
	var bad *violation
	s.i++
	s.space()
	if s.peek() == '}' {
		s.i++
	} else {
		for {
			s.space()
			key, ok := s.str()
			if !ok || !s.colon() {
				return envelope{}, s.why()
			}
			start := s.i
			if !s.value(2) {
				return envelope{}, s.why()
			}
			val := s.b[start:s.i]
			var slot *[]byte
			switch string(key) {
			case `"jsonrpc"`:
				slot = &version
			case `"id"`:
				slot = &e.id
			case `"method"`:
				slot = &e.method
			case `"fds"`:
				slot = &fds
			case `"params"`:
				slot = &e.params
			case `"result"`:
				slot = &e.result
			case `"error"`:
				slot = &e.errObj
			}
			switch {
			case slot == nil:
				bad = invalid("the message has a member that the envelope does not know")
			case *slot != nil:
				bad = invalid("the message has a member of the envelope twice")
			default:
				*slot = val
			}
			s.space()
			if s.peek() == ',' {
				s.i++
				continue
			}
			if s.peek() != '}' {
				return envelope{}, s.why()
			}
			s.i++
			break
		}
	}
	if !s.atEnd() {
		return envelope{}, s.why()
	}
	if e.id != nil && !validID(e.id) {
		e.id = nil
		return e, invalid("the id is not an integer or a plain string of at most 128 bytes")
	}
	if bad != nil {
		return e, bad
	}
	return e, e.check(version, fds, maxFDs)
}

// check holds the envelope to JSON-RPC 2.0 and to our member fds.
func (e *envelope) check(version, fds []byte, maxFDs int) *violation {
	if string(version) != `"2.0"` {
		return invalid(`the message does not say "jsonrpc":"2.0"`)
	}
	if fds != nil {
		n, ok := smallInt(fds)
		if !ok || n < 1 {
			return invalid("fds is not a positive integer")
		}
		if n > maxFDs {
			return invalid("fds is more than this side accepts in one message")
		}
		e.fds = n
	}
	answers := 0
	if e.result != nil {
		answers++
	}
	if e.errObj != nil {
		answers++
	}
	switch {
	case e.method != nil && answers > 0:
		return invalid("the message has both a method and a result or error")
	case e.method == nil && answers != 1:
		return invalid("the message has neither a method nor exactly one of result and error")
	case e.method == nil && e.id == nil:
		return invalid("the reply has no id")
	case e.result != nil && string(e.id) == "null":
		return invalid("the reply has no id")
	case e.method == nil && e.params != nil:
		return invalid("the reply has params")
	case e.errObj != nil && e.errObj[0] != '{':
		return invalid("the error is not an object")
	case e.errObj != nil && e.fds > 0:
		return invalid("an error carries no fds")
	case e.method == nil:
		return nil
	case string(e.id) == "null":
		e.id = nil
		return invalid("the id of a request is null")
	}
	m := e.method
	if m[0] != '"' || len(m) < 3 || len(m) > maxMethod+2 {
		return invalid("the method is not a string of 1 to 64 bytes")
	}
	e.method = m[1 : len(m)-1]
	if !validMethod(string(e.method)) {
		return invalid("the method has characters other than letters, digits and _ . / - $")
	}
	if e.params != nil && e.params[0] != '{' {
		return &violation{CodeInvalidParams, "cannot read the params: they are not an object", false}
	}
	return nil
}

func validMethod(m string) bool {
	for i := range len(m) {
		c := m[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '_', c == '.', c == '/', c == '-', c == '$':
		default:
			return false
		}
	}
	return m != "" && len(m) <= maxMethod
}

// validID accepts an integer, a string without escapes, and null, which only an
// error reply to an unreadable message may have. Ids are compared and echoed as
// they stand, so that a form with two spellings is refused.
func validID(id []byte) bool {
	if len(id) > maxID {
		return false
	}
	if string(id) == "null" {
		return true
	}
	if id[0] == '"' {
		return !slices.Contains(id, '\\')
	}
	if id[0] == '-' {
		id = id[1:]
	}
	for _, c := range id {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(id) > 0
}

// smallInt reads an unsigned integer of at most nine digits.
func smallInt(b []byte) (int, bool) {
	if len(b) == 0 || len(b) > 9 {
		return 0, false
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}

// scanner walks JSON (RFC 8259) without decoding it.
type scanner struct {
	b    []byte
	i    int
	deep bool
}

func (s *scanner) why() *violation {
	if s.deep {
		return malformed("the frame nests deeper than 64 levels")
	}
	return malformed("the frame is not valid JSON")
}

// peek returns the next byte, or 0 at the end: no valid token starts with 0.
func (s *scanner) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

func (s *scanner) atEnd() bool {
	s.space()
	return s.i == len(s.b)
}

func (s *scanner) colon() bool {
	s.space()
	if s.peek() != ':' {
		return false
	}
	s.i++
	s.space()
	return true
}

// value passes over one value; depth is the level that an array or object found
// here would have.
func (s *scanner) value(depth int) bool {
	switch c := s.peek(); {
	case c == '"':
		_, ok := s.str()
		return ok
	case c == '{':
		return s.members(depth, '}', true)
	case c == '[':
		return s.members(depth, ']', false)
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	default:
		return false
	}
}

func (s *scanner) members(depth int, closing byte, keys bool) bool {
	if depth > maxDepth {
		s.deep = true
		return false
	}
	s.i++
	s.space()
	if s.peek() == closing {
		s.i++
		return true
	}
	for {
		s.space()
		if keys {
			if _, ok := s.str(); !ok || !s.colon() {
				return false
			}
		}
		if !s.value(depth + 1) {
			return false
		}
		s.space()
		switch s.peek() {
		case ',':
			s.i++
		case closing:
			s.i++
			return true
		default:
			return false
		}
	}
}

// str passes over a string and returns it with its quotes.
func (s *scanner) str() ([]byte, bool) {
	if s.peek() != '"' {
		return nil, false
	}
	start := s.i
	for s.i++; s.i < len(s.b); s.i++ {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return s.b[start:s.i], true
		case c < ' ':
			return nil, false
		case c == '\\':
			s.i++
			switch s.peek() {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				for range 4 {
					s.i++
					if !isHex(s.peek()) {
						return nil, false
					}
				}
			default:
				return nil, false
			}
		}
	}
	return nil, false
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func (s *scanner) digits() bool {
	start := s.i
	for c := s.peek(); c >= '0' && c <= '9'; c = s.peek() {
		s.i++
	}
	return s.i > start
}

func (s *scanner) number() bool {
	if s.peek() == '-' {
		s.i++
	}
	if s.peek() == '0' {
		s.i++
	} else if !s.digits() {
		return false
	}
	if s.peek() == '.' {
		s.i++
		if !s.digits() {
			return false
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.i++
		if c := s.peek(); c == '+' || c == '-' {
			s.i++
		}
		return s.digits()
	}
	return true
}

func (s *scanner) word(w string) bool {
	if len(s.b)-s.i < len(w) || string(s.b[s.i:s.i+len(w)]) != w {
		return false
	}
	s.i += len(w)
	return true
}
