package gate

import (
	"context"
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// keepEvents is how many events are kept for those who ask for what has happened.
const keepEvents = 4096

// events is a ring of what happened, and who waits for more. It tells what the daemon
// did; the audit log, which is durable, is what counts.
type events struct {
	mu   sync.Mutex
	ring []workspace.Event // of keepEvents once full; number n stands at (n-1) % keepEvents
	last int64
	more chan struct{} // closed when there is one more, if somebody waits
}

func (e *events) add(ev workspace.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last++
	ev.Number = e.last
	if len(e.ring) < keepEvents {
		e.ring = append(e.ring, ev)
	} else {
		e.ring[(e.last-1)%keepEvents] = ev
	}
	if e.more != nil {
		close(e.more)
		e.more = nil
	}
}

// after returns the events after number n that are kept, how many are not any more, and
// what is closed when there is another.
func (e *events) after(n int64) (list []workspace.Event, lost int64, more <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n < 0 || n > e.last { // of an earlier daemon
		n = 0
	}
	oldest := e.last - int64(len(e.ring))
	if n < oldest {
		lost, n = oldest-n, oldest
	}
	for ; n < e.last; n++ {
		list = append(list, e.ring[n%keepEvents])
	}
	if e.more == nil {
		e.more = make(chan struct{})
	}
	return list, lost, e.more
}

func (e *events) newest() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// tell makes an event of the outcome of a request.
func (g *Gate) tell(r *request, seq int64, err error) {
	ev := workspace.Event{
		Time: time.Now(), Workspace: r.on.Name, Key: r.on.Key, Owner: r.on.Owner, Kind: string(r.action.Kind), State: workspace.StateDestroyed,
		Status: "ok", Principal: r.by.String(), Command: r.action.Command, Intent: seq,
	}
	if g.cfg.Store == nil {
		return // nobody watches
	}
	if w, ok := g.cfg.Store.ByName(r.on.Name); ok {
		ev.Key, ev.State = w.Key, w.State
	}
	if err != nil {
		ev.Status, ev.Error = "failed", clip(g.clean(r).Text(err.Error()))
	}
	g.events.add(ev)
}

// Watch calls emit with what happens to the workspaces that p may reach, or to those
// that refs name, until ctx ends; first with what is kept from after number after on,
// unless that is 0. lost is how many events before the one given are not kept any more.
func (g *Gate) Watch(ctx context.Context, p principal.Principal, refs []string, after int64, emit func(ev workspace.Event, lost int64) error) error {
	if err := g.Permit(ctx, p, action.Action{Kind: action.Watch}); err != nil {
		return err
	}
	only := map[id.Workspace]bool{}
	for _, ref := range refs {
		w, err := g.reach(ctx, p, ref, action.Action{Kind: action.Watch})
		if err != nil {
			return err
		}
		only[w.Name] = true
	}
	if after == 0 {
		after = g.events.newest()
	}
	for {
		list, lost, more := g.events.after(after)
		for _, ev := range list {
			after = ev.Number
			if !p.MayReach(ev.Owner, string(ev.Key), string(ev.Workspace)) || len(only) > 0 && !only[ev.Workspace] {
				continue
			}
			// Whom it belongs to was decided by the key itself.
			ev.Key, ev.Note = id.Key(g.cfg.Redact.Text(string(ev.Key))), g.cfg.Redact.Text(ev.Note)
			if err := emit(ev, lost); err != nil {
				return err
			}
			lost = 0
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil
		}
	}
}
