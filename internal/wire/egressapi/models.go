package egressapi

import "strings"

// Bounds of models.
const (
	// MaxModels is how many models a Setup has.
	MaxModels = 32
	// MostLeased is how many requests to models are under way at once: one for each connection that carrel-egress serves.
	MostLeased = 512
	// MostTokens is more than one request uses, of each kind of token.
	MostTokens = 1_000_000_000
)

// The estimate of what is not told of a request. It is meant to be too high: text has about four bytes for each token, and models
// write up to about 100 tokens a second, also where their thoughts are not sent.
const (
	BytesPerToken   = 2
	TokensPerSecond = 100
)

// Model is an API that programs reach as http://NAME.carrel.internal. See package model, which serves it.
type Model struct {
	// Name is a label of a name.
	Name string `json:"name"`
	// API is "anthropic" or "openai".
	API      string  `json:"api"`
	Upstream string  `json:"upstream"`
	Key      Private `json:"key"`
	// KeepStreams leaves requests for streams as they are.
	KeepStreams bool `json:"keep_streams,omitempty"`
}

// Lease asks for one request to a model. It waits for the Granted of its ID.
type Lease struct {
	// ID is not that of another request under way.
	ID uint64 `json:"id"`
	// Endpoint is the Name of a Model, Model what the program asks for there; "" if it asks for none.
	Endpoint string `json:"endpoint"`
	Model    string `json:"model,omitempty"`
	// Bytes is the length of the request's body.
	Bytes int64 `json:"bytes,omitempty"`
}

// Granted is the answer to a Lease.
type Granted struct {
	ID uint64 `json:"id"`
	// Refused says why the request may not be made, "" if it may. Then a Usage follows once it has ended.
	Refused string `json:"refused,omitempty"`
	// Later: it may be worth another attempt.
	Later bool `json:"later,omitempty"`
}

// Usage is what a granted request has used. No number is negative or above MostTokens.
type Usage struct {
	ID          uint64 `json:"id"`
	Input       int64  `json:"input,omitempty"`
	Output      int64  `json:"output,omitempty"`
	CachedInput int64  `json:"cached_input,omitempty"`
	CacheWrite  int64  `json:"cache_write,omitempty"`
	// Unknown: some of it is an estimate.
	Unknown bool `json:"unknown,omitempty"`
	// Call is what was sent and what came; nil if nothing was sent, or if there is no body to send.
	Call *Call `json:"call,omitempty"`
}

// Call says what went to the host of a model and what came from it, by SHA-256 in hexadecimal.
type Call struct {
	Sent      string `json:"sent"`
	SentBytes int64  `json:"sent_bytes"`
	// Came is "" if there was no response.
	Came      string `json:"came,omitempty"`
	CameBytes int64  `json:"came_bytes,omitempty"`
	Status    int    `json:"status,omitempty"`
	// Whole: the response came to its end.
	Whole bool `json:"whole,omitempty"`
}

// Valid reports whether a Call has the form that it must have. Who sends one may have been taken over.
func (c *Call) Valid() bool {
	return isDigest(c.Sent) && (c.Came == "" || isDigest(c.Came)) && c.SentBytes >= 0 && c.CameBytes >= 0 && c.Status >= 0 && c.Status <= 999
}

func isDigest(s string) bool { return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" }
