package redact

import (
	"slices"
	"strings"
)

// scan finds the secrets in s, in order, in one pass. known and own are the known values.
func scan(s string, known, own *index) (found []span) {
	told := known != nil || own != nil
	for i := 0; i < len(s); {
		from, end, kind := i, 0, ""
		c := s[i]
		if notable[c] == 0 && !told {
			i++
			continue
		}
		if c == '[' {
			if n := maskAt(s[i:]); n > 0 { // redacted before
				i += n
				continue
			}
		}
		if told {
			if end = toldAt(s, i, known, own); end > 0 {
				kind = "secret"
			}
		}
		if end == 0 && notable[c]&beginsShape != 0 && (i == 0 || !dashed.has(s[i-1])) {
			end, kind = shaped(s, i)
		}
		if end == 0 && told && c == cut[0] && strings.HasPrefix(s[i:], cut) {
			begin := 0
			if len(found) > 0 {
				begin = found[len(found)-1].to
			}
			if begin = halfBefore(s, begin, i, known, own); begin < i {
				found = append(found, span{begin, i, "secret"})
			}
		}
		if end == 0 {
			switch c {
			case '=', ':':
				if from, end, kind = assigned(s, i); end <= from && c == ':' {
					from, end, kind = passwordLine(s, i)
				}
			case ' ':
				if from, end = afterFlag(s, i); end <= from {
					from, end = afterWords(s, i)
				}
				kind = "argument"
			}
		}
		if end <= from {
			i++
			continue
		}
		if told {
			from, end = reach(s, i, from, end, known, own)
		}
		found = append(found, span{from, end, kind})
		i = end
	}
	return found
}

// cut ends a text that was shortened. A secret of which only the first part is left may begin up to
// maxHalf bytes before it.
const (
	cut     = "…"
	maxHalf = 256
)

// halfBefore returns the offset at which a known value begins that was cut off at i, or i.
func halfBefore(s string, from, i int, known, own *index) int {
	for j := max(from, i-maxHalf); j <= i-leastKnown; j++ {
		if known.begins(s[j:i]) || own.begins(s[j:i]) {
			return j
		}
	}
	return i
}

// toldAt returns the end of the longest known value that begins at i, or 0.
func toldAt(s string, i int, known, own *index) int {
	if n := max(known.at(s[i:]), own.at(s[i:])); n > 0 {
		return i + n
	}
	return 0
}

// reach extends a secret that was found behind i by the known values that begin between i and its
// end, so that nothing of them stays.
func reach(s string, i, from, end int, known, own *index) (int, int) {
	for j := i + 1; j < end; j++ {
		if e := toldAt(s, j, known, own); e > 0 {
			from, end = min(from, j), max(end, e)
		}
	}
	return from, end
}

// maskAt returns the length of the mask that s begins with, or 0. It is strict, because a forged mask
// could hide a secret.
func maskAt(s string) int {
	rest, ok := strings.CutPrefix(s, masked)
	if !ok {
		return 0
	}
	kind, rest, ok := strings.Cut(rest, ":")
	if !ok || len(kind) > maxKind || !kinds[kind] || len(rest) <= maskDigits || rest[maskDigits] != ']' {
		return 0
	}
	for _, c := range []byte(rest[:maskDigits]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return 0
		}
	}
	return len(masked) + len(kind) + 1 + maskDigits + 1
}

// shaped returns the end of a secret with a shape that begins at i, or 0.
func shaped(s string, i int) (end int, kind string) {
	for n := range byFirst[s[i]] {
		p := &byFirst[s[i]][n]
		if !strings.HasPrefix(s[i:], p.prefix) {
			continue
		}
		from := i + len(p.prefix)
		to := from
		for to < len(s) && p.set.has(s[to]) {
			to++
		}
		n := to - from
		tooShort := n < p.least && (n < leastKnown || !strings.HasPrefix(s[to:], cut))
		if tooShort || p.exact && n != p.least || p.mixed && !mixed(s[from:to]) {
			continue
		}
		if p.kind == "jwt" && strings.Count(s[from:to], ".") != 2 || p.kind == "key-base64" && !wrapsKey(s[i:to]) {
			continue
		}
		return to, p.kind
	}
	if s[i] == '-' {
		if end := privateKey(s, i); end > 0 {
			return end, "private-key"
		}
	}
	return 0, ""
}

