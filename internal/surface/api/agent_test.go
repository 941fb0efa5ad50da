package api_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// ServeHosts has the client that serves run one command, and takes what it says of it.
func (g *carryingGate) ServeHosts(ctx context.Context, p principal.Principal, ref string, task id.Command, h runtime.Hosts) (
	func(), <-chan struct{}, error,
) {
	_, _, _ = g.Recorder.ServeHosts(ctx, p, ref, task, h) // it is noted, and goes on here
	over := make(chan struct{})
	ran, patched := &waited{Context: ctx, by: make(chan struct{})}, &waited{Context: ctx, by: make(chan struct{})}
	var first, second string
	var both sync.WaitGroup
	both.Go(func() {
		r, err := h.RunOn(ran, runtime.HostCommand{
			Remote: true, Name: "web-1", Argv: []string{"id"}, Timeout: time.Minute, MaxOutput: 4, Path: "/a",
		})
		first = fmt.Sprintf("%s %s %d %s %s %v", r.Stdout, r.Stderr, r.Lost, r.Held, r.Path, err)
		if s := r.Status; s != nil {
			first += fmt.Sprintf(" %d %d %v", s.Code, s.Signal, s.TimedOut)
		}
	})
	<-ran.by // the answers may come at once
	both.Go(func() {
		p, err := h.Patch(patched, runtime.HostPatch{Text: "a patch", Remote: "web-1"})
		second = fmt.Sprintf(" %s %s %s %s %v %s %s %s %v", p.Digest, p.Diff, p.Files, p.Risks, p.Parts, p.ID, p.Merged, p.Made, err)
	})
	<-patched.by
	g.joined.Go(func() {
		defer close(over)
		both.Wait()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.received = []byte(first + second)
	})
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
