package apitest

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// held is a request of a token under way.
type held struct {
	by  principal.Principal
	end context.CancelCauseFunc
}

// Hold implements api.Gate: a rename ends every request of a token that it takes the workspace from,
// whatever the request is about.
func (g *Gate) Hold(ctx context.Context) (context.Context, func()) {
	h := &held{by: authn.FromContext(ctx)}
	ctx, h.end = context.WithCancelCause(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil {
		g.held = map[*held]struct{}{}
	}
	g.held[h] = struct{}{}
	return ctx, func() {
		h.end(nil)
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.held, h)
	}
}

// renamed ends the requests of tokens that do not reach d by its new key. g.mu is held.
func (g *Gate) renamed(d *entry, key id.Key) {
	for h := range g.held {
		if h.by.MayReach(d.Owner, string(d.Key), string(d.Name)) && !h.by.MayReach(d.Owner, string(key), string(d.Name)) {
			h.end(fmt.Errorf("cannot go on: workspace %q was renamed: %w", d.Key, errdefs.ErrPermissionDenied))
		}
	}
}
