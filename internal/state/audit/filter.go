package audit

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// Filter selects records. Zero fields select all. It reads lines of any version.
type Filter struct {
	Workspace, Principal, Trace, Type string
	// Level is the decision of policy, as "CONFIRM". Capability is one of the capabilities found.
	Level, Capability string
	// Records from Since on and before Until are selected.
	Since, Until time.Time
}

// Empty reports whether the filter selects every record.
func (f Filter) Empty() bool { return f == Filter{} }

// Match reports whether the filter selects the record of this line.
func (f Filter) Match(line []byte) bool {
	if f.Empty() {
		return true
	}
	// Quick test: a record's text is part of its line.
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

// Lines returns the lines that the filter selects.
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
