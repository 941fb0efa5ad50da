package shares_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carrel-dev/carrel/internal/base/shares"
)

func TestTake(t *testing.T) {
	b := shares.New(10, 15, 3)
	for i, c := range []struct {
		owner string
		n     int64
		want  bool
	}{
		{"alice", 11, false}, {"alice", 10, true}, {"alice", 1, false}, // her own bound
		{"bob", 5, true}, {"bob", 1, false}, // that of all
		{"carol", 4, false}, {"carol", 3, true}, {"carol", 1, false}, // her first piece
	} {
		if got := b.Take(c.owner, c.n); got != c.want {
			t.Errorf("%d: %s takes %d: %v", i, c.owner, c.n, got)
		}
	}
	b.Give("alice", 10)
	if !b.Take("bob", 5) || b.Held("bob") != 10 || b.Held("alice") != 0 {
		t.Errorf("after alice gave: %d, %d", b.Held("bob"), b.Held("alice"))
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := shares.New(10, 10, 1)
		b.Take("alice", 8)
		if ok, err := b.Wait(t.Context(), "alice", 11); ok || err != nil {
			t.Errorf("more than can be: %v, %v", ok, err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if ok, err := b.Wait(short, "alice", 5); ok || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("nothing was given: %v, %v", ok, err)
		}
		time.AfterFunc(time.Second, func() { b.Give("alice", 4) })
		if ok, err := b.Wait(t.Context(), "alice", 5); !ok || err != nil || b.Held("alice") != 9 {
			t.Errorf("after it was given: %v, %v, %d", ok, err, b.Held("alice"))
		}
	})
}
