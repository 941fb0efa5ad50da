package ways_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/ways"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
	"github.com/carrel-dev/carrel/test/nameserver"
)

// A workspace reaches what its rules and the host's allow. A change cuts a connection, and what ended or was refused is
// in the audit log with the workspace's name.
func TestOpenChangeClose(t *testing.T) {
	w := newWorld(t, ways.Config{})
	w.must(w.Open(t.Context(), one, []string{w.echo}, nil))
	w.must(w.Open(t.Context(), two, nil, nil))
	c := w.reaches(one)
	if no := w.refused(two); !strings.Contains(no, `"carrel egress allow ws-00000002 `+w.echo+`" allows it`) {
		t.Errorf("the refusal has no remedy: %s", no)
	}
	w.must(w.Change(t.Context(), one, []string{w.echo}, []string{"127.0.0.0/8:*"}))
	if err := echo(c); err == nil {
		t.Error("a connection that is denied now goes on")
	}
	w.refused(one)
	w.must(w.Change(t.Context(), one, []string{w.echo}, nil))
	w.reaches(one)
	w.must(w.Open(t.Context(), one, nil, nil)) // instead
	w.refused(one)
	w.Close(one)
	w.Close(two)
	w.Close(three) // never opened

	w.must(w.log.Flush())
	seen := map[id.Workspace]map[string]int{one: {}, two: {}}
	for _, r := range w.records() {
		var x egressapi.Connection
		w.must(json.Unmarshal(r.Data, &x))
		if r.Type != audit.Connection || r.Principal != "system" || x.Port == 0 || x.Host != "127.0.0.1" {
			t.Errorf("record %+v", r)
		}
		if (r.Status == audit.StatusDenied) != (x.Refused != "") {
			t.Errorf("status %s: %+v", r.Status, x)
		}
		switch {
		case x.ReceivedBytes > 0:
			seen[r.Workspace]["cut"]++
		default:
			seen[r.Workspace]["refused"] += int(x.Count)
		}
	}
	if seen[one]["cut"] != 2 || seen[one]["refused"] != 2 || seen[two]["refused"] != 1 || len(seen) != 2 {
		t.Errorf("records: %v", seen)
	}
}

// records returns what the audit log has.
func (w *world) records() (all []audit.Record) {
	w.t.Helper()
	err := w.log.Read(w.t.Context(), 1, 1<<20, false, func(lines [][]byte) error {
		for _, line := range lines {
			var r audit.Record
			if err := json.Unmarshal(line, &r); err != nil {
				return err
			}
			all = append(all, r)
		}
		return nil
	})
	w.must(err)
	return all
}

// A process that is killed comes back with the newest rules.
func TestKilled(t *testing.T) {
	w := newWorld(t, ways.Config{})
	w.must(w.Open(t.Context(), one, nil, nil))
	w.must(w.Open(t.Context(), two, []string{w.echo}, nil))
	w.must(w.Change(t.Context(), one, []string{w.echo}, nil))
	w.must(w.Change(t.Context(), two, nil, nil))
	w.signal(one, unix.SIGKILL)
	w.signal(two, unix.SIGKILL)
	w.reaches(one)
	w.refused(two)
	if !strings.Contains(w.warnings(), "ended by itself") || !strings.Contains(w.warnings(), string(one)) {
		t.Errorf("log: %s", w.warnings())
	}
	// A change and a kill at once: whichever is first, the new rules are in force.
	for range 5 {
		w.signal(one, unix.SIGKILL)
		w.must(w.Change(t.Context(), one, nil, nil))
		w.refused(one)
		w.must(w.Change(t.Context(), one, []string{w.echo}, nil))
		w.reaches(one)
	}
}

// A restart that fails is tried again, and a change does not wait for that.
func TestRestartFails(t *testing.T) {
	w := newWorld(t, ways.Config{})
	w.must(w.Open(t.Context(), one, []string{w.echo}, nil))
	w.set(one, func(x *inside) { x.refuse = errors.New("no room for it") })
	w.signal(one, unix.SIGKILL)
	until(t, "a warning", func() bool { return strings.Contains(w.warnings(), "no room for it") })
	n := w.opened(one)
	w.set(one, func(x *inside) { x.refuse = nil })
	w.reaches(one) // the connection waits in the socket
	if w.opened(one) <= n {
		t.Error("it is not opened again")
	}
	w.set(one, func(x *inside) { x.refuse = errors.New("no room again") })
	w.signal(one, unix.SIGKILL)
	if err := w.Change(t.Context(), one, nil, nil); err == nil {
		until(t, "an end", func() bool { return strings.Contains(w.warnings(), "no room again") })
		err = w.Change(t.Context(), one, nil, nil)
		if err == nil || !strings.Contains(err.Error(), "no room again") {
			t.Errorf("a change without a process: %v", err)
		}
	}
	w.set(one, func(x *inside) { x.refuse = nil })
	w.must(w.Change(t.Context(), one, nil, nil))
	w.refused(one)
}

