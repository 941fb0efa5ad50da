package budget_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/carrel-dev/carrel/internal/spec/budget"
)

var noon = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

func book(t testing.TB, prices budget.Prices, limits map[string]budget.Limits) *budget.Book {
	t.Helper()
	b, err := budget.New(prices, nil)
	if err != nil {
		t.Fatal(err)
	}
	for subject, l := range limits {
		if err := b.Set(subject, l); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func money(t testing.TB, text string) budget.Money {
	t.Helper()
	m, err := budget.ParseMoney(text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// However many ask at once, as many requests are granted as the limit says.
func TestRequestsAreExact(t *testing.T) {
	b := book(t, nil, map[string]budget.Limits{"w": {Period: budget.Whole, Requests: 7}, "p": {Period: budget.Day, Requests: 100}})
	var granted atomic.Int64
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if _, err := b.Reserve(noon, "m", "w", "p"); err == nil {
				granted.Add(1)
			}
		})
	}
	all.Wait()
	if n := granted.Load(); n != 7 {
		t.Errorf("%d requests of 7 were granted", n)
	}
	// What one subject is refused, no other is charged for.
	if n := b.Used(noon, "p").Requests; n != 7 {
		t.Errorf("%d were counted for the other subject", n)
	}
}

func TestRefusals(t *testing.T) {
	prices := budget.Prices{"cheap-*": {Input: money(t, "1"), Output: money(t, "2"), CachedInput: money(t, "0.1")}}
	for _, c := range []struct {
		limits budget.Limits
		uses   budget.Usage
		model  string
		want   string
		is     func(error) bool
	}{
		{
			budget.Limits{Period: budget.Whole, Requests: 1},
			budget.Usage{},
			"m", "the budget of 1 request is used up", errdefs.IsResourceExhausted,
		},
		{
			budget.Limits{Period: budget.Day, Tokens: 1000},
			budget.Usage{Input: 400, Output: 300, CachedInput: 200, CacheWrite: 100},
			"m", "the budget of 1,000 tokens is used up for today; it begins again at 00:00 UTC", errdefs.IsResourceExhausted,
		},
		{
			budget.Limits{Period: budget.Whole, Money: money(t, "2.10")},
			budget.Usage{Output: 1_000_000, CachedInput: 1_000_000},
			"cheap-1", "the budget of 2.10 is used up", errdefs.IsResourceExhausted,
		},
	} {
		b := book(t, prices, map[string]budget.Limits{"w": c.limits})
		r, err := b.Reserve(noon, c.model, "w", "w")
		if err != nil {
			t.Fatal(err)
		}
		r.Spend(noon, c.uses)
		r.Spend(noon, c.uses) // is ignored
		_, err = b.Reserve(noon, c.model, "w")
		var no *budget.Refused
		if !errors.As(err, &no) || no.Text != c.want || no.Subject != "w" || !c.is(err) {
			t.Errorf("%+v: %v", c.limits, err)
		}
		if u := b.Used(noon, "w"); u.Requests != 1 || u.Tokens != c.uses.Tokens() || u.Models[c.model].Tokens != c.uses.Tokens() {
			t.Errorf("%+v", u)
		}
	}
}

// A limit in money holds for priced models only, and not for a request without a model.
func TestMoneyNeedsAPrice(t *testing.T) {
	b := book(t, budget.Prices{"a": {}}, map[string]budget.Limits{"w": {Period: budget.Whole, Money: 1}})
	_, err := b.Reserve(noon, "b", "w")
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), `no price is known for the model "b"`) {
		t.Errorf("%v", err)
	}
	for _, model := range []string{"a", ""} {
		if _, err := b.Reserve(noon, model, "w"); err != nil {
			t.Errorf("%q: %v", model, err)
		}
	}
}

// The exact name counts first, then the longest beginning.
func TestPrices(t *testing.T) {
	b := book(t, budget.Prices{"*": {Input: 1e6}, "m-1*": {Input: 2e6}, "m-*": {Input: 3e6}, "m-10": {Input: 4e6}}, nil)
	for model, want := range map[string]budget.Money{"x": 1, "m-1": 2, "m-12": 2, "m-2": 3, "m-10": 4} {
		if got, ok := b.Cost(model, budget.Usage{Input: 1}); got != want || !ok {
			t.Errorf("%s costs %v", model, got)
		}
	}
	for _, p := range []budget.Prices{{"": {}}, {strings.Repeat("m", budget.MaxModel+1): {}}, {"m": {Output: -1}}} {
		if _, err := budget.New(p, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v: %v", p, err)
		}
	}
}

