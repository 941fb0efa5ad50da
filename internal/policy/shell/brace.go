package shell

import (
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// braceState is what the braces of a word expand to.
type braceState uint8

const (
	bracesNone     braceState = iota // nothing is expanded
	bracesExpanded                   // into the alternatives
	bracesUnclear                    // shells, or versions of one, may differ
)

func hasBrace(w *syntax.Word) bool {
	for _, p := range w.Parts {
		if l, ok := p.(*syntax.Lit); ok && strings.IndexByte(l.Value, '{') >= 0 {
			return true
		}
	}
	return false
}

// braces expands the braces of a word.
func (w *walker) braces(word *syntax.Word, source string) ([][]syntax.WordPart, braceState) {
	if !strings.Contains(source, ",") && !strings.Contains(source, "..") {
		return nil, bracesNone
	}
	if w.dialect == POSIX || w.noBraces || len(source) > 4096 {
		return nil, bracesUnclear
	}
	split := syntax.Word{Parts: append([]syntax.WordPart(nil), word.Parts...)}
	syntax.SplitBraces(&split)
	if !hasBraceExp(split.Parts) {
		for _, p := range split.Parts {
			l, ok := p.(*syntax.Lit)
			if ok && (strings.Contains(l.Value, ",") || strings.Contains(l.Value, "..")) {
				return nil, bracesUnclear
			}
		}
		return nil, bracesNone
	}
	if leftover(split.Parts) {
		return nil, bracesUnclear
	}
	budget := maxFields
	out := expandBraces(split.Parts, &budget)
	if budget < 0 || out == nil {
		return nil, bracesUnclear
	}
	return out, bracesExpanded
}

func hasBraceExp(parts []syntax.WordPart) bool {
	for _, p := range parts {
		if _, ok := p.(*syntax.BraceExp); ok {
			return true
		}
	}
	return false
}

// leftover reports whether a brace is outside of the expansions.
func leftover(parts []syntax.WordPart) bool {
	for _, p := range parts {
		switch p := p.(type) {
		case *syntax.Lit:
			if strings.ContainsAny(p.Value, `{}`) {
				return true
			}
		case *syntax.BraceExp:
			for _, e := range p.Elems {
				if leftover(e.Parts) {
					return true
				}
			}
		}
	}
	return false
}

// expandBraces returns the words of a list of parts; nil if they are too many or unclear.
func expandBraces(parts []syntax.WordPart, budget *int) [][]syntax.WordPart {
	out := [][]syntax.WordPart{nil}
	for _, p := range parts {
		b, ok := p.(*syntax.BraceExp)
		if !ok {
			for i := range out {
				out[i] = append(out[i], p)
			}
			continue
		}
		var alternatives [][]syntax.WordPart
		if b.Sequence {
			for _, s := range sequence(b) {
				alternatives = append(alternatives, []syntax.WordPart{&syntax.Lit{Value: s, ValuePos: b.Pos(), ValueEnd: b.End()}})
			}
		} else {
			for _, e := range b.Elems {
				x := expandBraces(e.Parts, budget)
				if x == nil {
					return nil
				}
				alternatives = append(alternatives, x...)
			}
		}
		if *budget -= len(out) * len(alternatives); *budget < 0 || len(alternatives) == 0 {
			return nil
		}
		next := make([][]syntax.WordPart, 0, len(out)*len(alternatives))
		for _, o := range out {
			for _, x := range alternatives {
				next = append(next, append(append([]syntax.WordPart(nil), o...), x...))
			}
		}
		out = next
	}
	return out
}

// sequence expands {1..9}, {01..10}, {a..e} and those with a step; none if it is unclear or too
// long.
func sequence(b *syntax.BraceExp) []string {
	if len(b.Elems) < 2 {
		return nil
	}
	from, to := b.Elems[0].Lit(), b.Elems[1].Lit()
	step := 1
	if len(b.Elems) > 2 {
		n, err := strconv.Atoi(b.Elems[2].Lit())
		if err != nil || n <= 0 {
			return nil
		}
		step = n
	}
	var out []string
	if len(from) == 1 && len(to) == 1 && letter(from[0]) && letter(to[0]) {
		if (from[0] < 'a') != (to[0] < 'a') {
			return nil // punctuation lies between
		}
		for c := int(from[0]); ; {
			out = append(out, string(rune(c)))
			if from[0] <= to[0] {
				if c += step; c > int(to[0]) {
					return out
				}
			} else if c -= step; c < int(to[0]) {
				return out
			}
		}
	}
	x, err1 := strconv.Atoi(from)
	y, err2 := strconv.Atoi(to)
	if err1 != nil || err2 != nil || from[0] == '+' || to[0] == '+' || step > 1<<20 || max(x, -x, y, -y) > 1<<30 {
		return nil
	}
	if n := max(x, y) - min(x, y); n/step >= maxFields {
		return nil
	}
	width := 0
	for _, s := range []string{from, to} {
		if t := strings.TrimPrefix(s, "-"); len(t) > 1 && t[0] == '0' {
			width = max(width, len(from), len(to))
		}
	}
	if width > 0 && (x < 0 || y < 0) {
		return nil
	}
	for n := x; ; {
		s := strconv.Itoa(n)
		for len(s) < width {
			s = "0" + s
		}
		out = append(out, s)
		if x <= y {
			if n += step; n > y {
				return out
			}
		} else if n -= step; n < y {
			return out
		}
	}
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
