package api_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/operation"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/runtime"
)

// ServeHosts has the client that serves run one command, and takes what it says of it.
func (g *carryingGate) ServeHosts(ctx context.Context, p principal.Principal, ref string, task id.Command, h runtime.Hosts) (
	func(), <-chan struct{}, error,
) {
	_, _, _ = g.Recorder.ServeHosts(ctx, p, ref, task, h) // it is noted, and goes on here
	over := make(chan struct{})
	waits := &waited{Context: ctx, by: make(chan struct{})}
	g.joined.Go(func() {
		defer close(over)
		r, err := h.RunOn(waits, runtime.HostCommand{
			Kind: operation.Remote, Name: "web-1", Argv: []string{"id"}, Timeout: time.Minute, MaxOutput: 4,
		})
		g.mu.Lock()
		defer g.mu.Unlock()
		g.received = fmt.Appendf(nil, "%s %s %d %s %v", r.Stdout, r.Stderr, r.Lost, r.Held, err)
		if s := r.Status; s != nil {
			g.received = fmt.Appendf(g.received, " %d %d %v", s.Code, s.Signal, s.TimedOut)
		}
	})
	<-waits.by // the answer may come at once
	return func() {}, over, nil
}

// waited is a context that tells when somebody waits for its end.
type waited struct {
	context.Context

	once sync.Once
	by   chan struct{}
}

func (w *waited) Done() <-chan struct{} {
	w.once.Do(func() { close(w.by) })
	return w.Context.Done()
}
