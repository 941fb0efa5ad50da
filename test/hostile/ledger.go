package main

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
)

// operationTime bounds each operation of an honest owner. One that takes longer has failed.
const operationTime = time.Minute

// operations in the order of the report.
var operations = []string{"create", "exec", "expire", "archive", "destroy"}

// ledger has what became of the operations of a phase.
type ledger struct {
	h *host
	// base ends with the run. What was begun in a phase goes on beyond the end of that.
	base context.Context
	mu   sync.Mutex
	// times are of operations that nothing was killed under.
	times map[string][]time.Duration
	// refused are those that met a bound that the error names, failed the other errors, and over
	// those under which the daemon or the broker was killed: they are repeated until they are done.
	refused, failed, over map[string]int
	errors                map[string]int
}

func newLedger(ctx context.Context, h *host) *ledger {
	return &ledger{
		h: h, base: ctx, times: map[string][]time.Duration{}, refused: map[string]int{}, failed: map[string]int{}, over: map[string]int{},
		errors: map[string]int{},
	}
}

// do does an operation and reports whether it was done.
func (l *ledger) do(ctx context.Context, name string, f func(context.Context) error) bool {
	return l.from(ctx, name, time.Time{}, f)
}

// from is do, with a time from which it is measured if that is not zero.
func (l *ledger) from(ctx context.Context, name string, began time.Time, f func(context.Context) error) bool {
	if !pause(ctx, between) {
		return false
	}
	for {
		generation, start := l.h.killed.Load(), began
		if start.IsZero() {
			start = time.Now()
		}
		one, cancel := context.WithTimeout(l.base, operationTime)
		err := f(one)
		took := time.Since(start)
		cancel()
		quiet := generation%2 == 0 && generation == l.h.killed.Load()
		if again := l.note(name, took, quiet, err); !again {
			return err == nil
		}
		for l.h.killed.Load()%2 == 1 {
			if !pause(ctx, between) {
				return false
			}
		}
	}
}

// note counts an attempt and reports whether it is to be repeated.
func (l *ledger) note(name string, took time.Duration, quiet bool, err error) (again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil && quiet:
		l.times[name] = append(l.times[name], took)
	case err == nil:
		l.over[name]++
	case connect.CodeOf(err) == connect.CodeResourceExhausted:
		l.refused[name]++
	case !quiet && connect.CodeOf(err) != connect.CodeDeadlineExceeded:
		l.over[name]++
		return true
	default:
		l.failed[name]++
	}
	if err != nil {
		l.errors[name+": "+plain(err)]++
	}
	return false
}

// changing are the words of errors that differ each time.
var changing = regexp.MustCompile(`"[^"]*"|\b(hst[0-9a-f]+|c|a)-[0-9a-f]{4,}\b|[0-9]+(\.[0-9]+)?`)

// plain is an error without the words that differ each time.
func plain(err error) string { return changing.ReplaceAllString(err.Error(), "…") }

// texts are the errors, most frequent first.
func (l *ledger) texts() (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	type count struct {
		text string
		n    int
	}
	var counts []count
	for text, n := range l.errors {
		counts = append(counts, count{text, n})
	}
	slices.SortFunc(counts, func(a, b count) int { return cmp.Or(b.n-a.n, cmp.Compare(a.text, b.text)) })
	for _, c := range counts {
		all = append(all, fmt.Sprintf("%d × %s", c.n, c.text))
	}
	return all
}

// pause waits, and is false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
