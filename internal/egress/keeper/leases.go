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

	slow time.Time // until when it has been told to wait; of who reads the process
}

// pace has the process wait if it makes connections too fast.
func (l *leases) pace() {
	if l.k.cfg.Pace == nil {
		return
	}
	wait, now := l.k.cfg.Pace(), time.Now()
	if wait <= 0 || now.Before(l.slow) {
		return
	}
	l.slow = now.Add(wait)
	line, err := json.Marshal(egressapi.Line{
		Setup: egressapi.Setup{Version: egressapi.Version}, Slow: &egressapi.Slow{MS: max(wait.Milliseconds(), 1)},
	})
	if err == nil {
		l.k.granting.Go(func() { l.say(line) })
	}
}

// say writes a line.
func (l *leases) say(line []byte) {
	ctx, cancel := context.WithTimeout(l.k.alive, grantWithin)
	defer cancel()
	if err := l.p.write(ctx, append(line, '\n')); err != nil {
		l.p.Kill() // half a line may be written
	}
}

// lease is a request that was asked for; done is nil until it is granted.
type lease struct {
	bytes int64
	model bool // it names one, which may be at work
	done  func(egressapi.Usage)
	since time.Time       // when it was granted
	soFar egressapi.Usage // what the process has told of it
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
	one := &lease{bytes: max(x.Bytes, 0), model: x.Model != ""}
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
		one.done, one.since = done, time.Now()
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

// progress takes what a request has used so far. The error ends the process.
func (l *leases) progress(u *egressapi.Usage) error {
	if err := counted(u); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.open[u.ID]
	if x == nil || x.done == nil {
		return fmt.Errorf("it tells of a request that was not granted: %w", errdefs.ErrInvalidArgument)
	}
	x.soFar.Input, x.soFar.Output = max(x.soFar.Input, u.Input), max(x.soFar.Output, u.Output)
	x.soFar.CachedInput, x.soFar.CacheWrite = max(x.soFar.CachedInput, u.CachedInput), max(x.soFar.CacheWrite, u.CacheWrite)
	return nil
}

// counted is an error if there are numbers in a Usage that cannot be.
func counted(u *egressapi.Usage) error {
	for _, n := range []int64{u.Input, u.Output, u.CachedInput, u.CacheWrite} {
		if n < 0 || n > egressapi.MostTokens {
			return fmt.Errorf("it says that a request has used %d tokens: %w", n, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// used takes what a request has used. The error ends the process.
func (l *leases) used(u *egressapi.Usage) error {
	if err := counted(u); err != nil {
		return err
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
			l.say(line)
		}
	}
}

// why is the reason for which the process was ended from here, nil if it was not.
func (l *leases) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

// lost is what a request counts whose process has ended: what that has told, or what its length and the time make of it where
// that is more.
func (x *lease) lost(id uint64, now time.Time) egressapi.Usage {
	u := x.soFar
	u.ID, u.Unknown, u.Call = id, true, nil
	if u.Input+u.CachedInput+u.CacheWrite == 0 {
		u.Input = min(x.bytes/egressapi.BytesPerToken+1, egressapi.MostTokens)
	}
	if x.model {
		u.Output = min(max(u.Output, int64(now.Sub(x.since)/time.Second+1)*egressapi.TokensPerSecond), egressapi.MostTokens)
	}
	return u
}

// end counts what was under way in a process that has ended.
func (l *leases) end() (lost int) {
	l.over()
	l.mu.Lock()
	open := l.open
	l.open, l.ended = map[uint64]*lease{}, true
	if l.grants != nil {
		close(l.grants)
	}
	l.mu.Unlock()
	now := time.Now()
	for id, x := range open {
		if x.done == nil { // whoever has it judged sees that the process has ended
			continue
		}
		x.done(x.lost(id, now))
		lost++
	}
	return lost
}
