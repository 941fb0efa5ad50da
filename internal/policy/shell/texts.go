package shell

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// shells are programs that run shell text, with its dialect.
var shells = map[string]Dialect{
	"sh": POSIX, "dash": POSIX, "ash": POSIX, "posh": POSIX, "yash": POSIX,
	"bash": Bash, "rbash": Bash, "ksh": Bash, "ksh93": Bash, "mksh": Bash, "pdksh": Bash, "lksh": Bash, "oksh": Bash,
	"zsh": Bash, "rzsh": Bash,
}

// Invocation is how a shell was started.
type Invocation struct {
	Dialect Dialect
	// Text is the index of the word that it runs (-c), Script of the script's file; -1 for none.
	Text, Script int
	// Stdin: it reads its text from standard input.
	Stdin bool
	// Unclear: unknown words may change all of this.
	Unclear bool
}

// Shell returns how a list of words starts a shell; false if it starts none.
func Shell(argv []Word) (Invocation, bool) {
	inv := Invocation{Text: -1, Script: -1}
	if len(argv) == 0 {
		return inv, false
	}
	d, ok := shells[path.Base(argv[0].Text)]
	if !ok || argv[0].Text == "" || argv[0].Dynamic && !strings.Contains(argv[0].Text, "/") {
		return inv, false
	}
	inv.Dialect = d
	command, stdin := false, false
	i := 1
options:
	for ; i < len(argv); i++ {
		o := argv[i].Text
		file := strings.HasPrefix(o, "/") || strings.HasPrefix(o, "./") || strings.HasPrefix(argv[i].Source, "<(")
		if argv[i].Many || argv[i].Glob || argv[i].Dynamic && !file {
			// It may be an option, or several words.
			inv.Unclear = !command || argv[i].Many
			if inv.Unclear && !command {
				return inv, true
			}
			break
		}
		switch {
		case o == "--" || o == "-":
			i++
			break options
		case len(o) < 2 || o[0] != '-' && o[0] != '+':
			break options
		case strings.HasPrefix(o, "--"):
			switch o {
			case "--rcfile", "--init-file":
				i++
			}
		default:
			for _, c := range o[1:] {
				switch c {
				case 'c':
					command = command || o[0] == '-'
				case 's':
					stdin = stdin || o[0] == '-'
				case 'o', 'O':
					i++
				}
			}
		}
	}
	switch {
	case i >= len(argv):
		inv.Stdin = !command
	case command:
		inv.Text = i
	case stdin:
		inv.Stdin = true
	default:
		inv.Script = i
	}
	return inv, true
}

// interpreter walks through the text for a shell.
func (w *walker) interpreter(i int, args []Word, in stream, sc scope) {
	inv, ok := Shell(args)
	if !ok || i < 0 {
		return
	}
	switch {
	case inv.Text >= 0:
		x := args[inv.Text]
		w.shellText(i, x.Text, x, inv.Dialect, sc, x.Dynamic || x.Glob || x.Many)
	case inv.Script >= 0:
		x := args[inv.Script]
		if s, ok := w.fileText(i, x, in); ok && s.state == known {
			w.shellText(i, s.text, x, inv.Dialect, sc, s.guess)
		}
	case inv.Stdin && in.state == known:
		w.shellText(i, in.text, args[0], inv.Dialect, sc, in.guess)
	}
}

// shellText walks through the text of another shell, which has none of this one's variables,
// functions and aliases.
func (w *walker) shellText(i int, text string, at Word, d Dialect, sc scope, guess bool) {
	start, end := w.placeOf(i, at)
	mark, ifs, noBraces, odd := w.env.mark(), w.env.ifs, w.noBraces, w.odd
	volatile, lost := w.env.volatile, w.env.lost
	functions, odds := w.functions, w.oddAliases
	w.functions, w.oddAliases, w.env.volatile = nil, nil, nil
	w.env.ifs, w.noBraces, w.odd, w.env.lost = false, false, false, false
	w.env.log = append(w.env.log, binding{})
	w.text(text, d, sc, guess, start, end)
	w.env.cut(mark)
	w.functions, w.oddAliases, w.env.volatile, w.env.lost = functions, odds, volatile, lost
	w.env.ifs, w.noBraces, w.odd = ifs, noBraces, odd
}