// A day ends at midnight in UTC. A clock that goes back begins none again, and what began before midnight counts after it.
func TestDays(t *testing.T) {
	b := book(t, nil, map[string]budget.Limits{"w": {Period: budget.Day, Requests: 1, Tokens: 10}})
	r, err := b.Reserve(noon, "m", "w")
	if err != nil {
		t.Fatal(err)
	}
	midnight := time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)
	if _, err := b.Reserve(midnight.Add(-1), "m", "w"); err == nil {
		t.Error("a second request before midnight")
	}
	r.Spend(midnight, budget.Usage{Output: 10})
	if _, err := b.Reserve(midnight, "m", "w"); err == nil || !strings.Contains(err.Error(), "10 tokens") {
		t.Errorf("what began yesterday does not count: %v", err)
	}
	for _, back := range []time.Time{noon, {}, time.Unix(-1<<40, 0)} {
		if _, err := b.Reserve(back, "m", "w"); err == nil {
			t.Errorf("a clock at %v gives another day", back)
		}
	}
	if _, err := b.Reserve(midnight.AddDate(0, 0, 1), "m", "w"); err != nil {
		t.Error(err)
	}
}

// Programs name models, and cannot fill the memory with them. Nothing gets lost in the sums.
func TestBounds(t *testing.T) {
	b := book(t, nil, nil)
	for i := range 3 * budget.MaxModels {
		r, err := b.Reserve(noon, fmt.Sprint("m", i), "w")
		if err != nil {
			t.Fatal(err)
		}
		r.Spend(noon, budget.Usage{Input: 2})
	}
	u := b.Used(noon, "w")
	rest := budget.Sum{Requests: 2 * budget.MaxModels, Tokens: 4 * budget.MaxModels}
	if len(u.Models) != budget.MaxModels+1 || u.Models[budget.Others] != rest {
		t.Errorf("%+v", u)
	}
	if _, err := b.Reserve(noon, strings.Repeat("m", budget.MaxModel+1), "w"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("%v", err)
	}
	var err error
	for i := range budget.MaxSubjects {
		if _, err = b.Reserve(noon, "m", fmt.Sprint(i)); err != nil {
			break
		}
	}
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("%v", err)
	}
	b.Forget("0")
	if _, err := b.Reserve(noon, "m", "new"); err != nil {
		t.Error(err)
	}
}

