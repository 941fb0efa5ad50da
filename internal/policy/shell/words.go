package shell

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// mode is the position of a word, which determines its expansion.
type mode uint8

const (
	asArgs   mode = iota // an argument: split, globbed, braces and tildes expanded
	asName               // the first word of a command
	asTarget             // of a redirect: as an argument, but one word
	asValue              // of an assignment: tildes only
	asBody               // of a heredoc: no quotes
	asText               // elsewhere: of case, [[, arithmetic
)

func (m mode) splits() bool { return m <= asTarget }

// words expands an argument into words, appended to dst.
func (w *walker) words(dst []Word, word *syntax.Word, sc scope, m mode) []Word {
	if lit, ok := w.plain(word); ok {
		return append(dst, Word{Text: lit, Source: lit})
	}
	source := w.nodeSource(word)
	if m.splits() && m != asTarget && hasBrace(word) {
		alternatives, state := w.braces(word, source)
		switch state {
		case bracesUnclear:
			f := field{walker: w, sc: sc, mode: m, source: source, dst: dst}
			f.parts(word.Parts)
			f.flush()
			for i := len(dst); i < len(f.dst); i++ {
				f.dst[i].Dynamic, f.dst[i].Many = true, true
			}
			return f.dst
		case bracesExpanded:
			n := len(dst)
			for _, parts := range alternatives {
				f := field{walker: w, sc: sc, mode: m, source: source, dst: dst, braced: true}
				f.parts(parts)
				f.flush()
				dst = f.dst
			}
			if m == asName && len(dst) > n {
				dst[n].Hidden = true
			}
			return dst
		case bracesNone:
		}
	}
	f := field{walker: w, sc: sc, mode: m, source: source, dst: dst}
	f.parts(word.Parts)
	f.flush()
	return f.dst
}

// word expands a word that stays one.
func (w *walker) word(word *syntax.Word, sc scope, m mode) Word {
	if word == nil {
		return Word{}
	}
	var one [1]Word
	out := w.words(one[:0], word, sc, m)
	switch len(out) {
	case 0:
		return Word{Source: w.nodeSource(word)}
	case 1:
		return out[0]
	}
	// A redirect to several words is an error of the shell, or one word in POSIX.
	x := out[0]
	for _, o := range out[1:] {
		x.Text += " " + o.Text
	}
	x.Dynamic, x.Many = true, true
	return x
}

// plain returns the value of a word with nothing to expand.
func (w *walker) plain(word *syntax.Word) (string, bool) {
	if len(word.Parts) != 1 || w.cr != 0 {
		return "", false
	}
	lit, ok := word.Parts[0].(*syntax.Lit)
	if !ok {
		return "", false
	}
	for i := 0; i < len(lit.Value); i++ {
		switch c := lit.Value[i]; {
		case c >= 0x80:
			return "", false
		case c == '\\', c == '*', c == '?', c == '[', c == '~', c == '{', c == '$':
			return "", false
		}
	}
	// A value that is shorter than its source had a newline escaped.
	if int(lit.ValueEnd.Offset())-int(lit.ValuePos.Offset()) != len(lit.Value) {
		return "", false
	}
	return lit.Value, true
}

// field builds words from the parts of one.
type field struct {
	*walker
	sc     scope
	mode   mode
	source string
	braced bool
	dst    []Word

	buf   strings.Builder
	begun bool // quotes were seen, so an empty field counts
	Word       // the flags; Text and Source are set at the end
}

func (f *field) flush() {
	if !f.begun && f.buf.Len() == 0 {
		// An unquoted expansion of nothing leaves no word at all.
		if !f.mode.splits() {
			f.emit()
		}
		return
	}
	f.emit()
}

func (f *field) emit() {
	x := f.Word
	x.Text, x.Source = f.value(f.buf.String()), f.source
	f.dst = append(f.dst, x)
	f.buf.Reset()
	f.begun = false
	f.Word = Word{Hidden: x.Hidden}
}

func (f *field) add(s string) {
	f.env.fuel -= len(s)
	f.buf.WriteString(s)
}

// unknown adds a part of which only the source is known.
func (f *field) unknown(n syntax.Node, many bool) {
	f.add(f.nodeSource(n))
	f.Dynamic = true
	f.begun = true
	if many && f.mode.splits() {
		f.Many = true
	}
}

func (f *field) parts(parts []syntax.WordPart) {
	if len(parts) > 1 && f.hides(parts) {
		f.Hidden = true
	}
	for i, p := range parts {
		switch p := p.(type) {
		case *syntax.Lit:
			if f.dialect == POSIX && i+1 < len(parts) && strings.HasSuffix(p.Value, "$") && !strings.HasSuffix(p.Value, `\$`) {
				switch parts[i+1].(type) {
				case *syntax.SglQuoted, *syntax.DblQuoted:
					// $'…' is known to some shells only.
					f.Dynamic, f.Hidden = true, true
				}
			}
			f.lit(p, i == 0, i+1 == len(parts))
		case *syntax.SglQuoted:
			f.begun = true
			if p.Dollar {
				s, hidden := ansiC(f.value(p.Value))
				f.add(s)
				// Without an escape the sign has no use.
				f.Hidden = f.Hidden || hidden || f.dialect == Bash && strings.IndexByte(p.Value, '\\') < 0
			} else {
				f.add(p.Value)
			}
		case *syntax.DblQuoted:
			f.begun = true
			for _, q := range p.Parts {
				f.quoted(q)
			}
			if p.Dollar && f.mode == asName {
				f.Hidden = true
			}
		case *syntax.ParamExp:
			f.param(p, false)
		case *syntax.CmdSubst:
			f.subst(p, false)
		case *syntax.ArithmExp:
			f.arithm(p.X, f.sc)
			f.unknown(p, f.mode.splits() && f.env.ifs)
		case *syntax.ProcSubst:
			f.procSubst(p, f.sc)
			f.unknown(p, false)
		case *syntax.ExtGlob:
			f.extGlob(p)
		case *syntax.BraceExp:
			// Expanded before.
			f.unknown(p, true)
		}
	}
}