// fileText returns the known content of a file word: standard input, another descriptor or a
// process substitution.
func (w *walker) fileText(i int, x Word, in stream) (stream, bool) {
	if s, ok := w.fed[x.Source]; ok {
		return s, true
	}
	fd := ""
	switch {
	case x.Text == "/dev/stdin":
		fd = "0"
	case strings.HasPrefix(x.Text, "/dev/fd/"):
		fd = x.Text[len("/dev/fd/"):]
	case strings.HasPrefix(x.Text, "/proc/self/fd/"):
		fd = x.Text[len("/proc/self/fd/"):]
	default:
		return stream{}, false
	}
	if fd == "0" {
		return in, true
	}
	for _, r := range w.facts.Commands[i].Redirects {
		if len(fd) == 1 && r.FD == int(fd[0]-'0') && (r.Mode == Heredoc || r.Mode == String) {
			return stream{state: known, text: r.Target.Text, guess: r.Target.Dynamic}, true
		}
	}
	return stream{}, false
}

// placeOf returns the position of a word of a command.
func (w *walker) placeOf(i int, x Word) (start, end int) {
	c := &w.facts.Commands[i]
	if w.fixed {
		return w.start, w.end
	}
	if k := strings.Index(c.Text, x.Source); k >= 0 {
		return c.Start + k, c.Start + k + len(x.Source)
	}
	return c.Start, c.End
}

// builtin records what a builtin does to variables and walks through its texts.
func (w *walker) builtin(i int, args []Word, in stream, sc scope) {
	switch args[0].Text {
	case "eval":
		text, guess := join(args[1:])
		start, end := w.placeOf(i, args[min(1, len(args)-1)])
		w.text(text, w.dialect, sc, guess, start, end)
		if guess {
			w.env.forgetAll()
			w.odd, w.noBraces = true, true
		}
	case "source", ".":
		if len(args) > 1 {
			if s, ok := w.fileText(i, args[1], in); ok && s.state == known {
				start, end := w.placeOf(i, args[1])
				w.text(s.text, w.dialect, sc, s.guess, start, end)
			}
		}
		w.env.forgetAll()
		w.odd, w.noBraces = true, true
	case "trap":
		w.trap(i, args, sc)
	case "alias":
		w.defineAliases(i, args[1:], sc)
	case "read", "mapfile", "readarray", "getopts", "unset", "wait":
		w.assignArgs(i, args, sc)
	case "let", "test", "[", "compgen", "complete", "bind":
		if args[0].Text != "test" && args[0].Text != "[" {
			w.env.forgetAll()
		}
		w.callbacks(i, args, sc)
		w.evaluatedArgs(i, args, sc)
	case "printf":
		w.printfInto(i, args, sc)
	case "export", "readonly", "declare", "local", "typeset":
		w.declareArgs(i, args, sc)
	case "set":
		for _, x := range args[1:] {
			if x.Text == "--" && !x.Dynamic {
				break
			}
			if x.Dynamic || strings.Contains(x.Text, "B") || x.Text == "braceexpand" {
				w.noBraces = true
			}
			if x.Dynamic || strings.HasPrefix(x.Text, "-") && strings.Contains(x.Text, "k") || x.Text == "keyword" {
				w.keywords = true
			}
		}
	case "shopt":
		for _, x := range args[1:] {
			if x.Dynamic || x.Text == "xpg_echo" {
				w.odd = true
			}
		}
	case "enable":
		w.odd = true
	}
}

// join returns the text that eval makes of its words.
func join(args []Word) (text string, guess bool) {
	if len(args) > 0 && args[0].Text == "--" {
		args = args[1:]
	}
	return joined(args)
}

