package prints

import (
	"regexp"
	"strings"
)

func (r *reading) number() bool {
	from := r.i
	for digit(r.at(0)) || letter(r.at(0)) || r.at(0) == '.' && digit(r.at(1)) {
		r.i++
	}
	text := r.t[from:r.i]
	r.big = r.big || len(text) > 7 || strings.ContainsAny(text[1:], "eEx_")
	return r.set(isValue, 0)
}

// quoted passes a string. One with computed parts is refused but for plain variables.
func (r *reading) quoted(quote byte, computed bool) bool {
	if r.last == isUsual || r.i > 0 && (letter(r.t[r.i-1]) || digit(r.t[r.i-1])) {
		return false
	}
	return r.string(quote, computed)
}

// string passes a string that begins here. Three quotes would be read in more than one way.
func (r *reading) string(quote byte, computed bool) bool {
	if r.at(1) == quote && r.at(2) == quote {
		return false
	}
	r.i++
	return r.until(quote, computed) && r.at(0) != quote
}

// fields are the computed parts of strings of Python and of Ruby.
var (
	formatted = lazy(`\{([^{}:!'"]*)(?:[!:][^{}]*)?\}`)
	inserted  = lazy(`#\{([^{}'"]*)\}`)
)

// computes proves the computed parts of a string, and that there are no others.
func (r *reading) computes(text string, parts func() *regexp.Regexp, left string) bool {
	for _, m := range parts().FindAllStringSubmatch(text, 16) {
		in := &reading{Language: r.Language, t: m[1], bound: r.bound}
		for in.i < len(in.t) {
			if !in.next() {
				return false
			}
		}
		r.asks = r.asks || in.asks
		r.big, r.grows, r.beyond = r.big || in.big, r.grows || in.grows, r.beyond || in.beyond
	}
	return !strings.ContainsAny(parts().ReplaceAllString(text, ""), left)
}

// until passes a text up to its end.
func (r *reading) until(end byte, computed bool) bool {
	from := r.i
	for ; r.i < len(r.t) && r.t[r.i] != end; r.i++ {
		switch {
		case r.t[r.i] == '\\':
			r.i++
		case r.t[r.i] == '\n' && !r.perl:
			return false
		case r.t[r.i] == '[' && end == '/' && !r.perl:
			// Languages do not agree on whether a slash ends it there.
			if n := strings.IndexAny(r.t[r.i:], "]/\\"); n < 0 || r.t[r.i+n] != ']' {
				return false
			}
		}
	}
	if r.i >= len(r.t) {
		return false
	}
	text := r.t[from:r.i]
	r.set(isValue, 1)
	return !computed || r.plain(text)
}

// interpolated is a variable in a string, with at most a plain index.
var interpolated = lazy(`^[$@](?:\w+|[&.,;/0!\]])(?:\[-?\d+\]|\{\w+\})?`)

// plain reports whether a string in which variables are replaced runs nothing by it.
func (r *reading) plain(text string) bool {
	if r.held == "#{" {
		return r.computes(text, inserted, "") && !strings.Contains(inserted().ReplaceAllString(text, ""), "#{")
	}
	if strings.Contains(text, "(?{") || strings.Contains(text, "(??") || strings.Contains(text, "{$") || strings.Contains(text, "{@") {
		return false
	}
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '$', '@':
			rest := text[i:]
			found := interpolated().FindString(rest)
			after := rest[max(len(found), 1):]
			switch {
			case found == "" && (after == "" || strings.IndexByte(" )|", after[0]) >= 0) && !strings.ContainsAny(after[:min(len(after), 2)], "[{"):
			case found == "" || secretive(found) || strings.Contains(found, "ENV") && secretive(found[strings.IndexByte(found, 'V'):]):
				return false
			case after == "":
			case after[0] == '[' || after[0] == '{' || strings.HasPrefix(after, "->") || strings.HasPrefix(after, "::") || after[0] == '\'' && len(after) > 1 && letter(after[1]):
				return false
			}
			r.asks = r.asks || found != ""
			i += max(len(found), 1) - 1
		}
	}
	return true
}

func (r *reading) flags(known string) bool {
	for letter(r.at(0)) {
		if strings.IndexByte(known, r.at(0)) < 0 {
			return false
		}
		r.i++
	}
	return true
}

func (r *reading) sigil() bool {
	r.word = "$"
	n := 1
	if r.at(0) == '$' && r.at(1) == '#' {
		n++
	}
	for r.at(n) == ':' && r.at(n+1) == ':' || r.at(n) == ':' && r.at(n-1) == ':' || letter(r.at(n)) || digit(r.at(n)) {
		n++
	}
	name := strings.TrimLeft(r.t[r.i:r.i+n], "$@%#")
	if name == "" {
		switch c := r.at(1); {
		case r.at(0) != '$':
			return false
		case r.perl && c == '^' && strings.IndexByte("VOXTW", r.at(2)) >= 0:
			n = 3
		case r.perl && c != 0 && strings.IndexByte("&.,;/\\]!0_", c) >= 0:
			n = 2
		default:
			return false
		}
	}
	if n > 1 && name != "ENV" && secretive(name) || name == "SIG" {
		return false
	}
	// A hash's key needs no quotes: what stands in the braces is not called.
	if r.perl && r.at(n) == '{' {
		m := n + 1
		for letter(r.at(m)) || digit(r.at(m)) {
			m++
		}
		if m > n+1 && r.at(m) == '}' {
			if name == "ENV" && secretive(r.t[r.i+n+1:r.i+m]) {
				return false
			}
			return r.set(isSigil, m+1)
		}
	}
	r.word = name
	return name != "ENV" && r.set(isSigil, n)
}

// secretive reports whether a name may be that of a secret, or of all variables.
func secretive(name string) bool { return secretNames().MatchString(name) }

var secretNames = lazy(`(?i)token|secret|pass|_?key|cred|auth|priv|dsn|url|^_?env$|^globals$|_server$|_env$`)
