package egressapi

import (
	"encoding/json"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/spec/httprule"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// Secret is what package intercept has as Secret.
type Secret struct {
	Name        string         `json:"name"`
	Placeholder string         `json:"placeholder"`
	Value       Private        `json:"value"`
	Hosts       []netrule.Rule `json:"hosts"`
	// Headers are those in which the placeholder is replaced; without any it is in all of them.
	Headers []string `json:"headers,omitempty"`
	// Sending is how it is sent. One that is injected has no placeholder.
	Sending httprule.Sending `json:"sending,omitzero"`
}

// Secrets are those of a workspace, with the authority that its programs trust, and the models whose keys are put in
// outside: see Setup.
type Secrets struct {
	CA     Private
	List   []Secret
	Models []Model
}

// Private is a text that is sent on the control socket: its JSON has it, and nothing else prints it.
type Private struct{ redact.Value }

// NewPrivate returns a Private that holds s.
func NewPrivate(s string) Private { return Private{redact.NewValue(s)} }

// MarshalJSON implements json.Marshaler. It reveals the text.
func (p Private) MarshalJSON() ([]byte, error) { return json.Marshal(p.Reveal()) }

// UnmarshalJSON implements json.Unmarshaler.
func (p *Private) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	*p = NewPrivate(s)
	return nil
}
