package api

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

// quantum is for how long a request counts as at work. What takes longer waits for something, a disk, a broker or a
// workspace, and must not keep others from the processors meanwhile.
const quantum = 10 * time.Millisecond

// places share the daemon's processors among owners, an owner being one with all their tokens. There are so many places
// for requests that are at work. Who finds none free waits, and owners take turns, however many requests each has. An
// owner who has no place gets one at once. So a request of somebody who makes few is slowed by some others that are at
// work, and not by the hundreds that somebody else has sent.
//
// A place ends with its quantum at the latest. A stream takes one for each message; see place.again.
type places struct {
	most int

	mu sync.Mutex
	// held are the places that count, the oldest first, and owners how many of them each owner has.
	held   []*place
	owners map[string]int
	// waiting are the requests of each owner that waits, and next these owners in the order of their turns.
	waiting map[string][]*place
	next    []string
	timer   *time.Timer // runs while somebody waits
}

// place is what a request has while it is at work. Several goroutines may work on one request.
type place struct {
	of      *places
	owner   string
	one     sync.Mutex // is held while it is waited for
	since   time.Time
	counts  bool          // it is in held
	granted chan struct{} // is closed when it was waited for and came
}

// newPlaces has four places for each processor that the daemon may use: less leaves processors idle while requests wait
// for the disk, and more makes those who come wait for all that are at work.
func newPlaces() *places {
	return &places{most: 4 * runtime.GOMAXPROCS(0), owners: map[string]int{}, waiting: map[string][]*place{}}
}

// take waits for a place. The caller gives it back. The error is that of ctx.
func (p *places) take(ctx context.Context, owner string) (*place, error) {
	x := &place{of: p, owner: owner}
	return x, x.again(ctx)
}

// again gives the place back, if it still counts, and waits for another. The error is that of ctx.
func (x *place) again(ctx context.Context) error {
	x.one.Lock()
	defer x.one.Unlock()
	p := x.of
	p.mu.Lock()
	p.remove(x)
	if p.dispatch(); len(p.waiting[x.owner]) == 0 && p.open(x.owner) {
		p.seat(x)
		p.mu.Unlock()
		return nil
	}
	x.granted = make(chan struct{})
	if p.waiting[x.owner] = append(p.waiting[x.owner], x); len(p.waiting[x.owner]) == 1 {
		p.next = append(p.next, x.owner)
	}
	p.wake()
	p.mu.Unlock()
	select {
	case <-x.granted:
		return nil
	case <-ctx.Done():
		p.mu.Lock()
		p.forget(x)
		p.remove(x)
		p.dispatch()
		p.mu.Unlock()
		return ctx.Err()
	}
}

// give gives the place back. It may have ended before.
func (x *place) give() {
	x.of.mu.Lock()
	x.of.remove(x)
	x.of.dispatch()
	x.of.mu.Unlock()
}

// open reports whether an owner may take a place now.
func (p *places) open(owner string) bool { return len(p.held) < p.most || p.owners[owner] == 0 }

func (p *places) seat(x *place) {
	x.since, x.counts = time.Now(), true
	p.held = append(p.held, x)
	p.owners[x.owner]++
}

// remove has x count no more.
func (p *places) remove(x *place) {
	if !x.counts {
		return
	}
	x.counts = false
	i := slices.Index(p.held, x)
	p.held = slices.Delete(p.held, i, i+1)
	if p.owners[x.owner]--; p.owners[x.owner] == 0 {
		delete(p.owners, x.owner)
	}
}

// forget takes x out of those that wait, if it does.
func (p *places) forget(x *place) {
	all := p.waiting[x.owner]
	i := slices.Index(all, x)
	if i < 0 {
		return
	}
	if all = slices.Delete(all, i, i+1); len(all) > 0 {
		p.waiting[x.owner] = all
		return
	}
	delete(p.waiting, x.owner)
	p.next = slices.DeleteFunc(p.next, func(o string) bool { return o == x.owner })
}

// dispatch ends the places whose time is over where somebody waits or none is free, and gives what is free to those
// whose turn it is.
func (p *places) dispatch() {
	if len(p.next) == 0 && len(p.held) < p.most {
		return
	}
	for now := time.Now(); len(p.held) > 0 && now.Sub(p.held[0].since) >= quantum; {
		p.remove(p.held[0])
	}
	for i := 0; i < len(p.next); {
		owner := p.next[i]
		if !p.open(owner) {
			i++
			continue
		}
		x := p.waiting[owner][0]
		p.forget(x)
		if len(p.waiting[owner]) > 0 { // their next turn is behind the others'
			p.next = append(slices.Delete(p.next, i, i+1), owner)
		}
		p.seat(x)
		close(x.granted)
	}
	p.wake()
}

// wake has dispatch run when the oldest place ends, while somebody waits.
func (p *places) wake() {
	if len(p.next) == 0 || p.timer != nil || len(p.held) == 0 {
		return
	}
	p.timer = time.AfterFunc(time.Until(p.held[0].since.Add(quantum)), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.timer = nil
		p.dispatch()
	})
}
