package redact

import "strings"

// beginsKey is the beginning of a private key's first line.
const beginsKey = "-----BEGIN "

// leastLine is the least length of a word that is a line of a key, unless it is the last one.
const leastLine = 16

// privateKey returns the end of the private key that begins at i, or 0. Only what a key can consist of belongs to it, so
// that nothing else is hidden behind its first line. One without an end, or with other text before its end, ends with the last of its
// lines. A first line alone is no secret.
func privateKey(s string, i int) int {
	rest, ok := strings.CutPrefix(s[i:], beginsKey)
	if !ok {
		return 0
	}
	name, _, ok := strings.Cut(rest, "-----")
	if !ok || len(name) >= 64 || !strings.HasSuffix(name, "PRIVATE KEY") && !strings.HasSuffix(name, "PRIVATE KEY BLOCK") {
		return 0
	}
	end, lines := "-----END "+name+"-----", 0
	from := i + len(beginsKey) + len(name) + len("-----")
	for at, last := from, 0; ; {
		gap := keyGap(s[at:])
		at += gap
		n := keyWord(s[at:])
		ends := lines > 0 && strings.HasPrefix(s[at+n+keyGap(s[at+n:]):], end)
		switch {
		case lines > 0 && strings.HasPrefix(s[at:], end):
			return at + len(end)
		case gap == 0 || n == 0:
			return last
		case n < leastLine && at+n < len(s) && !strings.HasPrefix(s[at+n:], cut) && !ends:
			return last
		default:
			at, lines = at+n, lines+1
			last = at
		}
	}
}

// keyGap returns the length of what may stand between two lines of a key: line ends and blanks, also as they are written in JSON, marks
// before a line in a diff or a mail, and headers.
func keyGap(s string) int {
	at := 0
	for at < len(s) {
		switch c := s[at]; {
		case c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '>' || c == '|':
			at++
		case c == '\\' && at+1 < len(s) && (s[at+1] == 'n' || s[at+1] == 'r'):
			at += 2
		case (c == '+' || c == '-') && at > 0 && s[at-1] == '\n' && !strings.HasPrefix(s[at:], "-----"):
			at++
		default:
			n := keyHeader(s[at:])
			if n == 0 {
				return at
			}
			at += n
		}
	}
	return at
}

// keyHeader returns the length of a header of a key, as "Proc-Type: 4,ENCRYPTED", or 0.
func keyHeader(s string) int {
	for _, name := range []string{"Proc-Type: ", "DEK-Info: ", "Version: ", "Comment: ", "Hash: "} {
		if !strings.HasPrefix(s, name) {
			continue
		}
		at := len(name)
		for at < len(s) && (headers.has(s[at]) || s[at] == ' ') {
			at++
		}
		return at
	}
	return 0
}

// keyWord returns the length of the base64 that s begins with.
func keyWord(s string) int {
	at := 0
	for at < len(s) && base64s.has(s[at]) {
		at++
	}
	return at
}
