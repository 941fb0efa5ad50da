package lifecycle

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/operation"
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
	// giveUp, if set, has the operation break off, for one that ends the workspace.
	giveUp func(error)
}

func newSlots() slots { return slots{new(sync.Mutex), map[slot]*underWay{}} }

// exclusive runs f as the only operation on s. Concurrent callers wait for it to finish; a
// caller with the same operation and join set takes its result instead of running again. f
// gets a context that does not end with the caller's: a begun operation is finished.
func (s slots) exclusive(ctx context.Context, on slot, op operation.Name, join bool, f func(context.Context) error) error {
	for {
		o, claimed := s.claim(on, op, nil)
		if claimed {
			defer s.release(on, o)
			o.err = f(context.WithoutCancel(ctx))
			return o.err
		}
		if o.giveUp != nil && ends(op) {
			o.giveUp(fmt.Errorf("cannot finish: somebody asked to %s the workspace: %w", operation.Of(op).Words, errdefs.ErrAborted))
		}
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

// claim makes op the operation on a slot, until it is released. If there is one already, claim
// returns that one. giveUp may be nil.
func (s slots) claim(on slot, op operation.Name, giveUp func(error)) (o *underWay, claimed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.ops[on]; o != nil {
		return o, false
	}
	o = &underWay{op: op, done: make(chan struct{}), err: errUnfinished, giveUp: giveUp}
	s.ops[on] = o
	return o, true
}

func (s slots) release(on slot, o *underWay) {
	s.mu.Lock()
	delete(s.ops, on)
	s.mu.Unlock()
	close(o.done)
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
	return ends(s.on(slot{name: name}))
}

// ends reports whether an operation ends everything that runs in a workspace.
func ends(op operation.Name) bool {
	return op == operation.StopWorkspace || op == operation.DestroyWorkspace
}

// errUnfinished is what the callers that joined get if an operation panicked.
var errUnfinished = fmt.Errorf("cannot finish the operation: it broke off: %w", errdefs.ErrInternal)

// Alone runs f as the only operation on a workspace.
func (l *Lifecycle) Alone(ctx context.Context, name id.Workspace, op operation.Name, f func(context.Context) error) error {
	return l.slots.exclusive(ctx, slot{name: name}, op, false, f)
}

// ifFree runs f as the only operation on a slot, in the background. It never waits: if there is
// another operation, f is not run.
func (l *Lifecycle) ifFree(ctx context.Context, on slot, f func(context.Context) error) error {
	o, claimed := l.slots.claim(on, background, nil)
	if !claimed {
		return nil
	}
	defer l.slots.release(on, o)
	o.err = f(context.WithoutCancel(ctx))
	return o.err
}

// AloneUntil is Alone for an operation that is given up when its caller goes or somebody stops or
// destroys the workspace: f gets a context that ends then.
func (l *Lifecycle) AloneUntil(ctx context.Context, name id.Workspace, op operation.Name, f func(context.Context) error) error {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	for {
		o, claimed := l.slots.claim(slot{name: name}, op, giveUp)
		if claimed {
			defer l.slots.release(slot{name: name}, o)
			o.err = f(ctx)
			return o.err
		}
		select {
		case <-o.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// AloneWithKey runs f as the only operation that gives a key to a workspace.
func (l *Lifecycle) AloneWithKey(ctx context.Context, key id.Key, op operation.Name, f func(context.Context) error) error {
	return l.slots.exclusive(ctx, slot{key: key}, op, false, f)
}
