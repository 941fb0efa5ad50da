package keeper_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/egress/keeper"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// budget grants requests, and remembers what they have used.
type budget struct {
	mu     sync.Mutex
	left   int
	refuse error
	asked  []string
	grants int
	used   []egressapi.Usage
}

func (b *budget) reserve(_ context.Context, endpoint, model string) (func(egressapi.Usage), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, endpoint+" "+model)
	if b.left == 0 {
		return nil, b.refuse
	}
	b.left--
	b.grants++
	return func(u egressapi.Usage) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.used = append(b.used, u)
	}, nil
}

func (b *budget) has() (asked []string, used []egressapi.Usage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string{}, b.asked...), append([]egressapi.Usage{}, b.used...)
}

// fake is a carrel-egress that says what the test does.
type fake struct {
	*keeper.Keeper
	far   *net.UnixConn
	in    *bufio.Scanner
	ended chan error
	told  chan egressapi.Connection
	stop  func() // closes it, once
}

func (f *fake) say(r egressapi.Report) { _ = json.NewEncoder(f.far).Encode(r) }

// newFake starts one. The first start succeeds, and no other.
func newFake(t *testing.T, reserve func(ctx context.Context, endpoint, model string) (func(egressapi.Usage), error)) *fake {
	t.Helper()
	return newFakeWith(t, func(c *keeper.Config) { c.Reserve = reserve })
}

// newFakeWith is newFake with a Config that is changed.
func newFakeWith(t *testing.T, change func(*keeper.Config)) *fake {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[1]), "far")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	x := &fake{far: c.(*net.UnixConn), ended: make(chan error, 10), told: make(chan egressapi.Connection, 2*egressapi.MostOpen)}
	t.Cleanup(func() { x.far.Close() })
	_ = x.far.SetDeadline(time.Now().Add(20 * time.Second))
	x.in = bufio.NewScanner(x.far)
	begun := make(chan bool)
	go func() {
		defer close(begun)
		x.in.Scan()
		x.say(egressapi.Report{Ready: true})
	}()
	first := true
	cfg := keeper.Config{
		Starter: keeper.Remote(func(context.Context) (*os.File, error) {
			if !first {
				return nil, errors.New("once is enough")
			}
			first = false
			return os.NewFile(uintptr(fds[0]), "near"), nil
		}),
		Setup:      egressapi.Setup{Models: []egressapi.Model{{Name: "claude", Key: egressapi.NewPrivate("k")}}},
		Connection: func(c egressapi.Connection) { x.told <- c }, Trouble: func(err error) { x.ended <- err },
	}
	change(&cfg)
	x.Keeper, err = keeper.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	x.stop = sync.OnceFunc(x.Close)
	t.Cleanup(x.stop)
	return x
}

// line reads what the Keeper says next.
func (f *fake) line(t *testing.T) (line egressapi.Line) {
	t.Helper()
	if !f.in.Scan() || json.Unmarshal(f.in.Bytes(), &line) != nil {
		t.Fatalf("no answer: %q, %v", f.in.Bytes(), f.in.Err())
	}
	return line
}

func leasing(t *testing.T, b *budget) (
	say func(egressapi.Report), answer func() egressapi.Granted, ended chan error, far *net.UnixConn, stop func(),
) {
	t.Helper()
	x := newFake(t, b.reserve)
	return x.say, func() egressapi.Granted {
		t.Helper()
		line := x.line(t)
		if line.Granted == nil {
			t.Fatalf("no answer: %+v", line)
		}
		return *line.Granted
	}, x.ended, x.far, x.stop
}

func lease(id uint64, endpoint, model string) egressapi.Report {
	return egressapi.Report{Lease: &egressapi.Lease{ID: id, Endpoint: endpoint, Model: model, Bytes: 100}}
}