// A first start that fails is the caller's to see, and nothing is left of it.
func TestOpenFails(t *testing.T) {
	w := newWorld(t, ways.Config{})
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Open(dead, one, nil, nil); !errors.Is(err, context.Canceled) || w.opened(one) != 0 {
		t.Errorf("with a dead context: %v, opened %d times", err, w.opened(one))
	}
	w.set(one, func(x *inside) { x.refuse = errdefs.ErrResourceExhausted })
	if err := w.Open(t.Context(), one, nil, nil); !errdefs.IsResourceExhausted(err) {
		t.Errorf("the broker's refusal: %v", err)
	}
	if err := w.Open(t.Context(), one, []string{"@nothing"}, nil); !errdefs.IsNotFound(err) || w.opened(one) != 1 {
		t.Errorf("rules that cannot be used: %v", err)
	}
	w.set(one, func(x *inside) { x.refuse = nil })
	w.must(w.Change(t.Context(), one, []string{w.echo}, nil)) // as Open
	c := w.reaches(one)
	for _, f := range []func(context.Context, id.Workspace, []string, []string) error{w.Open, w.Change} {
		if err := f(t.Context(), one, []string{"https://x"}, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("rules that cannot be used: %v", err)
		}
	}
	if err := echo(c); err != nil {
		t.Errorf("after rules that were refused: %v", err)
	}
	if n := w.opened(one); n != 2 {
		t.Errorf("opened %d times", n)
	}
}

// A process that never answers holds up its own name only, and that no longer than the deadline.
func TestHangs(t *testing.T) {
	const deadline = 1500 * time.Millisecond
	w := newWorld(t, ways.Config{Within: deadline})
	w.set(one, func(x *inside) { x.mute = true })
	w.must(w.Open(t.Context(), three, []string{w.echo}, nil))
	stopped := w.signal(three, unix.SIGSTOP)
	var hanging sync.WaitGroup
	began := time.Now()
	within := func(what string, most time.Duration, f func() error) {
		hanging.Go(func() {
			err := f()
			if took := time.Since(began); took > most || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v after %v", what, err, took)
			}
		})
	}
	within("open", deadline+time.Second, func() error { return w.Open(t.Context(), one, nil, nil) })
	within("open behind it", deadline+time.Second, func() error { return w.Open(t.Context(), one, nil, nil) })
	within("change", deadline+time.Second, func() error { return w.Change(t.Context(), three, nil, nil) })
	for range 5 {
		w.must(w.Open(t.Context(), two, []string{w.echo}, nil))
		w.reaches(two)
		w.must(w.Change(t.Context(), two, nil, nil))
		w.refused(two)
	}
	if took := time.Since(began); took > deadline {
		t.Errorf("another name is held up for %v", took)
	}
	hanging.Wait()
	// The one that did not answer is replaced, and its successor has the new rules.
	w.refused(three)
	w.set(three, func(x *inside) {
		if x.cmd.Process.Pid == stopped {
			t.Error("the stopped process is not replaced")
		}
	})
	w.signal(three, unix.SIGSTOP)
	began = time.Now()
	w.Close(three)
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("Close of a process that hangs took %v", took)
	}
	w.set(three, (*inside).end) // as the broker does with the workspace
}

// Close interrupts what opens a way, and does not wait for a broker that does not answer.
func TestCloseWhileStarting(t *testing.T) {
	w := newWorld(t, ways.Config{})
	wait := make(chan struct{})
	w.set(one, func(x *inside) { x.mute = true })
	w.set(two, func(x *inside) { x.wait = wait })
	opens := make(chan error, 4)
	for _, name := range []id.Workspace{one, one, two, two} {
		go func() { opens <- w.Open(t.Context(), name, nil, nil) }()
	}
	// One of each has begun, and the other waits for it: what begins after Close is not ended by it.
	until(t, "starts", func() bool {
		return w.opened(one) > 0 && w.opened(two) > 0 && w.Users(one) == 2 && w.Users(two) == 2
	})
	began := time.Now()
	w.Close(one)
	if took := time.Since(began); took > time.Second {
		t.Errorf("Close took %v", took)
	}
	w.Close(two)
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("Close without an answer of the broker took %v", took)
	}
	for range 3 { // the fourth is in the broker
		if err := <-opens; !errdefs.IsUnavailable(err) && !errors.Is(err, context.Canceled) {
			t.Errorf("an interrupted start: %v", err)
		}
	}
	close(wait)
	if err := <-opens; err == nil {
		t.Error("the start that was closed succeeds")
	}
	w.set(one, func(x *inside) { x.mute = false })
	w.set(two, func(x *inside) { x.wait = nil })
	for _, name := range []id.Workspace{one, two} {
		w.must(w.Open(t.Context(), name, []string{w.echo}, nil))
		w.reaches(name)
	}
}

