package gate

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/id"
)

// slot is what one lifecycle operation excludes others from: a workspace, or a
// key that is being given one.
type slot struct {
	name id.Workspace
	key  id.Key
}

// quiet is an operation that nobody asked for: who comes meanwhile waits for its end,
// and does not hear of it.
const quiet action.Kind = "quiet"

// op is a lifecycle operation under way.
type op struct {
	kind action.Kind
	done chan struct{} // closed once err is set
	err  error
}

// exclusive runs f as the only operation on s. Those that come meanwhile wait; one
// of the same kind with join set takes the result of the running one instead of
// running again. f gets a context that does not end with the caller's: a begun
// operation is finished.
func (g *Gate) exclusive(ctx context.Context, s slot, kind action.Kind, join bool, f func(context.Context) error) error {
	for {
		g.mu.Lock()
		o := g.ops[s]
		if o == nil {
			o = &op{kind: kind, done: make(chan struct{}), err: errUnfinished}
			g.ops[s] = o
			g.mu.Unlock()
			defer func() {
				g.mu.Lock()
				delete(g.ops, s)
				g.mu.Unlock()
				close(o.done)
			}()
			o.err = f(context.WithoutCancel(ctx))
			return o.err
		}
		g.mu.Unlock()
		select {
		case <-o.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if join && o.kind == kind {
			return o.err
		}
	}
}

// errUnfinished is what those who joined get if an operation panicked.
var errUnfinished = fmt.Errorf("cannot finish the operation: it broke off: %w", errdefs.ErrInternal)
