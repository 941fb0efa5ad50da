package rules

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// pattern is a regular expression of a policy file: Python's syntax as far as it runs in linear
// time. Beyond Go's syntax it supports (?!…), (?=…), (?<!…) and (?<=…) outside of groups. Back
// references and conditions are errors when it is compiled, so that every rule is enforced as
// written.
type pattern struct {
	source string
	// alternatives are tried in order; most patterns are one without a look.
	alternatives []alternative
	literals     []string // every match contains one of them; nil if unknown
}

type alternative struct {
	whole *regexp.Regexp // if there is no look
	parts []*regexp.Regexp
	looks []look // looks[i] stands behind parts[i]
	// loose is the pattern without its looks; it matches wherever the pattern does.
	loose *regexp.Regexp
	first bool // begins with ^
}

type look struct {
	re           *regexp.Regexp
	not, forward bool
}

// maxLookText limits the text that a pattern with looks is tried on, since the cost is quadratic.
const maxLookText = 4096

var errTooLong = errors.New("the text is too long for a pattern that looks ahead or behind")

// compilePattern compiles a pattern. With start it must match from the first byte.
func compilePattern(source string, start bool) (*pattern, error) {
	if len(source) > 4096 {
		return nil, fmt.Errorf("the pattern is longer than 4096 bytes: %w", errdefs.ErrInvalidArgument)
	}
	p := &pattern{source: source}
	text := python(source)
	alts := []string{text}
	if slices.ContainsFunc(lookKinds, func(k lookKind) bool { return strings.Contains(text, k.open) }) {
		alts = split(text)
	}
	known := true
	for _, a := range alts {
		alt, lits, err := compileAlternative(a, start)
		if err != nil {
			return nil, err
		}
		p.alternatives = append(p.alternatives, alt)
		if lits == nil {
			known = false
		}
		p.literals = append(p.literals, lits...)
	}
	if !known {
		p.literals = nil
	}
	return p, nil
}

