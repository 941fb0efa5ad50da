package lifecycle

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/operation"
)

// slot is what one operation excludes others from: a workspace, or a key that is being given
// to one.
type slot struct {
	name id.Workspace
	key  id.Key
}

// background marks an operation that nobody asked for. Concurrent callers wait for it to
// finish but are not told its result.
const background operation.Name = "background"

// slots are the operations under way, one on each slot.
type slots struct {
	mu  *sync.Mutex
	ops map[slot]*underWay
}

// underWay is an operation under way.
type underWay struct {
	op   operation.Name
	done chan struct{} // closed once err is set
	err  error
}

func newSlots() slots { return slots{new(sync.Mutex), map[slot]*underWay{}} }

// exclusive runs f as the only operation on s. Concurrent callers wait for it to finish; a
// caller with the same operation and join set takes its result instead of running again. f
// gets a context that does not end with the caller's: a begun operation is finished.
func (s slots) exclusive(ctx context.Context, on slot, op operation.Name, join bool, f func(context.Context) error) error {
	for {
		s.mu.Lock()
		o := s.ops[on]
		if o == nil {
			o = &underWay{op: op, done: make(chan struct{}), err: errUnfinished}
			s.ops[on] = o
			s.mu.Unlock()
			defer func() {
				s.mu.Lock()
				delete(s.ops, on)
				s.mu.Unlock()
				close(o.done)
			}()
			o.err = f(context.WithoutCancel(ctx))
			return o.err
		}
		s.mu.Unlock()
		select {
		case <-o.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if join && o.op == op {
			return o.err
		}
	}
}

// on returns the operation under way on a slot, "" if there is none.
func (s slots) on(at slot) operation.Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.ops[at]; o != nil {
		return o.op
	}
	return ""
}

// ending reports whether a workspace is being stopped or destroyed right now.
func (s slots) ending(name id.Workspace) bool {
	op := s.on(slot{name: name})
	return op == operation.StopWorkspace || op == operation.DestroyWorkspace
}

// errUnfinished is what the callers that joined get if an operation panicked.
var errUnfinished = fmt.Errorf("cannot finish the operation: it broke off: %w", errdefs.ErrInternal)

// Alone runs f as the only operation on a workspace.
func (l *Lifecycle) Alone(ctx context.Context, name id.Workspace, op operation.Name, f func(context.Context) error) error {
	return l.slots.exclusive(ctx, slot{name: name}, op, false, f)
}

// AloneWithKey runs f as the only operation that gives a key to a workspace.
func (l *Lifecycle) AloneWithKey(ctx context.Context, key id.Key, op operation.Name, f func(context.Context) error) error {
	return l.slots.exclusive(ctx, slot{key: key}, op, false, f)
}
