package egress

import (
	"context"
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

const (
	// refusalWindow is how long equal refusals are counted before they are recorded together.
	refusalWindow = 10 * time.Second
	// mostRefusals is how many different ones are told apart in that time. Those beyond it count together for
	// each way, so that a program that invents names cannot fill the records.
	mostRefusals = 256
)

// refusals records a refusal at once, and those equal to it once each window.
type refusals struct {
	record func(Connection)
	wake   chan struct{} // there is something to wait for

	mu   sync.Mutex
	held map[refusalKey]*heldRefusal
}

type refusalKey struct {
	way    string
	target netrule.Target
	reason string
}

type heldRefusal struct {
	until time.Time
	more  Connection // Count is 0 if there were none
}

func newRefusals(record func(Connection)) *refusals {
	return &refusals{record: record, wake: make(chan struct{}, 1), held: map[refusalKey]*heldRefusal{}}
}

// add takes one refusal.
func (r *refusals) add(c Connection) {
	c.Count = 1
	if r.first(&c) {
		r.record(c)
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// first reports whether c is to be recorded at once.
func (r *refusals) first(c *Connection) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := refusalKey{c.Way, c.Target, c.Refused}
	h := r.held[key]
	if h == nil && len(r.held) >= mostRefusals {
		c.Target, c.Refused = netrule.Target{}, "too many different refusals to tell apart"
		key = refusalKey{c.Way, c.Target, c.Refused}
		h = r.held[key]
	}
	if h == nil || h.more.Count == 0 && !h.until.After(time.Now()) {
		r.held[key] = &heldRefusal{until: time.Now().Add(refusalWindow)}
		return true
	}
	if h.more.Count == 0 {
		h.more = *c
		return false
	}
	h.more.Count++
	h.more.Duration = c.Began.Add(c.Duration).Sub(h.more.Began)
	return false
}

// run records what was counted whenever a window ends. It sleeps while there is nothing.
func (r *refusals) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		}
		wait := time.NewTimer(refusalWindow)
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case now := <-wait.C:
			if r.sweep(now) > 0 {
				select {
				case r.wake <- struct{}{}:
				default:
				}
			}
		}
	}
}

// flush records everything that was counted.
func (r *refusals) flush() { r.sweep(time.Now().Add(2 * refusalWindow)) }

// sweep records what was counted in windows that have ended, and returns how many are open. One in which something
// was counted is followed by another, so that a flood is one record for each window.
func (r *refusals) sweep(now time.Time) (open int) {
	var due []Connection
	r.mu.Lock()
	for key, h := range r.held {
		switch {
		case h.until.After(now):
		case h.more.Count > 0:
			due = append(due, h.more)
			r.held[key] = &heldRefusal{until: now.Add(refusalWindow)}
		default:
			delete(r.held, key)
		}
	}
	open = len(r.held)
	r.mu.Unlock()
	for _, c := range due {
		r.record(c)
	}
	return open
}
