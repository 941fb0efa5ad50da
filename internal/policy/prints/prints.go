// Package prints proves of a short text in another language (python3 -c, node -p, perl -ne) that
// it computes and prints and does nothing else.
//
// It reads tokens and no grammar, so it is stricter than it need be: each name must be in a
// closed list of its language (words.go), whatever is called must be such a name, and what could
// make a text into code or a name into another is refused. What is not proven is code. It runs
// nothing and knows nothing of commands; which files a text reads is judged by who asks.
package prints

import (
	"regexp"
	"strings"
	"sync"
)

// Language is what is needed to read the tokens of one.
type Language struct {
	// names are what may be said, libraries what may be loaded; usual adds the names that
	// variables usually have, for languages in which a name alone calls nothing.
	names, libraries *wordList
	usual            bool
	// prefixes may stand before a string. comment begins what is not read, to the end of the line.
	prefixes string
	comment  byte
	// marks are the characters that may stand between names, numbers and strings; never are
	// texts that may stand nowhere.
	marks string
	never []string
	// apart are pairs of names of which each is harmless and both are not, as os and system.
	apart func() *regexp.Regexp
	// sigils begin variables. slashes enclose expressions of regular kind.
	sigils  string
	slashes bool
	// held begins what is computed within a string of double quotes; empty for none.
	held string
	// perl: operators such as s/a/b/, and hashes whose keys need no quotes.
	perl bool
}

// reading is one text on its way through tokens.
type reading struct {
	*Language
	t         string
	i         int
	last      lexeme
	lastMark  byte
	word      string   // the last name
	bound     []string // variables that the text itself sets
	importing bool
	foreign   bool // a library of other people's is loaded
	beyond    bool // a name is used that those may not be asked for
	big       bool // a number that no loop should count to
	grows     bool // something that counts or repeats
	asks      bool // something is computed or looked up
}

type lexeme byte

const (
	atStart   lexeme = iota
	isMark           // an operator, a comma, an opening bracket
	isName           // one of the list
	isUsual          // a variable
	isValue          // a number or a string
	isClosed         // a closing bracket
	isMember         // behind a dot
	isSigil          // a variable with a sigil
	isKeyword        // one behind which a value stands
)

const maxPrinting = 2048

// Only reports whether code is known to compute and print only.
func (l *Language) Only(code string) bool {
	if len(code) > maxPrinting || strings.ContainsAny(code, "`\x00") {
		return false
	}
	if l.apart != nil && l.apart().MatchString(code) {
		return false
	}
	for _, n := range l.never {
		if strings.Contains(code, n) {
			return false
		}
	}
	if l.perl && strings.Contains(code, "INC") && strings.Contains(code, "use") {
		return false // where a library is looked for may be set before it is
	}
	r := &reading{Language: l, t: code}
	r.bind()
	for r.i < len(r.t) {
		if !r.next() {
			return false
		}
	}
	// What prints its own words only, or nothing, is there to run and not to ask.
	return r.asks && (!r.big || !r.grows) && (!r.foreign || !r.beyond)
}

// binds are the forms in which languages without sigils name variables.
var binds = lazy(`(?:^|[;\n])\s*(\w+(?:\s*,\s*\w+)*)\s*=[^=>]|\bfor\s+([\w\s,]+?)\s+in\b|\blambda\s+([\w\s,]*):|\bas\s+(\w+)|\b(?:const|let|var)\s+(\w+)|(\w+)\s*=>|\(([\w\s,]*)\)\s*=>|\|([\w\s,]*)\|`)

