package httprule

import (
	"slices"
	"strings"
)

// Kind is where a secret is put.
type Kind string

// The kinds.
const (
	Header Kind = "header"
	Query  Kind = "query"
	Basic  Kind = "basic"
)

// Inject says where a secret is put into a request, in place of what the program sent there.
type Inject struct {
	Kind Kind
	// Name is that of the header in canonical form, or of the query parameter; with Basic the user.
	Name string
	// Before and After stand around the value in a header.
	Before, After string
	// Whole: with Basic, the value is USER:PASSWORD, and not the password alone.
	Whole bool
}

// Bounds of what stands in an Inject, in bytes.
const (
	maxName = 64
	maxText = 256
)

// slot stands for the value.
const slot = "{}"

// ParseInject reads where a secret is put. The forms are
//
//	header:X-Api-Key                  a header that has the value alone
//	header:Authorization: Bearer {}   one with text around the value, which {} stands for
//	query:key                         a parameter of the URL's query
//	basic:USER                        HTTP basic authentication: the value is the password of USER, which may be empty
//	basic                             the same with a value that is USER:PASSWORD
//
// Errors are of kind invalid argument.
func ParseInject(text string) (i Inject, err error) {
	if len(text) > maxName+maxText {
		return i, bad("cannot read where the secret is put: it has %d bytes, and at most %d are taken", len(text), maxName+maxText)
	}
	no := func(why string) (Inject, error) {
		return Inject{}, bad("cannot read where the secret is put, %.120q: %s", text, why)
	}
	kind, what, named := strings.Cut(text, ":")
	i = Inject{Kind: Kind(kind), Name: what}
	switch i.Kind {
	case Header:
		name, around, given := strings.Cut(what, ":")
		if i.Name = canonicalField(name); i.Name == "" {
			return no("what stands behind header: is not the name of one; write for example header:X-Api-Key")
		}
		if slices.Contains(framing, Field(i.Name)) || strings.HasPrefix(Field(i.Name), "PROXY-") {
			return no("that header says how the request is read, so no secret is put there")
		}
		if given {
			around = strings.TrimLeft(around, " ")
			if strings.Count(around, slot) != 1 || !printable(around) || strings.TrimSpace(around) != around || len(around) > maxText {
				return no("the text of the header has " + slot + " once, where the value stands, and printable ASCII; " +
					"write for example 'header:Authorization: Bearer {}'")
			}
			i.Before, i.After, _ = strings.Cut(around, slot)
		}
	case Query:
		if !named || what == "" || len(what) > maxName || strings.Trim(what, letters+"0123456789-._~") != "" {
			return no("what stands behind query: is not the name of a parameter; write letters, digits, - . _ and ~, for example query:key")
		}
	case Basic:
		i.Whole = !named
		if len(what) > maxText || !printable(what) || strings.Contains(what, ":") {
			return no("what stands behind basic: is not a user; write printable ASCII without a colon, or basic alone for a value that is " +
				"USER:PASSWORD")
		}
	default:
		return no("it is none of header:NAME, header:NAME: TEXT {}, query:NAME, basic:USER and basic")
	}
	return i, nil
}

// framing are headers by which a request is read, and those that belong to a connection.
var framing = []string{
	"CONNECTION", "CONTENT-ENCODING", "CONTENT-LENGTH", "CONTENT-TYPE", "EXPECT", "HOST", "HTTP2-SETTINGS", "KEEP-ALIVE", "TE", "TRAILER",
	"TRANSFER-ENCODING", "UPGRADE",
}

const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// IsField reports whether a text is the name of a header (RFC 9110, 5.6.2).
func IsField(s string) bool {
	return s != "" && len(s) <= maxName && strings.Trim(s, letters+"0123456789!#$%&'*+-.^_`|~") == ""
}

// canonicalField is textproto.CanonicalMIMEHeaderKey of the name of a header, "" of another text.
func canonicalField(s string) string {
	if !IsField(s) {
		return ""
	}
	b, upper := []byte(s), true
	for i, c := range b {
		switch {
		case upper && c >= 'a' && c <= 'z':
			b[i] = c - ('a' - 'A')
		case !upper && c >= 'A' && c <= 'Z':
			b[i] = c + ('a' - 'A')
		}
		upper = c == '-'
	}
	return string(b)
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// Text is the form that ParseInject reads.
func (i Inject) Text() string {
	switch {
	case i.Kind == Header && i.Before+i.After != "":
		return "header:" + i.Name + ": " + i.Before + slot + i.After
	case i.Kind == Basic && i.Whole:
		return string(Basic)
	}
	return string(i.Kind) + ":" + i.Name
}

// Field is the header that the secret is put into, in canonical form; "" with Query.
func (i Inject) Field() string {
	switch i.Kind {
	case Header:
		return i.Name
	case Basic:
		return "Authorization"
	case Query:
	}
	return ""
}

// Place names what the secret is put into. Two secrets with the same one cannot be sent in one request.
func (i Inject) Place() string {
	if f := i.Field(); f != "" {
		return "the header " + f
	}
	return "the query parameter " + i.Name
}
