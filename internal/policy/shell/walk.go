package shell

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

func (w *walker) stmts(list []*syntax.Stmt, sc scope) {
	for _, s := range list {
		if w.full {
			return
		}
		w.stmt(s, sc)
	}
}

// stmt walks through one statement.
func (w *walker) stmt(s *syntax.Stmt, sc scope) {
	if s == nil || w.full {
		return
	}
	if sc.depth > w.limits.Depth {
		w.tooDeep()
		return
	}
	if s.Negated {
		sc.ctx.Negated = true
	}
	if s.Background || s.Coprocess || s.Disown {
		sc.ctx.Background = true
		mark := w.env.mark()
		defer w.env.cut(mark)
	}
	switch c := s.Cmd.(type) {
	case nil:
		w.call(s, nil, sc)
		return
	case *syntax.CallExpr:
		w.call(s, c, sc)
		return
	case *syntax.DeclClause:
		w.decl(s, c, sc)
		return
	case *syntax.TestClause:
		w.test(s, c, sc)
		return
	case *syntax.ArithmCmd:
		i := w.begin(s, sc, []Word{static("(("), w.raw(c.X), static("))")})
		w.arithm(c.X, w.within(i, sc))
		w.redirects(i, s.Redirs, sc)
		w.silent(i, s)
		return
	case *syntax.LetClause:
		words := []Word{static("let")}
		for _, x := range c.Exprs {
			words = append(words, w.raw(x))
		}
		i := w.begin(s, sc, words)
		for _, x := range c.Exprs {
			w.arithm(x, w.within(i, sc))
		}
		w.redirects(i, s.Redirs, sc)
		w.silent(i, s)
		return
	case *syntax.BinaryCmd:
		if c.Op == syntax.Pipe || c.Op == syntax.PipeAll {
			w.pipeline(s, sc)
		} else {
			w.chain(s, sc)
		}
		return
	}

	// Redirects of a compound command hold for everything in it.
	sc = sc.deeper()
	first := len(w.facts.Commands)
	if len(s.Redirs) > 0 {
		in := w.compoundRedirects(s.Redirs, sc)
		if in != nil {
			sc.in = *in
		}
	}
	w.compound(s.Cmd, sc)
	if writes(s.Redirs) {
		w.hush(first, sc.subst)
	}
}

func static(s string) Word { return Word{Text: s, Source: s} }

// raw returns an expression as a word with an unknown value.
func (w *walker) raw(n syntax.Node) Word {
	s := w.nodeSource(n)
	return Word{Text: s, Source: s, Dynamic: true}
}

func (w *walker) compound(cmd syntax.Command, sc scope) {
	switch c := cmd.(type) {
	case *syntax.Block:
		w.stmts(c.Stmts, sc)
	case *syntax.Subshell:
		sc.ctx.Subshell = true
		mark := w.env.mark()
		w.stmts(c.Stmts, sc)
		w.env.cut(mark)
	case *syntax.IfClause:
		w.ifClause(c, sc)
	case *syntax.WhileClause:
		sc.ctx.Endless = sc.ctx.Endless || always(c)
		w.loop(c, sc, func(sc scope) {
			w.stmts(c.Cond, sc)
			w.stmts(c.Do, sc)
		})
	case *syntax.ForClause:
		w.forClause(c, sc)
	case *syntax.CaseClause:
		w.caseClause(c, sc)
	case *syntax.FuncDecl:
		w.funcDecl(c, sc)
	case *syntax.TimeClause:
		if c.Stmt != nil {
			// To bash -- ends the options of time; to the parser it is a command.
			if call, ok := c.Stmt.Cmd.(*syntax.CallExpr); ok && len(call.Assigns) == 0 && len(call.Args) > 1 && call.Args[0].Lit() == "--" {
				call.Args = call.Args[1:]
			}
		}
		w.stmt(c.Stmt, sc)
	case *syntax.CoprocClause:
		sc.ctx.Background = true
		if c.Name != nil && c.Stmt != nil {
			switch c.Stmt.Cmd.(type) {
			case *syntax.Block, *syntax.Subshell, *syntax.IfClause, *syntax.WhileClause, *syntax.ForClause, *syntax.CaseClause:
				w.word(c.Name, sc, asArgs)
			default:
				// A name stands before a compound command only: this is a command of it.
				rest := w.raw(c.Stmt)
				rest.Many = true
				w.begin(&syntax.Stmt{Position: c.Name.Pos(), Cmd: c}, sc, append(w.words(nil, c.Name, sc, asName), rest))
			}
		}
		mark := w.env.mark()
		w.stmt(c.Stmt, sc)
		w.env.cut(mark)
		if c.Name != nil {
			w.env.forget(c.Name.Lit())
		}
	default:
		w.trouble(Unparseable, "a construct that is not known here: "+firstLine(w.nodeSource(cmd)))
	}
}

