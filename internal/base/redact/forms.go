package redact

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
)

// leastKnown is the least length of a value that is searched for: a shorter one would be found
// everywhere. leastForm is the least length of its unambiguous part in base64.
const (
	leastKnown = 6
	leastForm  = 8
)

// forms returns a value and its common encodings: in hexadecimal, in a URL, in JSON, quoted as in
// Go, in a shell's single quotes, and in base64 alone or within other data.
func forms(value string) []string {
	out := []string{value}
	add := func(s string) {
		if s != value {
			out = append(out, s)
		}
	}
	lower := hex.EncodeToString([]byte(value))
	add(lower)
	add(strings.ToUpper(lower))
	add(url.QueryEscape(value))
	add(url.PathEscape(value))
	add(lowerEscapes(url.QueryEscape(value)))
	if b, err := json.Marshal(value); err == nil {
		add(string(b[1 : len(b)-1]))
	}
	quoted := strconv.Quote(value)
	add(quoted[1 : len(quoted)-1])
	add(strings.ReplaceAll(value, "'", `'\''`))
	for before := range 3 {
		if s := inBase64(value, before); len(s) >= leastForm {
			add(s)
			add(strings.NewReplacer("+", "-", "/", "_").Replace(s))
		}
	}
	return out
}

// inBase64 returns the characters of base64 that depend on value only, if before bytes of a group of
// three precede it.
func inBase64(value string, before int) string {
	s := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), value...))
	// The last character also has bits of what follows, unless value ends with a character.
	return s[(8*before+5)/6 : 8*(before+len(value))/6]
}

// lowerEscapes changes %2F to %2f, as some programs write it.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := range b {
		if b[i] == '%' && i+2 < len(b) {
			copy(b[i+1:i+3], strings.ToLower(s[i+1:i+3]))
		}
	}
	return string(b)
}