// Each request is asked about, and what it has used is told once. What is under way when the process ends counts too.
func TestLeases(t *testing.T) {
	b := &budget{left: 2, refuse: errors.New("the budget of 2 requests is used up")}
	say, answer, ended, far, _ := leasing(t, b)
	for id := range uint64(3) {
		say(lease(id, "claude", "m"))
		if got := answer(); got.ID != id || (got.Refused != "") != (id == 2) || got.Later {
			t.Errorf("%+v", got)
		}
	}
	b.mu.Lock()
	b.refuse = fmt.Errorf("wait: %w", errdefs.ErrUnavailable)
	b.mu.Unlock()
	say(lease(3, "claude", ""))
	if got := answer(); !got.Later {
		t.Errorf("%+v", got)
	}
	say(lease(4, "other", "m"))
	if got := answer(); !strings.Contains(got.Refused, "no such model") {
		t.Errorf("%+v", got)
	}
	one := egressapi.Usage{ID: 0, Input: 1, Output: 2, CachedInput: 3, CacheWrite: 4}
	say(egressapi.Report{Usage: &one})
	far.Close()
	<-ended
	asked, used := b.has()
	lost := egressapi.Usage{ID: 1, Input: 51, Output: 100, Unknown: true}
	if len(asked) != 4 || asked[0] != "claude m" || len(used) != 2 || used[0] != one || used[1] != lost {
		t.Errorf("%v, %+v", asked, used)
	}
}

// What a process that is killed had under way counts what it has told of it, or what the time makes of it if that is more.
func TestLostLeases(t *testing.T) {
	b := &budget{left: 9}
	say, answer, ended, far, _ := leasing(t, b)
	for id := range uint64(3) {
		r := lease(id, "claude", "m")
		if id == 2 {
			r.Lease.Model = ""
		}
		say(r)
		answer()
	}
	say(egressapi.Report{Progress: &egressapi.Usage{ID: 0, Input: 7, Output: 200_000, CachedInput: 5, Unknown: true}})
	say(egressapi.Report{Progress: &egressapi.Usage{ID: 0, Input: 6, Output: 100_000}})
	far.Close()
	<-ended
	_, used := b.has()
	slices.SortFunc(used, func(a, b egressapi.Usage) int { return cmp.Compare(a.ID, b.ID) })
	want := []egressapi.Usage{
		{ID: 0, Input: 7, Output: 200_000, CachedInput: 5, Unknown: true},
		{ID: 1, Input: 51, Output: 100, Unknown: true},
		{ID: 2, Input: 51, Unknown: true},
	}
	if !slices.Equal(used, want) {
		t.Errorf("%+v, not %+v", used, want)
	}
}

// What was open when a process was killed is told, and so is its end.
func TestLostConnections(t *testing.T) {
	x := newFake(t, (&budget{left: 1}).reserve)
	began := time.Now()
	for id, host := range []string{"", "a.example", "b.example", "c.example", "d.example"} {
		if id > 0 {
			x.say(egressapi.Report{Begun: &egressapi.Connection{ID: uint64(id), Began: began, Way: "connect", Host: host, Port: 443}})
		}
	}
	x.say(egressapi.Report{Connection: &egressapi.Connection{ID: 2, Way: "connect", Host: "b.example", SentBytes: 5, Count: 1}})
	x.say(egressapi.Report{Moved: []egressapi.Moved{{ID: 1, Sent: 900_000, Received: 2}, {ID: 3, Sent: 1}, {ID: 77, Sent: 1}}})
	x.say(egressapi.Report{Moved: []egressapi.Moved{{ID: 1, Sent: 1, Received: 3}}})
	x.say(egressapi.Report{Over: 4})
	x.say(egressapi.Report{Lease: &egressapi.Lease{ID: 1, Endpoint: "claude", Model: "m"}})
	x.line(t)
	x.far.Close()
	<-x.ended
	want := []string{
		"connect b.example 5 0 false", "end  0 0 carrel-egress ended by itself, with 2 connections open and 1 requests to models under way",
		"connect a.example 900000 3 true", "connect c.example 1 0 true",
	}
	for _, w := range want {
		c := <-x.told
		got := fmt.Sprint(c.Way, " ", c.Host, " ", c.SentBytes, " ", c.ReceivedBytes, " ", c.Refused != "")
		if c.Way == keeper.WayEnd {
			got = fmt.Sprint(c.Way, " ", c.Host, " ", c.SentBytes, " ", c.ReceivedBytes, " ", c.Refused)
		}
		if got != w || c.ID != 0 || c.Count != 1 {
			t.Errorf("%s, not %s: %+v", got, w, c)
		}
	}
	x.stop()
	if len(x.told) > 0 {
		t.Errorf("%+v", <-x.told)
	}
}

// A process that makes connections too fast is told to wait, once for each wait.
func TestSlow(t *testing.T) {
	x := newFakeWith(t, func(c *keeper.Config) { c.Pace = func() time.Duration { return time.Hour } })
	for id := range uint64(3) {
		x.say(egressapi.Report{Begun: &egressapi.Connection{ID: id + 1}})
	}
	if l := x.line(t); l.Slow == nil || l.Slow.MS != 3_600_000 {
		t.Errorf("%+v", l)
	}
	go func() { _ = x.SetRules(t.Context(), nil) }()
	if l := x.line(t); l.Slow != nil {
		t.Errorf("%+v", l)
	}
	x.say(egressapi.Report{Ready: true})
}

