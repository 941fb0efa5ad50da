package store

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Migrate is migrate.
var Migrate = migrate

// Pragma returns a setting of the open connection.
func Pragma(t *testing.T, s *Store, name string) string {
	t.Helper()
	var v any
	if err := s.db.QueryRowContext(t.Context(), "PRAGMA "+name).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(v)
}

// SetClock has the store tell the time by another clock.
func (s *Store) SetClock(now func() time.Time) { s.clock = now }

// LoadTokens reads the tokens anew, as Open does, by the clock that was set.
func (s *Store) LoadTokens(t *testing.T) {
	t.Helper()
	clear(s.tokens)
	if err := s.loadTokens(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Turns are turns.
type Turns struct{ t turns }

// Take is turns.take.
func (t *Turns) Take(ctx context.Context, who string) (func(), error) { return t.t.take(ctx, who) }

// Waiting is how many principals are remembered.
func (t *Turns) Waiting() int {
	t.t.mu.Lock()
	defer t.t.mu.Unlock()
	return len(t.t.waiting) + len(t.t.next)
}
