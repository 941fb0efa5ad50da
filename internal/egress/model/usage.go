package model

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/carrel-dev/carrel/internal/spec/budget"
)

// Usage is what a request has used.
type Usage struct {
	budget.Usage
	// Unknown: the host did not say all of it, and what is missing is an estimate that is rather too high. See estimate.
	Unknown bool `json:"unknown,omitempty"`
}

// mostTokens is more than one request can use. A number above it is taken for unknown.
const mostTokens = 1_000_000_000

// counts are the members of all forms of usage. The APIs name them differently, and no name means two things.
type counts struct {
	InputTokens  tokens `json:"input_tokens"`
	OutputTokens tokens `json:"output_tokens"`
	CacheRead    tokens `json:"cache_read_input_tokens"`
	CacheWrite   tokens `json:"cache_creation_input_tokens"`
	InputDetails struct {
		Cached tokens `json:"cached_tokens"`
	} `json:"input_tokens_details"`

	PromptTokens     tokens `json:"prompt_tokens"`
	CompletionTokens tokens `json:"completion_tokens"`
	PromptDetails    struct {
		Cached tokens `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// tokens is a number of tokens. Servers write some as null or 12.0.
type tokens int64

// UnmarshalJSON implements json.Unmarshaler.
func (t *tokens) UnmarshalJSON(b []byte) error {
	text := string(b)
	if text == "null" {
		return nil
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || !(n >= 0 && n <= mostTokens) {
		return errJSON
	}
	*t = tokens(n)
	return nil
}

// readUsage reads a usage object. It is false if that has no number of tokens which can be believed.
func readUsage(api API, raw []byte) (u budget.Usage, ok bool) {
	var some map[string]json.RawMessage
	var c counts
	if json.Unmarshal(raw, &some) != nil || json.Unmarshal(raw, &c) != nil {
		return u, false
	}
	for _, name := range []string{"input_tokens", "output_tokens", "prompt_tokens", "completion_tokens"} {
		if v, there := some[name]; there && string(v) != "null" {
			ok = true
		}
	}
	if api == Anthropic { // what is cached is not part of the input
		return budget.Usage{
			Input: int64(c.InputTokens), Output: int64(c.OutputTokens), CachedInput: int64(c.CacheRead), CacheWrite: int64(c.CacheWrite),
		}, ok
	}
	input, cached := c.InputTokens+c.PromptTokens, c.InputDetails.Cached+c.PromptDetails.Cached
	cached = min(cached, input)
	return budget.Usage{Input: int64(input - cached), Output: int64(c.OutputTokens + c.CompletionTokens), CachedInput: int64(cached)}, ok
}

// larger takes the larger number of each: later numbers of a stream include the earlier ones.
func larger(a, b budget.Usage) budget.Usage {
	return budget.Usage{
		Input: max(a.Input, b.Input), Output: max(a.Output, b.Output),
		CachedInput: max(a.CachedInput, b.CachedInput), CacheWrite: max(a.CacheWrite, b.CacheWrite),
	}
}
