// Package budget counts what is asked of models, and refuses what is beyond a limit: in requests, tokens and money,
// in a day or in all, for several subjects at once, such as a workspace and the principal that it belongs to.
//
//	Reserve(now, model, subjects) ──▶ refused by the first limit that is reached, or counted as one request
//	      the request
//	Spend(now, usage) ──────────────▶ its tokens and money are counted
//
// Requests are exact: however many are reserved at once, no more are granted than the limit. Tokens and money are
// known only afterwards. So a request is granted while less than the limit is used, and what is under way then
// may pass the limit by all that it uses.
//
// The package must not know a clock, keep anything, or know what a request is. Who keeps State may lose what came
// after it was taken.
package budget

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// Bounds of what a Book holds. Names of models come from programs.
const (
	// MaxSubjects is how many subjects there are in a Book.
	MaxSubjects = 50_000
	// MaxModels is how many models are told apart for a subject. Others count together, under Others.
	MaxModels = 32
	// MaxModel is the length of a model's name in bytes.
	MaxModel = 128
)

// Others stands for the models beyond MaxModels.
const Others = "(others)"

// Usage is what a request has used. Each token is counted in one field only. None is negative.
type Usage struct {
	// Input was neither read from a cache nor written to one.
	Input       int64 `json:"input,omitempty"`
	Output      int64 `json:"output,omitempty"`
	CachedInput int64 `json:"cached_input,omitempty"`
	CacheWrite  int64 `json:"cache_write,omitempty"`
}

// Tokens is the sum of all tokens, at most the largest int64.
func (u Usage) Tokens() int64 {
	return add(add(max(u.Input, 0), max(u.Output, 0)), add(max(u.CachedInput, 0), max(u.CacheWrite, 0)))
}

// Period is how long a limit holds.
type Period string

// The periods. Each day begins at 00:00 UTC. Whole never ends: it is the life of a run or a workspace.
const (
	Day   Period = "day"
	Whole Period = "whole"
)

// Limits are those of one subject. A limit that is 0 does not hold.
type Limits struct {
	Period   Period `json:"period"`
	Requests int64  `json:"requests,omitempty"`
	Tokens   int64  `json:"tokens,omitempty"`
	// Money needs a price for each model that is asked for.
	Money Money `json:"money,omitempty"`
}

// Check refuses negative limits and unknown periods.
func (l Limits) Check() error {
	if l.Period != Day && l.Period != Whole {
		return fmt.Errorf("cannot use a budget for the period %.20q: use %s or %s: %w", l.Period, Day, Whole, errdefs.ErrInvalidArgument)
	}
	if min(l.Requests, l.Tokens, int64(l.Money)) < 0 {
		return fmt.Errorf("cannot use a negative budget: leave a limit out that shall not hold: %w", errdefs.ErrInvalidArgument)
	}
	return nil
}

// Sum is what was used. Money has only what a price is known for.
type Sum struct {
	Requests int64 `json:"requests"`
	Tokens   int64 `json:"tokens"`
	Money    Money `json:"money,omitempty"`
}

func (s *Sum) add(requests, tokens int64, money Money) {
	s.Requests, s.Tokens, s.Money = add(s.Requests, requests), add(s.Tokens, tokens), Money(add(int64(s.Money), int64(money)))
}

// Account is what one subject has used in its period.
type Account struct {
	// Day is the number of the day since 1970 in UTC; 0 with the period Whole.
	Day int64 `json:"day,omitempty"`
	Sum
	Models map[string]Sum `json:"models,omitempty"`
}

// State is what a Book has counted, by subject.
type State map[string]Account

// Refused is the error of Reserve. It is of kind resource exhausted, or failed precondition if a price is missing.
type Refused struct {
	Subject string
	// Text says what is used up and when there is more, without the subject.
	Text string
	kind error
}

func (r *Refused) Error() string { return r.Text }
func (r *Refused) Unwrap() error { return r.kind }

// Book counts for many subjects. Its methods may be called from any goroutine.
type Book struct {
	mu       sync.Mutex
	prices   Prices
	accounts map[string]*account
}

