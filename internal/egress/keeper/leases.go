package keeper

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// grantWithin bounds a write to the process, which reads all the time.
const grantWithin = 5 * time.Second

// maxRefused bounds Granted.Refused in bytes.
const maxRefused = 2 << 10

// leases are the requests to models that are under way in one process. What a process that was taken over can make them
// hold is bounded: it is ended when it asks for more, or reads no answers.
type leases struct {
	k    *Keeper
	p    *process
	ctx  context.Context // until the process has ended
	over context.CancelFunc

	mu     sync.Mutex // of what follows
	open   map[uint64]*lease
	grants chan egressapi.Granted // what is to be written; nil until the first lease
	ended  bool
	broken error // why the process was ended from here
}

// lease is a request that was asked for; done is nil until it is granted.
type lease struct {
	bytes int64
	done  func(egressapi.Usage)
}

func newLeases(k *Keeper, p *process) *leases {
	l := &leases{k: k, p: p, open: map[uint64]*lease{}}
	l.ctx, l.over = context.WithCancel(k.alive)
	return l
}

// ask takes a Lease, and does not wait for the answer. The error ends the process: it breaks what package egressapi
// promises.
func (l *leases) ask(x *egressapi.Lease) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.open[x.ID] != nil:
		return fmt.Errorf("it asks for the same request twice: %w", errdefs.ErrInvalidArgument)
	case len(l.open) >= egressapi.MostLeased:
		return fmt.Errorf("it asks for more requests than it can have under way: %w", errdefs.ErrInvalidArgument)
	}
	if l.grants == nil { // most processes serve no model
		l.grants = make(chan egressapi.Granted, 2*egressapi.MostLeased)
		l.k.granting.Go(l.write)
	}
	one := &lease{bytes: max(x.Bytes, 0)}
	l.open[x.ID] = one
	l.k.granting.Go(func() { l.answer(x, one) })
	return nil
}

// answer has a lease judged, and its answer written.
func (l *leases) answer(x *egressapi.Lease, one *lease) {
	done, err := l.k.reserve(l.ctx, x)
	answer := egressapi.Granted{ID: x.ID}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended && err == nil: // nothing was sent
		done(egressapi.Usage{ID: x.ID})
		return
	case l.ended:
		return
	case err == nil:
		one.done = done
	default:
		delete(l.open, x.ID)
		text := strings.ToValidUTF8(err.Error(), "")
		answer.Refused, answer.Later = text[:min(len(text), maxRefused)], errdefs.IsUnavailable(err)
	}
	select {
	case l.grants <- answer:
	default:
		l.broken = fmt.Errorf("it asks more than it reads answers: %w", errdefs.ErrInvalidArgument)
		l.p.Kill()
	}
}

// reserve asks whether a request to a model may be made.
func (k *Keeper) reserve(ctx context.Context, x *egressapi.Lease) (func(egressapi.Usage), error) {
	k.mu.Lock()
	known := slices.ContainsFunc(k.setup.Models, func(m egressapi.Model) bool { return m.Name == x.Endpoint })
	k.mu.Unlock()
	if !known || k.cfg.Reserve == nil {
		return nil, fmt.Errorf("there is no such model any more: %w", errdefs.ErrNotFound)
	}
	return k.cfg.Reserve(ctx, x.Endpoint, x.Model)
}

// used takes what a request has used. The error ends the process.
func (l *leases) used(u *egressapi.Usage) error {
	for _, n := range []int64{u.Input, u.Output, u.CachedInput, u.CacheWrite} {
		if n < 0 || n > egressapi.MostTokens {
			return fmt.Errorf("it says that a request has used %d tokens: %w", n, errdefs.ErrInvalidArgument)
		}
	}
	if u.Call != nil && !u.Call.Valid() {
		return fmt.Errorf("it tells digests of a request that are none: %w", errdefs.ErrInvalidArgument)
	}
	l.mu.Lock()
	x := l.open[u.ID]
	granted := x != nil && x.done != nil
	if granted {
		delete(l.open, u.ID)
	}
	l.mu.Unlock()
	if !granted {
		return fmt.Errorf("it tells of a request that was not granted: %w", errdefs.ErrInvalidArgument)
	}
	x.done(*u)
	return nil
}

// write writes answers until the process has ended.
func (l *leases) write() {
	for x := range l.grants {
		line, err := json.Marshal(egressapi.Line{Setup: egressapi.Setup{Version: egressapi.Version}, Granted: &x})
		if err == nil {
			ctx, cancel := context.WithTimeout(l.k.alive, grantWithin)
			err = l.p.write(ctx, append(line, '\n'))
			cancel()
		}
		if err != nil {
			l.p.Kill() // half a line may be written
		}
	}
}

// lostBytes is how many bytes of a request count as a token if the process ends before it tells what was used.
const lostBytes = 2

// why is the reason for which the process was ended from here, nil if it was not.
func (l *leases) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

// end counts what was under way in a process that has ended, by the length of the requests: nothing else is known of them.
func (l *leases) end() {
	l.over()
	l.mu.Lock()
	open := l.open
	l.open, l.ended = map[uint64]*lease{}, true
	if l.grants != nil {
		close(l.grants)
	}
	l.mu.Unlock()
	for id, x := range open {
		if x.done == nil { // whoever has it judged sees that the process has ended
			continue
		}
		x.done(egressapi.Usage{ID: id, Input: min(x.bytes/lostBytes+1, egressapi.MostTokens), Unknown: true})
	}
}
