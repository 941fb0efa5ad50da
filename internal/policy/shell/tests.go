package shell

import (
	"mvdan.cc/sh/v3/syntax"
)

func (w *walker) test(s *syntax.Stmt, c *syntax.TestClause, sc scope) {
	i := w.begin(s, sc, nil)
	inner := w.within(i, sc)
	words := []Word{static("[[")}
	words = w.testExpr(words, c.X, inner)
	words = append(words, static("]]"))
	if i >= 0 {
		w.facts.Commands[i].Argv = words
	}
	w.redirects(i, s.Redirs, sc)
	w.silent(i, s)
}

func (w *walker) testExpr(words []Word, x syntax.TestExpr, sc scope) []Word {
	if sc.depth > w.limits.Depth {
		w.tooDeep()
		return words
	}
	switch x := x.(type) {
	case *syntax.Word:
		words = append(words, w.word(x, sc, asText))
	case *syntax.UnaryTest:
		words = append(words, static(x.Op.String()))
		start := len(words)
		words = w.testExpr(words, x.X, sc.deeper())
		if x.Op == syntax.TsVarSet && start < len(words) {
			w.named(words[start], x.X, sc)
		}
	case *syntax.BinaryTest:
		start := len(words)
		words = w.testExpr(words, x.X, sc.deeper())
		middle := len(words)
		words = append(words, static(x.Op.String()))
		words = w.testExpr(words, x.Y, sc.deeper())
		switch x.Op {
		case syntax.TsEql, syntax.TsNeq, syntax.TsLeq, syntax.TsGeq, syntax.TsLss, syntax.TsGtr:
			// Both are taken for arithmetic.
			if l, ok := x.X.(*syntax.Word); ok && start < middle {
				w.evaluated(words[start], l, sc)
			}
			if r, ok := x.Y.(*syntax.Word); ok && middle+1 < len(words) {
				w.evaluated(words[middle+1], r, sc)
			}
		default:
		}
	case *syntax.ParenTest:
		words = append(words, static("("))
		words = w.testExpr(words, x.X, sc.deeper())
		words = append(words, static(")"))
	}
	return words
}

// named looks at a word that is read as a variable's name, whose index is expanded: in a[$(x)]
// the substitution runs.
func (w *walker) named(v Word, n syntax.Node, sc scope) {
	w.hiddenText(v.Text, int(n.Pos().Offset()), int(n.End().Offset()), sc)
}