// trap walks through the text of a trap, which may run at any time.
func (w *walker) trap(i int, args []Word, sc scope) {
	args = args[1:]
	for len(args) > 0 && !args[0].Dynamic && len(args[0].Text) > 1 && args[0].Text[0] == '-' {
		end := args[0].Text == "--"
		args = args[1:]
		if end {
			break
		}
	}
	if len(args) < 2 && !(len(args) == 1 && args[0].Many) {
		return
	}
	x := args[0]
	if !x.Dynamic && (x.Text == "" || x.Text == "-") {
		return
	}
	sc.ctx.Trap, sc.ctx.Conditional = true, true
	start, end := w.placeOf(i, x)
	mark, alls := w.env.mark(), w.env.alls
	w.env.log = append(w.env.log, binding{})
	w.text(x.Text, w.dialect, sc, x.Dynamic || x.Many, start, end)
	loses := w.env.alls != alls || x.Dynamic || x.Many || len(w.functions) > 0
	for _, n := range w.env.cut(mark) {
		if n != "" {
			w.env.makeVolatile(n)
		}
	}
	if loses {
		w.env.makeVolatile("")
	}
}

// assignArgs forgets the names given to read and similar builtins.
func (w *walker) assignArgs(i int, args []Word, sc scope) {
	w.callbacks(i, args, sc)
	w.evaluatedArgs(i, args, sc)
	for _, x := range args[1:] {
		if x.Dynamic || x.Many || x.Glob {
			w.env.forgetAll()
			return
		}
	}
	for _, x := range args[1:] {
		name, _, _ := strings.Cut(x.Text, "[")
		// The name may stand in one word with an option, as in -aname.
		for name != "" {
			if syntax.ValidName(name) {
				w.env.forget(name)
			}
			if name[0] != '-' && len(name) == len(x.Text) {
				break
			}
			name = name[1:]
		}
	}
}

// evaluatedArgs looks for substitutions in words that are read as names or arithmetic.
func (w *walker) evaluatedArgs(i int, args []Word, sc scope) {
	for _, x := range args[1:] {
		if x.Dynamic || !strings.Contains(x.Text, "$(") && !strings.Contains(x.Text, "`") {
			continue
		}
		start, end := w.placeOf(i, x)
		sub := walker{analyzer: w.analyzer, dialect: w.dialect, fixed: true, start: start, end: end}
		sub.hiddenText(x.Text, start, end, sc)
	}
}

// callbacks walks through the text that mapfile, compgen and complete run with -C.
func (w *walker) callbacks(i int, args []Word, sc scope) {
	switch args[0].Text {
	case "mapfile", "readarray", "compgen", "complete":
	default:
		return
	}
	for k, x := range args {
		if !strings.HasPrefix(x.Text, "-") || !strings.Contains(x.Text, "C") {
			continue
		}
		_, text, _ := strings.Cut(x.Text, "C")
		at := x
		if text == "" && k+1 < len(args) {
			at = args[k+1]
			text = at.Text
		}
		sc.ctx.Conditional = true
		start, end := w.placeOf(i, at)
		w.text(text, w.dialect, sc, true, start, end)
		w.env.forgetAll()
	}
}

// printfInto binds the name of printf -v.
func (w *walker) printfInto(i int, args []Word, sc scope) {
	if len(args) < 2 {
		return
	}
	if args[1].Dynamic || args[1].Many {
		w.env.forgetAll()
		return
	}
	name, rest := "", args[2:]
	switch {
	case args[1].Text == "-v" && len(rest) > 0:
		if rest[0].Dynamic || rest[0].Many {
			w.env.forgetAll()
			return
		}
		name, rest = rest[0].Text, rest[1:]
	case strings.HasPrefix(args[1].Text, "-v"):
		name = args[1].Text[2:]
	default:
		return
	}
	w.evaluatedArgs(i, args, sc)
	if !syntax.ValidName(name) {
		base, _, _ := strings.Cut(name, "[")
		w.env.forget(base)
		return
	}
	out := printf(rest)
	if out.state != known || out.guess || len(out.text) > w.limits.Bytes {
		w.env.forget(name)
		return
	}
	w.env.set(name, out.text)
}