// A process that was taken over is ended when it breaks the rules of the messages.
func TestHostileLeases(t *testing.T) {
	for name, c := range map[string]struct {
		attack func(say func(egressapi.Report), answer func() egressapi.Granted)
		want   string
	}{
		"twice": {func(say func(egressapi.Report), _ func() egressapi.Granted) {
			say(lease(1, "claude", "m"))
			say(lease(1, "claude", "m"))
		}, "the same request twice"},
		"too many": {func(say func(egressapi.Report), answer func() egressapi.Granted) {
			for id := range uint64(egressapi.MostLeased) {
				say(lease(id, "claude", "m"))
				answer()
			}
			say(lease(egressapi.MostLeased, "claude", "m"))
		}, "more requests than it can have under way"},
		"reads nothing": {func(say func(egressapi.Report), _ func() egressapi.Granted) {
			for id := range uint64(200_000) {
				say(lease(id, "gone", "m"))
			}
		}, "it asks "},
		"before the answer": {func(say func(egressapi.Report), _ func() egressapi.Granted) {
			for id := range uint64(100_000) {
				say(lease(id, "claude", "m"))
				say(egressapi.Report{Usage: &egressapi.Usage{ID: id}})
			}
		}, "not granted"},
		"not granted": {func(say func(egressapi.Report), _ func() egressapi.Granted) {
			say(egressapi.Report{Usage: &egressapi.Usage{ID: 7}})
		}, "not granted"},
		"negative": {func(say func(egressapi.Report), answer func() egressapi.Granted) {
			say(lease(1, "claude", "m"))
			answer()
			say(egressapi.Report{Usage: &egressapi.Usage{ID: 1, Input: -1}})
		}, "has used -1 tokens"},
		"very much": {func(say func(egressapi.Report), _ func() egressapi.Granted) {
			say(lease(1, "claude", "m"))
			say(egressapi.Report{Usage: &egressapi.Usage{ID: 1, Output: egressapi.MostTokens + 1}})
		}, "has used 1000000001 tokens"},
		"progress of none": {func(say func(egressapi.Report), _ func() egressapi.Granted) {
			say(egressapi.Report{Progress: &egressapi.Usage{ID: 7}})
		}, "not granted"},
		"progress that cannot be": {func(say func(egressapi.Report), answer func() egressapi.Granted) {
			say(lease(1, "claude", "m"))
			answer()
			say(egressapi.Report{Progress: &egressapi.Usage{ID: 1, Input: -5}})
		}, "has used -5 tokens"},
		"a connection twice": {func(say func(egressapi.Report), _ func() egressapi.Granted) {
			say(egressapi.Report{Begun: &egressapi.Connection{ID: 1}})
			say(egressapi.Report{Begun: &egressapi.Connection{ID: 1}})
		}, "a connection twice"},
		"connections without an end": {func(say func(egressapi.Report), _ func() egressapi.Granted) {
			for id := range uint64(egressapi.MostOpen + 1) {
				say(egressapi.Report{Begun: &egressapi.Connection{ID: id + 1}})
			}
		}, "more connections than it can have"},
		"no digest": {func(say func(egressapi.Report), answer func() egressapi.Granted) {
			say(lease(1, "claude", "m"))
			answer()
			say(egressapi.Report{Usage: &egressapi.Usage{ID: 1, Call: &egressapi.Call{Sent: strings.Repeat("x", 64)}}})
		}, "digests of a request that are none"},
	} {
		b := &budget{left: 1_000_000}
		say, answer, ended, _, stop := leasing(t, b)
		c.attack(say, answer)
		select {
		case err := <-ended:
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: it was ended because %v", name, err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: it goes on", name)
		}
		// Those that were judged when the process had ended are told by the end of Close.
		stop()
		b.mu.Lock()
		if b.grants != len(b.used) {
			t.Errorf("%s: %d requests were granted, and %d are counted", name, b.grants, len(b.used))
		}
		b.mu.Unlock()
	}
}

