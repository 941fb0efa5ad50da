package llm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

// Usage is what a request has used, in tokens. Each token is counted in one field only.
type Usage struct {
	// Input was neither read from a cache nor written to one.
	Input  int64
	Output int64
	// Cached was read from a cache, and CacheWrite written to one.
	Cached     int64
	CacheWrite int64
	// Estimated reports that the provider did not report all of it. The missing numbers are estimated, rather too high.
	Estimated bool
}

// Tokens is the sum of all tokens.
func (u Usage) Tokens() int64 {
	return add(add(max(u.Input, 0), max(u.Output, 0)), add(max(u.Cached, 0), max(u.CacheWrite, 0)))
}

// bytesPerToken is rather few: text has about four bytes for each token.
const bytesPerToken = 2

// estimate fills in what a provider did not report, from the sizes of request and answer in bytes. No request has zero tokens,
// and no text does: some local servers report that.
func (u Usage) estimate(input, output bool, request, answer int) Usage {
	if !input || u.Input+u.Cached+u.CacheWrite == 0 {
		u.Input, u.Estimated = int64(request/bytesPerToken)+1, true
	}
	if !output || u.Output == 0 && answer > 0 {
		u.Output, u.Estimated = max(u.Output, int64(answer/bytesPerToken)+1), true
	}
	return u
}

// mostTokens is more than one request can use.
const mostTokens = 1_000_000_000

// tokens is a number of tokens. Servers write some as null or 12.0. A number that cannot be right counts as missing.
type tokens struct {
	n    int64
	told bool
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *tokens) UnmarshalJSON(b []byte) error {
	if n, err := strconv.ParseFloat(string(b), 64); err == nil && n >= 0 && n <= mostTokens {
		*t = tokens{int64(n), true}
	}
	return nil
}

// Money is an amount in billionths of a unit of the currency that Prices are in.
type Money int64

const million = 1_000_000

// Prices are what a million tokens cost, by kind. None is negative; one that is counts as 0.
type Prices struct{ Input, Output, Cached, CacheWrite Money }

// Cost returns what a usage costs, rounded up to the next billionth. What is too large for Money is the largest.
func (p Prices) Cost(u Usage) Money {
	total := int64(0)
	for _, part := range [...]struct {
		tokens int64
		price  Money
	}{{u.Input, p.Input}, {u.Output, p.Output}, {u.Cached, p.Cached}, {u.CacheWrite, p.CacheWrite}} {
		high, low := bits.Mul64(uint64(max(part.tokens, 0)), uint64(max(part.price, 0)))
		low, carry := bits.Add64(low, million-1, 0)
		if high += carry; high >= million {
			return math.MaxInt64
		}
		q, _ := bits.Div64(high, low, million)
		total = add(total, int64(min(q, math.MaxInt64)))
	}
	return Money(total)
}

// add adds what is not negative. What is too large is the largest int64.
func add(a, b int64) int64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxInt64
}

// Budget bounds what one turn uses: a turn is the requests between what a person says and the last answer to it. A limit
// that is 0 does not hold. Requests are exact. Tokens are known afterwards, so a request is made while fewer than the limit
// are used, and may pass it. Its methods may be called from any goroutine; it must not be copied.
type Budget struct {
	Tokens, Requests int64

	mu           sync.Mutex
	tokens, made int64
}

// Spend makes a request if there is budget for one, and counts what request says that it used, also if it failed. Without
// budget it does not call request, and returns an error of kind resource exhausted.
func (b *Budget) Spend(request func() (Usage, error)) error {
	if err := b.take(); err != nil {
		return err
	}
	u, err := request()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = add(b.tokens, u.Tokens())
	return err
}

func (b *Budget) take() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	refuse := func(used, of int64, what string) error {
		return fmt.Errorf("cannot ask the model again: %d of %d %s of this turn are used; begin another turn, or raise its budget: %w",
			used, of, what, errdefs.ErrResourceExhausted)
	}
	switch {
	case min(b.Tokens, b.Requests) < 0:
		return fmt.Errorf("cannot use a negative budget: leave a limit out that shall not hold: %w", errdefs.ErrInvalidArgument)
	case b.Requests > 0 && b.made >= b.Requests:
		return refuse(b.made, b.Requests, "requests")
	case b.Tokens > 0 && b.tokens >= b.Tokens:
		return refuse(b.tokens, b.Tokens, "tokens")
	}
	b.made++
	return nil
}

// Used returns what was counted.
func (b *Budget) Used() (tokens, requests int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tokens, b.made
}

// isObject reports whether a text is one JSON object.
func isObject(text json.RawMessage) bool {
	return bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{")) && strictjson.Depth(text) <= MaxDepth && json.Valid(text)
}
