package audit

import (
	"bytes"
	"encoding/json"
	"strings"
)

// checkJSON reports whether b is one JSON value, and whether the names of its outermost
// object are lower-case letters, digits and underscores, each used once. Without the second,
// two readers could take different values from one line, and Verify could look at another
// "seq" than the reader of a report: encoding/json takes the last of two equal names, folds
// case and resolves escapes, and other readers do not.
func checkJSON(b []byte) (valid, plain bool) {
	if !json.Valid(b) {
		return false, false
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return true, err == nil // no object, so no names
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		name, text := t.(string)
		// The text has the name itself and no escape.
		as := bytes.HasSuffix(b[:d.InputOffset()], []byte(`"`+name+`"`))
		if err != nil || !text || !as || seen[name] || !isPlain(name) {
			return true, false
		}
		seen[name] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return true, false
		}
	}
	return true, true
}

// isPlain reports whether a name has the form that a line's outermost names must have.
func isPlain(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
}