func mixed(s string) bool {
	return strings.ContainsAny(s, "0123456789") && strings.ContainsAny(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
}

// assigned finds the value behind "=" or ":" at i if it has the name of a secret, and the password of
// a URL.
func assigned(s string, i int) (from, to int, kind string) {
	if s[i] == ':' && strings.HasPrefix(s[i:], "://") {
		return userinfo(s, i+3)
	}
	end := i
	for end > 0 && (s[end-1] == '"' || s[end-1] == '\'' || s[end-1] == '\\' || s[end-1] == ' ' || s[end-1] == '\t' && s[i] == '=') {
		end--
	}
	// As in a file of settings. In a shell, "NAME= command" runs the command.
	apart := s[i] == '=' && i > 0 && (s[i-1] == ' ' || s[i-1] == '\t')
	if apart && (i+1 == len(s) || s[i+1] != ' ' && s[i+1] != '\t') {
		return 0, 0, ""
	}
	begin := end
	for begin > 0 && dashed.has(s[begin-1]) {
		begin--
	}
	name := strings.TrimLeft(s[begin:end], "-")
	if name == "" || s[i] == ':' && end == i && s[begin:end] == "token" && principalAt(s[i+1:]) {
		return 0, 0, ""
	}
	from = i + 1
	for from < len(s) && ((s[from] == ' ' || s[from] == '\t') && (s[i] == ':' || apart) || s[from] == '\\') {
		from++
	}
	if strings.EqualFold(name, "authorization") && s[i] == ':' {
		for _, scheme := range []string{"bearer ", "basic ", "token "} {
			if len(s)-from > len(scheme) && strings.EqualFold(s[from:from+len(scheme)], scheme) {
				from += len(scheme)
			}
		}
		if to = wordEnd(s, from, 0); to-from >= 4 && maskAt(s[from:]) == 0 && s[from] != '$' {
			return from, to, "authorization"
		}
		return 0, 0, ""
	}
	var quote byte
	if from < len(s) && (s[from] == '"' || s[from] == '\'') {
		quote = s[from]
		from++
	}
	to = wordEnd(s, from, quote)
	if quote != 0 && from > 1 && s[from-2] == '\\' && to > from && s[to-1] == '\\' { // JSON in a string
		to--
	}
	if to == from || !secretName(name, s[from:to]) && !(name == "auth" && quote != 0 && isLogin(s[from:to])) {
		return 0, 0, ""
	}
	return from, to, "value"
}

// principalAt reports whether s begins with the id of a token of the API, as records name who asks: token:ID. It is no secret.
func principalAt(s string) bool {
	const digits = 12
	n := 0
	for n < len(s) && (s[n] >= '0' && s[n] <= '9' || s[n] >= 'a' && s[n] <= 'f') {
		n++
	}
	return n == digits && (n == len(s) || strings.IndexByte(" ,;)\"'\n", s[n]) >= 0)
}

// userinfo finds the password in the authority of a URL that begins at i.
func userinfo(s string, i int) (from, to int, kind string) {
	end := i
	for end < len(s) && s[end] > ' ' && !strings.ContainsRune("/?#\"'<>\\", rune(s[end])) {
		end++
	}
	at := strings.LastIndexByte(s[i:end], '@')
	if at < 0 {
		return 0, 0, ""
	}
	colon := strings.IndexByte(s[i:i+at], ':')
	if colon < 0 || colon+1 == at || maskAt(s[i+colon+1:]) > 0 {
		return 0, 0, ""
	}
	return i + colon + 1, i + at, "url-password"
}

// afterFlag finds the word behind the space at i if the word before it is a long option with the name
// of a secret.
func afterFlag(s string, i int) (from, to int) {
	begin := i
	for begin > 0 && notable[s[begin-1]]&partsWords == 0 {
		begin--
	}
	word := s[begin:i]
	if !strings.HasPrefix(word, "--") {
		return 0, 0
	}
	name, ok := flagName(word)
	if !ok {
		return 0, 0
	}
	from = i + 1
	var quote byte
	if from < len(s) && (s[from] == '"' || s[from] == '\'') {
		quote = s[from]
		from++
	}
	to = wordEnd(s, from, quote)
	if to == from || s[from] == '-' || !secretName(name, s[from:to]) {
		return 0, 0
	}
	return from, to
}

// wordEnd returns the end of the word that begins at i: its quote, or a character that ends words.
func wordEnd(s string, i int, quote byte) int {
	for ; i < len(s); i++ {
		c := s[i]
		if quote != 0 && (c == quote || c == '\n') || quote == 0 && (c <= ' ' || strings.IndexByte("\"'`;&|<>(),}\\", c) >= 0) {
			break
		}
	}
	return i
}

// secretName reports whether a value with this name is a secret.
func secretName(name, value string) bool {
	plain := plainName(name)
	// A reference is not the value: $TOKEN, ${{ secrets.X }}, a substitution.
	if plain == "" || strings.HasPrefix(value, "$") || strings.HasPrefix(value, "`") || maskAt(value) > 0 {
		return false
	}
	if hasEnd(plain, certain) {
		return len(value) > 1 && !strings.HasPrefix(value, "/") && value != "true" && value != "false" && value != "null"
	}
	return hasEnd(plain, likely) && secretLike(value)
}

// plainName returns a name in lower case without "-" and "_".
func plainName(name string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '-' || c == '_':
			return -1
		case c >= 'A' && c <= 'Z':
			return c + 'a' - 'A'
		}
		return c
	}, name)
}

func hasEnd(name string, ends []string) bool {
	return slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(name, end) })
}

// secretLike reports whether a value with a name that is only likely to name a secret looks like one:
// long, of letters and digits or of mixed case, and no path, file, reference or host.
func secretLike(v string) bool {
	if len(v) < 8 || strings.ContainsAny(v, "/ ,(){}[]:@") && !strings.ContainsAny(v, "+=") {
		return false
	}
	for _, end := range []string{".pem", ".key", ".pub", ".crt", ".json", ".txt", ".gpg", ".asc"} {
		if strings.HasSuffix(v, end) {
			return false
		}
	}
	if strings.HasPrefix(v, "/") || strings.HasPrefix(v, "./") || strings.HasPrefix(v, "~") {
		return false
	}
	return len(v) >= 12 && mixed(v) || len(v) >= 8 && mixed(v) && strings.ToLower(v) != v
}
