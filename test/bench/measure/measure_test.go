package measure_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carrel-dev/carrel/test/bench/measure"
)

// sleeper takes so long each time and notes who was called.
func sleeper(name string, d time.Duration, calls *[]string, mu *sync.Mutex) measure.Contestant {
	return measure.Contestant{Name: name, Op: measure.Timed(func() error {
		<-time.After(d)
		mu.Lock()
		defer mu.Unlock()
		*calls = append(*calls, name)
		return nil
	})}
}

func TestInterleaveTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []string
		var mu sync.Mutex
		p := measure.Pace{Rounds: 3, Block: 20 * time.Millisecond, Warm: 1}
		got := measure.Interleave(t.Context(), p, []measure.Contestant{
			sleeper("a", 10*time.Millisecond, &calls, &mu), sleeper("b", 5*time.Millisecond, &calls, &mu),
		})
		// Each round: one warm-up and what fits in 20 ms, and another one first.
		a, b := []string{"a", "a", "a"}, []string{"b", "b", "b", "b", "b"}
		if want := slices.Concat(a, b, b, a, a, b); !slices.Equal(calls, want) {
			t.Errorf("called %v, want %v", calls, want)
		}
		for i, want := range []struct {
			n  int
			at time.Duration
		}{{6, 10 * time.Millisecond}, {12, 5 * time.Millisecond}} {
			all := got[i].All()
			if len(all) != want.n || slices.Min(all) != want.at || slices.Max(all) != want.at {
				t.Errorf("%s: %v, want %d times %v", got[i].Name, all, want.n, want.at)
			}
		}
		if r := measure.Ratios(got[0], got[1]); !slices.Equal(r, []float64{2, 2, 2}) {
			t.Errorf("ratios %v, want 2 in each of 3 rounds", r)
		}
	})
}

func TestThroughputCountsAllWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []string
		var mu sync.Mutex
		p := measure.Pace{Rounds: 2, Block: 100 * time.Millisecond}
		got := measure.Throughput(t.Context(), p, 8, []measure.Contestant{
			sleeper("a", 10*time.Millisecond, &calls, &mu), sleeper("b", 20*time.Millisecond, &calls, &mu),
		})
		if !slices.Equal(got[0].Rates, []float64{800, 800}) || !slices.Equal(got[1].Rates, []float64{400, 400}) {
			t.Errorf("rates %v and %v, want 800 and 400", got[0].Rates, got[1].Rates)
		}
		if r := measure.Ratios(got[0], got[1]); !slices.Equal(r, []float64{2, 2}) {
			t.Errorf("ratios %v, want 2", r)
		}
	})
}

// What fails must not be measured as fast.
func TestAFailureIsNoTime(t *testing.T) {
	broken := errors.New("broken")
	var n, entered atomic.Int64
	ok := func() (time.Duration, error) { return time.Millisecond, nil }
	for name, c := range map[string]measure.Contestant{
		"operation": {Op: func() (time.Duration, error) {
			if n.Add(1) == 5 {
				return time.Nanosecond, broken
			}
			return time.Millisecond, nil
		}},
		"entering": {Op: ok, Enter: func() error { entered.Add(1); return broken }},
	} {
		got := measure.Interleave(
			t.Context(), measure.Pace{Rounds: 3, Block: time.Millisecond, Warm: 1}, []measure.Contestant{c, {Name: "ok", Op: ok}},
		)
		if !errors.Is(got[0].Err, broken) {
			t.Errorf("%s: error %v, want %v", name, got[0].Err, broken)
		}
		if got[1].Err != nil || len(got[1].Rounds) != 3 {
			t.Errorf("%s: the other one has %d rounds and error %v, want 3 and none", name, len(got[1].Rounds), got[1].Err)
		}
	}
	if n.Load() != 5 || entered.Load() != 1 {
		t.Errorf("called %d times and entered %d times, want no more after the failure", n.Load(), entered.Load())
	}
}

func TestInterruption(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	got := measure.Interleave(ctx, measure.Pace{Rounds: 1 << 20, Block: time.Hour}, []measure.Contestant{{Op: func() (time.Duration, error) {
		cancel()
		return 0, nil
	}}})
	if !errors.Is(got[0].Err, context.Canceled) {
		t.Errorf("error %v, want that of the context", got[0].Err)
	}
}

func TestQuantile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	for _, c := range []struct {
		values []time.Duration
		q      float64
		want   time.Duration
	}{
		{nil, 0.5, 0},
		{[]time.Duration{7}, 0.99, 7},
		{[]time.Duration{3, 1, 2}, 0.5, 2},
		{[]time.Duration{4, 1, 2, 3}, 0.5, 2},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
		{hundred, 0.001, 1},
	} {
		if got := measure.Quantile(c.values, c.q); got != c.want {
			t.Errorf("the %v quantile of %d values is %v, want %v", c.q, len(c.values), got, c.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("the values were reordered")
	}
}