// python translates Python's syntax into Go's.
func python(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			i++
			if s[i] == 'Z' {
				b.WriteString(`\z`)
				continue
			}
			b.WriteByte('\\')
			b.WriteByte(s[i])
		case strings.HasPrefix(s[i:], "{,"):
			b.WriteString("{0,")
			i++
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// scan calls f at each byte that is not escaped or in brackets, with the depth of groups there.
func scan(s string, f func(i, depth int)) {
	depth := 0
	for i := 0; i < len(s); i++ {
		f(i, depth)
		switch s[i] {
		case '\\':
			i++
		case '[':
			for i++; i < len(s) && (s[i] != ']' || s[i-1] == '[' || s[i-1] == '^' && s[i-2] == '['); i++ {
				if s[i] == '\\' {
					i++
				}
			}
		case '(':
			depth++
		case ')':
			depth--
		}
	}
}

// split splits at each | outside of groups.
func split(s string) []string {
	var out []string
	from := 0
	scan(s, func(i, depth int) {
		if depth == 0 && s[i] == '|' {
			out = append(out, s[from:i])
			from = i + 1
		}
	})
	return append(out, s[from:])
}

type lookKind struct {
	open         string
	not, forward bool
}

var lookKinds = []lookKind{{"(?=", false, true}, {"(?!", true, true}, {"(?<=", false, false}, {"(?<!", true, false}}

func compileAlternative(s string, start bool) (alternative, []string, error) {
	var a alternative
	var cuts []int
	var kinds []int
	var nested bool
	scan(s, func(i, depth int) {
		for k, kind := range lookKinds {
			if strings.HasPrefix(s[i:], kind.open) {
				if depth > 0 {
					nested = true
				}
				cuts, kinds = append(cuts, i), append(kinds, k)
			}
		}
	})
	if nested {
		return a, nil, fmt.Errorf("a look ahead or behind inside a group cannot be enforced; write it outside of groups: %w",
			errdefs.ErrInvalidArgument)
	}
	anchor := ""
	if start {
		anchor = `\A`
	}
	if len(cuts) == 0 {
		re, err := regexp.Compile(anchor + "(?:" + s + ")")
		if err != nil {
			return a, nil, err
		}
		a.whole = re
		return a, literals(s), nil
	}
	var lits []string
	loose := ""
	from := 0
	part := func(text string) error {
		re, err := regexp.Compile(`\A(?:` + text + `)\z`)
		if err != nil {
			return err
		}
		a.parts = append(a.parts, re)
		loose += "(?:" + text + ")"
		if l := literals(text); l != nil && lits == nil {
			lits = l
		}
		return nil
	}
	for n, at := range cuts {
		if at < from {
			return a, nil, fmt.Errorf("a look within a look cannot be enforced: %w", errdefs.ErrInvalidArgument)
		}
		end := closing(s, at)
		if end < 0 {
			return a, nil, fmt.Errorf("missing closing ): %w", errdefs.ErrInvalidArgument)
		}
		if err := part(s[from:at]); err != nil {
			return a, nil, err
		}
		kind := lookKinds[kinds[n]]
		inner := s[at+len(kind.open) : end]
		text := `\A(?:` + inner + ")"
		if !kind.forward {
			text = "(?:" + inner + `)\z`
		}
		re, err := regexp.Compile(text)
		if err != nil {
			return a, nil, err
		}
		a.looks = append(a.looks, look{re, kind.not, kind.forward})
		from = end + 1
		if from < len(s) && strings.IndexByte("*+?{", s[from]) >= 0 {
			return a, nil, fmt.Errorf("a repeated look cannot be enforced: %w", errdefs.ErrInvalidArgument)
		}
	}
	// The last part need not reach the end of the text.
	last := s[from:]
	re, err := regexp.Compile(`\A(?:` + last + `)`)
	if err != nil {
		return a, nil, err
	}
	a.parts = append(a.parts, re)
	loose += "(?:" + last + ")"
	if a.loose, err = regexp.Compile(anchor + loose); err != nil {
		return a, nil, err
	}
	a.first = start || strings.HasPrefix(s, "^") || strings.HasPrefix(s, `\A`)
	if lits == nil {
		lits = literals(last)
	}
	return a, lits, nil
}

func closing(s string, open int) int {
	end := -1
	at := -1
	scan(s, func(i, depth int) {
		if i == open {
			at = depth
		}
		if end < 0 && at >= 0 && i > open && s[i] == ')' && depth == at+1 {
			end = i
		}
	})
	return end
}

// match reports whether the text has a match. On an error the caller must take the stricter
// answer.
func (p *pattern) match(text string) (bool, error) {
	for i := range p.alternatives {
		a := &p.alternatives[i]
		if a.whole != nil {
			if a.whole.MatchString(text) {
				return true, nil
			}
			continue
		}
		if !a.loose.MatchString(text) {
			continue
		}
		if len(text) > maxLookText {
			return false, errTooLong
		}
		for start := range len(text) + 1 {
			if a.at(text, 0, start) {
				return true, nil
			}
			if a.first {
				break
			}
		}
	}
	return false, nil
}

func (a *alternative) at(text string, k, pos int) bool {
	if k == len(a.looks) {
		return a.parts[k].MatchString(text[pos:])
	}
	l := &a.looks[k]
	for end := pos; end <= len(text); end++ {
		if !a.parts[k].MatchString(text[pos:end]) {
			continue
		}
		side := text[end:]
		if !l.forward {
			side = text[:end]
		}
		if l.re.MatchString(side) != l.not && a.at(text, k+1, end) {
			return true
		}
	}
	return false
}

// literals returns texts of at least three bytes such that every match contains one of them; nil
// if there are none.
func literals(s string) []string {
	re, err := syntax.Parse(s, syntax.Perl)
	if err != nil {
		return nil
	}
	return needed(re.Simplify())
}

func needed(re *syntax.Regexp) []string {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 && len(string(re.Rune)) >= 3 {
			return []string{string(re.Rune)}
		}
	case syntax.OpCapture, syntax.OpPlus:
		return needed(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return needed(re.Sub[0])
		}
	case syntax.OpConcat:
		var best []string
		for _, sub := range re.Sub {
			if n := needed(sub); n != nil && (best == nil || shortest(n) > shortest(best)) {
				best = n
			}
		}
		return best
	case syntax.OpAlternate:
		var all []string
		for _, sub := range re.Sub {
			n := needed(sub)
			if n == nil {
				return nil
			}
			all = append(all, n...)
		}
		if len(all) <= 64 {
			return all
		}
	default:
	}
	return nil
}

func shortest(texts []string) int {
	n := len(texts[0])
	for _, t := range texts {
		n = min(n, len(t))
	}
	return n
}
