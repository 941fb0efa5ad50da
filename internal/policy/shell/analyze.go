package shell

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// Analyze returns the facts of a text for bash. It never fails: what it cannot read is a Trouble.
func Analyze(src string, limits Limits) Facts {
	return Nested(src, Bash, 0, limits)
}

// AnalyzeInto is Analyze that reuses the memory of facts that were Reset.
func AnalyzeInto(f *Facts, src string, limits Limits) {
	a := newAnalyzer(limits)
	if a.facts = *f; a.facts.room == nil {
		a.facts.room = make([]Word, 0, 64)
	}
	*f = a.whole(src, Bash, 0)
}

// Nested is Analyze for a text of the given dialect that is level texts deep, such as a shell's
// behind wrappers (sudo, xargs, ssh). Each level reduces the allowed depth by one.
func Nested(src string, dialect Dialect, level int, limits Limits) Facts {
	return newAnalyzer(limits).whole(src, dialect, level)
}

// whole reads the text of the facts.
func (a *analyzer) whole(src string, dialect Dialect, level int) Facts {
	a.facts.Oddities = oddities(nil, src, 0)
	a.root = src
	// Start with room for a command at each mark that may end one.
	n := 1
	for i := 0; i < len(src) && n < 16; i++ {
		switch src[i] {
		case '|', ';', '\n', '(':
			n++
		}
	}
	a.facts.Commands = slices.Grow(a.facts.Commands, n)
	w := walker{analyzer: a, dialect: dialect}
	w.read(src, scope{parent: -1, depth: max(level, 0)}, false)
	return a.finish()
}

// Words returns the facts of an argument vector that no shell reads: one command, whose text is
// the quoted words. The text of a shell with -c is read too.
func Words(argv []string, limits Limits) Facts {
	a := newAnalyzer(limits)
	if len(argv) == 0 {
		a.facts.Empty = true
		return a.finish()
	}
	words := make([]Word, len(argv))
	var text strings.Builder
	size := 0
	for i, arg := range argv {
		if i > 0 {
			text.WriteByte(' ')
		}
		words[i] = Word{Text: arg, Source: arg}
		text.WriteString(quote(arg))
		size = max(size, len(arg))
		a.checkBytes(arg)
	}
	if size > a.limits.Bytes {
		a.trouble(TooLong, fmt.Sprintf("an argument has %d bytes, of which %d are read", size, a.limits.Bytes))
	}
	a.root = text.String()
	a.facts.Oddities = oddities(nil, a.root, 0)
	w := walker{analyzer: a, fixed: true, end: text.Len()}
	a.add(Command{Argv: words, Text: a.root, End: text.Len(), From: -1, Into: -1, Parent: -1}, 0)
	w.interpreter(0, words, stream{}, scope{parent: 0})
	return a.finish()
}

// analyzer collects the facts of a text and of the texts within it.
type analyzer struct {
	facts  Facts
	limits Limits
	// side holds more about each command.
	side  []side
	plain plainReader
	env   env
	// functions are the functions defined so far; true for one that may change any variable.
	functions map[string]bool
	// noBraces: brace expansion may be off. odd: echo or other builtins may differ from their
	// defaults.
	noBraces, odd bool
	// keywords: words of the form a=b may be assignments in any position.
	keywords bool
	// oddAliases may change how the text after them is parsed.
	oddAliases map[string]bool
	// fed holds the outputs of process substitutions by their source.
	fed map[string]stream
	// root is the whole text.
	root string
	// nested counts the bytes of the texts within the text.
	nested int
	full   bool
}

type side struct {
	// subst counts the substitutions around a command. Neighbours with the same count share their
	// output.
	subst int
	// out is its output.
	out stream
}

// stream is the content of an input or output.
type stream struct {
	state streamState
	text  string
	// guess: text has unknown parts, which are left as source.
	guess bool
}

type streamState uint8

const (
	unknown streamState = iota
	known
)

// analyzers holds finished analyzers for reuse (benchmark "lines judged, a core": half the lines
// without).
var analyzers = sync.Pool{New: func() any { return &analyzer{side: make([]side, 0, 16)} }}

func newAnalyzer(limits Limits) *analyzer {
	a, _ := analyzers.Get().(*analyzer)
	a.limits, a.env.fuel = limits.withDefaults(), 1<<20
	return a
}

func (a *analyzer) trouble(kind TroubleKind, why string) {
	for _, t := range a.facts.Troubles {
		if t.Kind == kind && (t.Why == why || kind != Unparseable) {
			return
		}
	}
	if len(a.facts.Troubles) < 16 {
		a.facts.Troubles = append(a.facts.Troubles, Trouble{kind, why})
	}
}

