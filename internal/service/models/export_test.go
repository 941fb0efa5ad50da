package models

import (
	"context"
	"log/slog"
	"time"

	"github.com/carrel-dev/carrel/internal/spec/budget"
)

// Ledger is what the tests use of a ledger: one subject whose requests are limited.
type Ledger struct {
	of      *ledger
	subject []subject
}

// NewLedger returns one that is kept in sums.
func NewLedger(sums Sums, limits budget.Limits) *Ledger {
	return &Ledger{newLedger(sums, time.Now, slog.New(slog.DiscardHandler)), []subject{{key: "day workspace w", limits: limits}}}
}

// Reserve is ledger.reserve.
func (l *Ledger) Reserve(ctx context.Context) (spend func(tokens int64), err error) {
	r, err := l.of.reserve(ctx, "m", l.subject)
	return func(tokens int64) { l.of.spend(r, budget.Usage{Input: tokens}, l.subject) }, err
}

// Close is ledger.close.
func (l *Ledger) Close(ctx context.Context) error { return l.of.close(ctx) }
