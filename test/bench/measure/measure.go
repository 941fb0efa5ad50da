// Package measure times contestants side by side: in rounds, a block of each after the
// other, so that what else the machine does meets all of them alike.
//
// It must not know what it times, nor judge the figures.
package measure

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Contestant is one thing to be timed.
type Contestant struct {
	Name string
	// Op does it once and returns how long that took, without what it prepared and
	// cleared away. It may be called from several goroutines at once by Throughput.
	Op func() (time.Duration, error)
	// Enter, if set, makes the calling thread ready; the thread does nothing but Op and
	// ends with the block.
	Enter func() error
}

// Timed makes the Op of something that is timed as a whole.
func Timed(f func() error) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		began := time.Now()
		err := f()
		return time.Since(began), err
	}
}

// Pace says how much is measured.
type Pace struct {
	// Rounds is how many blocks each contestant gets, Block how long one lasts.
	Rounds int
	Block  time.Duration
	// Warm is how many operations open a block without being counted: they pay for what
	// the contestant before has pushed out of the caches.
	Warm int
}

// Series is what was measured of one contestant.
type Series struct {
	Name string
	// Rounds are the times of each block.
	Rounds [][]time.Duration
	// Rates are operations a second in each block; only Throughput sets them.
	Rates []float64
	// Err ended the contestant's part.
	Err error
}

// Interleave times the contestants one operation at a time. Each round begins with
// another of them. One that errs takes no further part; the others go on. It ends early
// when ctx does, which is then the error of all.
func Interleave(ctx context.Context, p Pace, contestants []Contestant) []Series {
	return rounds(ctx, p, contestants, 1)
}

// Throughput is Interleave with so many workers at once in each block.
func Throughput(ctx context.Context, p Pace, workers int, contestants []Contestant) []Series {
	return rounds(ctx, p, contestants, workers)
}

func rounds(ctx context.Context, p Pace, contestants []Contestant, workers int) []Series {
	out := make([]Series, len(contestants))
	for i, c := range contestants {
		out[i].Name = c.Name
	}
	for r := range p.Rounds {
		for k := range contestants {
			i := (r + k) % len(contestants)
			if out[i].Err != nil {
				continue
			}
			times, rate, err := together(ctx, p, contestants[i], workers)
			if err != nil {
				out[i].Err = err
				continue
			}
			out[i].Rounds = append(out[i].Rounds, times)
			if workers > 1 {
				out[i].Rates = append(out[i].Rates, rate)
			}
		}
	}
	return out
}

// together is one block of a contestant. The rate counts what ended within it.
func together(ctx context.Context, p Pace, c Contestant, workers int) (times []time.Duration, rate float64, err error) {
	var (
		group sync.WaitGroup
		ready sync.WaitGroup
		start = make(chan struct{})
		began time.Time
		each  = make([][]time.Duration, workers)
		errs  = make([]error, workers)
	)
	ready.Add(workers)
	for w := range workers {
		group.Go(func() {
			errs[w] = warmUp(p, c)
			ready.Done()
			<-start
			if errs[w] == nil {
				each[w], errs[w] = block(ctx, c, began.Add(p.Block))
			}
		})
	}
	ready.Wait()
	began = time.Now()
	close(start)
	group.Wait()
	took := time.Since(began)
	for _, e := range errs {
		if e != nil {
			return nil, 0, fmt.Errorf("cannot measure %s: %w", c.Name, e)
		}
	}
	times = slices.Concat(each...)
	return times, float64(len(times)) / took.Seconds(), nil
}

// warmUp makes the calling goroutine ready for a block of c.
func warmUp(p Pace, c Contestant) error {
	if c.Enter != nil {
		runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
		if err := c.Enter(); err != nil {
			return err
		}
	}
	for range p.Warm {
		if _, err := c.Op(); err != nil {
			return err
		}
	}
	return nil
}

// block repeats the operation until the time has come, at least once.
func block(ctx context.Context, c Contestant, until time.Time) ([]time.Duration, error) {
	times := make([]time.Duration, 0, 1024)
	for {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		d, err := c.Op()
		if err != nil {
			return nil, err
		}
		times = append(times, d)
		if !time.Now().Before(until) {
			return times, nil
		}
	}
}

// All are the times of all rounds.
func (s Series) All() []time.Duration { return slices.Concat(s.Rounds...) }

// Quantile is the least value that a share q of values does not exceed, by nearest rank;
// 0 if there are none. q is in (0, 1].
func Quantile[T time.Duration | float64](values []T, q float64) T {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	return v[max(int(math.Ceil(q*float64(len(v)))), 1)-1]
}

// Ratios are, round by round, a's median over b's, or a's rate over b's if both have
// rates.
func Ratios(a, b Series) []float64 {
	var out []float64
	if len(a.Rates) > 0 && len(b.Rates) > 0 {
		for i := range min(len(a.Rates), len(b.Rates)) {
			out = append(out, a.Rates[i]/b.Rates[i])
		}
		return out
	}
	for i := range min(len(a.Rounds), len(b.Rounds)) {
		out = append(out, float64(Quantile(a.Rounds[i], 0.5))/float64(Quantile(b.Rounds[i], 0.5)))
	}
	return out
}