func (w *walker) ifClause(c *syntax.IfClause, sc scope) {
	inner := sc
	inner.ctx.Conditional = true
	var names []string
	start := -1
	for first := true; c != nil; c = c.Else {
		if len(c.Cond) > 0 {
			condition := inner
			if first {
				condition = sc
			}
			w.stmts(c.Cond, condition)
		}
		if first {
			start, first = w.env.mark(), false
		}
		mark := w.env.mark()
		w.stmts(c.Then, inner)
		names = append(names, w.env.cut(mark)...)
	}
	names = append(names, w.env.cut(start)...)
	w.env.forgetNames(names)
}

// loop walks through a body that may run any number of times: what it assigns is unknown from its
// start on.
func (w *walker) loop(n syntax.Node, sc scope, body func(scope)) {
	sc.ctx.Conditional, sc.ctx.Loop = true, true
	w.forgetAssigned(n)
	mark := w.env.mark()
	body(sc)
	w.env.join(mark)
}

// always reports whether a loop's condition plainly never ends it.
func always(c *syntax.WhileClause) bool {
	if len(c.Cond) != 1 || c.Cond[0].Negated {
		return false
	}
	switch cond := c.Cond[0].Cmd.(type) {
	case *syntax.CallExpr:
		words := make([]string, len(cond.Args))
		for i, a := range cond.Args {
			words[i] = a.Lit()
		}
		switch strings.Join(words, " ") {
		case "true", ":", "[ 1 ]", "[ true ]", "test 1", "/bin/true":
			return !c.Until
		case "false", "/bin/false":
			return c.Until
		}
	case *syntax.ArithmCmd:
		x, ok := cond.X.(*syntax.Word)
		return ok && !c.Until && x.Lit() == "1"
	}
	return false
}

func (w *walker) forClause(c *syntax.ForClause, sc scope) {
	name := ""
	switch l := c.Loop.(type) {
	case *syntax.WordIter:
		name = l.Name.Value
		var items []Word
		for _, item := range l.Items {
			items = w.words(items, item, sc, asArgs)
		}
		at := Loop{Name: name, Items: items}
		at.Start, at.End = w.place(w.clamp(int(c.Pos().Offset()), int(c.End().Offset())))
		w.facts.Loops = append(w.facts.Loops, at)
	case *syntax.CStyleLoop:
		w.arithm(l.Init, sc)
		w.forgetAssigned(c)
		w.arithm(l.Cond, sc)
		w.arithm(l.Post, sc)
		sc.ctx.Endless = sc.ctx.Endless || l.Cond == nil
	}
	w.env.forget(name)
	w.loop(c, sc, func(sc scope) { w.stmts(c.Do, sc) })
	w.env.forget(name)
}

func (w *walker) caseClause(c *syntax.CaseClause, sc scope) {
	w.word(c.Word, sc, asText)
	sc.ctx.Conditional = true
	var names []string
	for _, item := range c.Items {
		for _, p := range item.Patterns {
			w.word(p, sc, asText)
		}
		mark := w.env.mark()
		// An item may be reached through ;& from the one before.
		w.env.forgetNames(names)
		w.stmts(item.Stmts, sc)
		names = append(names, w.env.cut(mark)...)
	}
	w.env.forgetNames(names)
}

