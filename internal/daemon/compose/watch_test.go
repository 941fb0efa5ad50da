package compose_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Who watches is told of what is theirs, the first time it happens, also after much more than is kept has
// happened to others meanwhile, and without being told that something was lost.
func TestOthersEventsAreNotLostOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		type told struct {
			ev   workspace.Event
			lost int64
		}
		got := map[string]chan told{}
		for name, p := range map[string]principal.Principal{"alice": alice, "bob": bob, "admin": admin} {
			c := make(chan told, 20_000)
			got[name] = c
			go func() {
				_ = h.Watch(ctx, p, nil, 0, func(ev workspace.Event, lost int64) error { c <- told{ev, lost}; return nil })
			}()
		}
		synctest.Wait()
		const others = 10_000 // more than twice what is kept
		for range others / 100 {
			for range 100 {
				h.Add(workspace.Event{Kind: "command.exec", Workspace: "ws-00000001", Key: "bobs", Owner: bob.Owner(), Time: time.Now()})
			}
			synctest.Wait() // who is woken reads
		}
		h.Add(workspace.Event{Kind: "workspace.stop", Workspace: "ws-00000002", Key: "alices", Owner: alice.Owner(), Time: time.Now()})
		synctest.Wait()
		if n := len(got["bob"]); n != others {
			t.Errorf("bob is told of %d of %d", n, others)
		}
		if n := len(got["admin"]); n != others+1 {
			t.Errorf("the administrator is told of %d of %d", n, others+1)
		}
		if n := len(got["alice"]); n != 1 {
			t.Fatalf("alice is told of %d", n)
		}
		if x := <-got["alice"]; x.ev.Kind != "workspace.stop" || x.lost != 0 {
			t.Errorf("alice is told of %s, with %d lost", x.ev.Kind, x.lost)
		}
		cancel()
		synctest.Wait()
	})
}
