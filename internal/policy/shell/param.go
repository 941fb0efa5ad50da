package shell

import (
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// param adds a parameter expansion.
func (f *field) param(p *syntax.ParamExp, quoted bool) {
	f.paramParts(p)
	if (quoted || f.mode == asBody) && p.Exp != nil {
		f.quotedDefault(p.Exp)
	}
	if p.Param == nil {
		f.unknown(p, !quoted)
		return
	}
	name := p.Param.Value
	plain := !p.Excl && !p.Length && !p.Width && !p.IsSet && p.Names == 0 && p.NestedParam == nil && p.Flags == nil && len(p.Modifiers) == 0
	many := !quoted
	switch name {
	case "@":
		many = true
	case "?", "#", "$":
		many = !quoted && f.env.ifs
	}
	all, star := false, false
	if p.Index != nil {
		switch indexText(p.Index) {
		case "@":
			all = true
			many = true
		case "*":
			star = true
		}
	}
	if p.Names == syntax.NamesPrefixWords {
		many = true
	}
	if !plain || !syntax.ValidName(name) {
		if p.Length && plain0(p) {
			if list, ok := f.env.lookup(name); ok && len(list) == 1 && ascii(list[0]) {
				f.known(strconv.Itoa(len(list[0])), quoted)
				return
			}
		}
		f.unknown(p, many)
		return
	}
	list, ok := f.env.lookup(name)
	if !ok || f.env.fuel < 0 {
		f.unknown(p, many)
		return
	}
	switch {
	case all || star:
		if p.Slice != nil || p.Repl != nil || p.Exp != nil || !f.mode.splits() || f.env.ifs || star && !quoted {
			f.unknown(p, true)
			return
		}
		if star {
			f.known(strings.Join(list, " "), true)
			return
		}
		f.elements(list, quoted)
		return
	case p.Index != nil:
		i, err := strconv.Atoi(indexText(p.Index))
		if err != nil || i < 0 || i >= len(list) {
			f.unknown(p, many)
			return
		}
		list = list[i : i+1]
	}
	if len(list) == 0 {
		f.unknown(p, many)
		return
	}
	s, ok := transform(list[0], p)
	if !ok {
		f.unknown(p, many)
		return
	}
	if f.mode == asName && (s != list[0] || f.joint(s)) {
		f.Hidden = true
	}
	f.known(s, quoted)
}

// joint reports whether a value continues a plain word, as in $a$b or r$x.
func (f *field) joint(s string) bool {
	if s == "" {
		return false
	}
	t := f.buf.String()
	if t != "" && alnum(t[len(t)-1]) && alnum(s[0]) {
		return true
	}
	// What follows it in the source is a plain character or another expansion.
	i := strings.LastIndexByte(f.source, '$')
	if i < 0 {
		return false
	}
	rest := strings.TrimLeft(f.source[i+1:], "{")
	for rest != "" && (alnum(rest[0]) || rest[0] == '_') {
		rest = rest[1:]
	}
	return len(rest) > 1 && rest[0] == '}' && alnum(rest[1])
}

func plain0(p *syntax.ParamExp) bool {
	return !p.Excl && p.Index == nil && p.Slice == nil && p.Repl == nil && p.Exp == nil && p.Names == 0 && p.NestedParam == nil
}

// elements adds those of "${a[@]}".
func (f *field) elements(list []string, quoted bool) {
	if len(list) == 0 {
		// Not even an empty word, if nothing stands beside it.
		f.begun = f.buf.Len() > 0
		return
	}
	for i, s := range list {
		if i > 0 {
			if len(f.dst) >= maxFields {
				f.Dynamic, f.Many = true, true
				return
			}
			f.begun = f.begun || quoted
			f.flush()
		}
		f.known(s, quoted)
	}
}

// transform applies the operators with a certain result.
func transform(s string, p *syntax.ParamExp) (string, bool) {
	switch {
	case p.Slice != nil:
		return slice(s, p.Slice)
	case p.Repl != nil:
		return replace(s, p.Repl)
	case p.Exp != nil:
		return operate(s, p.Exp)
	}
	return s, true
}

func operate(s string, e *syntax.Expansion) (string, bool) {
	switch e.Op {
	case syntax.DefaultUnset, syntax.AssignUnset, syntax.ErrorUnset:
		return s, true
	case syntax.DefaultUnsetOrNull, syntax.AssignUnsetOrNull, syntax.ErrorUnsetOrNull:
		return s, s != ""
	default:
	}
	if !ascii(s) {
		return "", false
	}
	word, ok := literal(e.Word)
	if !ok {
		return "", false
	}
	switch e.Op {
	case syntax.UpperAll, syntax.LowerAll:
		if word != "" {
			return "", false
		}
		if e.Op == syntax.UpperAll {
			return strings.ToUpper(s), true
		}
		return strings.ToLower(s), true
	case syntax.RemSmallPrefix, syntax.RemLargePrefix:
		return strings.TrimPrefix(s, word), true
	case syntax.RemSmallSuffix, syntax.RemLargeSuffix:
		return strings.TrimSuffix(s, word), true
	default:
	}
	return "", false
}

func slice(s string, sl *syntax.Slice) (string, bool) {
	if !ascii(s) {
		return "", false
	}
	from, to := 0, len(s)
	if sl.Offset != nil {
		n, err := strconv.Atoi(indexText(sl.Offset))
		if err != nil || n < 0 || n > len(s) {
			return "", false
		}
		from = n
	}
	if sl.Length != nil {
		n, err := strconv.Atoi(indexText(sl.Length))
		if err != nil || n < 0 {
			return "", false
		}
		to = min(from+n, len(s))
	}
	return s[from:to], true
}

func replace(s string, r *syntax.Replace) (string, bool) {
	from, ok := literal(r.Orig)
	if !ok || from == "" || strings.ContainsAny(from[:1], "#%/") {
		return "", false
	}
	to, ok := literal(r.With)
	if !ok || strings.Contains(to, "&") {
		return "", false
	}
	if len(to) > 64 {
		return "", false
	}
	if r.All {
		return strings.ReplaceAll(s, from, to), true
	}
	return strings.Replace(s, from, to, 1), true
}

// literal returns the value of a word that is one literal without marks.
func literal(w *syntax.Word) (string, bool) {
	if w == nil {
		return "", true
	}
	if len(w.Parts) != 1 {
		return "", false
	}
	l, ok := w.Parts[0].(*syntax.Lit)
	if !ok || strings.ContainsAny(l.Value, `\*?[]~(){}`) || !ascii(l.Value) {
		return "", false
	}
	return l.Value, true
}

func indexText(x syntax.ArithmExpr) string {
	if w, ok := x.(*syntax.Word); ok {
		return w.Lit()
	}
	return ""
}

func ascii(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// quotedDefault walks through the text between single quotes in the word of :- and similar
// operators within double quotes, where they do not quote: "${x:-'$(y)'}" runs y. With # % and /
// they do quote.
func (f *field) quotedDefault(e *syntax.Expansion) {
	switch e.Op {
	case syntax.RemSmallPrefix, syntax.RemLargePrefix, syntax.RemSmallSuffix, syntax.RemLargeSuffix:
		return
	default:
	}
	if e.Word == nil {
		return
	}
	for _, p := range e.Word.Parts {
		if q, ok := p.(*syntax.SglQuoted); ok {
			f.hiddenText(q.Value, int(q.Pos().Offset()), int(q.End().Offset()), f.sc)
		}
	}
}

// paramParts walks through what stands within an expansion.
func (f *field) paramParts(p *syntax.ParamExp) {
	if p.Index != nil {
		switch indexText(p.Index) {
		case "@", "*":
		default:
			f.arithm(p.Index, f.sc)
		}
	}
	if p.NestedParam != nil {
		f.word(&syntax.Word{Parts: []syntax.WordPart{p.NestedParam}}, f.sc, asText)
	}
	if p.Slice != nil {
		f.arithm(p.Slice.Offset, f.sc)
		f.arithm(p.Slice.Length, f.sc)
	}
	if p.Repl != nil {
		f.word(p.Repl.Orig, f.sc, asText)
		f.word(p.Repl.With, f.sc, asText)
	}
	if p.Exp != nil {
		f.word(p.Exp.Word, f.sc, asText)
		switch p.Exp.Op {
		case syntax.AssignUnset, syntax.AssignUnsetOrNull:
			if p.Param != nil && p.Param.Value != "" {
				defer f.env.forget(p.Param.Value)
			}
		case syntax.OtherParamOps:
			// ${x@P} runs the substitutions in the value.
			if p.Param != nil && p.Exp.Word != nil && p.Exp.Word.Lit() == "P" {
				if list, ok := f.env.lookup(p.Param.Value); ok {
					for _, s := range list {
						f.hiddenText(s, int(p.Pos().Offset()), int(p.End().Offset()), f.sc)
					}
				}
			}
		default:
		}
	}
}

// arithm walks through an arithmetic expression.
func (w *walker) arithm(x syntax.ArithmExpr, sc scope) {
	for depth := sc.depth; x != nil; depth++ {
		if depth > w.limits.Depth+1024 {
			w.tooDeep()
			return
		}
		switch e := x.(type) {
		case *syntax.Word:
			if e == nil {
				return
			}
			v := w.word(e, sc, asText)
			w.evaluated(v, e, sc)
			return
		case *syntax.BinaryArithm:
			if isAssignment(e.Op) {
				w.assigned(e.X)
			}
			// One side may be long: go down on the left in a loop, on the right by a call.
			w.arithm(e.Y, sc.deeper())
			x = e.X
		case *syntax.UnaryArithm:
			if e.Op == syntax.Inc || e.Op == syntax.Dec {
				w.assigned(e.X)
			}
			x = e.X
		case *syntax.ParenArithm:
			x = e.X
		case *syntax.FlagsArithm:
			x = e.X
		default:
			return
		}
	}
}

func isAssignment(op syntax.BinAritOperator) bool {
	switch op {
	case syntax.Eql, syntax.Neq, syntax.Leq, syntax.Geq:
		return false
	default:
		return strings.HasSuffix(op.String(), "=")
	}
}

// assigned forgets what arithmetic assigns.
func (w *walker) assigned(x syntax.ArithmExpr) {
	word, ok := x.(*syntax.Word)
	if !ok || len(word.Parts) == 0 {
		w.env.forgetAll()
		return
	}
	switch p := word.Parts[0].(type) {
	case *syntax.Lit:
		w.env.forget(p.Value)
	case *syntax.ParamExp:
		if p.Param != nil {
			w.env.forget(p.Param.Value)
		}
	default:
		w.env.forgetAll()
	}
}

// evaluated looks at an operand of arithmetic, which the shell evaluates again: in the value
// a[$(x)] the substitution runs.
func (w *walker) evaluated(v Word, e *syntax.Word, sc scope) {
	from, to := int(e.Pos().Offset()), int(e.End().Offset())
	values := []string{v.Text}
	if list, ok := w.env.lookup(v.Text); ok {
		values = append(values, list...)
	} else if v.Dynamic {
		return
	}
	for _, s := range values {
		if s == "" || alnumOnly(s) {
			continue
		}
		w.env.forgetAll()
		w.hiddenText(s, from, to, sc)
	}
}

func alnumOnly(s string) bool {
	for i := 0; i < len(s); i++ {
		if !alnum(s[i]) && s[i] != '_' {
			return false
		}
	}
	return true
}
