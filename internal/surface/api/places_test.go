package api_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carrel-dev/carrel/internal/surface/api"
)

// atWork has n requests of an owner take a place each, at once, and says how many have one.
type atWork struct {
	p     *api.Places
	taken map[string]int
	came  chan string
}

func newAtWork(most int) *atWork {
	return &atWork{p: api.NewPlaces(most), taken: map[string]int{}, came: make(chan string, 1000)}
}

// pass lets time pass, which is a test's own.
func pass(d time.Duration) { <-time.After(d) }

func (w *atWork) come(ctx context.Context, t *testing.T, owner string, n int, work time.Duration) {
	for range n {
		go func() {
			at, err := w.p.Take(ctx, owner)
			if err != nil {
				t.Error(err)
				return
			}
			w.came <- owner
			pass(work)
			at.Give()
		}()
	}
}

func (w *atWork) count() map[string]int {
	synctest.Wait()
	for {
		select {
		case o := <-w.came:
			w.taken[o]++
		default:
			return w.taken
		}
	}
}

// One owner's many wait for each other; another's request comes at once, and each further one after one of each other
// owner's at most.
func TestPlacesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAtWork(2)
		w.come(t.Context(), t, "many", 100, time.Millisecond)
		if n := w.count(); n["many"] != 2 {
			t.Fatalf("of 100 requests %d are at work, want 2", n["many"])
		}
		w.come(t.Context(), t, "few", 3, time.Millisecond)
		if n := w.count(); n["few"] != 1 {
			t.Errorf("of an owner with none %d requests are at work, want 1 at once", n["few"])
		}
		pass(3 * time.Millisecond)
		if n := w.count(); n["few"] != 3 || n["many"] > 8 {
			t.Errorf("after three rounds there were %v, want all 3 of the few", n)
		}
		pass(time.Second)
		if n := w.count(); n["many"] != 100 {
			t.Errorf("in the end %v had a place", n)
		}
		if !w.p.Unused() {
			t.Errorf("something is left: %+v", w.p)
		}
	})
}

// What takes long keeps no place from others for longer than its quantum, also where nobody gives one back.
func TestPlacesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAtWork(2)
		w.come(t.Context(), t, "long", 6, time.Hour)
		if n := w.count(); n["long"] != 2 {
			t.Fatalf("%d are at work, want 2", n["long"])
		}
		for round := 2; round <= 3; round++ {
			pass(api.Quantum)
			if n := w.count(); n["long"] != 2*round {
				t.Errorf("after %d times the quantum %d have been at work", round-1, n["long"])
			}
		}
		pass(2 * time.Hour)
		w.count()
	})
}

// A stream gives its place back and takes another with each message, and loses none by it.
func TestPlacesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAtWork(1)
		at, err := w.p.Take(t.Context(), "stream")
		if err != nil {
			t.Fatal(err)
		}
		w.come(t.Context(), t, "stream", 1, time.Millisecond)
		w.count()
		for range 5 {
			if err := at.Again(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := w.count(); n["stream"] != 1 {
			t.Errorf("the other request of the owner waits for the whole stream: %v", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		w.come(t.Context(), t, "stream", 5, time.Hour)
		w.count()
		cancel()
		if err := at.Again(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("a stream whose client is gone: %v", err)
		}
		at.Give()
		at.Give()
		pass(2 * time.Hour)
		if n := w.count(); n["stream"] != 6 || !w.p.Unused() {
			t.Errorf("%v came, and left is %+v", n, w.p)
		}
	})
}

// Who goes while waiting takes no place along.
func TestPlacesOfThoseWhoGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAtWork(1)
		w.come(t.Context(), t, "a", 1, 5*time.Millisecond)
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 20)
		for i := range 20 {
			go func() { _, err := w.p.Take(ctx, fmt.Sprint("a", i%2)[:1]); gone <- err }()
		}
		synctest.Wait()
		cancel()
		for range 20 {
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Errorf("who goes gets %v", err)
			}
		}
		w.come(t.Context(), t, "b", 1, time.Millisecond)
		pass(time.Second)
		if n := w.count(); n["b"] != 1 || !w.p.Unused() {
			t.Errorf("%v came, and left is %+v", n, w.p)
		}
	})
}

func BenchmarkPlace(b *testing.B) {
	p := api.NewPlaces(8)
	for b.Loop() {
		at, err := p.Take(b.Context(), "owner")
		if err != nil {
			b.Fatal(err)
		}
		at.Give()
	}
}
