package authn_test

import (
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// Who connects without end gets so many connections at once and so many a second, and nobody else gets fewer.
func TestConnectionsHaveAPace(t *testing.T) {
	f := authn.Fair(nil)
	now := time.Unix(1_790_000_000, 0)
	taken := 0
	for range 100_000 {
		if authn.Admits(f, 1000, now) {
			taken++
		}
	}
	if taken != 512 {
		t.Errorf("%d at once", taken)
	}
	if !authn.Admits(f, 1001, now) || !authn.Admits(f, 0, now) {
		t.Error("others are refused too")
	}
	taken = 0
	for range 1000 {
		now = now.Add(time.Millisecond)
		if authn.Admits(f, 1000, now) {
			taken++
		}
	}
	if taken < 127 || taken > 129 {
		t.Errorf("%d in the second after", taken)
	}
	// However many users there are, they are forgotten again.
	for uid := range uint32(10_000) {
		authn.Admits(f, 100_000+uid, now)
	}
	if n := authn.Remembered(f); n > 4097 {
		t.Errorf("%d users are remembered", n)
	}
	if !authn.Admits(f, 5000, now.Add(time.Hour)) || !authn.Admits(f, 1000, now.Add(time.Hour)) {
		t.Error("after an hour they are not forgotten")
	}
}
