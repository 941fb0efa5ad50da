package budget

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// Money is an amount in billionths of a unit of the currency, such as a dollar. Which currency it is, the price
// table says to people; here amounts of one currency only meet.
type Money int64

const (
	unit   = 1_000_000_000
	digits = 9 // of a fraction
)

// ParseMoney reads an amount such as "12.50": digits, and up to nine after a point. The error is of kind invalid
// argument.
func ParseMoney(text string) (Money, error) {
	bad := func(why string) (Money, error) {
		return 0, fmt.Errorf("cannot use %.40q as an amount of money: %s: %w", text, why, errdefs.ErrInvalidArgument)
	}
	whole, fraction, point := strings.Cut(text, ".")
	if whole == "" || point && fraction == "" || strings.Trim(whole+fraction, "0123456789") != "" {
		return bad("write it as 12.50")
	}
	if len(fraction) > digits {
		return bad(fmt.Sprintf("it has more than %d digits after the point", digits))
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n > math.MaxInt64/unit-1 {
		return bad("it is too large")
	}
	part, err := strconv.ParseInt((fraction + "000000000")[:digits], 10, 64)
	if err != nil {
		return bad("write it as 12.50")
	}
	return Money(n*unit + part), nil
}

// String shows an amount with two digits after the point at least.
func (m Money) String() string {
	sign, n := "", uint64(m)
	if m < 0 {
		sign, n = "-", -n
	}
	fraction := fmt.Sprintf("%09d", n%unit)
	for len(fraction) > 2 && fraction[len(fraction)-1] == '0' {
		fraction = fraction[:len(fraction)-1]
	}
	return sign + strconv.FormatUint(n/unit, 10) + "." + fraction
}

// Price is what a million tokens cost, by kind.
type Price struct {
	Input       Money `json:"input"`
	Output      Money `json:"output"`
	CachedInput Money `json:"cached_input"`
	CacheWrite  Money `json:"cache_write"`
}

// cost returns what a use costs, rounded up to the next billionth. What is too large for Money is the largest.
func (p Price) cost(u Usage) Money {
	total := int64(0)
	for _, part := range [...]struct {
		tokens int64
		price  Money
	}{{u.Input, p.Input}, {u.Output, p.Output}, {u.CachedInput, p.CachedInput}, {u.CacheWrite, p.CacheWrite}} {
		total = add(total, perMillion(part.tokens, int64(part.price)))
	}
	return Money(total)
}

// perMillion returns tokens*price/1,000,000, rounded up, at most the largest int64. Neither is negative.
func perMillion(tokens, price int64) int64 {
	const million = 1_000_000
	high, low := bits.Mul64(uint64(max(tokens, 0)), uint64(max(price, 0)))
	low, carry := bits.Add64(low, million-1, 0)
	high += carry
	if high >= million {
		return math.MaxInt64
	}
	q, _ := bits.Div64(high, low, million)
	return int64(min(q, math.MaxInt64))
}

// add adds what is not negative. What is too large is the largest int64.
func add(a, b int64) int64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxInt64
}

// Prices has the price of each model. A name that ends with "*" stands for every model that begins with what is
// before; the exact name counts first, then the longest that fits.
type Prices map[string]Price

// Check refuses names without text, and negative prices.
func (p Prices) Check() error {
	for name, one := range p {
		if name == "" || len(name) > MaxModel {
			return fmt.Errorf("cannot use the price of %.60q: the name of a model has 1 to %d bytes: %w", name, MaxModel, errdefs.ErrInvalidArgument)
		}
		if min(one.Input, one.Output, one.CachedInput, one.CacheWrite) < 0 {
			return fmt.Errorf("cannot use the price of %s: it is negative: %w", name, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// of returns the price of a model.
func (p Prices) of(model string) (Price, bool) {
	if one, ok := p[model]; ok {
		return one, true
	}
	best, found := "", false
	for name := range p {
		prefix, open := strings.CutSuffix(name, "*")
		if open && strings.HasPrefix(model, prefix) && (!found || len(name) > len(best)) {
			best, found = name, true
		}
	}
	return p[best], found
}
