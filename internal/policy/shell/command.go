package shell

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// assigns are builtins that assign variables or run what may.
var assigns = set(`
	. builtin command declare enable eval exec export getopts let local mapfile printf read readarray readonly set
	shopt source trap typeset unset wait compgen bind alias vared nameref`)

// begin adds a command at the position of its statement.
func (w *walker) begin(s *syntax.Stmt, sc scope, words []Word) int {
	from, to := int(s.Position.Offset()), 0
	if s.Cmd != nil {
		to = int(s.Cmd.End().Offset())
	}
	for _, r := range s.Redirs {
		from = min(from, int(r.Pos().Offset()))
		to = max(to, int(r.Word.End().Offset()))
	}
	if s.Negated && s.Cmd != nil {
		// Without the "!".
		from = int(s.Cmd.Pos().Offset())
		for _, r := range s.Redirs {
			from = min(from, int(r.Pos().Offset()))
		}
	}
	from, to = w.clamp(from, to)
	c := Command{Argv: words, Text: w.src[from:to], Context: sc.ctx, From: -1, Into: -1, Parent: sc.parent}
	c.Start, c.End = w.place(from, to)
	return w.add(c, sc.subst)
}

// within returns the scope of the words of a command.
func (w *walker) within(i int, sc scope) scope {
	if i >= 0 {
		sc.parent = i
	}
	return sc
}

// call walks through a simple command; c is nil for redirects alone.
func (w *walker) call(s *syntax.Stmt, c *syntax.CallExpr, sc scope) {
	i := w.begin(s, sc, nil)
	inner := w.within(i, sc)
	var argv []Word
	var assigned []Assign
	mark, ifs := w.env.mark(), w.env.ifs
	misread := false
	if c != nil {
		if len(c.Assigns) > 0 {
			assigned = make([]Assign, 0, len(c.Assigns))
			for _, as := range c.Assigns {
				if misread = misread || as.Name != nil && !syntax.ValidName(as.Name.Value); misread {
					// The parser reads x-a[i]=b as an assignment; to a shell it is a command.
					argv = append(argv, w.raw(as))
				}
				assigned = append(assigned, w.assign(as, inner))
			}
		}
		if len(c.Args) > 0 {
			// Words are expanded before the assignments of the command.
			w.env.cut(mark)
			ifs, w.env.ifs = w.env.ifs, ifs
			if argv == nil {
				argv = carve(&w.facts.room, len(c.Args))[:0]
			}
			for k, arg := range c.Args {
				m := asArgs
				if k == 0 {
					m = asName
				}
				argv = w.words(argv, arg, inner, m)
			}
			for _, as := range c.Assigns {
				// After coproc the parser reads an argument a=b as an assignment.
				if as.Pos().After(c.Args[0].Pos()) && len(argv) > 0 {
					rest := w.source(int(c.Args[0].End().Offset()), int(c.End().Offset()))
					argv = append(argv[:1], Word{Text: rest, Source: rest, Dynamic: true, Many: true})
				}
			}
			for _, as := range assigned {
				if as.Name != "IFS" {
					w.env.forget(as.Name)
				}
			}
			w.env.ifs = w.env.ifs || ifs && mayKeep(argv)
		}
	}
	if w.keywords && len(argv) > 1 {
		for k := range argv[1:] {
			x := &argv[k+1]
			if name, value, ok := assignment(*x); ok {
				assigned = append(assigned, Assign{Name: name, Value: value})
				x.Dynamic, x.Many = true, true
				w.env.forget(name)
			}
		}
	}
	if i >= 0 {
		w.facts.Commands[i].Argv = argv
		w.facts.Commands[i].Assigns = assigned
	}
	in := w.redirects(i, s.Redirs, sc)
	if i < 0 {
		return
	}
	switch {
	case misread:
		w.env.forgetAll()
	case c == nil || len(c.Args) == 0:
		w.silent(i, s)
		if len(c0(c)) == 0 && len(s.Redirs) > 0 {
			w.side[i].out = stream{}
		}
	case len(argv) == 0:
		// Every word expanded to nothing, so the assignments stay.
		w.env.forgetAll()
	default:
		w.effect(i, argv, in, inner, c)
		if writes(s.Redirs) {
			w.side[i].out = stream{}
		}
	}
	if c != nil && len(c.Args) > 0 {
		for _, as := range assigned {
			if as.Name != "IFS" {
				w.env.forget(as.Name)
			}
		}
	}
}

// mayKeep reports whether assignments before a command may stay after it, or apply to a text that
// it runs.
func mayKeep(argv []Word) bool {
	if len(argv) == 0 || argv[0].Dynamic {
		return true
	}
	switch argv[0].Text {
	case "read", "mapfile", "readarray", "printf", "getopts", "wait":
		return false
	}
	return assigns[argv[0].Text] || argv[0].Text == ":" || argv[0].Text == "shift"
}

func c0(c *syntax.CallExpr) []*syntax.Assign {
	if c == nil {
		return nil
	}
	return c.Assigns
}

