// Package keylock lets one at a time through for each name: an owner, a workspace.
//
// It must not know what is done meanwhile, nor keep a name that nobody waits for.
package keylock

import (
	"context"
	"sync"
)

// Turns are the turns of all names. The zero value is ready for use.
type Turns struct {
	mu sync.Mutex
	of map[string]*turn
}

// turn is that of one name, as long as somebody has it or waits for it.
type turn struct {
	taken   chan struct{} // holds a value while somebody has it
	wanting int
}

// Take waits for the turn of name and returns what gives it back, to be called once. The error is the cause of ctx.
func (t *Turns) Take(ctx context.Context, name string) (back func(), err error) {
	t.mu.Lock()
	if t.of == nil {
		t.of = map[string]*turn{}
	}
	x := t.of[name]
	if x == nil {
		x = &turn{taken: make(chan struct{}, 1)}
		t.of[name] = x
	}
	x.wanting++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if x.wanting--; x.wanting == 0 {
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
