package redact

import (
	"encoding/json"
	"fmt"
	"log/slog"
)

// Value is a secret that never prints: package fmt, encoding/json and log/slog write Hidden in its place, also if
// it is a field that is not exported. The zero Value is empty.
type Value struct{ of *string } // package fmt calls no method of a field that is not exported, and prints only the address

// Hidden is what is written in place of a Value.
const Hidden = "[redacted]"

// NewValue returns a Value that holds s.
func NewValue(s string) Value { return Value{&s} }

// Reveal returns the secret.
func (v Value) Reveal() string {
	if v.of == nil {
		return ""
	}
	return *v.of
}

// Format implements fmt.Formatter for every verb.
func (Value) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(Hidden)) }

// String implements fmt.Stringer.
func (Value) String() string { return Hidden }

// MarshalJSON implements json.Marshaler.
func (Value) MarshalJSON() ([]byte, error) { return json.Marshal(Hidden) }

// LogValue implements slog.LogValuer.
func (Value) LogValue() slog.Value { return slog.StringValue(Hidden) }
