package approval

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// Rule is what a permission has that a person wrote for commands of a shape. Its Subject has the shape as Argv,
// and the workspace if it is for one.
type Rule struct {
	// Owner is whose workspaces it is for; "" is everybody's.
	Owner string `json:"owner,omitempty"`
	// Capabilities are those of the shape. A command that has another is not of it.
	Capabilities []string `json:"capabilities"`
	// UID and Admin are of the person who wrote it, at that time.
	UID   uint32 `json:"uid"`
	Admin bool   `json:"admin,omitempty"`
}

// Bounds of a rule.
const (
	MaxShapeWords = 64
	MaxShapeBytes = 4096
	// MaxRules is how many there may be.
	MaxRules = 1000
)

// Shape matches commands word by word. A * in a word stands for any text without a slash and, outside of a URL, without
// a colon; ** for any text, and everything else for itself: a shell's signs mean nothing. A pattern matches neither control
// characters nor a component "..", a * at the start of a word no option, and a * in the host of a URL no other host.
type Shape struct {
	argv  []string
	words []*regexp.Regexp // nil for a word without a pattern
}

// NewShape returns the shape of words. invalid_argument: they are none.
func NewShape(argv []string) (Shape, error) {
	s := Shape{argv: argv, words: make([]*regexp.Regexp, len(argv))}
	size := 0
	for _, w := range argv {
		size += len(w)
	}
	switch {
	case len(argv) == 0 || argv[0] == "":
		return s, bad("it names no program; give the words of the command")
	case len(argv) > MaxShapeWords || size > MaxShapeBytes:
		return s, bad("it has %d words of %d bytes, of at most %d and %d", len(argv), size, MaxShapeWords, MaxShapeBytes)
	case strings.Contains(argv[0], "*"):
		return s, bad("the program %q is a pattern; name the program, and write one rule for each", argv[0])
	}
	for i, w := range argv {
		if !utf8.ValidString(w) || strings.ContainsFunc(w, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return s, bad("the word %q is not plain text", w)
		}
		if i == 0 || !strings.Contains(w, "*") {
			continue
		}
		if strings.Contains(w, "***") {
			return s, bad("%q has three * in a row: give * for a text without a slash or colon, or ** for any text", w)
		}
		text, err := expression(w)
		if err != nil {
			return s, err
		}
		if s.words[i], err = regexp.Compile(text); err != nil {
			return s, bad("%q cannot be read as a pattern: %v", w, err)
		}
	}
	return s, nil
}

func bad(format string, v ...any) error {
	return fmt.Errorf("cannot allow that: "+format+": %w", append(v, errdefs.ErrInvalidArgument)...)
}

// expression is a word with patterns as a regular expression.
func expression(w string) (string, error) {
	var b strings.Builder
	b.WriteString(`^(?:`)
	// A colon gives the words of many programs a second meaning: SOURCE:TARGET of "git push", HOST:PATH of ssh, scp and git.
	host, rest, some := "", w, `[^/:\x00-\x1f\x7f]*`
	if scheme, after, ok := strings.Cut(w, "://"); ok {
		end := strings.IndexAny(after, `/?#\`)
		if end < 0 {
			end = len(after)
		}
		host, rest, some = scheme+"://"+after[:end], after[end:], `[^/\x00-\x1f\x7f]*`
	}
	if strings.Contains(host, "*") {
		_, name, _ := strings.Cut(host, "://")
		if strings.Contains(name, "**") || strings.HasSuffix(name, "*") || strings.ContainsAny(name, "@") {
			return "", bad("the pattern in the host of %q would fit other hosts; end the host before it, as in https://example.org/*, or put * in "+
				"place of a label at its front, as in https://*.example.org/", w)
		}
		b.WriteString(strings.ReplaceAll(regexp.QuoteMeta(host), `\*`, `[0-9A-Za-z-]*`))
		host = ""
	}
	b.WriteString(regexp.QuoteMeta(host))
	rest = regexp.QuoteMeta(rest)
	rest = strings.ReplaceAll(rest, `\*\*`, "\x00")
	rest = strings.ReplaceAll(rest, `\*`, some)
	rest = strings.ReplaceAll(rest, "\x00", `[^\x00-\x1f\x7f]*`)
	b.WriteString(rest)
	b.WriteString(`)$`)
	return b.String(), nil
}

// Exact reports whether no word is a pattern.
func (s Shape) Exact() bool {
	return !slices.ContainsFunc(s.words, func(r *regexp.Regexp) bool { return r != nil })
}

// Matches reports whether a command has the shape.
func (s Shape) Matches(argv []string) bool {
	if len(argv) != len(s.argv) {
		return false
	}
	for i, w := range argv {
		switch re := s.words[i]; {
		case re == nil && w != s.argv[i]:
			return false
		case re == nil:
		case !re.MatchString(w) || climbs(w) || strings.HasPrefix(s.argv[i], "*") && beginsOption(w):
			return false
		}
	}
	return len(argv) > 0
}

// climbs reports whether a component of a word is "..", also as servers and clients decode it.
func climbs(w string) bool {
	decoded := strings.NewReplacer("%2e", ".", "%2E", ".", "%2f", "/", "%2F", "/", "%5c", "/", "%5C", "/", `\`, "/").Replace(w)
	for part := range strings.FieldsFuncSeq(decoded, func(r rune) bool { return strings.ContainsRune("/=:?#&;,", r) }) {
		if part == ".." {
			return true
		}
	}
	return false
}

// beginsOption reports whether a program may take a word for an option, or for more than a text.
func beginsOption(w string) bool { return w != "" && strings.IndexByte("-+@", w[0]) >= 0 }

// author is the person who wrote a rule.
func (r *Rule) author() principal.Principal {
	return principal.Principal{Kind: principal.User, UID: r.UID, Admin: r.Admin}
}

// Speaks reports whether a rule covers what a caller asks for in a workspace of owner: whoever wrote it could answer
// the question. separate is the setting of that name.
func (p *Permission) Speaks(ask Ask, owner string, separate bool) bool {
	if p.Rule == nil || p.Rule.Owner != "" && p.Rule.Owner != owner ||
		p.Subject.Workspace != "" && p.Subject.Workspace != ask.Subject.Workspace {
		return false
	}
	return Approval{Ask: ask, Separate: separate}.MayAnswer(p.Rule.author(), Once, true) == nil
}

// MayWrite returns nil if p may write a rule, else permission_denied. No token may: it is a program, and may have been
// made for that.
func MayWrite(p principal.Principal, everybody bool) error {
	why := ""
	switch {
	case p.Kind != principal.User:
		why = "a token is a program, and what it does unasked is for a person to say; a user of the host does"
	case !p.Can(principal.Answer):
		why = "it takes the role operator or admin"
	case everybody && !p.Can(principal.Any):
		why = "a rule for everybody's workspaces takes an administrator; leave --everybody out for your own"
	default:
		return nil
	}
	return fmt.Errorf("cannot let %s allow commands: %s: %w", p, why, errdefs.ErrPermissionDenied)
}
