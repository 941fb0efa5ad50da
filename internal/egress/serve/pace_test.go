package serve_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carrel-dev/carrel/internal/egress/serve"
)

// The host's name server is asked at a pace, and who would wait for too long is told why.
func TestNamesArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		resolve := serve.Answers(func(context.Context, string) ([]netip.Addr, error) {
			asked++
			return []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, 1})}, nil
		})
		began := time.Now()
		for i := range 1000 {
			if _, err := resolve(t.Context(), fmt.Sprintf("%d.example", i)); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); asked != 1000 || took < 15*time.Second || took > 20*time.Second {
			t.Errorf("%d names were asked for in %v", asked, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := resolve(ctx, "late.example"); err == nil || !strings.Contains(err.Error(), "too many names") || asked != 1000 {
			t.Errorf("%v", err)
		}
	})
}
