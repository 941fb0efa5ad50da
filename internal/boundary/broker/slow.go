package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// Whatever is done to a source may hang: behind it may be a file system of its user's that
// never answers. So it is done in a goroutine that is given up on after slowTimeout. A call
// that hangs keeps its slot, and when all slots are taken no more is tried.
const (
	maxSlow     = 16
	slowTimeout = 5 * time.Second
)

// slowCalls holds a slot for each call that has not returned.
type slowCalls chan struct{}

// callSlow runs call within its time. What call returns late is given to drop.
func callSlow[T any](ctx context.Context, slots slowCalls, call func() (T, error), drop func(T)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var none T
	select {
	case slots <- struct{}{}:
	default:
		return none, fmt.Errorf("cannot look at the directory: %d file systems do not answer; see to them, and try again: %w",
			cap(slots), errdefs.ErrUnavailable)
	}
	done := make(chan result, 1)
	go func() {
		defer func() { <-slots }()
		v, err := call()
		done <- result{v, err}
	}()
	ctx, cancel := context.WithTimeout(ctx, slowTimeout)
	defer cancel()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		go func() { drop((<-done).v) }()
		return none, fmt.Errorf("cannot look at the directory: its file system does not answer; see to it, and try again: %w",
			errdefs.ErrUnavailable)
	}
}
