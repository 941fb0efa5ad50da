package redact

import (
	"encoding/base64"
	"slices"
	"strings"
)

// afterWords finds the secret behind the space at i if the words before it say that one follows: IDENTIFIED BY of SQL, and the password
// of a .netrc.
func afterWords(s string, i int) (from, to int) {
	begin := strings.LastIndexByte(s[:i], '\n') + 1
	line := s[max(begin, i-256):i]
	from = i + 1
	quote := byte(0)
	if from < len(s) && (s[from] == '"' || s[from] == '\'') {
		quote = s[from]
		from++
	}
	to = wordEnd(s, from, quote)
	if to-from < 2 || s[from] == '$' || maskAt(s[from:]) > 0 {
		return 0, 0
	}
	const identified, password = "identified by", "password"
	if n := len(line) - len(identified); n >= 0 && strings.EqualFold(line[n:], identified) {
		return from, to
	}
	before, ok := strings.CutSuffix(line, password)
	if !ok || quote != 0 || before != "" && before[len(before)-1] != ' ' && before[len(before)-1] != '\t' {
		return 0, 0
	}
	words := strings.Fields(before)
	alone := len(words) == 0 && (to == len(s) || s[to] == '\n')
	if alone || slices.Contains(words, "login") || slices.Contains(words, "machine") || slices.Contains(words, "default") {
		return from, to
	}
	return 0, 0
}

// passwordLine finds the password in a line of a .pgpass, whose first ":" is at i: host, port, database, user, password.
func passwordLine(s string, i int) (from, to int, kind string) {
	begin := strings.LastIndexByte(s[:i], '\n') + 1
	end := len(s)
	if n := strings.IndexByte(s[i:], '\n'); n >= 0 {
		end = i + n
	}
	if end-begin > 1024 || strings.ContainsAny(s[begin:end], " \t/") || strings.IndexByte(s[begin:i], ':') >= 0 {
		return 0, 0, ""
	}
	f := strings.SplitN(s[begin:end], ":", 5)
	if len(f) < 5 || f[0] == "" || f[1] != "*" && (f[1] == "" || strings.Trim(f[1], "0123456789") != "") || f[2] == "" || f[3] == "" ||
		len(f[4]) < 2 || maskAt(f[4]) > 0 || strings.Contains(f[4], ":") {
		return 0, 0, ""
	}
	return end - len(f[4]), end, "value"
}

// isLogin reports whether a text is base64 of a name, ":" and a password.
func isLogin(s string) bool {
	b, err := base64.StdEncoding.DecodeString(s)
	name, password, ok := strings.Cut(string(b), ":")
	unreadable := strings.ContainsFunc(string(b), func(r rune) bool { return r < ' ' || r == 0xfffd })
	return err == nil && ok && name != "" && password != "" && !unreadable
}

// wrapsKey reports whether base64 holds the first line of a private key.
func wrapsKey(s string) bool {
	s = s[:min(len(s), 96)&^3]
	b, err := base64.StdEncoding.DecodeString(s)
	return err == nil && strings.Contains(string(b), "PRIVATE KEY")
}

// escape begins what a terminal is told of colours.
const escape = "\x1b["

// scanColoured is scan for a text with colours: they may stand within a secret.
func scanColoured(s string, known, own *index) []span {
	plain := make([]byte, 0, len(s))
	at := make([]int, 0, len(s)+1) // where each byte was
	for i := 0; i < len(s); i++ {
		if strings.HasPrefix(s[i:], escape) {
			j := i + len(escape)
			for j < len(s) && (s[j] >= '0' && s[j] <= '9' || s[j] == ';' || s[j] == ':') {
				j++
			}
			if j < len(s) && (s[j] == 'm' || s[j] == 'K') {
				i = j
				continue
			}
		}
		plain, at = append(plain, s[i]), append(at, i)
	}
	found := scan(string(plain), known, own)
	for i := range found {
		found[i].from, found[i].to = at[found[i].from], at[found[i].to-1]+1
	}
	return found
}
