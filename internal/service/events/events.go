// Package events tells those who watch what happens to workspaces. It keeps the newest
// events in memory; the audit log, which is durable, is what counts.
//
// It must not decide who may watch: the gate does.
package events

import (
	"context"
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
)

// keepEvents is how many events are kept for those who ask for what has happened.
const keepEvents = 4096

// atOnce is how many of them one look takes. Whatever happens waits meanwhile, so those who ask for
// all that is kept get it piece by piece.
const atOnce = 64

// closed is what tells that there is another event already.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Config holds the dependencies of New.
type Config struct {
	// Gate authorises those who watch.
	Gate *gate.Gate
	// Find returns the target that a key or a name means, not_found if there is none.
	Find func(ref string) (operation.Target, error)
	// Now returns key and state of a workspace as they are now; false if it is gone.
	Now func(name id.Workspace) (id.Key, workspace.State, bool)
	// Redact takes secrets out of what is told. Optional.
	Redact *redact.Redactor
}

// Events is a ring of what happened. Its methods may be called from any goroutine.
type Events struct {
	cfg Config

	mu   sync.Mutex
	ring []workspace.Event // of keepEvents once full; number n stands at (n-1) % keepEvents
	last int64
	// more is closed when there is one more, if somebody waits: for events of one owner, or of all, which is "".
	// So nobody is woken by what others do, however many watch.
	more map[string]chan struct{}
}

// New returns a ring without events. Bind gives it what it needs for watching.
func New() *Events { return new(Events) }

// Bind completes Events, before anything is told or watched.
func (e *Events) Bind(cfg Config) { e.cfg = cfg }

// Add numbers an event and tells it.
func (e *Events) Add(ev workspace.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last++
	ev.Number = e.last
	if len(e.ring) < keepEvents {
		e.ring = append(e.ring, ev)
	} else {
		e.ring[(e.last-1)%keepEvents] = ev
	}
	e.wake("")
	e.wake(ev.Owner)
	if e.last%(keepEvents/2) == 0 { // who waits for one owner's stays near enough to lose none
		for owner := range e.more {
			e.wake(owner)
		}
	}
}

// wake tells those who wait for the events of an owner. e.mu is held.
func (e *Events) wake(owner string) {
	if more, waited := e.more[owner]; waited {
		close(more)
		delete(e.more, owner)
	}
}

// Told makes an event of an outcome. Outcomes about tokens, secrets and hosts are about no workspace.
func (e *Events) Told(r *operation.Request, intent int64, err error) {
	on := operation.Of(r.Op.Op()).On
	if on == operation.Token || on == operation.Secret || r.On.Kind == operation.Host || r.On.Kind == operation.Remote {
		return
	}
	ev := workspace.Event{
		Time: time.Now(), Workspace: r.On.Name, Key: r.On.Key, Owner: r.On.Owner, Kind: string(r.Op.Op()), State: workspace.StateDestroyed,
		Status: audit.StatusOK, Principal: r.By.String(), Intent: intent,
	}
	switch op := r.Op.(type) {
	case operation.Commanding:
		ev.Command = op.Command().ID
	case operation.OfCommand:
		ev.Command = op.ID
	}
	if key, state, ok := e.cfg.Now(r.On.Name); ok {
		ev.Key, ev.State = key, state
	}
	if err != nil {
		ev.Status, ev.Error = audit.StatusFailed, record.Clip(err.Error())
	}
	e.Add(ev)
}

// after returns the first events after number n that are kept, how many are not any more, and what
// is closed when there is another of an owner's, or of anybody's, which is "".
func (e *Events) after(n int64, owner string) (list []workspace.Event, lost int64, more <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n < 0 || n > e.last { // of an earlier daemon
		n = 0
	}
	oldest := e.last - int64(len(e.ring))
	if n < oldest {
		lost, n = oldest-n, oldest
	}
	list = make([]workspace.Event, 0, min(e.last-n, atOnce))
	for ; n < e.last && len(list) < atOnce; n++ {
		list = append(list, e.ring[n%keepEvents])
	}
	if n < e.last {
		return list, lost, closed
	}
	if e.more[owner] == nil {
		if e.more == nil {
			e.more = map[string]chan struct{}{}
		}
		e.more[owner] = make(chan struct{})
	}
	return list, lost, e.more[owner]
}

func (e *Events) newest() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// reaches reports whether p reaches the workspace of an event by what it was called then, and by
// what it is called now.
func (e *Events) reaches(p principal.Principal, ev *workspace.Event) bool {
	if !p.MayReach(ev.Owner, string(ev.Key), string(ev.Workspace)) {
		return false
	}
	key, _, lives := e.cfg.Now(ev.Workspace)
	return !lives || p.MayReach(ev.Owner, string(key), string(ev.Workspace))
}

// Watch calls emit with what happens to the workspaces that p reaches, or to those that refs
// name, until ctx ends; first with what is kept from after number after on, unless that is 0.
// lost is how many events before the one given are not kept any more.
func (e *Events) Watch(ctx context.Context, p principal.Principal, refs []string, after int64,
	emit func(ev workspace.Event, lost int64) error,
) error {
	only := map[id.Workspace]bool{}
	ask := operation.Request{By: p, Op: operation.Simple(operation.WatchWorkspace)}
	if _, err := e.cfg.Gate.Authorise(ctx, ask, nil); err != nil {
		return err
	}
	for _, ref := range refs {
		a, err := e.cfg.Gate.Authorise(ctx, ask, func() (operation.Target, error) { return e.cfg.Find(ref) })
		if err != nil {
			return err
		}
		only[a.On().Name] = true
	}
	if after == 0 {
		after = e.newest()
	}
	owner := p.Owner()
	if p.Can(principal.Any) {
		owner = ""
	}
	var lost int64 // since the last that was told
	for {
		list, gone, more := e.after(after, owner)
		lost += gone
		for _, ev := range list {
			after = ev.Number
			if ctx.Err() != nil {
				return nil
			}
			if !e.reaches(p, &ev) || len(only) > 0 && !only[ev.Workspace] {
				continue
			}
			// Whom it belongs to was decided by the key itself.
			ev.Key, ev.Note = id.Key(e.cfg.Redact.Text(string(ev.Key))), e.cfg.Redact.Text(ev.Note)
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
