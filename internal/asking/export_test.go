package asking

import (
	"context"

	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/principal"
)

// Admitter admits questions that may wait, from none on.
func Admitter() func(*approval.Approval, int64) error {
	w := newWaiting()
	return func(a *approval.Approval, size int64) error {
		_, err := w.admit(a, size)
		return err
	}
}

// Turns are turns.
type Turns struct{ t turns }

// Take is turns.take.
func (t *Turns) Take(ctx context.Context, p principal.Principal) (func(), error) {
	return t.t.take(ctx, p)
}

// Owners is how many owners are remembered.
func (t *Turns) Owners() int {
	t.t.mu.Lock()
	defer t.t.mu.Unlock()
	return len(t.t.of)
}
