package httprule

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// Path is the path of a request in its canonical form: segments without percent-encoding. The zero Path is "/".
type Path struct{ rest string } // what stands behind the first slash

// maxSent bounds a path that a program sends.
const maxSent = 16 << 10

// ParsePath reads the path of a request as it is sent, percent-encoded and without a query. It refuses, with an error of
// kind permission denied, each path that two servers may read in two ways:
//
//	/a/../b, /a/./b, /a/%2e%2e/b   segments of dots, which one removes and another does not
//	/a//b                          empty segments
//	/a;x/b, /a/..;/b               parameters of segments
//	/a\b, /a%5cb, /a%2fb           what may be a separator
//	/a%3fb, /a%23b                 what may begin a query or a fragment
//	/a%252fb                       what may be decoded twice
//	/a%00b, /a%c0%afb, /ü          control characters, what is not UTF-8, what should have been encoded
//	a, *                           what does not begin with a slash
//
// The error names the reason and nothing that the program sent.
func ParsePath(sent string) (Path, error) {
	if sent == "" {
		return Path{}, nil
	}
	if sent[0] != '/' {
		return Path{}, ambiguous("does not begin with a slash")
	}
	if len(sent) > maxSent {
		return Path{}, ambiguous("is too long")
	}
	var b strings.Builder
	for i := 1; i < len(sent); i++ {
		c := sent[i]
		switch {
		case c == '%':
			var ok bool
			if c, ok = unhex(sent[i+1:]); !ok {
				return Path{}, ambiguous("has a percent sign that encodes nothing")
			}
			i += 2
			switch c {
			case '/', '\\':
				return Path{}, ambiguous("has an encoded separator")
			case '?', '#':
				return Path{}, ambiguous("has an encoded ? or #")
			case '%':
				if _, twice := unhex(sent[i+1:]); twice {
					return Path{}, ambiguous("is encoded twice")
				}
			}
		case c == '\\':
			return Path{}, ambiguous("has a backslash")
		case c >= utf8.RuneSelf || c <= ' ' || c == '?' || c == '#' || c == '"' || c == '<' || c == '>' || c == '^' || c == '`':
			return Path{}, ambiguous("has a character that must be encoded")
		}
		if c == ';' {
			return Path{}, ambiguous("has a parameter, which begins with ;")
		}
		if c < ' ' || c == 0x7f {
			return Path{}, ambiguous("has a control character")
		}
		b.WriteByte(c)
	}
	rest := b.String()
	if !utf8.ValidString(rest) {
		return Path{}, ambiguous("is not UTF-8")
	}
	if why := unclear(rest); why != "" {
		return Path{}, ambiguous(why)
	}
	return Path{rest}, nil
}

// unclear says why the segments of a path have no canonical form, "" if they have.
func unclear(rest string) string {
	segments := strings.Split(rest, "/")
	for i, s := range segments {
		switch {
		case s == "" && i < len(segments)-1:
			return "has an empty segment"
		case s != "" && strings.Trim(s, ". ") == "": // some systems remove dots and spaces from an end
			return "has a segment of dots"
		}
	}
	return ""
}

func ambiguous(why string) error { return errAmbiguous{why} }

// errAmbiguous is the error of a path without a canonical form.
type errAmbiguous struct{ why string }

func (e errAmbiguous) Error() string {
	return "its path " + e.why + ", which servers read in different ways"
}
func (errAmbiguous) Unwrap() error { return errdefs.ErrPermissionDenied }

func unhex(s string) (byte, bool) {
	if len(s) < 2 {
		return 0, false
	}
	hi, lo := strings.IndexByte(hexes, s[0]|0x20), strings.IndexByte(hexes, s[1]|0x20)
	if !isHex(s[0]) || !isHex(s[1]) || hi < 0 || lo < 0 {
		return 0, false
	}
	return byte(hi<<4 | lo), true
}

const hexes = "0123456789abcdef"

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// Pattern is a pattern of paths.
type Pattern struct {
	segments []string // without the last "*"
	rest     bool     // it ends with "/*"
}

// ParsePattern reads a pattern of paths, in the form
//
//	/v1/models            that path
//	/repos/*/*/issues     any one segment in the place of each *
//	/v1/*                 every path that begins with /v1/
//	/*                    every path
//
// It is written without percent-encoding. Errors are of kind invalid argument.
func ParsePattern(text string) (Pattern, error) {
	no := func(why string) (Pattern, error) { return Pattern{}, bad("path %.80q %s", text, why) }
	rest, ok := strings.CutPrefix(text, "/")
	switch {
	case !ok:
		return no("does not begin with a slash; write for example /v1/*")
	case len(text) > MaxPath:
		return Pattern{}, bad("path has %d bytes, and at most %d are taken", len(text), MaxPath)
	case !utf8.ValidString(text):
		return no("is not UTF-8")
	case strings.ContainsFunc(text, func(r rune) bool {
		return !unicode.IsGraphic(r) || unicode.IsSpace(r) || strings.ContainsRune(`\?#;%"<>^`+"`", r)
	}):
		return no(`has a character that no path of a rule has: a space, one of \ ? # ; % " < > ^ or a control character; use * for that segment`)
	}
	if why := unclear(rest); why != "" {
		return no(why + "; no request has such a path")
	}
	p := Pattern{segments: strings.Split(rest, "/")}
	if last := len(p.segments) - 1; p.segments[last] == "*" {
		p.rest, p.segments = true, p.segments[:last]
	}
	for _, s := range p.segments {
		if s != "*" && strings.Contains(s, "*") {
			return no("has a * that is not a whole segment; write for example /v1/*/items")
		}
	}
	return p, nil
}

// Text is the pattern in the form that ParsePattern reads.
func (p Pattern) Text() string {
	all := p.segments
	if p.rest {
		all = append(slices.Clip(all), "*")
	}
	return "/" + strings.Join(all, "/")
}

// Matches reports whether a path is one of those.
func (p Pattern) Matches(of Path) bool {
	have := strings.Split(of.rest, "/")
	if p.rest && len(have) <= len(p.segments) || !p.rest && len(have) != len(p.segments) {
		return false
	}
	for i, want := range p.segments {
		if want == "*" && have[i] == "" || want != "*" && want != have[i] {
			return false
		}
	}
	return true
}

// Covers reports whether some server may take a path for one of those, for rules that deny: letter case makes no difference,
// nor does a slash at the end, or dots and spaces at the end of a segment. It reports true wherever Matches does.
func (p Pattern) Covers(of Path) bool {
	want, have := loose(p.segments), loose(strings.Split(of.rest, "/"))
	if len(have) < len(want) || !p.rest && len(have) > len(want) {
		return false
	}
	for i := range want {
		if want[i] != "*" && !strings.EqualFold(want[i], have[i]) {
			return false
		}
	}
	return true
}

// loose returns segments without what some servers do not look at.
func loose(segments []string) (all []string) {
	for _, s := range segments {
		all = append(all, strings.TrimRight(s, ". "))
	}
	if last := len(all) - 1; last >= 0 && all[last] == "" {
		all = all[:last]
	}
	return all
}

// Text is the path, decoded. It may have any character but control characters.
func (p Path) Text() string { return "/" + p.rest }
