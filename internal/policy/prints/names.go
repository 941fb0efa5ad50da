package prints

import (
	"slices"
	"strings"
)

// indexes are what may stand in brackets behind a value where an index may be the name of
// a member: numbers, and names that are none.
var (
	indexes  = lazy(`^\[\s*(?:-?\d+|['"][\w .:/@-]*['"])\s*\]`)
	internal = lazy(`^\[\s*['"](?:constructor|prototype|mainModule|binding|__\w*|require|env|call|apply|bind)`)
)

// member passes a name behind a dot.
func (r *reading) member(skip int) bool {
	if r.last == isMark && r.t[max(r.i-1, 0)] != '?' && skip == 1 {
		return false
	}
	r.i += skip
	from := r.i
	r.pass()
	name := r.t[from:r.i]
	kind := r.names.kind(name)
	if kind == 'f' && (r.word == "STDIN" || r.word == "ARGF" || r.word == "stdin") {
		kind = 'w' // what is read is the input
	}
	if !r.allowed(kind) {
		return false
	}
	r.word = name
	r.beyond = r.beyond || pythonForeignNames.kind(name) == 0
	return r.set(isMember, 0)
}

// pass goes to the end of a name.
func (r *reading) pass() {
	for letter(r.at(0)) || digit(r.at(0)) || r.perl && r.at(0) == ':' && r.at(1) == ':' || r.perl && r.at(0) == ':' && r.t[r.i-1] == ':' {
		r.i++
	}
	if r.held == "#{" && r.at(0) == '?' && r.at(1) != ' ' {
		r.i++
	}
}

// name passes a word.
func (r *reading) name() bool {
	from := r.i
	r.pass()
	name := r.t[from:r.i]
	if q := r.at(0); (q == '\'' || q == '"') && r.prefixes != "" && len(name) < 3 {
		prefix := strings.ToLower(name)
		if !r.term() {
			return false
		}
		from = r.i + 1
		if prefix == "f" {
			return r.string(q, false) && r.computes(r.t[from:r.i-1], formatted, "{}")
		}
		return strings.Contains(r.prefixes, prefix) && r.string(q, false)
	}
	r.word = name
	if r.importing {
		return r.imported(name)
	}
	if r.perl {
		if done, ok := r.operator(name); done {
			return ok
		}
		if strings.HasPrefix(strings.TrimLeft(r.t[r.i:], " "), "=>") {
			return r.set(isValue, 0)
		}
		if name[0] == 'x' && len(name) < 7 && strings.Trim(name[1:], "0123456789") == "" {
			r.grows, r.asks = true, true
			return r.set(isMark, 0)
		}
	}
	kind := r.names.kind(name)
	switch name {
	case "import", "using":
		// Names that are taken out of a library are in the list like all others.
		r.importing = r.last != isName && r.last != isMember
		return kind != 0 && r.set(isKeyword, 0)
	case "from":
		rest := strings.TrimLeft(r.t[r.i:], " ")
		n := 0
		for n < len(rest) && (letter(rest[n]) || digit(rest[n])) {
			n++
		}
		r.foreign = r.foreign || pythonForeign.kind(rest[:n]) != 0
		return kind != 0 && r.libraries.kind(rest[:n]) != 0 && r.set(isKeyword, 0)
	}
	r.beyond = r.beyond || kind != 0 && pythonForeignNames.kind(name) == 0
	switch {
	case r.given(name):
		return r.set(isValue, 0)
	case kind == 'k':
		return r.set(isKeyword, 0)
	case kind != 0:
		return r.allowed(kind) && r.set(isName, 0)
	case r.libraries.kind(name) != 0:
		return r.set(isName, 0)
	case r.variable(name):
		return r.set(isUsual, 0)
	}
	return false
}

// variable reports whether a name can be that of a variable only.
func (r *reading) variable(name string) bool {
	return r.usual && (len(name) < 3 || usualNames.kind(name) != 0 || slices.Contains(r.bound, name))
}

