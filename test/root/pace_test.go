package root_test

import (
	"crypto/rand"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// A daemon that creates and destroys in a loop, on many connections, spends no more ids than the
// settings allow, also after the broker was started again.
func TestBrokerPaceHoldsTheDaemon(t *testing.T) {
	b := newBrokerWith(t, map[string]any{"create_burst": 4, "create_per_hour": 1})
	loop := func() (made int64) {
		var count atomic.Int64
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				w := b.greeted(t)
				defer w.Close()
				for {
					name := id.Derive("crt", id.Key(rand.Text()), 0)
					w.say(request(1, "create", fmt.Sprintf(`{"name":%q,"key_digest":%q,"limits":%s}`, name, digest, limits)))
					l := w.line(t)
					if !strings.Contains(l, `"stopped"`) {
						if !strings.Contains(l, `"resource_exhausted"`) || !strings.Contains(l, "try again in ") || !strings.Contains(l, "create_per_hour") {
							t.Errorf("create: %s", l)
						}
						return
					}
					count.Add(1)
					w.say(request(2, "destroy", fmt.Sprintf(`{"name":%q,"purge":true}`, name)))
					if l := w.line(t); !strings.Contains(l, `"destroyed"`) {
						t.Errorf("destroy: %s", l)
						return
					}
				}
			})
		}
		wg.Wait()
		return count.Load()
	}
	if made := loop(); made != 4 {
		t.Errorf("%d were made", made)
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	if made := loop(); made != 0 {
		t.Errorf("after a new start %d more were made", made)
	}
	if l := b.ask(t, "list", "{}"); !strings.Contains(l, `"workspaces":[]`) {
		t.Errorf("the broker answers %s", l)
	}
}

// A daemon that asks for what is refused, again and again, and connects and goes, does not fill the
// disk with the broker's log; and a log that is large is moved aside.
func TestBrokerLogStaysSmall(t *testing.T) {
	b := newBroker(t)
	size := func(name string) int64 {
		fi, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Size()
	}
	const asked = 5000
	for range 5 {
		w := b.greeted(t)
		for range asked / 5 {
			w.say(request(1, "stats", `{"name":"crt-0123abcd"}`))
			if l := w.line(t); !strings.Contains(l, `"error"`) {
				t.Fatalf("stats: %s", l)
			}
		}
		w.Close()
	}
	if n := size(b.log); n > 32<<10 {
		t.Errorf("%d questions that were refused make a log of %d bytes", asked, n)
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(b.log)
	if m := regexp.MustCompile(`left out.*like=refused.* count=(\d+)`).FindSubmatch(log); err != nil || m == nil || len(m[1]) != 4 {
		t.Errorf("%v: what was left out is not counted:\n%s", err, log)
	}
	if err := os.Truncate(b.log, 20<<20); err != nil {
		t.Fatal(err)
	}
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	w := b.greeted(t)
	defer w.Close()
	w.say(request(1, "stats", `{"name":"crt-0123abcd"}`))
	_ = w.line(t)
	if n, old := size(b.log), size(b.log+".1"); n > 4<<10 || old > 16<<20 || old == 0 {
		t.Errorf("after a rotation: %d and %d bytes", n, old)
	}
}
