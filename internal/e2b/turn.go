package e2b

import (
	"context"
	"sync"
)

// turns lets one request at a time change whether a sandbox runs: what it does and what is kept of that belong together.
type turns struct {
	mu sync.Mutex
	of map[string]*turn
}

// turn is that of one sandbox, as long as somebody has it or waits for it.
type turn struct {
	taken chan struct{} // holds a value while somebody has it
	n     int
}

// take waits for the turn of a sandbox. give is for the end of what was done in it.
func (t *turns) take(ctx context.Context, name string) (give func(), err error) {
	t.mu.Lock()
	x := t.of[name]
	if x == nil {
		if t.of == nil {
			t.of = map[string]*turn{}
		}
		x = &turn{taken: make(chan struct{}, 1)}
		t.of[name] = x
	}
	x.n++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if x.n--; x.n == 0 {
			delete(t.of, name)
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