// funcDecl walks through the body of a function. In it nothing assigned outside is known, and
// what it assigns is never known afterwards.
func (w *walker) funcDecl(c *syntax.FuncDecl, sc scope) {
	names := c.Names
	if c.Name != nil {
		names = []*syntax.Lit{c.Name}
	}
	for _, n := range names {
		w.facts.Functions = append(w.facts.Functions, n.Value)
		sc.ctx.Function = n.Value
		if w.functions == nil {
			w.functions = map[string]bool{}
		}
	}
	// The body runs when it is called, with the input of that time.
	sc.in = stream{}
	sc.ctx.Conditional = true
	mark, alls := w.env.mark(), w.env.alls
	w.env.log = append(w.env.log, binding{})
	for _, n := range names {
		w.functions[n.Value] = false
	}
	w.stmt(c.Body, sc)
	loses := w.env.alls != alls
	for i, n := range w.env.cut(mark) {
		if i > 0 && n != "" {
			w.env.makeVolatile(n)
		}
	}
	for _, n := range names {
		w.functions[n.Value] = w.functions[n.Value] || loses
	}
}

// chain walks through commands joined by && and ||.
func (w *walker) chain(s *syntax.Stmt, sc scope) {
	// The parser leans them to the left, as deep as there are commands.
	var rest []*syntax.Stmt
	or := false
	for {
		c, ok := s.Cmd.(*syntax.BinaryCmd)
		if !ok || c.Op == syntax.Pipe || c.Op == syntax.PipeAll || len(s.Redirs) > 0 || len(rest) > 0 && (s.Negated || s.Background) {
			break
		}
		or = or || c.Op == syntax.OrStmt
		rest = append(rest, c.Y)
		s = c.X
	}
	w.stmt(s, sc)
	sc.ctx.Conditional = true
	start := w.env.mark()
	for _, s := range slices.Backward(rest) {
		if w.full {
			break
		}
		mark := w.env.mark()
		w.stmt(s, sc)
		if or {
			w.env.join(mark)
		}
	}
	w.env.join(start)
}

// pipeline walks through commands joined by pipes.
func (w *walker) pipeline(s *syntax.Stmt, sc scope) {
	var stages []*syntax.Stmt
	for {
		c, ok := s.Cmd.(*syntax.BinaryCmd)
		if !ok || c.Op != syntax.Pipe && c.Op != syntax.PipeAll || len(s.Redirs) > 0 {
			break
		}
		stages = append(stages, c.Y)
		s = c.X
	}
	stages = append(stages, s)
	from := -1
	var names []string
	before := -1
	for _, s := range slices.Backward(stages) {
		if w.full {
			break
		}
		start := len(w.facts.Commands)
		mark := w.env.mark()
		if c, ok := s.Cmd.(*syntax.TimeClause); ok && before >= 0 {
			// Behind a pipe bash takes time for the program.
			words := []Word{static("time")}
			if c.Stmt != nil {
				source := w.nodeSource(c.Stmt)
				words = append(words, Word{Text: source, Source: source, Dynamic: true, Many: true})
			}
			w.begin(s, sc, words)
		}
		w.stmt(s, sc)
		names = append(names, w.env.cut(mark)...)
		cs := w.facts.Commands
		if from >= 0 && start < len(cs) {
			for k := before; k < start; k++ {
				if w.side[k].subst == sc.subst && cs[k].Into < 0 {
					cs[k].Into = start
				}
			}
			for k := start; k < len(cs); k++ {
				if cs[k].From < 0 {
					cs[k].From = from
				}
			}
		}
		sc.in = w.output(start, sc)
		before, from = start, -1
		for k := len(cs) - 1; k >= start; k-- {
			if w.side[k].subst == sc.subst {
				from = k
				break
			}
		}
	}
	// Where the last part runs in the shell itself (lastpipe), it may have assigned.
	w.env.forgetNames(names)
}