// A model is served by the process itself: the host gets the key, is checked by the host's authorities, and reached only at
// an address that counts as public or that is named. One of this host's own takes a rule.
func TestModelOfAProcess(t *testing.T) {
	const key = "sk-real-key-of-the-test"
	got := make(chan string, 10)
	host := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization") + " " + r.URL.Path
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/v1/models" {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
		_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":5,"completion_tokens":6}}`)
	}))
	host.StartTLS()
	t.Cleanup(host.Close)
	file := filepath.Join(t.TempDir(), "authority.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: host.Certificate().Raw})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", file)
	b := &budget{left: 100}
	w, err := startWith(t, binary, func(c *keeper.Config) { c.Reserve = b.reserve })
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(host.Listener.Addr().String())
	set := func(upstream string, rules ...string) {
		t.Helper()
		err := w.Change(t.Context(), func(s *egressapi.Setup) {
			s.Rules = rulesOf(t, rules...)
			s.Models = []egressapi.Model{{Name: "gpt", API: "openai", Upstream: upstream, Key: egressapi.NewPrivate(key)}}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: w.proxy}),
	}, Timeout: 20 * time.Second}
	ask := func() (int, string) {
		t.Helper()
		res, err := client.Post("http://gpt.carrel.internal/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m"}`))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(text)
	}
	set("https://127.0.0.1:" + port + "/v1")
	if status, body := ask(); status != 403 || !strings.Contains(body, "loopback") {
		t.Errorf("an address of this host: %d %s", status, body)
	}
	set("https://127.0.0.1:"+port+"/v1", "127.0.0.1:"+port)
	if status, body := ask(); status != 200 || <-got != "Bearer "+key+" /v1/chat/completions" {
		t.Errorf("%d %s", status, body)
	}
	// A connection that new rules deny is cut, although the model stays.
	ended := make(chan error, 1)
	go func() {
		res, err := client.Get("http://gpt.carrel.internal/v1/models")
		if err == nil {
			_, err = io.ReadAll(res.Body)
			_ = res.Body.Close()
			if res.StatusCode == http.StatusBadGateway || res.StatusCode == http.StatusForbidden { // its head was still on the way
				err = errors.New(res.Status)
			}
		}
		ended <- err
	}()
	<-got
	set("https://127.0.0.1:"+port+"/v1", "127.0.0.1:"+port, "!127.0.0.1")
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a response of a host that is denied ends as if it were complete")
		}
	case <-time.After(10 * time.Second):
		t.Error("a response of a host that is denied goes on")
	}
	set("https://localhost:" + port + "/v1")
	if status, body := ask(); status != 403 || !strings.Contains(body, "loopback") {
		t.Errorf("a private address: %d %s", status, body)
	}
	set("https://localhost:"+port+"/v1", "127.0.0.1:"+port)
	if status, body := ask(); status != 502 || !strings.Contains(body, "its certificate is for other names") {
		t.Errorf("another certificate: %d %s", status, body)
	}
	set("https://127.0.0.1:"+port+"/v1", "!127.0.0.1")
	if status, body := ask(); status != 403 || !strings.Contains(body, "127.0.0.1") {
		t.Errorf("a denied address: %d %s", status, body)
	}
	b.mu.Lock()
	b.left, b.refuse = 0, errors.New("the budget is used up")
	b.mu.Unlock()
	if status, body := ask(); status != 400 || !strings.Contains(body, "carrel: the budget is used up") {
		t.Errorf("%d %s", status, body)
	}
	if err := w.Change(t.Context(), func(s *egressapi.Setup) { s.Models = nil }); err != nil {
		t.Fatal(err)
	}
	if status, body := ask(); status != 403 || !strings.Contains(body, "no such model") {
		t.Errorf("%d %s", status, body)
	}
	w.Close()
	asked, used := b.has()
	// They are told as the requests end: one whose client has its answer may not have ended yet.
	slices.SortFunc(used, func(a, b egressapi.Usage) int { return cmp.Compare(a.ID, b.ID) })
	want := egressapi.Usage{ID: 2, Input: 5, Output: 6}
	if c := used[1].Call; c == nil || !c.Valid() || c.Status != 200 || !c.Whole || used[0].Call != nil {
		t.Errorf("%+v", used)
	}
	used[1].Call = nil
	if len(asked) != 7 || len(used) != 6 || used[1] != want || used[0].Input+used[2].Input+used[3].Input+used[4].Input+used[5].Input != 0 {
		t.Errorf("%v %+v", asked, used)
	}
	if len(got) != 0 {
		t.Errorf("the host got %s", <-got)
	}
}
