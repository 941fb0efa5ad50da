package keeper

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// listing is the answer of a process to the last List. What a process that was taken over can make it hold is bounded.
type listing struct {
	turn chan struct{} // held by who has asked

	mu   sync.Mutex // of what follows
	id   uint64
	got  []egressapi.Connection
	done chan []egressapi.Connection // nil: nobody waits
}

func newListing() *listing { return &listing{turn: make(chan struct{}, 1)} }

// begin returns the next List, and where its answer comes.
func (l *listing) begin() (egressapi.List, <-chan []egressapi.Connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.id++
	l.got, l.done = nil, make(chan []egressapi.Connection, 1)
	return egressapi.List{ID: l.id}, l.done
}

// opened takes a part of an answer. The error ends the process: it breaks what package egressapi promises.
func (l *listing) opened(x *egressapi.Open) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil || x.ID != l.id {
		return nil // nobody waits for it any more
	}
	if len(l.got)+len(x.List) > egressapi.MostOpen || len(x.List) == 0 && !x.Last {
		return fmt.Errorf("it tells of more connections than it can have: %w", errdefs.ErrInvalidArgument)
	}
	l.got = append(l.got, x.List...)
	if x.Last {
		l.done <- l.got
		l.got, l.done = nil, nil
	}
	return nil
}

// Open returns the connections that are open now, the oldest first; none where no process serves. It returns by the end
// of ctx. The process is believed: what it says of connections is as good as itself.
func (k *Keeper) Open(ctx context.Context) ([]egressapi.Connection, error) {
	ctx, cancel := k.until(ctx)
	defer cancel()
	k.mu.Lock()
	p := k.now
	k.mu.Unlock()
	if p == nil {
		return nil, nil
	}
	late := func() error {
		return fmt.Errorf("cannot list the open connections: carrel-egress did not answer in time: %w", context.Cause(ctx))
	}
	select {
	case p.listing.turn <- struct{}{}:
		defer func() { <-p.listing.turn }()
	case <-ctx.Done():
		return nil, late()
	}
	list, answer := p.listing.begin()
	line, err := json.Marshal(egressapi.Line{Setup: egressapi.Setup{Version: egressapi.Version}, List: &list})
	if err != nil {
		return nil, err
	}
	writing, done := context.WithTimeout(k.alive, grantWithin) // who has asked may leave, and the line must be whole
	err = p.write(writing, append(line, '\n'))
	done()
	if err != nil {
		p.Kill() // half a line may be written
		return nil, late()
	}
	select {
	case all := <-answer:
		return all, nil
	case <-p.ended:
		return nil, nil
	case <-ctx.Done():
		return nil, late()
	}
}
