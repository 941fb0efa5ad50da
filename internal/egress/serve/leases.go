package serve

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/model"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// leases are the requests to models that who started the process is asked about.
type leases struct {
	report func(egressapi.Report)

	mu   sync.Mutex // of what follows
	last uint64
	open map[uint64]chan egressapi.Granted // nil for one that nobody waits for any more
}

func newLeases(report func(egressapi.Report)) *leases {
	return &leases{report: report, open: map[uint64]chan egressapi.Granted{}}
}

// reserve is model.Config.Reserve for an endpoint.
func (l *leases) reserve(ctx context.Context, endpoint string, r model.Request) (model.Lease, error) {
	answer := make(chan egressapi.Granted, 1)
	l.mu.Lock()
	l.last++
	id := l.last
	l.open[id] = answer
	l.mu.Unlock()
	l.report(egressapi.Report{Lease: &egressapi.Lease{ID: id, Endpoint: endpoint, Model: r.Model, Bytes: r.Bytes}})
	select {
	case got := <-answer:
		return l.done(got)
	case <-ctx.Done():
	}
	l.mu.Lock()
	_, waits := l.open[id]
	if waits {
		l.open[id] = nil
	}
	l.mu.Unlock()
	if !waits { // the answer came just now
		if got, err := l.done(<-answer); err == nil {
			got.Done(model.Usage{}, model.Call{})
		}
	}
	return model.Lease{}, fmt.Errorf("the program has gone: %w", errdefs.ErrUnavailable)
}

// done returns what an answer means.
func (l *leases) done(x egressapi.Granted) (model.Lease, error) {
	switch {
	case x.Refused != "" && x.Later:
		return model.Lease{}, fmt.Errorf("%s: %w", x.Refused, errdefs.ErrUnavailable)
	case x.Refused != "":
		return model.Lease{}, fmt.Errorf("%s: %w", x.Refused, errdefs.ErrResourceExhausted)
	}
	return model.Lease{
		Progress: func(u model.Usage) { l.report(egressapi.Report{Progress: usageOf(x.ID, u)}) },
		Done: func(u model.Usage, c model.Call) {
			told := usageOf(x.ID, u)
			told.Call = callOf(c)
			l.report(egressapi.Report{Usage: told})
		},
	}, nil
}

func usageOf(id uint64, u model.Usage) *egressapi.Usage {
	return &egressapi.Usage{
		ID: id, Input: u.Input, Output: min(u.Output, egressapi.MostTokens), CachedInput: u.CachedInput, CacheWrite: u.CacheWrite,
		Unknown: u.Unknown,
	}
}

// callOf is what is told of a request that had a body; nil of another.
func callOf(c model.Call) *egressapi.Call {
	if c.Sent == "" {
		return nil
	}
	return &egressapi.Call{
		Sent: c.Sent, SentBytes: c.SentBytes, Came: c.Came, CameBytes: c.CameBytes, Status: c.Status, Whole: c.Whole,
	}
}

// granted takes an answer. It does not block.
func (l *leases) granted(x *egressapi.Granted) {
	l.mu.Lock()
	answer, known := l.open[x.ID]
	delete(l.open, x.ID)
	l.mu.Unlock()
	switch {
	case answer != nil:
		answer <- *x
	case known && x.Refused == "": // nothing was sent
		l.report(egressapi.Report{Usage: &egressapi.Usage{ID: x.ID}})
	}
}
