package bucket_test

import (
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/base/bucket"
)

func TestTake(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	b := bucket.Bound{Burst: 3, Every: time.Minute}
	var full time.Time
	for i := range 5 {
		then, wait := b.Take(full, now)
		if got := wait > 0; got != (i >= 3) || got && wait != time.Minute || got && !then.Equal(full) {
			t.Errorf("%d: %v, %v", i, then, wait)
		}
		full = then
	}
	if _, wait := b.Take(full, now.Add(time.Minute)); wait != 0 {
		t.Errorf("a minute later: %v", wait)
	}
	if _, wait := (bucket.Bound{}).Take(time.Time{}, now); wait != 0 {
		t.Errorf("without a bound: %v", wait)
	}
}

// However many keys there are, those that are full are forgotten, and those beyond the bound share one.
func TestMany(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	m := bucket.NewMany[int](10)
	b := bucket.Bound{Burst: 1, Every: time.Second}
	taken := 0
	for k := range 100 {
		if m.Take(k+1, b, now) == 0 {
			taken++
		}
	}
	if taken != 11 || m.Len() != 11 {
		t.Errorf("%d were taken, %d are kept", taken, m.Len())
	}
	if m.Take(1, b, now) == 0 || m.Take(99, b, now.Add(time.Hour)) != 0 || m.Len() != 1 {
		t.Errorf("%d are kept after an hour", m.Len())
	}
}