func (a *analyzer) checkBytes(src string) {
	if i := strings.IndexByte(src, 0); i >= 0 {
		a.trouble(BadInput, fmt.Sprintf("byte %d is NUL, at which programs disagree", i))
	}
	if !utf8.ValidString(src) {
		i := 0
		for i < len(src) {
			r, n := utf8.DecodeRuneInString(src[i:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			i += n
		}
		a.trouble(BadInput, fmt.Sprintf("byte %d is not UTF-8", i))
	}
}

// add appends a command and returns its index, -1 if there are too many.
func (a *analyzer) add(c Command, subst int) int {
	if len(a.facts.Commands) >= a.limits.Commands {
		a.full = true
		a.trouble(TooMany, fmt.Sprintf("more than %d commands", a.limits.Commands))
		return -1
	}
	a.facts.Commands = append(a.facts.Commands, c)
	a.side = append(a.side, side{subst: subst})
	return len(a.facts.Commands) - 1
}

// finish sorts the commands by their first byte and releases the analyzer.
func (a *analyzer) finish() Facts {
	defer func() {
		if cap(a.side) <= 256 {
			clear(a.side)
			a.plain.forget()
			*a = analyzer{side: a.side[:0], plain: a.plain}
			analyzers.Put(a)
		}
	}()
	cs := a.facts.Commands
	byStart := func(x, y Command) int { return x.Start - y.Start }
	if !slices.IsSortedFunc(cs, byStart) {
		order := make([]int, len(cs))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(x, y int) int { return cs[x].Start - cs[y].Start })
		to := make([]int, len(cs))
		sorted := make([]Command, len(cs))
		for i, from := range order {
			to[from] = i
			sorted[i] = cs[from]
		}
		move := func(i *int) {
			if *i >= 0 {
				*i = to[*i]
			}
		}
		for i := range sorted {
			move(&sorted[i].From)
			move(&sorted[i].Into)
			move(&sorted[i].Parent)
		}
		a.facts.Commands = sorted
	}
	if !slices.IsSortedFunc(a.facts.Oddities, func(x, y Oddity) int { return x.Start - y.Start }) {
		slices.SortStableFunc(a.facts.Oddities, func(x, y Oddity) int { return x.Start - y.Start })
	}
	return a.facts
}

// walker walks through one text.
type walker struct {
	*analyzer
	src     string
	dialect Dialect
	// fixed: the text is part of another one, and everything in it has the position from start to
	// end.
	fixed      bool
	start, end int
	// cr is the byte that replaces carriage returns for the parser, or 0.
	cr byte
}

// scope is the context of a command.
type scope struct {
	ctx    Context
	parent int
	depth  int
	subst  int
	// in is its input, if a pipe or a redirect around it gives that.
	in stream
	// expanding holds the aliases being replaced, which are not replaced again.
	expanding []string
}

func (sc scope) deeper() scope { sc.depth++; return sc }

// read parses a text and walks through it. A guess has unknown parts, so that a syntax error in
// it is no trouble.
func (w *walker) read(src string, sc scope, guess bool) {
	if !guess {
		w.checkBytes(src)
	}
	if len(src) > w.limits.Bytes {
		w.trouble(TooLong, fmt.Sprintf("the text has %d bytes, of which %d are read", len(src), w.limits.Bytes))
		src = cutLine(src, w.limits.Bytes)
		guess = true
	}
	if sc.depth > w.limits.Depth {
		w.tooDeep()
		return
	}
	if openers(src) > maxOpeners {
		w.tooDeep()
		return
	}
	w.src = src
	// The parser drops carriage returns before newlines; a shell does not.
	w.cr = 0
	if strings.IndexByte(src, '\r') >= 0 {
		for c := byte(1); c < 9; c++ {
			if strings.IndexByte(src, c) < 0 {
				w.cr = c
				break
			}
		}
		if w.cr == 0 {
			w.trouble(BadInput, "carriage returns among many other control characters")
		} else {
			src = strings.ReplaceAll(src, "\r", string(rune(w.cr)))
		}
	}
	src, ok := endComments(src, w.dialect)
	if !ok {
		w.trouble(Unparseable, "comments that end in a backslash among what cannot be read")
	}
	f, err := w.analyzer.plain.parseFast(src, w.dialect)
	if err != nil && w.dialect == POSIX {
		if f2, err2 := parse(src, Bash); err2 == nil {
			f, err, w.dialect = f2, nil, Bash
		}
	}
	if err != nil && !guess {
		w.trouble(Unparseable, explain(err))
	}
	if f == nil {
		return
	}
	if len(f.Stmts) == 0 && err == nil && sc.parent < 0 && !w.fixed {
		w.facts.Empty = len(w.facts.Troubles) == 0
		return
	}
	w.stmts(f.Stmts, sc)
}

func (a *analyzer) tooDeep() {
	a.trouble(TooDeep, fmt.Sprintf("commands are nested more than %d deep", a.limits.Depth))
}

// text reads a text within this one, at the given position.
func (w *walker) text(src string, d Dialect, sc scope, guess bool, start, end int) {
	w.nested += len(src)
	if w.nested > 2*w.limits.Bytes {
		w.trouble(TooLong, fmt.Sprintf("texts within the text have more than %d bytes", 2*w.limits.Bytes))
		return
	}
	if w.full {
		return
	}
	if w.fixed {
		start, end = w.start, w.end
	}
	in := walker{analyzer: w.analyzer, dialect: d, fixed: true, start: start, end: end}
	sc.ctx.Text = true
	if !guess {
		in.read(src, sc.deeper(), false)
		return
	}
	// The source of an unknown part is not part of the text, so its variables must not be
	// resolved.
	lost, losses := w.env.lost, w.env.losses
	w.env.lost = true
	in.read(src, sc.deeper(), true)
	w.env.lost = lost || w.env.losses != losses
}

// place returns the position of a part of the text within the whole.
func (w *walker) place(from, to int) (start, end int) {
	if w.fixed {
		return w.start, w.end
	}
	return from, to
}

// source returns the text between two offsets, clamped to the text.
func (w *walker) source(from, to int) string {
	from, to = w.clamp(from, to)
	return w.src[from:to]
}

func (w *walker) clamp(from, to int) (int, int) {
	from = min(max(from, 0), len(w.src))
	return from, min(max(to, from), len(w.src))
}

// value restores carriage returns.
func (w *walker) value(s string) string {
	if w.cr != 0 && strings.IndexByte(s, w.cr) >= 0 {
		return strings.ReplaceAll(s, string(rune(w.cr)), "\r")
	}
	return s
}

func (w *walker) nodeSource(n syntax.Node) string {
	return w.source(int(n.Pos().Offset()), int(n.End().Offset()))
}