// assign walks through one assignment and binds the name.
func (w *walker) assign(as *syntax.Assign, sc scope) Assign {
	a := Assign{Append: as.Append}
	if as.Name != nil {
		a.Name = as.Name.Value
	}
	if as.Index != nil {
		w.arithm(as.Index, sc)
	}
	switch {
	case as.Array != nil:
		a.Value = w.array(as, sc)
		return a
	case as.Value != nil:
		a.Value = w.word(as.Value, sc, asValue)
		w.valueText(a, as.Value, sc)
	}
	if as.Naked {
		return a
	}
	w.bind(a, as.Index != nil)
	return a
}

// bind records the value of a name after an assignment.
func (w *walker) bind(a Assign, indexed bool) {
	switch {
	case indexed || a.Value.Dynamic:
		w.env.log = append(w.env.log, binding{name: a.Name, readonly: w.env.isReadonly(a.Name)})
		if a.Name == "IFS" {
			w.env.ifs = true
		}
	case a.Append:
		list, ok := w.env.lookup(a.Name)
		if !ok || len(list) != 1 || len(list[0])+len(a.Value.Text) > w.limits.Bytes {
			w.env.forget(a.Name)
			return
		}
		w.env.set(a.Name, list[0]+a.Value.Text)
	default:
		w.env.set(a.Name, a.Value.Text)
	}
}

// array walks through the elements of a=(…).
func (w *walker) array(as *syntax.Assign, sc scope) Word {
	source := w.nodeSource(as.Array)
	var words []Word
	known := as.Name != nil && as.Index == nil
	for _, e := range as.Array.Elems {
		if e.Index != nil {
			w.arithm(e.Index, sc)
			known = false
		}
		if e.Value != nil {
			words = w.words(words, e.Value, sc, asArgs)
			w.hiddenWords(words[max(0, len(words)-1):], e.Value, sc)
		}
	}
	var list []string
	for _, x := range words {
		known = known && !x.Dynamic && !x.Glob && !x.Many
		list = append(list, x.Text)
	}
	if as.Name != nil {
		if as.Append && known {
			old, ok := w.env.lookup(as.Name.Value)
			known = ok && len(old)+len(list) <= maxFields
			list = append(append([]string(nil), old...), list...)
		}
		if known {
			w.env.setList(as.Name.Value, list)
		} else {
			w.env.forget(as.Name.Value)
		}
	}
	return Word{Text: source, Source: source, Dynamic: true, Many: true}
}

// valueText reads a value that holds a substitution as text, which runs when the value is
// evaluated, as in prompts and arithmetic.
func (w *walker) valueText(a Assign, v *syntax.Word, sc scope) {
	if !a.Value.Dynamic {
		w.hiddenText(a.Value.Text, int(v.Pos().Offset()), int(v.End().Offset()), sc)
	}
}

func (w *walker) hiddenWords(words []Word, n syntax.Node, sc scope) {
	for _, x := range words {
		if !x.Dynamic {
			w.hiddenText(x.Text, int(n.Pos().Offset()), int(n.End().Offset()), sc)
		}
	}
}

// hiddenText walks through substitutions in a text that may be evaluated.
func (w *walker) hiddenText(s string, from, to int, sc scope) {
	if !strings.Contains(s, "$(") && !strings.Contains(s, "`") && !strings.Contains(s, "${") && !strings.Contains(s, "$((") {
		return
	}
	if !strings.Contains(s, "(") && !strings.Contains(s, "`") {
		return
	}
	if w.nested += len(s); w.nested > 2*w.limits.Bytes || w.full || sc.depth >= w.limits.Depth || openers(s) > maxOpeners {
		w.tooDeep()
		return
	}
	doc, err := parseBody(s, w.dialect)
	if err != nil || doc == nil {
		return // it would not run either
	}
	in := walker{analyzer: w.analyzer, dialect: w.dialect, src: s, fixed: true}
	in.start, in.end = w.place(w.clamp(from, to))
	sc.ctx.Conditional, sc.ctx.Text = true, true
	in.word(doc, sc.deeper(), asBody)
}

// decl walks through declare, export, local, readonly and typeset.
func (w *walker) decl(s *syntax.Stmt, c *syntax.DeclClause, sc scope) {
	i := w.begin(s, sc, nil)
	inner := w.within(i, sc)
	argv := []Word{static(c.Variant.Value)}
	var assigned []Assign
	d := declaration{variant: c.Variant.Value}
	for _, as := range c.Args {
		if as.Naked && as.Name == nil {
			n := len(argv)
			argv = w.words(argv, as.Value, inner, asArgs)
			for _, x := range argv[n:] {
				d.option(x)
				if name, value, ok := assignment(x); ok {
					assigned = append(assigned, Assign{Name: name, Value: value, Export: d.exports()})
					w.declared(&d, name, nil)
				}
				w.hiddenWords([]Word{x}, as.Value, inner)
			}
			continue
		}
		if as.Naked {
			argv = append(argv, static(w.nodeSource(as)))
			if as.Index != nil {
				w.arithm(as.Index, inner)
			}
			w.declared(&d, as.Name.Value, nil)
			continue
		}
		a := w.assign(as, inner)
		a.Export = d.exports()
		if as.Value != nil && as.Index == nil {
			// Unlike an assignment by itself this is a word of a command: export b={x,y} is export b=x b=y.
			if _, state := w.braces(as.Value, w.nodeSource(as.Value)); state != bracesNone {
				a.Value.Dynamic = true
				w.env.makeVolatile(a.Name)
			}
		}
		assigned = append(assigned, a)
		x := a.Value
		x.Source = w.nodeSource(as)
		switch {
		case as.Index != nil || as.Array != nil:
			x.Text = x.Source
		case a.Append:
			x.Text = a.Name + "+=" + a.Value.Text
		default:
			x.Text = a.Name + "=" + a.Value.Text
		}
		argv = append(argv, x)
		w.declared(&d, a.Name, &a)
	}
	if i >= 0 {
		w.facts.Commands[i].Argv, w.facts.Commands[i].Assigns = argv, assigned
	}
	w.redirects(i, s.Redirs, sc)
	if len(assigned) > 0 && !writes(s.Redirs) {
		w.silent(i, s)
	}
}

