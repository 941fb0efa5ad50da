package shell

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// reader is a parser with its source, for reuse.
type reader struct {
	parser *syntax.Parser
	src    strings.Reader
}

func (d Dialect) variant() syntax.LangVariant {
	if d == POSIX {
		return syntax.LangPOSIX
	}
	return syntax.LangBash
}

var readers = [...]sync.Pool{
	Bash:  {New: func() any { return &reader{parser: syntax.NewParser(syntax.Variant(syntax.LangBash))} }},
	POSIX: {New: func() any { return &reader{parser: syntax.NewParser(syntax.Variant(syntax.LangPOSIX))} }},
}

func parse(src string, d Dialect) (*syntax.File, error) {
	r, _ := readers[d].Get().(*reader)
	r.src.Reset(src)
	f, err := r.parser.Parse(&r.src, "")
	r.src.Reset("")
	readers[d].Put(r)
	return f, err
}

// parseBody reads a text as the body of a heredoc: expansions and nothing else.
func parseBody(src string, d Dialect) (*syntax.Word, error) {
	r, _ := readers[d].Get().(*reader)
	r.src.Reset(src)
	word, err := r.parser.Document(&r.src)
	r.src.Reset("")
	readers[d].Put(r)
	return word, err
}

// endComments blanks a backslash at the end of a comment, which belongs to the comment for a
// shell but joins the next line for the parser. It returns false if that never ends.
func endComments(src string, d Dialect) (string, bool) {
	for range 64 {
		if !commentJoins(src) {
			return src, true
		}
		r := reader{parser: syntax.NewParser(syntax.Variant(d.variant()), syntax.KeepComments(true))}
		r.src.Reset(src)
		f, _ := r.parser.Parse(&r.src, "")
		if f == nil {
			return src, false
		}
		b := []byte(src)
		found := false
		syntax.Walk(f, func(n syntax.Node) bool {
			c, ok := n.(*syntax.Comment)
			if !ok {
				return true
			}
			from := int(c.Pos().Offset())
			if from < 0 || from >= len(b) || b[from] != '#' {
				return true
			}
			if i := bytes.IndexByte(b[from:], '\n'); i > 0 && b[from+i-1] == '\\' {
				b[from+i-1] = ' '
				found = true
			}
			return true
		})
		if !found {
			return src, true
		}
		src = string(b)
	}
	return src, false
}

// commentJoins reports whether something looks like a comment that ends in a backslash.
func commentJoins(src string) bool {
	for rest := src; ; {
		i := strings.Index(rest, "\\\n")
		if i < 0 {
			return false
		}
		line := rest[:i]
		line = line[strings.LastIndexByte(line, '\n')+1:]
		if strings.IndexByte(line, '#') >= 0 {
			return true
		}
		rest = rest[i+2:]
	}
}

var errTooDeep = errors.New("too many of what may open something")

// explain formats a parser's error for a person.
func explain(err error) string {
	if p, ok := errors.AsType[syntax.ParseError](err); ok {
		return fmt.Sprintf("line %d, column %d: %s", p.Pos.Line(), p.Pos.Col(), p.Text)
	}
	if l, ok := errors.AsType[syntax.LangError](err); ok {
		return fmt.Sprintf("line %d, column %d: %s is no part of this shell's language", l.Pos.Line(), l.Pos.Col(), l.Feature)
	}
	return err.Error()
}

// cutLine returns at most n bytes of a text, up to the end of a line if possible.
func cutLine(src string, n int) string {
	src = src[:n]
	if i := strings.LastIndexByte(src, '\n'); i > 0 {
		return src[:i]
	}
	for !utf8.ValidString(src[max(0, len(src)-utf8.UTFMax):]) && len(src) > 0 && n-len(src) < utf8.UTFMax {
		src = src[:len(src)-1]
	}
	return src
}

// openers counts what could make the parser recurse.
func openers(src string) int {
	n := 0
	for i := 0; i < len(src); i++ {
		switch src[i] {
		case '(', '`', '{', '[':
			n++
		case '!':
			if i+1 < len(src) && (src[i+1] == ' ' || src[i+1] == '\t' || src[i+1] == '\n' || src[i+1] == '\\') {
				n++
			}
		case 'f', 'e', 'l', 'r', 't', 'n', 'c':
			// if, while, until, for, select, case, function, time, coproc
			if i > 0 && keyword(src[:i+1]) {
				n++
			}
		}
	}
	return n
}

func keyword(s string) bool {
	switch s[len(s)-2:] {
	case "if", "le", "il", "or", "ct", "se", "on", "me", "oc":
		return endsIn(s, "if") || endsIn(s, "while") || endsIn(s, "until") || endsIn(s, "for") || endsIn(s, "select") ||
			endsIn(s, "case") || endsIn(s, "function") || endsIn(s, "time") || endsIn(s, "coproc")
	}
	return false
}

// endsIn reports whether the last word of s is w.
func endsIn(s, w string) bool {
	if !strings.HasSuffix(s, w) {
		return false
	}
	if len(s) == len(w) {
		return true
	}
	c := s[len(s)-len(w)-1]
	return !alnum(c) && c != '_'
}

func alnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}