// imported passes a word of an import: a library, or a name that it gets here.
func (r *reading) imported(name string) bool {
	switch {
	case name == "as":
		return r.set(isKeyword, 0)
	case r.last == isKeyword && r.renamed():
		return r.variable(name) && r.set(isUsual, 0)
	}
	r.foreign = r.foreign || pythonForeign.kind(name) != 0
	return r.libraries.kind(name) != 0 && r.set(isName, 0)
}

// renamed reports whether the word before this one is "as".
func (r *reading) renamed() bool {
	before := strings.Fields(r.t[:r.i])
	return len(before) > 1 && before[len(before)-2] == "as"
}

// given reports whether a name is the key of an object of JavaScript, or names an argument.
func (r *reading) given(name string) bool {
	rest := strings.TrimLeft(r.t[r.i:], " ")
	if r.last != isMark || rest == "" || name[0] == '_' {
		return false
	}
	if r.names == javascriptNames {
		return rest[0] == ':' && (r.lastMark == '{' || r.lastMark == ',')
	}
	return r.names == pythonNames && rest[0] == '=' && !strings.HasPrefix(rest, "==") && (r.lastMark == '(' || r.lastMark == ',') && name != "file" &&
		callables.kind(name) == 0
}

// printers are names that only print, or stand in every text.
var printers = words(`print puts p pp console log info write stdout IO io format inspect echo print_r var_dump say println show exit halt init stop local my`)

// What may follow names that open files, load libraries or read the environment: literals.
var (
	fileGiven    = lazy(`^\s*\(?\s*(?:"[^"\\|$#]*"|'[^'\\|]*'|0|(?:(?:sys|process)\.)?\$?(?:argv|ARGV)\[\d\])\s*(?:,\s*(?:encoding\s*=\s*)?["'](?:r|rb|rt|utf-?8|ascii|latin-?1)["']\s*)*(?:\)|$|[;.\s])`)
	libraryGiven = lazy(`^\s*\(?\s*["']([\w@./-]+)["']`)
	nameGiven    = lazy(`^\s*(?:\.(?:get|fetch))?\s*[\[({.]\s*["']?([A-Z_][A-Z0-9_]*)\b`)
)

// allowed reports whether what follows a name is what may follow it.
func (r *reading) allowed(kind byte) bool {
	rest := r.t[r.i:]
	switch kind {
	case 0:
		return false
	case 'f':
		m := fileGiven().FindString(rest)
		return m != "" && (!strings.Contains(m, "://") || strings.Contains(m, "php://stdin"))
	case 'l':
		m := libraryGiven().FindStringSubmatch(rest)
		if m == nil {
			return false
		}
		lib := strings.TrimPrefix(m[1], "node:")
		return r.libraries.kind(lib) != 0 || strings.HasSuffix(lib, ".json") && r.names == javascriptNames
	case 'e':
		m := nameGiven().FindStringSubmatch(rest)
		if m == nil || secretive(m[1]) {
			return false
		}
		if rest[0] == '.' && m[0] == "."+m[1] {
			r.i += len(m[0])
		}
	case 'd':
		return strings.HasPrefix(rest, ".")
	case 'n':
		r.grows = true
	}
	return true
}

// operator passes the quoting operators of perl.
func (r *reading) operator(name string) (done, ok bool) {
	switch name {
	case "q", "qq", "qw", "m", "qr", "s", "tr", "y":
	default:
		return false, false
	}
	r.asks = true
	open := r.at(0)
	if open == 0 || strings.IndexByte("/|{([!#~", open) < 0 {
		return true, false
	}
	shut := open
	switch open {
	case '{':
		shut = '}'
	case '(':
		shut = ')'
	case '[':
		shut = ']'
	}
	twice := name == "s" || name == "tr" || name == "y"
	computed := name != "q" && name != "qw" && name != "tr" && name != "y"
	from := r.i
	r.i++
	if !r.until(shut, computed) {
		return true, false
	}
	if shut != open && strings.IndexByte(r.t[from+1:r.i], open) >= 0 {
		return true, false // brackets within brackets
	}
	if twice {
		if shut != open {
			if r.at(0) != open {
				return true, false
			}
			r.i++
		}
		if !r.until(shut, computed) {
			return true, false
		}
	}
	return true, r.flags("gimsxorcdn") // not e, which runs what it puts in
}