// declaration is a parsed declare or relative of it.
type declaration struct {
	variant string
	export  bool
	freezes bool
	// odd: names get a meaning in which a value differs from what was assigned.
	odd bool
}

func (d *declaration) exports() bool { return d.export || d.variant == "export" }

func (d *declaration) option(x Word) {
	if x.Dynamic {
		d.odd = true
		return
	}
	if len(x.Text) < 2 || x.Text[0] != '-' && x.Text[0] != '+' {
		return
	}
	for _, c := range x.Text[1:] {
		switch c {
		case 'x':
			d.export = x.Text[0] == '-'
		case 'r':
			d.freezes = true
		case 'a', 'g', 'p', 'f', '-':
		default:
			d.odd = true
		}
	}
}

// declared records what a declaration does to a name. Without a value, local and declare may
// empty it.
func (w *walker) declared(d *declaration, name string, value *Assign) {
	switch {
	case d.odd || d.variant == "nameref":
		// A name may now refer to another or transform assigned values.
		w.env.makeVolatile("")
	case d.freezes || d.variant == "readonly":
		w.env.readonly = true
		if n := len(w.env.log); value != nil && n > 0 && w.env.log[n-1].name == name {
			w.env.log[n-1].readonly = true
		} else {
			w.env.log = append(w.env.log, binding{name: name, readonly: true})
		}
	case value == nil && d.variant != "export":
		w.env.forget(name)
	}
}

// assignment splits a word of the form NAME=VALUE.
func assignment(x Word) (string, Word, bool) {
	name, value, ok := strings.Cut(x.Text, "=")
	name = strings.TrimSuffix(name, "+")
	if !ok || !syntax.ValidName(name) {
		return "", Word{}, false
	}
	v := x
	v.Text = value
	return name, v, true
}

// effect records what a command changes for later ones and walks through texts that it runs.
func (w *walker) effect(i int, argv []Word, in stream, sc scope, c *syntax.CallExpr) {
	w.useAlias(i, sc, c)
	args := argv
	// command, builtin and exec run what follows, in this shell.
	for len(args) > 1 && !args[0].Dynamic {
		rest, ok := unwrap(args)
		if !ok {
			break
		}
		args = rest
	}
	name := args[0]
	if name.Dynamic || name.Many || name.Glob && len(w.env.log) > 0 {
		// It may be eval, read or unset.
		w.env.forgetAll()
		if !name.Dynamic {
			return
		}
	}
	if name.Dynamic {
		w.odd, w.noBraces = true, true
		return
	}
	loses, function := w.functions[name.Text]
	if loses {
		w.env.forgetAll()
	}
	// The function may not be defined at this point, so look at both.
	w.builtin(i, args, in, sc)
	w.interpreter(i, args, in, sc)
	if !function && len(args) == len(argv) && !w.odd {
		w.side[i].out = w.produce(args, in)
	}
}

// unwrap removes command, builtin or exec from a list of words.
func unwrap(args []Word) ([]Word, bool) {
	takes := ""
	switch args[0].Text {
	case "command", "builtin":
	case "time", "coproc":
		// Words of the language to bash, and of the language of POSIX no more than names.
	case "exec":
		takes = "a"
	default:
		return nil, false
	}
	rest := args[1:]
	for len(rest) > 1 && !rest[0].Dynamic && len(rest[0].Text) > 1 && rest[0].Text[0] == '-' {
		o := rest[0].Text
		rest = rest[1:]
		if o == "--" {
			break
		}
		if strings.ContainsAny(o, "vV") && args[0].Text == "command" {
			return nil, false
		}
		if takes != "" && strings.HasSuffix(o, takes) && len(rest) > 1 {
			rest = rest[1:]
		}
	}
	return rest, len(rest) > 0
}

// carve returns n items of the rest of a list, or of the heap.
func carve[T any](list *[]T, n int) []T {
	at := len(*list)
	if n > cap(*list)-at {
		return make([]T, n)
	}
	*list = (*list)[:at+n]
	return (*list)[at : at+n : at+n]
}
