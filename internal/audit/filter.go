package audit

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// Filter names records; what is zero is not looked at. It reads the lines as they are, so
// that it also finds records of another version.
type Filter struct {
	Workspace, Principal, Trace, Type string
	// Level is what policy decided, as "CONFIRM"; Capability is one of those that were found.
	Level, Capability string
	// Since is the first time wanted, Until the first that is not.
	Since, Until time.Time
}

// Empty: every record is named.
func (f Filter) Empty() bool { return f == Filter{} }

// Match reports whether the filter names the record of this line.
func (f Filter) Match(line []byte) bool {
	if f.Empty() {
		return true
	}
	// A value that is text in a record stands in its line.
	for _, text := range []string{f.Workspace, f.Principal, f.Trace, f.Type} {
		if !bytes.Contains(line, []byte(text)) {
			return false
		}
	}
	var r struct {
		Time      time.Time `json:"time"`
		Trace     string    `json:"trace"`
		Type      string    `json:"type"`
		Principal string    `json:"principal"`
		Workspace string    `json:"workspace"`
		Policy    string    `json:"policy"`
		Decision  struct {
			Level        string   `json:"level"`
			Capabilities []string `json:"capabilities"`
		} `json:"decision"`
	}
	if json.Unmarshal(line, &r) != nil {
		return false
	}
	is := func(want, have string) bool { return want == "" || want == have }
	level := f.Level == "" || strings.EqualFold(f.Level, r.Policy) || strings.EqualFold(f.Level, r.Decision.Level)
	return is(f.Workspace, r.Workspace) && is(f.Principal, r.Principal) && is(f.Trace, r.Trace) && is(f.Type, r.Type) && level &&
		(f.Capability == "" || slices.Contains(r.Decision.Capabilities, f.Capability)) &&
		(f.Since.IsZero() || !r.Time.Before(f.Since)) && (f.Until.IsZero() || r.Time.Before(f.Until))
}

// Lines returns the lines that the filter names.
func (f Filter) Lines(lines [][]byte) [][]byte {
	if f.Empty() {
		return lines
	}
	var some [][]byte
	for _, l := range lines {
		if f.Match(l) {
			some = append(some, l)
		}
	}
	return some
}
