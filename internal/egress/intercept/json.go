package intercept

import (
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/carrel-dev/carrel/internal/spec/httprule"
)

// A swapper replaces placeholders at named places of a JSON text, as it passes. It holds back one string at most, and that
// only at such a place. Every other byte passes as it is: white space, the order of members, and members of the same name,
// of which each is at the same place. From the first byte that is no JSON on, and below mostNested, nothing is replaced.
type swapper struct {
	places []place
	used   func(name string)

	state   state
	nested  []byte // '{' or '[' of each level
	indexes []int  // of the array of each level
	key     bool   // the string under way is the name of a member
	held    []byte // the string under way, with its quotes, as far as it is of interest
	hold    bool   // the string is held back
	long    bool   // it is longer than what is held
	escaped bool   // its last byte is a backslash
	word    []byte // a number or a name under way
	most    int
}

// place is one place and what is replaced there.
type place struct {
	at      httprule.Pointer
	matched int // how many levels of at are those of the text, at present
	name    string
	from    string // the placeholder
	to      string // the value as a string of JSON
}

// mostNested is how deep a JSON text is followed.
const mostNested = 256

type state uint8

const (
	wantValue state = iota
	wantFirst       // a value or the end of an array
	wantName
	wantFirstName // a name or the end of an object
	wantColon
	wantNext // a comma or an end
	inString
	inWord
	atEnd
	broken // it is no JSON
)

func newSwapper(secrets []*secret, used func(name string)) *swapper {
	w := &swapper{used: used}
	for _, s := range secrets {
		for _, p := range s.sent.Pointers {
			w.places = append(w.places, place{at: p, name: s.name, from: s.placeholder, to: quoted(s.value.Reveal())})
			w.most = max(w.most, 6*len(s.placeholder)+2, 6*httprule.MaxPath+2)
		}
	}
	return w
}

// quoted is a text as a string of JSON.
func quoted(s string) string { return `"` + escaped(s) + `"` }

// escaped is a text without control characters as it stands in a string of JSON.
func escaped(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c == '"' || c == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	return b.String()
}

// same reports whether replacing never makes a text longer. A shorter one is filled up with spaces behind the string.
func (w *swapper) same() bool {
	return !slices.ContainsFunc(w.places, func(p place) bool { return len(p.to) > len(p.from)+2 })
}

// write returns what passes once b has come. With last there is no more.
func (w *swapper) write(out, b []byte, last bool) []byte {
	for i := range b {
		if w.state == broken {
			out = append(out, b[i:]...)
			break
		}
		out = w.byte(out, b[i])
	}
	if last || w.state == broken {
		out = append(out, w.release()...)
	}
	return out
}

// release returns what is held back, as it came.
func (w *swapper) release() (held []byte) {
	if w.hold {
		held = w.held
		w.hold, w.held = false, nil
	}
	return held
}

func (w *swapper) byte(out []byte, c byte) []byte {
	if w.state == inString {
		return w.inString(out, c)
	}
	if w.state == inWord {
		if c > ' ' && !strings.ContainsRune(`,:{}[]"`, rune(c)) {
			if len(w.word) < 64 {
				w.word = append(w.word, c)
			}
			return append(out, c)
		}
		if !isWord(w.word) {
			w.state = broken
			return append(out, c)
		}
		w.ended()
	}
	if w.begins(c) {
		w.hold = w.isPlace() && !w.key
		w.state, w.long, w.escaped = inString, false, false
		w.held = append(w.held[:0], c)
		if w.hold {
			return out
		}
		return append(out, c)
	}
	w.structure(c)
	return append(out, c)
}

// begins reports whether a string begins, and whether that is a name.
func (w *swapper) begins(c byte) bool {
	w.key = w.state == wantName || w.state == wantFirstName
	return c == '"' && (w.key || w.state == wantValue || w.state == wantFirst)
}