// Other rules of the host are in force in every workspace when Reload returns.
func TestReload(t *testing.T) {
	w := newWorld(t, ways.Config{Conf: parse(t, "sets: {mine: ['127.0.0.0/8:*']}")})
	w.must(w.Open(t.Context(), one, []string{w.echo}, nil))
	w.must(w.Open(t.Context(), two, []string{"@mine"}, nil))
	a, b := w.reaches(one), w.reaches(two)
	w.must(w.Reload(parse(t, "sets: {mine: ['127.0.0.0/8:*']}\ndeny: ['"+w.echo+"']")))
	if echo(a) == nil || echo(b) == nil {
		t.Error("a connection that the host denies now goes on")
	}
	w.refused(one)
	w.refused(two)
	w.must(w.Open(t.Context(), three, []string{w.echo}, nil))
	w.refused(three)
	err := w.Reload(nil)
	if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), string(two)) || strings.Contains(err.Error(), string(one)) {
		t.Errorf("a set that is gone: %v", err)
	}
	w.reaches(one)
	w.refused(two)
	w.must(w.Change(t.Context(), one, nil, nil))
	if err := w.Reload(nil); err == nil {
		t.Error("the set is there again")
	}
	w.refused(one) // by its changed rules
	w.must(w.Reload(parse(t, "allow: ['"+w.echo+"']\nsets: {mine: ['127.0.0.1:1']}")))
	w.reaches(two)
	w.must(w.Open(t.Context(), three, nil, nil))
	w.reaches(three) // by a rule of the host
}

// A process that runs asks the resolver of the host's newest rules.
func TestReloadResolver(t *testing.T) {
	w := newWorld(t, ways.Config{})
	addr := netip.MustParseAddrPort(w.echo)
	server := func(zone nameserver.Zone) *conf.Config {
		at, stop, err := nameserver.Start(t.Context(), zone)
		w.must(err)
		t.Cleanup(stop)
		return parse(t, "resolver: "+at)
	}
	name := net.JoinHostPort("here.example.org", strconv.Itoa(int(addr.Port())))
	w.must(w.Reload(server(nameserver.Zone{})))
	w.must(w.Open(t.Context(), one, []string{name, w.echo}, nil))
	if c, _ := w.connectTo(one, name); c != nil {
		t.Error("a name that nobody knows is reached")
	}
	w.must(w.Reload(server(nameserver.Zone{"here.example.org": "127.0.0.1"})))
	if _, no := w.connectTo(one, name); no != "" {
		t.Errorf("with the new resolver: %s", no)
	}
}

// After Shutdown there are no ways, and none is opened.
func TestShutdown(t *testing.T) {
	w := newWorld(t, ways.Config{})
	w.must(w.Open(t.Context(), one, nil, nil))
	w.must(w.Open(t.Context(), two, nil, nil))
	w.Shutdown()
	if err := w.Open(t.Context(), one, nil, nil); !errdefs.IsUnavailable(err) {
		t.Errorf("after Shutdown: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, x := range w.workspaces {
		if x.cmd == nil {
			continue
		}
		select {
		case <-x.ends:
		case <-time.After(10 * time.Second):
			t.Errorf("%s has a process", name)
		}
	}
}

// Whatever is done at once, the last word holds.
func TestConcurrent(t *testing.T) {
	w := newWorld(t, ways.Config{})
	var doing sync.WaitGroup
	names := []id.Workspace{one, two, three}
	for range 8 {
		doing.Go(func() {
			for range 12 {
				name := names[rand.IntN(3)]
				switch rand.IntN(5) {
				case 0:
					_ = w.Open(t.Context(), name, nil, nil)
				case 1:
					_ = w.Open(t.Context(), name, []string{w.echo}, nil)
				case 2:
					_ = w.Change(t.Context(), name, nil, []string{w.echo})
				case 3:
					w.Close(name)
				case 4:
					w.must(w.Reload(parse(t, "deny: [x.example.org]")))
				}
			}
		})
	}
	doing.Wait()
	for _, name := range names {
		w.must(w.Change(t.Context(), name, []string{w.echo}, nil))
		w.reaches(name)
		w.must(w.Change(t.Context(), name, nil, nil))
		w.refused(name)
	}
}
