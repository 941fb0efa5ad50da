package keylock_test

import (
	"context"
	"errors"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/keylock"
)

// Whoever wants many turns waits for themselves, and nobody else does.
func TestTurnsAreOfOneName(t *testing.T) {
	var turns keylock.Turns
	const alice, bob = "uid:1000", "uid:1001"
	ctx, cancel := context.WithCancelCause(t.Context())
	back, err := turns.Take(ctx, alice)
	if err != nil {
		t.Fatal(err)
	}
	const many = 50
	got := make(chan error, many)
	for range many {
		go func() {
			back, err := turns.Take(ctx, alice)
			if err == nil {
				back()
			}
			got <- err
		}()
	}
	for range 3 { // while alice has hers
		other, err := turns.Take(t.Context(), bob)
		if err != nil {
			t.Fatal(err)
		}
		other()
	}
	select {
	case <-got:
		t.Error("two went through for one name at once")
	default:
	}
	back()
	for range many {
		if err := <-got; err != nil {
			t.Error(err)
		}
	}
	if back, err = turns.Take(ctx, alice); err != nil {
		t.Fatal(err)
	}
	gone := errors.New("gone")
	cancel(gone)
	if _, err := turns.Take(ctx, alice); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
	back()
	if n := turns.Names(); n != 0 {
		t.Errorf("%d names are remembered", n)
	}
}