type account struct {
	limits Limits
	Account
}

// New returns a Book that has counted what a State says. Set gives its subjects limits.
func New(prices Prices, s State) (*Book, error) {
	if err := prices.Check(); err != nil {
		return nil, err
	}
	b := &Book{prices: prices, accounts: map[string]*account{}}
	for subject, was := range s {
		if err := was.check(); err != nil {
			return nil, fmt.Errorf("cannot use what was counted for %.60q: %w", subject, err)
		}
		a, err := b.account(subject)
		if err != nil {
			return nil, err
		}
		a.load(was)
	}
	return b, nil
}

func (a *account) load(was Account) {
	a.Account = was.clone()
	a.limits.Period = Whole
	if was.Day != 0 {
		a.limits.Period = Day
	}
}

func (a Account) check() error {
	for _, s := range append(slices.Collect(maps.Values(a.Models)), a.Sum) {
		if min(s.Requests, s.Tokens, int64(s.Money), a.Day) < 0 {
			return fmt.Errorf("a number is negative: %w", errdefs.ErrInvalidArgument)
		}
	}
	if len(a.Models) > MaxModels+1 {
		return fmt.Errorf("there are %d models, at most %d: %w", len(a.Models), MaxModels, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (a Account) clone() Account {
	models := maps.Clone(a.Models)
	if models == nil {
		models = map[string]Sum{}
	}
	a.Models = models
	return a
}

// account returns that of a subject, which is new if there was none.
func (b *Book) account(subject string) (*account, error) {
	a := b.accounts[subject]
	if a == nil {
		if len(b.accounts) >= MaxSubjects {
			return nil, fmt.Errorf("cannot count for %.60q: there are %d subjects already: %w", subject, MaxSubjects, errdefs.ErrResourceExhausted)
		}
		a = &account{limits: Limits{Period: Whole}, Account: Account{Models: map[string]Sum{}}}
		b.accounts[subject] = a
	}
	return a, nil
}

// Set gives a subject limits. What it has used stays counted, unless the period is another.
func (b *Book) Set(subject string, l Limits) error {
	if err := l.Check(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	a, err := b.account(subject)
	if err != nil {
		return err
	}
	if a.limits.Period != l.Period {
		a.Account = Account{Models: map[string]Sum{}}
	}
	a.limits = l
	return nil
}

// Load gives a Book that does not know a subject what was counted for it before. The period that it then has is that of
// the Account. A subject that is known stays as it is.
func (b *Book) Load(subject string, was Account) error {
	if err := was.check(); err != nil {
		return fmt.Errorf("cannot use what was counted for %.60q: %w", subject, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.accounts[subject] != nil {
		return nil
	}
	a, err := b.account(subject)
	if err != nil {
		return err
	}
	a.load(was)
	return nil
}

// Knows reports whether something was counted or set for a subject.
func (b *Book) Knows(subject string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.accounts[subject] != nil
}

// Price has another table hold for what is counted from now on.
func (b *Book) Price(prices Prices) error {
	if err := prices.Check(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prices = prices
	return nil
}

// Forget drops a subject. What is under way for it is not counted any more.
func (b *Book) Forget(subject string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.accounts, subject)
}

// Used returns what a subject has used in the period of now.
func (b *Book) Used(now time.Time, subject string) Account {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[subject]
	if a == nil {
		return Account{}
	}
	a.roll(now)
	return a.clone()
}

// State returns what there is to keep.
func (b *Book) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := State{}
	for subject, a := range b.accounts {
		s[subject] = a.clone()
	}
	return s
}

// roll begins another period if now is in a later one. A clock that was set back changes nothing: a day never begins twice.
func (a *account) roll(now time.Time) {
	if a.limits.Period != Day {
		return
	}
	if day := dayOf(now); day > a.Day {
		a.Account = Account{Day: day, Models: map[string]Sum{}}
	}
}

func dayOf(now time.Time) int64 { return max(now.Unix(), 0) / (24 * 60 * 60) }

// refusal is why an account has no room for another request, nil if it has.
func (a *account) refusal(subject, model string, priced bool) *Refused {
	used := func(what string) *Refused {
		text := "the budget of " + what + " is used up"
		if a.limits.Period == Day {
			text += " for today; it begins again at 00:00 UTC"
		}
		return &Refused{subject, text, errdefs.ErrResourceExhausted}
	}
	l := a.limits
	switch {
	case l.Requests > 0 && a.Requests >= l.Requests:
		return used(Count(l.Requests, "request"))
	case l.Tokens > 0 && a.Tokens >= l.Tokens:
		return used(Count(l.Tokens, "token"))
	case l.Money > 0 && a.Money >= l.Money:
		return used(l.Money.String())
	case l.Money > 0 && model != "" && !priced:
		return &Refused{
			subject, "the budget is in money, and no price is known for the model " + strconv.Quote(model), errdefs.ErrFailedPrecondition,
		}
	}
	return nil
}

// Count is a number in groups of three, and what is counted.
func Count(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return Grouped(n) + " " + what
}

// Grouped returns a number as people write it: 34,567.
func Grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	from := 0
	if n < 0 {
		from = 1
	}
	for at := len(s) - 3; at > from; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

// Reservation is a request that was granted.
type Reservation struct {
	book     *Book
	model    string
	accounts []*account
	days     []int64 // of the accounts, when they were charged
	once     sync.Once
}

// Reserve counts one request for every subject, or for none: then the error is a *Refused by the first subject whose
// limit is reached. model is "" for a request that uses none. A subject that has no limits is counted.
func (b *Book) Reserve(now time.Time, model string, subjects ...string) (*Reservation, error) {
	if len(model) > MaxModel {
		return nil, fmt.Errorf("the name of the model has more than %d bytes: %w", MaxModel, errdefs.ErrInvalidArgument)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &Reservation{book: b, model: model}
	_, priced := b.prices.of(model)
	for i, subject := range subjects {
		if slices.Contains(subjects[:i], subject) {
			continue // it is one request all the same
		}
		a, err := b.account(subject)
		if err != nil {
			return nil, err
		}
		a.roll(now)
		if no := a.refusal(subject, model, priced); no != nil {
			return nil, no
		}
		r.accounts = append(r.accounts, a)
	}
	for _, a := range r.accounts {
		a.count(model, 1, 0, 0)
		r.days = append(r.days, a.Day)
	}
	return r, nil
}

// Spend counts what a request has used, in the period of now: a request that began yesterday counts today, so that
// its use is not lost. Only the first call counts.
func (r *Reservation) Spend(now time.Time, u Usage) {
	r.once.Do(func() {
		r.book.mu.Lock()
		defer r.book.mu.Unlock()
		price, _ := r.book.prices.of(r.model)
		for _, a := range r.accounts {
			a.roll(now)
			a.count(r.model, 0, u.Tokens(), price.cost(u))
		}
	})
}

// Cancel takes a request back that was not made after all. After Spend it does nothing, and Spend does nothing after it.
func (r *Reservation) Cancel() {
	r.once.Do(func() {
		r.book.mu.Lock()
		defer r.book.mu.Unlock()
		for i, a := range r.accounts {
			if a.Day == r.days[i] {
				a.uncount(r.model)
			}
		}
	})
}

// Cost returns what a use of a model costs, and false if it has no price.
func (b *Book) Cost(model string, u Usage) (Money, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	price, ok := b.prices.of(model)
	return price.cost(u), ok
}

func (a *account) count(model string, requests, tokens int64, money Money) {
	a.add(requests, tokens, money)
	if model == "" {
		return
	}
	if _, known := a.Models[model]; !known && len(a.Models) >= MaxModels {
		model = Others
	}
	s := a.Models[model]
	s.add(requests, tokens, money)
	a.Models[model] = s
}

// uncount takes one request from the sums.
func (a *account) uncount(model string) {
	a.Requests = max(a.Requests-1, 0)
	s, known := a.Models[model]
	if !known {
		model = Others
		s, known = a.Models[model]
	}
	if known {
		s.Requests = max(s.Requests-1, 0)
		a.Models[model] = s
	}
}
