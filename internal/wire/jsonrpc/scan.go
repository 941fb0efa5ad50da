package jsonrpc

import (
	"encoding/json"
	"unicode/utf8"
)

// Unreadable says why a text is not JSON that every reader takes for the same, as "is not valid
// JSON"; "" if it is. Readers that are more lenient come after it. Equal names in one object are
// for them to find.
func Unreadable(b []byte) string {
	switch {
	case !utf8.Valid(b):
		return "is not valid UTF-8"
	case tooDeep(b):
		return "nests deeper than 64 levels"
	case !json.Valid(b):
		return "is not valid JSON"
	}
	return ""
}

// tooDeep reports whether arrays and objects nest deeper than maxDepth. The text need not be
// valid JSON.
func tooDeep(b []byte) bool {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = stringEnd(b, i) - 1
		case '{', '[':
			if depth++; depth > maxDepth {
				return true
			}
		case '}', ']':
			depth--
		}
	}
	return false
}

// stringEnd returns the index after the closing quote of the string that begins at i, or the
// length of b if it does not end.
func stringEnd(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	return len(b)
}

// members walks the members of one object, b, which must be valid JSON, and decodes nothing:
// encoding/json would take the last of two equal names, ignore case, and resolve escapes.
type members struct {
	b []byte
	i int // behind the opening brace, then behind a value
}

// next returns the next member as parts of the text, the name with its quotes.
func (m *members) next() (name, value []byte, ok bool) {
	for m.b[m.i] != '"' {
		if m.b[m.i] == '}' {
			return nil, nil, false
		}
		m.i++
	}
	start := m.i
	m.i = stringEnd(m.b, start)
	name = m.b[start:m.i]
	for isSpace(m.b[m.i]) || m.b[m.i] == ':' {
		m.i++
	}
	start = m.i
	m.i = valueEnd(m.b, start)
	return name, m.b[start:m.i], true
}

// valueEnd returns the index after the value that begins at i and is a member of an object.
func valueEnd(b []byte, i int) int {
	for depth := 0; ; i++ {
		switch c := b[i]; {
		case c == '"':
			i = stringEnd(b, i) - 1
		case c == '{' || c == '[':
			depth++
		case depth > 0 && (c == '}' || c == ']'):
			depth--
		case depth == 0 && (c == '}' || c == ',' || isSpace(c)):
			return i
		}
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }
