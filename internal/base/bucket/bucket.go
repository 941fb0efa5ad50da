// Package bucket bounds how often something may be done: so many times at once, and once each interval in the
// long run. A bucket is kept as one time, at which it will be full again, so that one that is full need not be
// kept at all.
//
// It must not look at a clock, or say what was refused.
package bucket

import (
	"maps"
	"time"
)

// Bound is how many times at once, and how long each takes to come back. An Every of 0 bounds nothing.
type Bound struct {
	Burst int
	Every time.Duration
}

// Take takes one from a bucket that is full again at a time, and returns when it is then. If there is none,
// wait is after what time there is one, and the bucket is as it was.
func (b Bound) Take(full, now time.Time) (then time.Time, wait time.Duration) {
	if full.Before(now) {
		full = now
	}
	if wait = full.Sub(now) - time.Duration(b.Burst-1)*b.Every; wait > 0 {
		return full, wait
	}
	return full.Add(b.Every), 0
}

// Many are the buckets of many keys. Not more than so many are kept; the other keys share that of the zero
// key. Its methods must not be called concurrently.
type Many[K comparable] struct {
	most int
	full map[K]time.Time
}

// NewMany returns buckets for so many keys, all full.
func NewMany[K comparable](most int) *Many[K] { return &Many[K]{most, map[K]time.Time{}} }

// Take is Bound.Take for the bucket of a key.
func (m *Many[K]) Take(key K, b Bound, now time.Time) (wait time.Duration) {
	if _, known := m.full[key]; !known && len(m.full) >= m.most {
		maps.DeleteFunc(m.full, func(_ K, full time.Time) bool { return full.Before(now) })
		if len(m.full) >= m.most {
			var others K
			key = others
		}
	}
	then, wait := b.Take(m.full[key], now)
	if wait == 0 {
		m.full[key] = then
	}
	return wait
}

// Len is how many are not known to be full.
func (m *Many[K]) Len() int { return len(m.full) }