func (f *field) extGlob(p *syntax.ExtGlob) {
	f.add(f.nodeSource(p))
	if f.mode.splits() {
		f.Glob = true
	}
	// The parser takes the pattern for text; what it runs is not seen.
	if p.Pattern != nil && strings.ContainsAny(p.Pattern.Value, "$`<>") {
		f.Dynamic = true
		f.hiddenText(p.Pattern.Value, int(p.Pattern.Pos().Offset()), int(p.Pattern.End().Offset()), f.sc)
	}
}

// lit adds an unquoted literal.
func (f *field) lit(l *syntax.Lit, first, last bool) {
	if f.mode == asBody {
		f.bodyLit(l.Value)
		return
	}
	s := l.Value
	if s != "" {
		f.begun = true
	}
	if first && strings.HasPrefix(s, "~") && f.mode != asText {
		f.Dynamic = true
	}
	if strings.Contains(s, "~") && f.mode != asText {
		// After = and : as in an assignment, also where it is an argument.
		if i := strings.IndexByte(s, '='); i > 0 && strings.HasPrefix(s[i+1:], "~") || f.mode == asValue && strings.Contains(s, ":~") ||
			i > 0 && strings.Contains(s[i:], ":~") {
			f.Dynamic = true
		}
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch c {
		case '\\':
			if i+1 == len(s) {
				f.buf.WriteByte(c)
				continue
			}
			i++
			if s[i] == '\n' {
				continue // the parser leaves it behind an escaped backslash
			}
			if f.mode <= asTarget && f.hidesEscape(s, i, first, last) {
				f.Hidden = true
			}
			f.buf.WriteByte(s[i])
			continue
		case '*', '?':
			f.Glob = f.Glob || f.mode.splits()
		case '[':
			if f.mode.splits() && (strings.IndexByte(s[i:], ']') > 0 || !last) {
				f.Glob = true
			}
		}
		if c >= 0x80 && f.mode.splits() {
			f.unquotedOdd(s[i:], int(l.ValuePos.Offset())+i, i == 0 && first)
		}
		f.buf.WriteByte(c)
	}
}

// bodyLit adds a literal of a heredoc whose delimiter was not quoted.
func (f *field) bodyLit(s string) {
	f.begun = true
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			switch s[i+1] {
			case '$', '`', '\\':
				i++
			case '\n':
				i++
				continue
			}
		}
		f.buf.WriteByte(s[i])
	}
}

// quoted adds a part within double quotes.
func (f *field) quoted(p syntax.WordPart) {
	switch p := p.(type) {
	case *syntax.Lit:
		s := p.Value
		for i := 0; i < len(s); i++ {
			if s[i] == '\\' && i+1 < len(s) {
				switch s[i+1] {
				case '$', '`', '\\', '"':
					i++
				case '\n':
					i++
					continue
				}
			}
			f.buf.WriteByte(s[i])
		}
	case *syntax.ParamExp:
		f.param(p, true)
	case *syntax.CmdSubst:
		f.subst(p, true)
	case *syntax.ArithmExp:
		f.arithm(p.X, f.sc)
		f.unknown(p, false)
	case *syntax.ProcSubst:
		f.procSubst(p, f.sc)
		f.unknown(p, false)
	default:
		f.unknown(p, false)
	}
}

// subst adds a command substitution; its value is known if its output is.
func (f *field) subst(p *syntax.CmdSubst, quoted bool) {
	out := f.substitution(p.Stmts, f.sc)
	if out.state == known && !out.guess && !p.TempFile && !p.ReplyVar {
		s := strings.TrimRight(out.text, "\n")
		// A text in a heredoc, as in git commit -m "$(cat <<E …)", hides nothing.
		if f.mode != asBody && (f.mode == asName || !quoted || !strings.ContainsAny(s, " \n")) {
			f.Hidden = true
		}
		f.known(s, quoted)
		return
	}
	f.unknown(p, !quoted)
}

// known adds a known value of an expansion.
func (f *field) known(s string, quoted bool) {
	if quoted || !f.mode.splits() {
		f.begun = f.begun || quoted
		f.add(s)
		return
	}
	if f.env.ifs && s != "" {
		f.add(s)
		f.begun, f.Dynamic, f.Many = true, true, true
		return
	}
	if strings.ContainsAny(s, "*?[\\") {
		f.Glob = true
	}
	if !strings.ContainsAny(s, " \t\n") {
		f.add(s)
		return
	}
	for {
		i := strings.IndexAny(s, " \t\n")
		if i < 0 {
			f.add(s)
			return
		}
		f.add(s[:i])
		if glob := f.Glob; f.begun || f.buf.Len() > 0 {
			if len(f.dst) >= maxFields {
				f.Dynamic, f.Many = true, true
				f.add(s[i:])
				return
			}
			f.emit()
			f.Glob = glob
		}
		s = strings.TrimLeft(s[i:], " \t\n")
		if s == "" {
			return
		}
	}
}

// set returns the words of a text as a set.
func set(words string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		m[w] = true
	}
	return m
}
