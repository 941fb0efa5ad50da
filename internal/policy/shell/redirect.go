package shell

import (
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// redirects walks through the redirects of a simple command and returns its input.
func (w *walker) redirects(i int, list []*syntax.Redirect, sc scope) stream {
	in := sc.in
	if len(list) == 0 {
		return in
	}
	inner := w.within(i, sc)
	out := make([]Redirect, 0, len(list))
	for _, r := range list {
		x := w.redirect(r, inner)
		out = append(out, x)
		if s, ok := input(x); ok {
			in = s
		}
	}
	if i >= 0 {
		w.facts.Commands[i].Redirects = out
	}
	return in
}

// compoundRedirects walks through the redirects of a compound command.
func (w *walker) compoundRedirects(list []*syntax.Redirect, sc scope) *stream {
	var in *stream
	for _, r := range list {
		x := w.redirect(r, sc)
		w.facts.Redirects = append(w.facts.Redirects, x)
		if s, ok := input(x); ok {
			in = &s
		}
	}
	return in
}

// input returns what a redirect gives on standard input, if it does.
func input(r Redirect) (stream, bool) {
	if r.FD > 0 {
		return stream{}, false
	}
	switch r.Mode {
	case Heredoc:
		return stream{state: known, text: r.Target.Text, guess: r.Target.Dynamic}, true
	case String:
		return stream{state: known, text: r.Target.Text + "\n", guess: r.Target.Dynamic}, true
	case Read, ReadWrite:
		return stream{}, true
	case Duplicate:
		if r.FD == 0 || strings.HasPrefix(r.Target.Source, "<") {
			return stream{}, true
		}
	case Write, Append:
	}
	return stream{}, false
}

// writes reports whether output goes elsewhere.
func writes(list []*syntax.Redirect) bool {
	for _, r := range list {
		switch r.Op {
		case syntax.RdrIn, syntax.Hdoc, syntax.DashHdoc, syntax.WordHdoc, syntax.DplIn:
		default:
			if r.N == nil || r.N.Value != "2" {
				return true
			}
		}
	}
	return false
}

func (w *walker) redirect(r *syntax.Redirect, sc scope) Redirect {
	x := Redirect{FD: -1}
	if r.N != nil {
		if n, err := strconv.Atoi(r.N.Value); err == nil {
			x.FD = n
		} else if len(r.N.Value) > 2 {
			w.env.forget(strings.Trim(r.N.Value, "{}"))
			// The name may have an index.
			if strings.ContainsAny(r.N.Value, "[") {
				w.env.forgetAll()
			}
		}
	}
	switch r.Op {
	case syntax.RdrOut, syntax.RdrClob, syntax.RdrAll, syntax.RdrAllClob:
		x.Mode = Write
	case syntax.AppOut, syntax.AppAll, syntax.AppClob, syntax.AppAllClob:
		x.Mode = Append
	case syntax.RdrIn:
		x.Mode = Read
	case syntax.RdrInOut:
		x.Mode = ReadWrite
	case syntax.DplIn, syntax.DplOut:
		x.Mode = Duplicate
	case syntax.Hdoc, syntax.DashHdoc:
		x.Mode = Heredoc
		x.Target = w.heredoc(r, sc)
		return x
	case syntax.WordHdoc:
		x.Mode = String
		x.Target = w.word(r.Word, sc, asValue)
		return x
	default:
		// Unknown, so assume the worst.
		x.Mode = Write
	}
	x.Target = w.word(r.Word, sc, asTarget)
	if x.Mode == Duplicate && len(x.Target.Source) > 1 && x.Target.Source[0] == '-' {
		// To bash >&- is all of it, and what follows another word.
		w.trouble(Unparseable, "what follows "+r.Op.String()+"- without a space is read in two ways")
	}
	if r.Op == syntax.DplOut && !descriptor(x.Target) {
		// >&word writes both outputs to a file.
		x.Mode = Write
	}
	if r.Op == syntax.DplIn && x.FD < 0 {
		x.FD = 0
	}
	return x
}

// descriptor reports whether a word is a number, "-" or both.
func descriptor(x Word) bool {
	if x.Dynamic || x.Glob {
		return false
	}
	s := x.Text
	if s != "-" {
		s = strings.TrimSuffix(s, "-")
	} else {
		return true
	}
	if s == "" {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// heredoc returns the body of a heredoc.
func (w *walker) heredoc(r *syntax.Redirect, sc scope) Word {
	var x Word
	if r.Hdoc == nil {
		return x
	}
	if quotedWord(r.Word) {
		s := w.value(r.Hdoc.Lit())
		x = Word{Text: s, Source: w.nodeSource(r.Hdoc)}
	} else {
		x = w.word(r.Hdoc, sc, asBody)
	}
	if r.Op == syntax.DashHdoc {
		lines := strings.SplitAfter(x.Text, "\n")
		for i, l := range lines {
			lines[i] = strings.TrimLeft(l, "\t")
		}
		x.Text = strings.Join(lines, "")
	}
	return x
}

// quotedWord reports whether any part of a word is quoted.
func quotedWord(word *syntax.Word) bool {
	for _, p := range word.Parts {
		l, ok := p.(*syntax.Lit)
		if !ok || strings.IndexByte(l.Value, '\\') >= 0 {
			return true
		}
	}
	return false
}
