package gate

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// The reach of a token with a scope goes by what a workspace is called, and that may change while a
// request lasts. Whoever owns a workspace, or administers carrel, reaches it by any name.

// holds are the requests of tokens under way, by the workspaces that they reached.
type holds struct {
	mu sync.Mutex
	of map[id.Workspace]map[*hold]struct{}
}

// hold is one of them. Its fields are under holds.mu.
type hold struct {
	end context.CancelCauseFunc
	// on has what was asked for first of each workspace; nil once the request is over.
	on map[id.Workspace]operation.Request
	// lost is why it may not go on.
	lost error
}

type holdKey struct{}

func holdOf(ctx context.Context, by principal.Principal) *hold {
	if by.Kind != principal.Token { // also not what the daemon itself does on the way
		return nil
	}
	h, _ := ctx.Value(holdKey{}).(*hold)
	return h
}

// Hold returns a context for a request that may last. If a workspace that a token reached under it is
// renamed and the token does not reach it any more, the context ends, with the refusal as its cause,
// and nothing is carried out under it. release is for the end of the request.
func (g *Gate) Hold(ctx context.Context) (held context.Context, release func()) {
	ctx, end := context.WithCancelCause(ctx)
	h := &hold{end: end, on: map[id.Workspace]operation.Request{}}
	return context.WithValue(ctx, holdKey{}, h), func() {
		end(nil)
		g.holds.mu.Lock()
		defer g.holds.mu.Unlock()
		for name := range h.on {
			if delete(g.holds.of[name], h); len(g.holds.of[name]) == 0 {
				delete(g.holds.of, name)
			}
		}
		h.on = nil
	}
}

// hold notes that a request that may last has reached its target. The error is why it does not:
// the target may have been renamed since it was found.
func (g *Gate) hold(ctx context.Context, r *operation.Request) error {
	h := holdOf(ctx, r.By)
	if h == nil || r.On.Kind != operation.Workspace || r.On.Name == "" {
		return nil
	}
	g.holds.mu.Lock()
	defer g.holds.mu.Unlock()
	if _, known := h.on[r.On.Name]; !known && h.on != nil {
		if g.holds.of == nil {
			g.holds.of = map[id.Workspace]map[*hold]struct{}{}
		}
		if g.holds.of[r.On.Name] == nil {
			g.holds.of[r.On.Name] = map[*hold]struct{}{}
		}
		h.on[r.On.Name], g.holds.of[r.On.Name][h] = *r, struct{}{}
	}
	// A rename before this is seen here, and a later one sees the note.
	if now, lives := g.cfg.Now(r.On.Name); lives && !operation.Reaches(r.By, now) {
		return renamed(r)
	}
	return h.lost
}

// Renamed judges the requests again that reached a workspace by an earlier key. When it returns, the
// contexts of those that do not reach it any more have ended. Their refusals are recorded.
func (g *Gate) Renamed(on operation.Target) {
	var lost []operation.Request
	g.holds.mu.Lock()
	for h := range g.holds.of[on.Name] {
		if r := h.on[on.Name]; h.lost == nil && !operation.Reaches(r.By, on) {
			h.lost = renamed(&r)
			h.end(h.lost)
			lost = append(lost, r)
		}
	}
	g.holds.mu.Unlock()
	if len(lost) == 0 {
		return
	}
	g.Later(func() {
		for _, r := range lost {
			x := &passing{g: g, request: r, row: operation.Of(r.Op.Op())}
			x.begin()
			_ = x.deny(context.Background(), renamed(&r)) // it has been told
		}
	})
}

// lost is why nothing may be carried out for a request any more, nil if it may.
func (g *Gate) lost(ctx context.Context, by principal.Principal) error {
	h := holdOf(ctx, by)
	if h == nil {
		return nil
	}
	g.holds.mu.Lock()
	defer g.holds.mu.Unlock()
	return h.lost
}

func renamed(r *operation.Request) error {
	return fmt.Errorf("cannot let %s %s workspace %q any longer: it was renamed, and the token does not reach it by its new key; ask its "+
		"owner or an administrator: %w", r.By, operation.Of(r.Op.Op()).Words, r.On.Key, errdefs.ErrPermissionDenied)
}
