package asking

import (
	"context"
	"sync"

	"github.com/carrel-dev/carrel/internal/principal"
)

// turns lets each owner read what is kept once at a time, however many of their streams want to: the
// database answers in order, and who opens many watches must wait for themselves. The zero value
// is ready for use.
type turns struct {
	mu sync.Mutex
	of map[string]*turn
}

type turn struct {
	taken   chan struct{} // has one while somebody reads
	wanting int
}

// take waits for the turn of an owner's and returns what gives it back. The error is that of ctx.
func (t *turns) take(ctx context.Context, p principal.Principal) (back func(), err error) {
	owner := p.Owner()
	t.mu.Lock()
	if t.of == nil {
		t.of = map[string]*turn{}
	}
	x := t.of[owner]
	if x == nil {
		x = &turn{taken: make(chan struct{}, 1)}
		t.of[owner] = x
	}
	x.wanting++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if x.wanting--; x.wanting == 0 {
			delete(t.of, owner)
		}
	}
	select {
	case x.taken <- struct{}{}:
		return func() { <-x.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