// output returns what the commands from the given one on write, in sequence.
func (w *walker) output(start int, sc scope) stream {
	out := stream{state: known}
	for k := start; k < len(w.facts.Commands); k++ {
		if w.side[k].subst != sc.subst || w.facts.Commands[k].Into >= 0 {
			continue
		}
		c, o := &w.facts.Commands[k], w.side[k].out
		if o.state != known || c.Context.Conditional != sc.ctx.Conditional || c.Context.Loop != sc.ctx.Loop ||
			c.Context.Background != sc.ctx.Background || c.Context.Function != sc.ctx.Function || c.Context.Trap != sc.ctx.Trap {
			return stream{}
		}
		if len(out.text) > w.limits.Bytes {
			return stream{}
		}
		out.text += o.text
		out.guess = out.guess || o.guess
	}
	return out
}

// hush forgets the output of commands, because it goes elsewhere.
func (w *walker) hush(start, subst int) {
	for k := start; k < len(w.side); k++ {
		if w.side[k].subst == subst {
			w.side[k].out = stream{}
		}
	}
}

// silent reports whether a command writes nothing.
func (w *walker) silent(i int, _ *syntax.Stmt) {
	if i >= 0 {
		w.side[i].out = stream{state: known}
	}
}

// substitution walks through $(…) and returns its output.
func (w *walker) substitution(list []*syntax.Stmt, sc scope) stream {
	sc = sc.deeper()
	sc.ctx.Substitution = true
	sc.subst++
	start := len(w.facts.Commands)
	mark := w.env.mark()
	w.stmts(list, sc)
	w.env.cut(mark)
	if len(list) == 0 || w.full {
		return stream{}
	}
	return w.output(start, sc)
}

// procSubst walks through <(…) and records its output.
func (w *walker) procSubst(p *syntax.ProcSubst, sc scope) {
	if p.Op == syntax.CmdOut {
		sc.in = stream{}
	}
	out := w.substitution(p.Stmts, sc)
	if out.state == known {
		if w.fed == nil {
			w.fed = map[string]stream{}
		}
		w.fed[w.nodeSource(p)] = out
	}
}

// forgetAssigned forgets what is assigned anywhere within a node.
func (w *walker) forgetAssigned(n syntax.Node) {
	if len(w.env.log) == 0 {
		return
	}
	syntax.Walk(n, func(n syntax.Node) bool {
		w.env.fuel--
		switch n := n.(type) {
		case *syntax.Assign:
			if n.Name != nil {
				w.env.forget(n.Name.Value)
			} else {
				w.env.forgetAll()
			}
		case *syntax.ForClause:
			if l, ok := n.Loop.(*syntax.WordIter); ok {
				w.env.forget(l.Name.Value)
			}
		case *syntax.CallExpr:
			if len(n.Args) > 0 && w.mayAssign(n.Args[0]) {
				w.env.forgetAll()
			}
		case *syntax.CoprocClause:
			w.env.forgetAll()
		case *syntax.BinaryArithm:
			if isAssignment(n.Op) {
				w.assigned(n.X)
			}
		case *syntax.UnaryArithm:
			if n.Op == syntax.Inc || n.Op == syntax.Dec {
				w.assigned(n.X)
			}
		case *syntax.Redirect:
			if n.N != nil && len(n.N.Value) > 2 && n.N.Value[0] == '{' {
				w.env.forget(n.N.Value[1 : len(n.N.Value)-1])
			}
		case *syntax.ParamExp:
			if n.Exp != nil && n.Param != nil && (n.Exp.Op == syntax.AssignUnset || n.Exp.Op == syntax.AssignUnsetOrNull) {
				w.env.forget(n.Param.Value)
			}
		}
		return true
	})
}

// mayAssign reports whether a command may assign variables other than by a plain assignment.
func (w *walker) mayAssign(word *syntax.Word) bool {
	name := word.Lit()
	if name == "" {
		return true
	}
	if _, ok := w.functions[name]; ok {
		return true
	}
	if _, ok := w.facts.Aliases[name]; ok {
		return true
	}
	return assigns[name]
}
