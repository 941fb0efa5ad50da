package serve_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carrel-dev/carrel/internal/egress/serve"
)

// An answer is used again for seconds, and an error is not.
func TestAnswersAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, broken := 0, errors.New("broken")
		var fails bool
		resolve := serve.Answers(func(context.Context, string) ([]netip.Addr, error) {
			asked++
			if fails {
				return nil, broken
			}
			return []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(asked)})}, nil
		})
		look := func(name string, want int) {
			t.Helper()
			got, err := resolve(t.Context(), name)
			if err != nil || len(got) != 1 || got[0] != netip.AddrFrom4([4]byte{192, 0, 2, byte(want)}) {
				t.Fatalf("%v, %v, not answer %d", got, err, want)
			}
		}
		look("a.example", 1)
		look("a.example", 1)
		look("b.example", 2)
		<-time.After(serve.KeepAnswers)
		look("a.example", 3)
		fails = true
		if _, err := resolve(t.Context(), "c.example"); !errors.Is(err, broken) {
			t.Fatal(err)
		}
		fails = false
		look("c.example", 5)
		for i := range 2 * serve.MostAnswers {
			if _, err := resolve(t.Context(), fmt.Sprintf("%d.example", i)); err != nil {
				t.Fatal(err)
			}
		}
		before := asked
		if _, err := resolve(t.Context(), "0.example"); err != nil || asked != before+1 {
			t.Errorf("what was asked first is kept for ever: %v", err)
		}
	})
}
