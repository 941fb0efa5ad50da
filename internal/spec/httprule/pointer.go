package httprule

import (
	"strings"
	"unicode/utf8"
)

// MaxDepth is the most segments of a Pointer.
const MaxDepth = 16

// Pointer names one place in a JSON document (RFC 6901): the names of members, and indexes of arrays, on the way there.
type Pointer []string

// ParsePointer reads a JSON pointer, as /auth/token or /messages/0/key; "~1" stands for "/" and "~0" for "~" in a name.
// Errors are of kind invalid argument.
func ParsePointer(text string) (Pointer, error) {
	no := func(why string) (Pointer, error) {
		return nil, bad("cannot use the place in JSON %.80q: %s", text, why)
	}
	rest, ok := strings.CutPrefix(text, "/")
	switch {
	case !ok:
		return no("it does not begin with a slash; write for example /auth/token")
	case len(text) > MaxPath:
		return no("it is too long")
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return no("it has a control character or is not UTF-8")
	}
	p := Pointer(strings.Split(rest, "/"))
	if len(p) > MaxDepth {
		return no("it is too deep")
	}
	for i, s := range p {
		if strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(s), "~") {
			return no("a ~ stands only in ~0, for itself, and ~1, for a slash")
		}
		p[i] = unescaper.Replace(s)
	}
	return p, nil
}

var (
	unescaper = strings.NewReplacer("~1", "/", "~0", "~")
	escaper   = strings.NewReplacer("~", "~0", "/", "~1")
)

// Text is the form that ParsePointer reads.
func (p Pointer) Text() string {
	var b strings.Builder
	for _, s := range p {
		b.WriteByte('/')
		b.WriteString(escaper.Replace(s))
	}
	return b.String()
}