// What was counted is kept as JSON, and goes on. What cannot have been counted is refused.
func TestState(t *testing.T) {
	b := book(t, budget.Prices{"m": {Input: 1e6}}, map[string]budget.Limits{"w": {Period: budget.Day, Requests: 2}})
	r, err := b.Reserve(noon, "m", "w", "p")
	if err != nil {
		t.Fatal(err)
	}
	r.Spend(noon, budget.Usage{Input: 5})
	text, err := json.Marshal(b.State())
	if err != nil {
		t.Fatal(err)
	}
	var s budget.State
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	again, err := budget.New(budget.Prices{"m": {Input: 1e6}}, s)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(b.State(), again.State()); d != "" {
		t.Error(d)
	}
	if err := again.Set("w", budget.Limits{Period: budget.Day, Requests: 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Reserve(noon, "m", "w"); err != nil {
		t.Error(err)
	}
	if _, err := again.Reserve(noon, "m", "w"); err == nil {
		t.Error("what was used before does not count")
	}
	for _, bad := range []budget.State{
		{"w": {Sum: budget.Sum{Requests: -1}}},
		{"w": {Models: map[string]budget.Sum{"m": {Money: -1}}}},
	} {
		if _, err := budget.New(nil, bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	for _, l := range []budget.Limits{{}, {Period: "week"}, {Period: budget.Day, Tokens: -1}} {
		if err := b.Set("w", l); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

func TestMoney(t *testing.T) {
	for text, want := range map[string]string{
		"0": "0.00", "12.5": "12.50", "12.50": "12.50", "0.000000001": "0.000000001",
		"9223372035.999999999": "9223372035.999999999", "007": "7.00",
	} {
		if got := money(t, text).String(); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
	for _, text := range []string{
		"", ".", "1.", ".5", "-1", "+1", "1e3", "1,000", "1.0000000001", "9223372036", "99999999999999999999", " 1", "١",
	} {
		if m, err := budget.ParseMoney(text); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q is %v", text, m)
		}
	}
	if got := budget.Money(math.MinInt64).String(); got != "-9223372036.854775808" {
		t.Error(got)
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -123456: "-123,456", 34567: "34,567"} {
		if got := budget.Grouped(n); got != want {
			t.Error(got)
		}
	}
}

// The cost is that of exact arithmetic, rounded up, and never less because a number was too large.
func TestCost(t *testing.T) {
	number := rapid.OneOf(rapid.Int64Range(0, 1e7), rapid.Int64Range(0, math.MaxInt64))
	rapid.Check(t, func(t *rapid.T) {
		u := budget.Usage{
			Input: number.Draw(t, "input"), Output: number.Draw(t, "output"),
			CachedInput: number.Draw(t, "cached"), CacheWrite: number.Draw(t, "write"),
		}
		draw := func(name string) budget.Money { return budget.Money(number.Draw(t, name)) }
		p := budget.Price{Input: draw("p1"), Output: draw("p2"), CachedInput: draw("p3"), CacheWrite: draw("p4")}
		b, err := budget.New(budget.Prices{"m": p}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := b.Cost("m", u)
		want, tokens := new(big.Int), new(big.Int)
		for _, part := range [][2]int64{
			{u.Input, int64(p.Input)}, {u.Output, int64(p.Output)}, {u.CachedInput, int64(p.CachedInput)}, {u.CacheWrite, int64(p.CacheWrite)},
		} {
			product := new(big.Int).Mul(big.NewInt(part[0]), big.NewInt(part[1]))
			product.Add(product, big.NewInt(999_999))
			want.Add(want, product.Div(product, big.NewInt(1_000_000)))
			tokens.Add(tokens, big.NewInt(part[0]))
		}
		most := big.NewInt(math.MaxInt64)
		if want.Cmp(most) > 0 {
			want = most
		}
		if tokens.Cmp(most) > 0 {
			tokens = most
		}
		if int64(got) != want.Int64() || u.Tokens() != tokens.Int64() {
			t.Fatalf("%v and %d tokens, not %v and %v", got, u.Tokens(), want, tokens)
		}
	})
}

// Whatever comes in which order: no limit is passed by a grant, sums only grow within a day, and what is used is counted.
func TestLimitsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := budget.Limits{
			Period:   rapid.SampledFrom([]budget.Period{budget.Day, budget.Whole}).Draw(t, "period"),
			Requests: rapid.Int64Range(0, 5).Draw(t, "requests"), Tokens: rapid.Int64Range(0, 50).Draw(t, "tokens"),
			Money: budget.Money(rapid.Int64Range(0, 50).Draw(t, "money")),
		}
		b, err := budget.New(budget.Prices{"m": {Input: 1e6}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Set("w", limits); err != nil {
			t.Fatal(err)
		}
		now := noon
		var open []*budget.Reservation
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			before := b.Used(now, "w")
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				r, err := b.Reserve(now, "m", "w")
				full := limits.Requests > 0 && before.Requests >= limits.Requests || limits.Tokens > 0 && before.Tokens >= limits.Tokens ||
					limits.Money > 0 && before.Money >= limits.Money
				if full != (err != nil) {
					t.Fatalf("%+v of %+v: %v", before, limits, err)
				}
				if err == nil {
					open = append(open, r)
				}
			case 1:
				if len(open) == 0 {
					continue
				}
				u := budget.Usage{Input: rapid.Int64Range(0, 30).Draw(t, "used")}
				open[0].Spend(now, u)
				open = open[1:]
				if after := b.Used(now, "w"); after.Tokens != before.Tokens+u.Input || after.Money != before.Money+budget.Money(u.Input) {
					t.Fatalf("%+v after %+v and %+v", after, before, u)
				}
			case 2:
				now = now.Add(time.Duration(rapid.Int64Range(0, int64(30*time.Hour)).Draw(t, "later")))
			}
		}
	})
}

// A request that is taken back leaves room for another one, once, and not in a later day.
func TestCancel(t *testing.T) {
	b := book(t, nil, map[string]budget.Limits{"w": {Period: budget.Day, Requests: 1}})
	for range 3 {
		r, err := b.Reserve(noon, "m", "w")
		if err != nil {
			t.Fatal(err)
		}
		r.Cancel()
		r.Cancel()
		r.Spend(noon, budget.Usage{Input: 5}) // is ignored
		if u := b.Used(noon, "w"); u.Requests != 0 || u.Tokens != 0 || u.Models["m"].Requests != 0 {
			t.Fatalf("%+v", u)
		}
	}
	r, err := b.Reserve(noon, "m", "w")
	if err != nil {
		t.Fatal(err)
	}
	tomorrow := noon.AddDate(0, 0, 1)
	if _, err := b.Reserve(tomorrow, "m", "w"); err != nil {
		t.Fatal(err)
	}
	r.Cancel()
	if u := b.Used(tomorrow, "w"); u.Requests != 1 {
		t.Errorf("what was taken back yesterday counts today: %+v", u)
	}
}

// What was counted before is loaded once, with its period.
func TestLoad(t *testing.T) {
	b := book(t, nil, nil)
	was := budget.Account{Day: noon.Unix() / 86400, Sum: budget.Sum{Requests: 3}}
	if b.Knows("w") {
		t.Error("it is known")
	}
	for range 2 {
		if err := b.Load("w", was); err != nil {
			t.Fatal(err)
		}
		if err := b.Set("w", budget.Limits{Period: budget.Day, Requests: 4}); err != nil {
			t.Fatal(err)
		}
		_, _ = b.Reserve(noon, "m", "w")
		if u := b.Used(noon, "w"); u.Requests != 4 || !b.Knows("w") {
			t.Errorf("%+v", u)
		}
	}
	if err := b.Load("x", budget.Account{Sum: budget.Sum{Tokens: -1}}); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
}