// callables are what languages run by a name that is not in their list: no variable may be
// called so, since a text may be read before or beside where it is set.
var callables = words(`eval exec compile open input getattr setattr delattr globals locals vars breakpoint help quit memoryview super classmethod staticmethod property
	object callable Function require fetch import WebSocket EventSource Worker setTimeout setInterval setImmediate queueMicrotask process global globalThis module
	exports WebAssembly constructor function class def async await self this system spawn fork load send public_send syscall trap abort at_exit autoload
	binding callcc caller catch raise select sleep test throw gem method define_method instance_eval class_eval Kernel IO Process Object Module Class
	loadstring loadfile dofile setfenv debug source do get match_fun run include ccall cmd apply spawn_link proc lambda loop exec_ vm child_process cluster
	worker_threads repl inspector net tls http https http2 dgram dns tty wasi async_hooks subprocess pty ctypes pickle marshal runpy code`)

// bind finds the variables that a text sets.
func (r *reading) bind() {
	if !r.usual {
		return
	}
	for _, m := range binds().FindAllStringSubmatch(r.t, 32) {
		for _, names := range m[1:] {
			for name := range strings.FieldsFuncSeq(names, func(c rune) bool { return c == ',' || c == ' ' || c == '\t' || c == '\n' }) {
				if name[0] != '_' && callables.kind(name) == 0 && r.names.kind(name) == 0 && r.libraries.kind(name) == 0 {
					r.bound = append(r.bound, name)
				}
			}
		}
	}
}

