package root_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
)

func (d *desk) socket() string { return d.h.run + "/x/" + d.Name + ".sock" }

// greeted is a connection to the executor as the daemon's, which root may make too.
func (d *desk) greeted(t testing.TB, role string) *wire {
	t.Helper()
	w := dial(t, d.socket(), 0)
	w.say(request(0, "hello", fmt.Sprintf(`{"version":3,"min_version":3,"role":%q}`, role)))
	if l := w.line(t); !strings.Contains(l, d.Name) {
		t.Fatalf("hello: %q", l)
	}
	return w
}

func TestExecutorRefusesWhoItDoesNotServe(t *testing.T) {
	d := shared.desk(t)
	for _, uid := range []uint32{d.UID, d.AgentUID, d.ExecutorUID, 61998} {
		w, err := dialAs(d.socket(), uid)
		if !errors.Is(err, unix.EACCES) {
			t.Errorf("uid %d comes to the socket: %v", uid, err)
		}
		if err == nil {
			_ = w.Close()
		}
	}
	d.well(t)
}

func TestExecutorUnderAttack(t *testing.T) {
	d := shared.desk(t)
	open := held(t, d.ExecutorPID)
	var together sync.WaitGroup // as commands of the attacks sometimes are
	for range 4 {
		together.Go(func() { d.try("sleep", "0.3") })
	}
	together.Wait()
	for _, role := range []string{"", "spawn"} {
		t.Run("role "+role, func(t *testing.T) {
			for what, text := range garbage {
				if strings.Contains(what, "unknown method") {
					continue // answered, as below
				}
				w := d.greeted(t, role)
				w.say(text)
				if l := w.line(t); strings.Contains(l, `"result"`) {
					t.Errorf("%s: %q", what, l)
				}
				_ = w.Close()
			}
			for what, text := range map[string]string{
				"an unknown method": request(1, "reboot", "{}"),
				"hello twice":       request(1, "hello", `{"version":9,"min_version":9}`),
				"a bad id":          request(1, "exec", `{"id":"../../x","argv":["id"]}`),
				"no argv":           request(1, "exec", `{"id":"c-0123456789abcdef"}`),
				"argv of numbers":   request(1, "exec", `{"id":"c-0123456789abcdef","argv":[1]}`),
				"uid of its choice": request(1, "exec", `{"id":"c-0123456789abcdef","argv":["id"],"uid":0}`),
				"a wrong stream":    request(1, "exec", `{"id":"c-0123456789abcdef","argv":["id"],"stdout":"fd"}`),
				"a signal too high": request(1, "stop_task", `{"id":"c-0123456789abcdef","signal":1000}`),
				"a size too large":  request(1, "resize", `{"id":"c-0123456789abcdef","rows":70000,"cols":1}`),
			} {
				w := d.greeted(t, role)
				w.say(text)
				if l := w.line(t); !strings.Contains(l, `"error"`) {
					t.Errorf("%s: %q", what, l)
				}
				w.say(request(2, "ping", "{}"))
				if l := w.line(t); !strings.Contains(l, `"result"`) {
					t.Errorf("%s: afterwards %q", what, l)
				}
				_ = w.Close()
			}
			// Before hello nothing is served.
			w := dial(t, d.socket(), 0)
			w.say(request(1, "exec", `{"id":"c-0123456789abcdef","argv":["id"],"wait":true}`))
			if said := w.ended(t); strings.Contains(said, `"result"`) {
				t.Errorf("before hello: %q", said)
			}
			// A frame of 2 MiB, with and without an end.
			for _, end := range []string{"\n", ""} {
				w := d.greeted(t, role)
				w.say(
					`{"jsonrpc":"2.0","id":1,"method":"exec","params":{"id":"c-0123456789abcdef","argv":["` + strings.Repeat("a", 2<<20) + `"]}}` + end,
				)
				_ = w.CloseWrite()
				if said := w.ended(t); strings.Contains(said, `"result"`) {
					t.Errorf("a frame of 2 MiB: %q", said)
				}
			}
			// Half closed: what was asked for is still answered.
			w = d.greeted(t, role)
			w.say(request(1, "ping", "{}"))
			_ = w.CloseWrite()
			if said := w.ended(t); !strings.Contains(said, `"result"`) {
				t.Errorf("half closed: %q", said)
			}
			// The same id twice while the first is under way.
			w = d.greeted(t, role)
			w.say(request(7, "exec", `{"id":"`+string(id.NewCommand())+`","argv":["sleep","1000"],"wait":true}`))
			w.say(request(7, "exec", `{"id":"`+string(id.NewCommand())+`","argv":["true"],"wait":true}`))
			if said := w.ended(t); strings.Contains(said, `"result"`) {
				t.Errorf("an id twice: %q", said)
			}
			// Descriptors that nobody asked for.
			for _, n := range []int{1, 4, 253} {
				w := d.greeted(t, role)
				w.flood(t, request(1, "ping", "{}"), n)
				_ = w.CloseWrite()
				if said := w.ended(t); strings.Contains(said, `"result"`) {
					t.Errorf("%d descriptors: %q", n, said)
				}
			}
			d.well(t)
		})
	}
	t.Run("slow and many", func(t *testing.T) {
		var slow []*wire
		for range 40 {
			w, err := dialAs(d.socket(), 0)
			if err != nil {
				break // the queue is full
			}
			w.say(`{"jsonrpc":"2.0",`)
			slow = append(slow, w)
		}
		begin := time.Now()
		d.well(t)
		t.Logf("with %d unfinished frames the executor was asked three times within %v", len(slow), time.Since(begin).Round(time.Millisecond))
		for _, w := range slow {
			_ = w.Close()
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 200 {
					if w, err := dialAs(d.socket(), 0); err == nil {
						w.say(request(0, "hello", `{"version":3,"min_version":3}`))
						_ = w.Close()
					}
				}
			})
		}
		all.Wait()
		until(t, "an executor that answers", func() bool { return d.try("true").code == 0 })
		d.well(t)
	})
	if left := d.sh(t, "ps -e -o args | grep -c '[s]leep 1000' || true"); left != "0" {
		t.Errorf("%s commands of connections that ended go on", left)
	}
	until(t, "the descriptors given back", func() bool { return held(t, d.ExecutorPID) <= open+2 })
	var list []json.RawMessage
	if err := json.Unmarshal([]byte(shared.carrel(t, "ps", "-o", "json", d.Key)), &list); err != nil || len(list) != 0 {
		t.Errorf("commands are left: %s, %v", list, err)
	}
}
