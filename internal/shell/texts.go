package shell

import (
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// shells are the programs that run shell text, and how it is read.
var shells = map[string]Dialect{
	"sh": POSIX, "dash": POSIX, "ash": POSIX, "posh": POSIX, "yash": POSIX,
	"bash": Bash, "rbash": Bash, "ksh": Bash, "ksh93": Bash, "mksh": Bash, "pdksh": Bash, "lksh": Bash, "oksh": Bash,
	"zsh": Bash, "rzsh": Bash,
}

// Invocation is how a shell was started.
type Invocation struct {
	Dialect Dialect
	// Text is the index of the word that it runs (-c), Script that of the file; -1 if
	// there is none.
	Text, Script int
	// Stdin says that it reads its text from standard input.
	Stdin bool
	// Unclear says that words that are not known may change all of this.
	Unclear bool
}

// Shell says how a list of words starts a shell; false if its first is none.
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
		if argv[i].Many || argv[i].Glob || argv[i].Dynamic && !strings.HasPrefix(o, "/") && !strings.HasPrefix(o, "./") && !strings.HasPrefix(argv[i].Source, "<(") {
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

// interpreter walks through the text that a shell is given.
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

// shellText walks through the text of another shell, which knows nothing of this one's
// variables, functions and aliases.
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

// fileText gives what is known of a file that is named as a word: standard input,
// another descriptor of the command, or a process substitution.
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

// placeOf gives the place of a word of a command.
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

// builtin notes what a builtin does to variables, and walks through texts given to it.
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

// join gives what eval makes of its words.
func join(args []Word) (text string, guess bool) {
	if len(args) > 0 && args[0].Text == "--" {
		args = args[1:]
	}
	if len(args) == 1 {
		return args[0].Text, args[0].Dynamic || args[0].Glob || args[0].Many
	}
	var b strings.Builder
	for i, x := range args {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(x.Text)
		guess = guess || x.Dynamic || x.Glob || x.Many
	}
	return b.String(), guess
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

// assignArgs forgets the names given to read and its kin.
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

// evaluatedArgs looks for substitutions in words that are taken for names or
// arithmetic.
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

// declareArgs notes the assignments of export and its kin where the parser takes them
// for plain words.
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

// defineAliases notes what alias is given, and walks through it.
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
		w.facts.Aliases[name] = value
		if syntax.IsKeyword(name) {
			w.trouble(Unparseable, "alias "+firstLine(name)+" changes the language")
		}
		start, end := w.placeOf(i, x)
		odd := x.Dynamic || x.Glob || x.Many || strings.ContainsAny(value, "#\\") || strings.Contains(value, "<<")
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

// useAlias walks through what a command is if its first word is an alias.
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

// produce says what a command writes, where that is known.
func (w *walker) produce(args []Word, in stream) stream {
	switch args[0].Text {
	case "echo":
		return echo(args[1:], w.dialect)
	case "printf":
		if len(args) > 1 && strings.HasPrefix(args[1].Text, "-v") {
			return stream{state: known}
		}
		return printf(args[1:])
	case ":", "true", "false", "shift", "export", "readonly", "local", "declare", "typeset", "eval", "trap", "set":
		if args[0].Text == "eval" || len(args) == 1 && args[0].Text != ":" && args[0].Text != "true" && args[0].Text != "false" {
			return stream{}
		}
		return stream{state: known}
	case "cat", "tee":
		if len(args) == 1 || len(args) == 2 && args[1].Text == "-" && args[0].Text == "cat" {
			return in
		}
	case "base64", "base32", "xxd":
		if in.state == known && !in.guess {
			return decode(args, strings.Map(dropSpace, in.text))
		}
	case "rev":
		if in.state == known && !in.guess && len(args) == 1 && ascii(in.text) {
			return stream{state: known, text: reverseLines(in.text)}
		}
	}
	return stream{}
}

// decode says what a decoder makes of its input.
func decode(args []Word, in string) stream {
	var options []string
	for _, x := range args[1:] {
		options = append(options, x.Text)
	}
	var b []byte
	var err error
	switch given := strings.Join(options, " "); {
	case args[0].Text == "xxd":
		switch given {
		case "-r -p", "-p -r", "-rp", "-r -ps", "-ps -r":
			b, err = hex.DecodeString(in)
		default:
			return stream{}
		}
	case given != "-d" && given != "--decode" && given != "-di" && given != "-D":
		return stream{}
	case args[0].Text == "base32":
		b, err = base32.StdEncoding.DecodeString(in)
	default:
		b, err = base64.StdEncoding.DecodeString(in)
	}
	if err != nil || !utf8.Valid(b) {
		return stream{}
	}
	return stream{state: known, text: string(b)}
}

func dropSpace(r rune) rune {
	if r == '\n' || r == ' ' {
		return -1
	}
	return r
}

func reverseLines(s string) string {
	lines := strings.SplitAfter(s, "\n")
	for i, l := range lines {
		l, nl, _ := strings.Cut(l, "\n")
		_ = nl
		b := []byte(l)
		for x, y := 0, len(b)-1; x < y; x, y = x+1, y-1 {
			b[x], b[y] = b[y], b[x]
		}
		if strings.HasSuffix(lines[i], "\n") {
			b = append(b, '\n')
		}
		lines[i] = string(b)
	}
	return strings.Join(lines, "")
}

// echo says what echo writes.
func echo(args []Word, d Dialect) stream {
	newline, escapes := true, false
	for len(args) > 0 && !args[0].Dynamic && len(args[0].Text) > 1 && args[0].Text[0] == '-' &&
		strings.Trim(args[0].Text[1:], "neE") == "" {
		for _, c := range args[0].Text[1:] {
			switch c {
			case 'n':
				newline = false
			case 'e':
				escapes = true
			case 'E':
				escapes = false
			}
		}
		if d == POSIX && args[0].Text != "-n" {
			return stream{}
		}
		args = args[1:]
	}
	text, guess := join2(args)
	if strings.IndexByte(text, '\\') >= 0 {
		switch {
		case d == POSIX:
			return stream{}
		case escapes:
			var ok bool
			if text, ok = backslashes(text); !ok {
				return stream{}
			}
		}
	}
	if newline {
		text += "\n"
	}
	return stream{state: known, text: text, guess: guess}
}

// backslashes reads the escapes of echo -e and of %b, which are those of $'…' but for
// \0NNN; false for what they read otherwise.
func backslashes(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch c := s[i+1]; c {
		case 'c', '\'', '"', '?', '1', '2', '3', '4', '5', '6', '7':
			return "", false
		case '0':
			d := digits(s[i+2:], 3, "01234567")
			n, _ := strconv.ParseUint("0"+d, 8, 32)
			b.WriteByte(byte(n))
			i += 1 + len(d)
		default:
			b.WriteString(s[i : i+2])
			i++
			// Where there are more digits of a code, they follow.
			continue
		}
	}
	if t := b.String(); strings.IndexByte(t, '\\') < 0 {
		return t, true
	} else if !strings.Contains(s, `\0`) {
		t, _ = ansiC(s)
		return t, true
	}
	// Both kinds: what the first made may look like an escape to the second.
	return "", false
}

func join2(args []Word) (string, bool) {
	var b strings.Builder
	guess := false
	for i, x := range args {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(x.Text)
		guess = guess || x.Dynamic || x.Glob || x.Many
	}
	return b.String(), guess
}

// printf says what printf writes for formats of %s, %b without escapes, %c, %d and %%.
func printf(args []Word) stream {
	if len(args) > 0 && args[0].Text == "--" {
		args = args[1:]
	}
	if len(args) == 0 || args[0].Dynamic || args[0].Glob || args[0].Many || strings.HasPrefix(args[0].Text, "-") {
		return stream{}
	}
	format := args[0].Text
	args = args[1:]
	var b strings.Builder
	guess := false
	for round := 0; ; round++ {
		used := false
		for i := 0; i < len(format); i++ {
			if format[i] == '\\' {
				end := i + 2
				for end < len(format) && end < i+4 && (format[end] >= '0' && format[end] <= '9' || format[end] >= 'a' && format[end] <= 'f' || format[end] >= 'A' && format[end] <= 'F') {
					end++
				}
				if i+1 < len(format) && (format[i+1] == 'x' || format[i+1] >= '0' && format[i+1] <= '7') {
					if end > len(format) {
						return stream{}
					}
					s, _ := ansiC(format[i:end])
					b.WriteString(s)
					i = end - 1
					continue
				}
				if i+1 == len(format) || strings.IndexByte(`abfnrtv\"e`, format[i+1]) < 0 {
					return stream{}
				}
				s, _ := ansiC(format[i : i+2])
				b.WriteString(s)
				i++
				continue
			}
			if format[i] != '%' {
				b.WriteByte(format[i])
				continue
			}
			if i++; i == len(format) {
				return stream{}
			}
			if format[i] == '%' {
				b.WriteByte('%')
				continue
			}
			var x Word
			if len(args) > 0 {
				x, args = args[0], args[1:]
				used = true
			}
			if x.Many || x.Glob {
				return stream{}
			}
			guess = guess || x.Dynamic
			switch format[i] {
			case 's':
				b.WriteString(x.Text)
			case 'b':
				if strings.Contains(x.Text, `\`) {
					s, ok := backslashes(x.Text)
					if !ok {
						return stream{}
					}
					b.WriteString(s)
				} else {
					b.WriteString(x.Text)
				}
			case 'c':
				if x.Text != "" {
					if x.Text[0] >= 0x80 {
						return stream{}
					}
					b.WriteByte(x.Text[0])
				}
			case 'd', 'i':
				if x.Text == "" {
					x.Text = "0"
				}
				if !decimal(x.Text) {
					return stream{}
				}
				b.WriteString(x.Text)
			default:
				return stream{}
			}
		}
		if len(args) == 0 || !used || round > maxFields || b.Len() > defaultBytes {
			break
		}
	}
	if len(args) > 0 && b.Len() > defaultBytes {
		return stream{}
	}
	return stream{state: known, text: b.String(), guess: guess}
}

func decimal(s string) bool {
	s = strings.TrimPrefix(s, "-")
	if s == "" || len(s) > 18 || len(s) > 1 && s[0] == '0' {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if len(s) > 60 {
		s = s[:60] + "…"
	}
	return s
}
