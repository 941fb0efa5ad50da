package shell

import (
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// ansiC returns the value of $'…' (ANSI-C Quoting in bash's manual) and whether a printable ASCII
// character was written by its code.
func ansiC(s string) (value string, hidden bool) {
	if strings.IndexByte(s, '\\') < 0 {
		return s, false
	}
	var b strings.Builder
	code := func(digits string, base int, isRune bool) bool {
		n, err := strconv.ParseUint(digits, base, 32)
		if err != nil {
			return false
		}
		if !isRune {
			n &= 0xff
		}
		if n >= 0x20 && n < 0x7f {
			hidden = true
		}
		switch {
		case n == 0:
			return true
		case n < 0x80 || !isRune:
			b.WriteByte(byte(n))
		default:
			b.WriteRune(rune(n))
		}
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		ended := false
		switch c := s[i]; c {
		case 'a':
			b.WriteByte(7)
		case 'b':
			b.WriteByte(8)
		case 'e', 'E':
			b.WriteByte(0x1b)
		case 'f':
			b.WriteByte(0x0c)
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case 'v':
			b.WriteByte(0x0b)
		case '\\', '\'', '"', '?':
			b.WriteByte(c)
		case '0', '1', '2', '3', '4', '5', '6', '7':
			d := digits(s[i:], 3, "01234567")
			ended = code(d, 8, false)
			i += len(d) - 1
		case 'x', 'u', 'U':
			most := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			d := digits(s[i+1:], most, "0123456789abcdefABCDEF")
			if d == "" {
				b.WriteByte('\\')
				b.WriteByte(c)
				continue
			}
			ended = code(d, 16, c != 'x')
			i += len(d)
		case 'c':
			if i+1 < len(s) {
				i++
				if s[i] == '\\' && i+1 < len(s) && s[i+1] == '\\' {
					i++
				}
				if n := s[i] & 0x1f; n != 0 {
					b.WriteByte(n)
				} else {
					ended = true
				}
			}
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
		if ended {
			// The value ends at a NUL, of the quotes alone.
			break
		}
	}
	return b.String(), hidden
}

func digits(s string, most int, set string) string {
	i := 0
	for i < len(s) && i < most && strings.IndexByte(set, s[i]) >= 0 {
		i++
	}
	return s[:i]
}

// quote writes a word so that a shell reads it back.
func quote(s string) string {
	if s == "" {
		return "''"
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; !alnum(c) && strings.IndexByte("-_./=:,@%+", c) < 0 {
			return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
		}
	}
	return s
}

// hides reports whether quotes are within a plain word, where they change only its looks: r”m,
// "r"m, /e'tc/pas'swd. Quoting a value after an option or sign is usual and hides nothing:
// --name="x", -p"x", "$dir"/x.
func (f *field) hides(parts []syntax.WordPart) bool {
	for i, p := range parts {
		content, ok := quotedContent(p)
		if !ok {
			continue
		}
		before, after := byte(0), byte(0)
		quotedBefore := false
		if i > 0 {
			s := ""
			switch q := parts[i-1].(type) {
			case *syntax.Lit:
				s = q.Value
			default:
				s, quotedBefore = quotedContent(parts[i-1])
			}
			if s != "" {
				before = s[len(s)-1]
			}
		}
		if i+1 < len(parts) {
			s := ""
			if q, ok := parts[i+1].(*syntax.Lit); ok {
				s = q.Value
			} else {
				s, _ = quotedContent(parts[i+1])
			}
			if s != "" {
				after = s[0]
			}
		}
		short := false
		if lit, ok := parts[0].(*syntax.Lit); ok && i == 1 && i+1 == len(parts) && len(lit.Value) == 2 && lit.Value[0] == '-' {
			short = true // -p"x", sed -i''
		}
		switch {
		case short:
		case content == "":
			if wordByte(before) || wordByte(after) {
				return true
			}
		case alnumOnly(content):
			if alnum(before) || alnum(after) || quotedBefore && wordByte(before) {
				return true
			}
		case plainPath(content):
			if quotedBefore && wordByte(before) || alnum(before) && alnum(content[0]) || alnum(after) && alnum(content[len(content)-1]) {
				return true
			}
		}
	}
	return false
}

func wordByte(c byte) bool { return alnum(c) || c != 0 && strings.IndexByte("_./-", c) >= 0 }

func plainPath(s string) bool {
	for i := 0; i < len(s); i++ {
		if !wordByte(s[i]) {
			return false
		}
	}
	return true
}

// quotedContent returns the content of quotes if it is text alone.
func quotedContent(p syntax.WordPart) (string, bool) {
	switch p := p.(type) {
	case *syntax.SglQuoted:
		return p.Value, true
	case *syntax.DblQuoted:
		switch len(p.Parts) {
		case 0:
			return "", true
		case 1:
			if l, ok := p.Parts[0].(*syntax.Lit); ok {
				return l.Value, true
			}
		}
	}
	return "", false
}

// hidesEscape reports whether the escape at s[i] hides something: of a letter or digit, where it
// has no effect. An escape before a whole name is the usual way past an alias (\rm), and \n or \d
// are written for a program that gets them.
func (f *field) hidesEscape(s string, i int, first, last bool) bool {
	if !alnum(s[i]) {
		return false
	}
	if f.mode == asName {
		return !first || i != 1
	}
	if i < 2 || !alnum(s[i-2]) {
		return false
	}
	return !last || i+1 < len(s) || strings.IndexByte("ntrdwsb", s[i]) < 0
}
