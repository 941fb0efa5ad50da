package keeper_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// What is open is told in parts. A part that comes late is for nobody.
func TestOpen(t *testing.T) {
	x := newFake(t, nil)
	type answer struct {
		all []egressapi.Connection
		err error
	}
	ask := func(ctx context.Context) <-chan answer {
		got := make(chan answer, 1)
		go func() {
			all, err := x.Open(ctx)
			got <- answer{all, err}
		}()
		return got
	}
	got := ask(t.Context())
	list := x.line(t).List
	if list == nil {
		t.Fatal("it does not ask")
	}
	some := []egressapi.Connection{{Host: "a"}, {Host: "b"}}
	x.say(egressapi.Report{Open: &egressapi.Open{ID: list.ID + 1, List: some, Last: true}}) // for another question
	x.say(egressapi.Report{Open: &egressapi.Open{ID: list.ID, List: some}})
	x.say(egressapi.Report{Open: &egressapi.Open{ID: list.ID, List: some[:1], Last: true}})
	if a := <-got; a.err != nil || len(a.all) != 3 || a.all[2].Host != "a" {
		t.Errorf("%+v", a)
	}
	// A process that does not answer holds up nobody for longer than he waits, and is asked again.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	late := ask(ctx)
	earlier := x.line(t).List
	if a := <-late; !errors.Is(a.err, context.DeadlineExceeded) || !strings.Contains(a.err.Error(), "did not answer in time") {
		t.Errorf("%+v", a)
	}
	x.say(egressapi.Report{Open: &egressapi.Open{ID: earlier.ID, List: some, Last: true}})
	got = ask(t.Context())
	list = x.line(t).List
	x.say(egressapi.Report{Open: &egressapi.Open{ID: list.ID, Last: true}})
	if a := <-got; a.err != nil || len(a.all) != 0 {
		t.Errorf("%+v", a)
	}
	// One that ends has nothing open.
	got = ask(t.Context())
	x.line(t)
	x.far.Close()
	if a := <-got; a.err != nil || len(a.all) != 0 {
		t.Errorf("%+v", a)
	}
}

// A process that was taken over is ended when it breaks the rules of the messages.
func TestHostileOpen(t *testing.T) {
	for name, attack := range map[string]egressapi.Open{
		"without end":    {List: make([]egressapi.Connection, egressapi.OpenEach)},
		"empty, forever": {},
	} {
		x := newFake(t, nil)
		go func() { _, _ = x.Open(t.Context()) }()
		attack.ID = x.line(t).List.ID
		for range egressapi.MostOpen/egressapi.OpenEach + 1 {
			x.say(egressapi.Report{Open: &attack})
		}
		select {
		case err := <-x.ended:
			if !strings.Contains(err.Error(), "more connections than it can have") {
				t.Errorf("%s: it was ended because %v", name, err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: it goes on", name)
		}
	}
}
