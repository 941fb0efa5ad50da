package redact

import "strings"

// Plain replaces the secrets in a text that a model wrote and a person is to judge. A mask must hide nothing that does something, so
// only a secret that is one plain word is replaced: letters, digits and "_./+=-". hidden is the first one that is more than that, which
// stays as it is; "" if there is none. Ask nobody about a text of which something would be hidden.
func (r *Redactor) Plain(s string) (text, hidden string) {
	if r == nil {
		return s, ""
	}
	return r.plain(s, r.scan(s))
}

// PlainArgv is Plain for a command line, as Argv is Text for it.
func (r *Redactor) PlainArgv(argv []string) (words []string, hidden string) {
	if r == nil || len(argv) == 0 {
		return argv, ""
	}
	words = replaceEach(argv, func(i int) string {
		text, h := r.plain(argv[i], r.arg(argv, i))
		if hidden == "" {
			hidden = h
		}
		return text
	})
	return words, hidden
}

func (r *Redactor) plain(s string, found []span) (text, hidden string) {
	var kept []span
	for _, f := range found {
		switch {
		case isPlain(s[f.from:f.to]):
			kept = append(kept, f)
		case hidden == "":
			hidden = s[f.from:f.to]
		}
	}
	return r.replace(s, kept), hidden
}

func isPlain(s string) bool {
	for i := range len(s) {
		if !plainWord.has(s[i]) {
			return false
		}
	}
	return true
}

// PlainDiff is Plain for the lines that a diff adds. Of the others, which are the person's own files, every secret is replaced.
func (r *Redactor) PlainDiff(diff string) (text, hidden string) {
	if r == nil {
		return diff, ""
	}
	found := r.scan(diff)
	var kept []span
	for _, f := range found {
		if isPlain(diff[f.from:f.to]) || !adds(diff, f) {
			kept = append(kept, f)
		} else if hidden == "" {
			hidden = diff[f.from:f.to]
		}
	}
	return r.replace(diff, kept), hidden
}

// adds reports whether a span touches a line that a diff adds.
func adds(diff string, f span) bool {
	for at := strings.LastIndexByte(diff[:f.from], '\n') + 1; at < f.to; {
		if diff[at] == '+' {
			return true
		}
		n := strings.IndexByte(diff[at:], '\n')
		if n < 0 {
			break
		}
		at += n + 1
	}
	return false
}

// KnownText replaces the known values alone: in a text that was cleaned before, and put together with other words since.
func (r *Redactor) KnownText(s string) string {
	if r == nil {
		return s
	}
	var found []span
	for i := 0; i < len(s); i++ {
		if n := maskAt(s[i:]); n > 0 {
			i += n - 1
			continue
		}
		if end := toldAt(s, i, r.known.index.Load(), r.own); end > 0 {
			found = append(found, span{i, end, "secret"})
			i = end - 1
		}
	}
	return r.replace(s, found)
}