func letter(c byte) bool { return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
func digit(c byte) bool  { return c >= '0' && c <= '9' }

func (r *reading) at(n int) byte {
	if r.i+n < len(r.t) {
		return r.t[r.i+n]
	}
	return 0
}

func (r *reading) next() bool {
	c := r.t[r.i]
	switch {
	case c == ' ' || c == '\t':
		r.i++
		return true
	case c == '\n':
		r.i++
		r.importing = false
		return r.at(0) != '=' // perl's and ruby's texts begin so
	case c == r.comment && c != 0:
		for r.i < len(r.t) && r.t[r.i] != '\n' {
			r.i++
		}
		return true
	case letter(c):
		return r.name()
	case digit(c):
		return r.number()
	case c == '\'' || c == '"':
		return r.quoted(c, c == '"' && r.held != "")
	case strings.IndexByte(r.sigils, c) >= 0 && r.sigil():
		return true
	case c == '/' && r.slashes && r.term():
		r.i++
		r.asks = true
		return r.until('/', true) && r.flags("gimsxuyr")
	case c == '/' && r.slashes && !r.divides():
		return false
	case strings.IndexByte(r.marks, c) >= 0:
		return r.mark(c)
	}
	return false
}

// term reports whether what comes next begins a value, and is no operator.
func (r *reading) term() bool { return r.last == atStart || r.last == isMark || r.last == isKeyword }

// divides reports whether a slash can only be a division.
func (r *reading) divides() bool {
	switch r.last {
	case isValue, isSigil:
		return true
	case isUsual, isMember:
		return r.names == javascriptNames
	case isClosed:
		return r.t[strings.LastIndexAny(r.t[:r.i], ")]}")] == ']' || r.names != javascriptNames && r.t[strings.LastIndexAny(r.t[:r.i], ")]}")] == ')'
	case atStart, isMark, isName, isKeyword:
	}
	return false
}

func (r *reading) set(k lexeme, n int) bool {
	switch k {
	case isSigil, isMember:
		r.asks = r.asks || printers.kind(r.word) == 0
	case isName:
		r.asks = r.asks || !r.importing && printers.kind(r.word) == 0 && r.libraries.kind(r.word) == 0
	case isMark:
		r.asks = r.asks || (r.last == isValue || r.last == isClosed) && strings.IndexByte("+-*/%", r.at(0)) >= 0
	case isKeyword:
		r.asks = r.asks || r.word == "localtime" || r.word == "gmtime"
	case atStart, isUsual, isValue, isClosed:
	}
	r.last = k
	r.i += n
	return true
}

// two passes an operator of two characters.
func (r *reading) two() bool {
	r.lastMark = 0
	return r.set(isMark, 2)
}

func (r *reading) mark(c byte) bool {
	two := ""
	if r.i+1 < len(r.t) {
		two = r.t[r.i : r.i+2]
	}
	switch c {
	case '(':
		// What is called is a name of the list. A variable with a sigil is not called so.
		if r.last == isUsual || r.last == isValue || r.last == isClosed || r.last == isSigil && !r.perl {
			return false
		}
	case ')', ']', '}':
		return r.set(isClosed, 1)
	case '[':
		if r.names == javascriptNames && !r.term() && (!indexes().MatchString(r.t[r.i:]) || internal().MatchString(r.t[r.i:])) {
			return false
		}
	case ';':
		r.importing = false
	case '*':
		if two == "**" {
			if r.grows || r.big || !power().MatchString(r.t[r.i:]) {
				return false
			}
			r.big = true
			return r.two()
		}
		if r.perl && (r.term() || r.last == isName || letter(r.at(1)) || r.at(1) == '{') {
			return false
		}
		r.grows = true
	case '.':
		if two == ".." {
			r.grows = true
			return r.two()
		}
		if letter(r.at(1)) && (r.last != isMark && r.last != atStart || r.t[max(r.i-1, 0)] == '?') && r.held != "$" {
			return r.member(1)
		}
	case ':':
		if two == "::" {
			return letter(r.at(2)) && r.member(2)
		}
	case '-':
		if two == "->" && !r.perl {
			return letter(r.at(2)) && r.member(2)
		}
		if two == "->" {
			return (r.at(2) == '{' || r.at(2) == '[') && r.arrow()
		}
	case '=':
		if two != "==" && two != "=>" && two != "=~" {
			// Only variables are set, and what a call names.
			if r.last == isMember || r.last == isClosed && !r.perl || r.last == isSigil && (strings.Contains(r.word, ":") || r.word == "INC") {
				return false
			}
		} else {
			return r.two()
		}
	case '?':
		if q := r.at(1); r.held == "#{" && q != ' ' && q != '.' {
			return false
		}
	case '<':
		// Else it may be a name of files, or of what is read.
		if r.perl && r.last != isValue && r.last != isClosed && r.last != isSigil {
			rest := r.t[r.i:]
			for _, in := range [...]string{"<STDIN>", "<>"} {
				if strings.HasPrefix(rest, in) {
					return r.set(isValue, len(in))
				}
			}
			return false
		}
		if two == "<=" {
			return r.two()
		}
	case '!', '>':
		if len(two) == 2 && two[1] == '=' {
			return r.two()
		}
	case '&':
		if two != "&&" && !(two == "&:" && r.held == "#{" && letter(r.at(2))) {
			return false
		}
		return r.two()
	}
	r.lastMark = c
	return r.set(isMark, 1)
}

var power = lazy(`^\*\*\s*\d{1,4}(?:\D|$)`)

// arrow passes -> and the key behind it.
func (r *reading) arrow() bool {
	n := 3
	for letter(r.at(n)) || digit(r.at(n)) {
		n++
	}
	if r.at(2) == '{' && n > 3 && r.at(n) == '}' {
		return r.set(isSigil, n+1)
	}
	return r.two()
}

var libraryWord = lazy(`^([\w:/]+)(?:=[\w:,]*)?$`)

// Loads reports whether a word names a library that may be loaded, as perl's -M and ruby's -r
// take it.
func (l *Language) Loads(word string) bool {
	m := libraryWord().FindStringSubmatch(word)
	return m != nil && (l.libraries.kind(m[1]) != 0 || l.perl && strings.ToLower(m[1]) != m[1] && l.names.kind(m[1]) == 'w' || m[1] == "strict" || m[1] == "warnings")
}

// OpensPipes reports whether the language takes the name of a file that begins or ends with a
// pipe for a command.
func (l *Language) OpensPipes() bool { return l.perl || l == rubyLanguage }

// lazy is an expression that is compiled when it is first used: most processes that link this
// package judge little or nothing.
func lazy(text string) func() *regexp.Regexp {
	f := sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
	expressions = append(expressions, f)
	return f
}

// expressions are all of them, for a test that compiles each.
var expressions []func() *regexp.Regexp
