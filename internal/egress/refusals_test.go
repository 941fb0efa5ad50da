package egress_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carrel-dev/carrel/internal/egress"
)

// The first of equal refusals is recorded at once, and the others together when the window ends.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []egress.Connection
		r := egress.NewRefusals(func(c egress.Connection) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, c)
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = r.Run(ctx) }()
		began := time.Now()
		add := func(why string) { r.Add(egress.Connection{Began: time.Now(), Way: egress.WayDNS, Refused: why}) }
		counts := func(want ...int64) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			var all []int64
			for _, c := range got {
				all = append(all, c.Count)
			}
			if fmt.Sprint(all) != fmt.Sprint(want) {
				t.Errorf("after %s the counts are %v, not %v", time.Since(began), all, want)
			}
		}
		add("a")
		add("b")
		counts(1, 1)
		time.Sleep(time.Second) //nolint:forbidigo // the test's own time
		for range 99 {
			add("a")
			time.Sleep(10 * time.Millisecond) //nolint:forbidigo // the test's own time
		}
		counts(1, 1)
		time.Sleep(2 * egress.RefusalWindow) //nolint:forbidigo // the test's own time
		counts(1, 1, 99)
		if c := got[2]; !c.Began.Equal(began.Add(time.Second)) || c.Duration != 980*time.Millisecond || c.Refused != "a" {
			t.Errorf("recorded %+v", c)
		}
		time.Sleep(3 * egress.RefusalWindow) //nolint:forbidigo // the test's own time
		if n := r.Held(); n != 0 {
			t.Errorf("%d are held", n)
		}
		add("a")
		counts(1, 1, 99, 1)
		for i := range 10 * egress.MostRefusals {
			add(fmt.Sprint("many ", i))
		}
		synctest.Wait()
		if n := len(got); n != 4+egress.MostRefusals || r.Held() != egress.MostRefusals+1 {
			t.Errorf("%d are recorded, %d held", n, r.Held())
		}
		cancel()
		synctest.Wait()
		r.Flush()
		if c := got[len(got)-1]; c.Count != 9*egress.MostRefusals {
			t.Errorf("the last is %+v", c)
		}
	})
}
