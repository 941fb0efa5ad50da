package redact

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
)

// leastKnown is the length below which a value cannot be looked for: it would be found
// everywhere. leastForm is that of what remains of it in base64.
const (
	leastKnown = 6
	leastForm  = 8
)

// forms are a value and the ways in which it is commonly written elsewhere: in base64, alone or
// behind something else, in hexadecimal, in a URL, in JSON, quoted as Go does it, and in a
// shell's single quotes.
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

// inBase64 are those characters of base64 that say nothing but value, if it stands behind so
// many bytes of a group of three.
func inBase64(value string, before int) string {
	s := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), value...))
	// The last character has bits of what comes behind, unless the bits end with it.
	return s[(8*before+5)/6 : 8*(before+len(value))/6]
}

// lowerEscapes has the digits of %2F as some write them.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := range b {
		if b[i] == '%' && i+2 < len(b) {
			copy(b[i+1:i+3], strings.ToLower(s[i+1:i+3]))
		}
	}
	return string(b)
}