// declareArgs records assignments of export and similar builtins that the parser reads as plain
// words.
func (w *walker) declareArgs(i int, args []Word, sc scope) {
	d := declaration{variant: args[0].Text}
	for _, x := range args[1:] {
		d.option(x)
		name, value, ok := assignment(x)
		switch {
		case ok:
			a := Assign{Name: name, Value: value, Export: d.exports()}
			w.facts.Commands[i].Assigns = append(w.facts.Commands[i].Assigns, a)
			if strings.Contains(x.Text[:len(name)+1], "+") || x.Many {
				w.env.forget(name)
			} else {
				w.bind(a, false)
			}
			w.declared(&d, name, &a)
		case x.Dynamic:
			w.env.forgetAll()
		case syntax.ValidName(x.Text):
			w.declared(&d, x.Text, nil)
		}
	}
	w.evaluatedArgs(i, args, sc)
}

// defineAliases records the aliases and walks through their texts.
func (w *walker) defineAliases(i int, args []Word, sc scope) {
	sc.ctx.Conditional = true
	for _, x := range args {
		name, value, ok := strings.Cut(x.Text, "=")
		if !ok || name == "" {
			continue
		}
		if w.facts.Aliases == nil {
			w.facts.Aliases = map[string]string{}
		}
		// Which of two texts a use means depends on when bash reads it, in a loop before it runs the second.
		before, known := w.facts.Aliases[name]
		w.facts.Aliases[name] = value
		if syntax.IsKeyword(name) {
			w.trouble(Unparseable, "alias "+firstLine(name)+" changes the language")
		}
		start, end := w.placeOf(i, x)
		odd := x.Dynamic || x.Glob || x.Many || strings.ContainsAny(value, "#\\") || strings.Contains(value, "<<") ||
			known && before != value
		if _, err := parseBounded(value, w.dialect); err != nil {
			odd = true
		}
		if odd {
			if w.oddAliases == nil {
				w.oddAliases = map[string]bool{}
			}
			w.oddAliases[name] = true
		}
		mark := w.env.mark()
		w.env.log = append(w.env.log, binding{})
		w.text(value, w.dialect, sc, true, start, end)
		w.env.cut(mark)
	}
}

// useAlias walks through a command whose first word is an alias.
func (w *walker) useAlias(i int, sc scope, c *syntax.CallExpr) {
	if len(w.facts.Aliases) == 0 {
		return
	}
	name := c.Args[0].Lit()
	value, ok := w.facts.Aliases[name]
	if !ok || name == "" {
		return
	}
	if slices.Contains(sc.expanding, name) {
		return
	}
	if w.oddAliases[name] {
		w.trouble(Unparseable, "alias "+firstLine(name)+" may change how what follows it is read")
	}
	sc.expanding = append(slices.Clip(sc.expanding), name)
	rest := ""
	after := int(c.Args[0].End().Offset())
	next := 1
	for next < len(c.Args) && strings.HasSuffix(value, " ") {
		// The word after it is looked up too.
		v, ok := w.facts.Aliases[c.Args[next].Lit()]
		if !ok {
			break
		}
		value += " " + v
		after = int(c.Args[next].End().Offset())
		next++
	}
	rest = w.source(after, int(c.End().Offset()))
	sc.ctx.Conditional = true
	start, end := w.placeOf(i, Word{Source: name})
	w.text(value+" "+rest, w.dialect, sc, false, start, end)
	w.env.forgetAll()
}

func parseBounded(src string, d Dialect) (*syntax.File, error) {
	if openers(src) > maxOpeners {
		return nil, errTooDeep
	}
	return parse(src, d)
}
