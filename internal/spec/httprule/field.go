package httprule

import "strings"

// Meaning is what some servers take from a header field in the place of the request line, or beside it.
type Meaning byte

// The meanings.
const (
	NoMeaning Meaning = iota
	NamesMethod
	NamesPath
	// NamesDestination is a second path of the request: RFC 4918, 10.3.
	NamesDestination
)

// destination is the field of WebDAV in the form of Field.
const destination = "DESTINATION"

// meanings are fields in the form of Field, without a beginning "X-", by their length.
var meanings = func() (all [32][]meaning) {
	for m, names := range map[Meaning][]string{NamesMethod: methodFields, NamesPath: pathFields} {
		for _, name := range names {
			all[len(name)] = append(all[len(name)], meaning{name, m})
		}
	}
	return all
}()

type meaning struct {
	field string
	is    Meaning
}

var (
	methodFields = []string{
		"HTTP-METHOD", "HTTP-METHOD-OVERRIDE", "HTTP-VERB", "HTTP-VERB-OVERRIDE", "METHOD-OVERRIDE", "ORIGINAL-METHOD", "OVERRIDE-METHOD",
		"REWRITE-METHOD", "VERB-OVERRIDE", "FORWARDED-METHOD", "ENVOY-ORIGINAL-METHOD",
	}
	pathFields = []string{
		"ORIGINAL-URL", "ORIGINAL-URI", "ORIGINAL-PATH", "REWRITE-URL", "REWRITE-URI", "REWRITE-PATH", "OVERRIDE-URL", "OVERRIDE-URI",
		"OVERRIDE-PATH", "FORWARDED-URL", "FORWARDED-URI", "FORWARDED-PATH", "FORWARDED-PREFIX", "FORWARDED-REQUEST-URI", "REQUEST-URL",
		"REQUEST-URI", "ENVOY-ORIGINAL-PATH", "WAWS-UNENCODED-URL", "HTTP-PATH-OVERRIDE", "HTTP-URL-OVERRIDE", "HTTP-DESTINATIONURL",
		// What is copied or renamed from there.
		"AMZ-COPY-SOURCE", "AMZ-RENAME-SOURCE", "MS-COPY-SOURCE", "MS-RENAME-SOURCE", "GOOG-COPY-SOURCE", "OSS-COPY-SOURCE",
		"COS-COPY-SOURCE", "OBS-COPY-SOURCE", "BCE-COPY-SOURCE", "TOS-COPY-SOURCE", "COPY-FROM", "OBJECT-MANIFEST", "SYMLINK-TARGET",
	}
)

// MeaningOf returns the meaning of a field in any spelling.
func MeaningOf(field string) Meaning {
	if Same(field, destination) {
		return NamesDestination
	}
	if len(field) > 2 && Same(field[:2], "X-") {
		field = field[2:]
	}
	if len(field) >= len(meanings) {
		return NoMeaning
	}
	for _, one := range meanings[len(field)] {
		if Same(field, one.field) {
			return one.is
		}
	}
	return NoMeaning
}

// Overrides reports whether a header field makes some servers take another method or path than that of the request, or one more
// path that is not a destination.
func Overrides(field string) (method, path bool) {
	m := MeaningOf(field)
	return m == NamesMethod, m == NamesPath
}

// Field is the name of a header field in the one form that servers tell apart: many of them, as all that speak CGI, take
// "_" for "-", and some every byte that is neither a letter nor a digit.
func Field(name string) string {
	return strings.Map(func(r rune) rune {
		if r > 0x7f {
			return r
		}
		return rune(fold(byte(r)))
	}, name)
}

// Same reports whether two names are spellings of one field.
func Same(name, field string) bool {
	if len(name) != len(field) {
		return false
	}
	for i := range len(name) {
		if fold(name[i]) != fold(field[i]) {
			return false
		}
	}
	return true
}

func fold(c byte) byte {
	switch {
	case c >= 'a' && c <= 'z':
		return c - ('a' - 'A')
	case c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c > 0x7f:
		return c
	}
	return '-'
}