// structure takes a byte outside of strings and words.
func (w *swapper) structure(c byte) {
	if c == ' ' || c == '\t' || c == '\r' || c == '\n' {
		return
	}
	value := w.state == wantValue || w.state == wantFirst
	switch {
	case value && (c == '{' || c == '['):
		if len(w.nested) == mostNested {
			w.state = broken
			return
		}
		w.nested, w.indexes = append(w.nested, c), append(w.indexes, 0)
		w.state = wantFirstName
		if c == '[' {
			w.state = wantFirst
			w.at("0")
		}
	case c == '}' && w.in('{') && (w.state == wantFirstName || w.state == wantNext),
		c == ']' && w.in('[') && (w.state == wantFirst || w.state == wantNext):
		w.nested, w.indexes = w.nested[:len(w.nested)-1], w.indexes[:len(w.indexes)-1]
		w.ended()
	case c == ':' && w.state == wantColon:
		w.state = wantValue
	case c == ',' && w.state == wantNext && w.in('{'):
		w.state = wantName
	case c == ',' && w.state == wantNext && w.in('['):
		w.state = wantValue
		n := &w.indexes[len(w.indexes)-1]
		*n++
		w.at(strconv.Itoa(*n))
	case value && (c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z'):
		w.state, w.word = inWord, append(w.word[:0], c)
	default:
		w.state = broken
	}
}

func (w *swapper) in(kind byte) bool { return len(w.nested) > 0 && w.nested[len(w.nested)-1] == kind }

// ended is called when a value has ended.
func (w *swapper) ended() {
	w.state = wantNext
	if len(w.nested) == 0 {
		w.state = atEnd
	}
}

// at says that what follows is the member or the element of this name. It is called before each value inside another, so
// what was matched in one that has ended does not count.
func (w *swapper) at(name string) {
	level := len(w.nested)
	for i := range w.places {
		p := &w.places[i]
		if p.matched >= level-1 {
			p.matched = level - 1
			if level <= len(p.at) && p.at[level-1] == name {
				p.matched = level
			}
		}
	}
}

// isPlace reports whether a value that begins here is at a place.
func (w *swapper) isPlace() bool {
	return slices.ContainsFunc(w.places, func(p place) bool { return w.is(p) })
}

func (w *swapper) is(p place) bool { return len(p.at) == len(w.nested) && p.matched == len(p.at) }

// inString takes a byte of a string.
func (w *swapper) inString(out []byte, c byte) []byte {
	if c < ' ' {
		w.state = broken
		return append(append(out, w.release()...), c)
	}
	if w.long = w.long || len(w.held) >= w.most; !w.long {
		w.held = append(w.held, c)
	} else {
		out = append(out, w.release()...)
	}
	switch {
	case w.escaped:
		w.escaped = false
	case c == '\\':
		w.escaped = true
	case c == '"':
		return w.endString(out, c)
	}
	if w.hold {
		return out
	}
	return append(out, c)
}

// endString takes the last byte of a string.
func (w *swapper) endString(out []byte, c byte) []byte {
	text, ok := "", !w.long
	if ok {
		text, ok = unquoted(w.held)
	}
	if w.key {
		if !ok {
			text = "\xff" // the name of no place
		}
		w.at(text)
		w.state = wantColon
		return append(out, c)
	}
	w.ended()
	if !w.hold {
		return append(out, c)
	}
	held := w.release()
	for _, p := range w.places {
		if ok && text == p.from && w.is(p) {
			w.used(p.name)
			out = append(out, p.to...)
			for n := len(p.to); n < len(held); n++ {
				out = append(out, ' ')
			}
			return out
		}
	}
	return append(out, held...)
}

// unquoted is the text of a string of JSON.
func unquoted(s []byte) (text string, ok bool) {
	if !utf8.Valid(s) {
		return "", false
	}
	return text, json.Unmarshal(s, &text) == nil
}

// isWord reports whether a text is true, false, null or a number.
func isWord(b []byte) bool {
	if b[0] >= 'a' {
		return string(b) == "true" || string(b) == "false" || string(b) == "null"
	}
	if len(b) == 64 { // it may be longer
		return strings.Trim(string(b), "0123456789+-.eE") == ""
	}
	return json.Valid(b)
}

// swapBody has placeholders replaced in the body of a request, if it is JSON.
func (q *request) swapBody(out *http.Request) {
	secrets := slices.DeleteFunc(slices.Clone(q.chosen.swap), func(s *secret) bool { return len(s.sent.Pointers) == 0 })
	if len(secrets) == 0 || out.Body == nil || out.Body == http.NoBody || !isJSON(out.Header) {
		return
	}
	w := newSwapper(secrets, func(name string) { q.sent(map[string]bool{name: true}) })
	if out.ContentLength >= 0 && !w.same() {
		out.ContentLength = -1
		out.Header.Del("Content-Length")
	}
	out.Body = &swapped{ReadCloser: out.Body, by: w}
}

// isJSON reports whether a body is JSON in UTF-8 that can be read.
func isJSON(h http.Header) bool {
	if len(h["Content-Type"]) != 1 || len(h["Content-Encoding"]) > 0 {
		return false
	}
	kind, more, err := mime.ParseMediaType(h.Get("Content-Type"))
	if charset := more["charset"]; err != nil || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return false
	}
	return kind == "application/json" || strings.HasSuffix(kind, "+json")
}

// swapped is the body of a request in which placeholders are replaced.
type swapped struct {
	io.ReadCloser
	by    *swapper
	in    []byte
	ready []byte
	room  []byte
	err   error // after ready
}

// Read implements io.Reader. It gives on at once what it gets, but for one string.
func (s *swapped) Read(p []byte) (int, error) {
	for len(s.ready) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		if s.in == nil {
			s.in = make([]byte, 8<<10)
		}
		n, err := s.ReadCloser.Read(s.in)
		s.err = err
		s.room = s.by.write(s.room[:0], s.in[:n], err != nil)
		s.ready = s.room
		if n == 0 && err == nil {
			return 0, nil
		}
	}
	n := copy(p, s.ready)
	s.ready = s.ready[n:]
	return n, nil
}
