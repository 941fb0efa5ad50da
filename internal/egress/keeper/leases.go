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

	"github.com/carrel-dev/carrel/internal/egressapi"
)

// grantWithin bounds a write to the process, which reads all the time.
const grantWithin = 5 * time.Second

// maxRefused bounds Granted.Refused in bytes.
const maxRefused = 2 << 10

// leases are the requests to models that are under way in one process. What a process that was taken over can make them
// hold is bounded: it is ended when it asks for more, or reads no answers.
type leases struct {
	k *Keeper
	p *process

	mu     sync.Mutex // of what follows
	open   map[uint64]*lease
	grants chan egressapi.Granted // what is to be written; nil until the first lease
}

type lease struct {
	bytes int64
	done  func(egressapi.Usage)
}

func newLeases(k *Keeper, p *process) *leases {
	return &leases{k: k, p: p, open: map[uint64]*lease{}}
}

// ask takes a Lease. The error ends the process: it breaks what package egressapi promises.
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
	answer := egressapi.Granted{ID: x.ID}
	done, err := l.k.reserve(x)
	if err == nil {
		l.open[x.ID] = &lease{max(x.Bytes, 0), done}
	} else {
		text := strings.ToValidUTF8(err.Error(), "")
		answer.Refused, answer.Later = text[:min(len(text), maxRefused)], errdefs.IsUnavailable(err)
	}
	select {
	case l.grants <- answer:
		return nil
	default:
		return fmt.Errorf("it asks more than it reads answers: %w", errdefs.ErrInvalidArgument)
	}
}

// reserve asks whether a request to a model may be made.
func (k *Keeper) reserve(x *egressapi.Lease) (func(egressapi.Usage), error) {
	k.mu.Lock()
	known := slices.ContainsFunc(k.setup.Models, func(m egressapi.Model) bool { return m.Name == x.Endpoint })
	k.mu.Unlock()
	if !known || k.cfg.Reserve == nil {
		return nil, fmt.Errorf("there is no such model any more: %w", errdefs.ErrNotFound)
	}
	return k.cfg.Reserve(x.Endpoint, x.Model)
}

// used takes what a request has used. The error ends the process.
func (l *leases) used(u *egressapi.Usage) error {
	for _, n := range []int64{u.Input, u.Output, u.CachedInput, u.CacheWrite} {
		if n < 0 || n > egressapi.MostTokens {
			return fmt.Errorf("it says that a request has used %d tokens: %w", n, errdefs.ErrInvalidArgument)
		}
	}
	l.mu.Lock()
	x := l.open[u.ID]
	delete(l.open, u.ID)
	l.mu.Unlock()
	if x == nil {
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

// end counts what was under way in a process that has ended, by the length of the requests: nothing else is known of them.
func (l *leases) end() {
	l.mu.Lock()
	open := l.open
	l.open = map[uint64]*lease{}
	if l.grants != nil {
		close(l.grants)
	}
	l.mu.Unlock()
	for id, x := range open {
		x.done(egressapi.Usage{ID: id, Input: min(x.bytes/lostBytes+1, egressapi.MostTokens), Unknown: true})
	}
}
