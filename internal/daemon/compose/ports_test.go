package compose_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/portconn"
)

// echo serves on this host's loopback, which is that of every workspace of the double.
func echo(t *testing.T) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c) // it ends as it was ended
			})
		}
	})
	return l.Addr().(*net.TCPAddr).Port
}

// says sends text through a connection and sees it come back.
func says(t *testing.T, c *portconn.Conn, text string) {
	t.Helper()
	b := make([]byte, len(text))
	_, err := io.WriteString(c, text)
	if err == nil {
		_, err = io.ReadFull(c, b)
	}
	if err != nil || string(b) != text {
		t.Errorf("%q came back for %q (%v)", b, text, err)
	}
}

// opened are the records of publications, with what their outcomes say.
func (h *house) opened() (intents int, outcomes []string) {
	h.t.Helper()
	seqs := map[int64]bool{}
	for _, r := range h.records() {
		switch {
		case r.Type == audit.Intent && strings.Contains(string(r.Action), `"`+string(operation.OpenPort)+`"`):
			intents++
			seqs[r.Seq] = true
		case r.Type == audit.Outcome && seqs[r.Intent]:
			outcomes = append(outcomes, r.Status+" "+string(r.Data))
		}
	}
	return intents, outcomes
}

// awaitOutcomes waits until n publications have ended.
func (h *house) awaitOutcomes(n int) []string {
	h.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		_, got := h.opened()
		if len(got) == n {
			return got
		}
		if time.Now().After(end) {
			h.t.Fatalf("outcomes: %q, not %d", got, n)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// Connections that come one after the other, or at once, without a publication are one, which ends after the last.
func TestPortsAreRecordedOnce(t *testing.T) {
	h := &house{t: t, dir: t.TempDir(), rt: newDouble(), linger: 50 * time.Millisecond}
	h.admission.Workspaces = 50
	h.start()
	t.Cleanup(h.crash)
	h.create(alice, "demo")
	port := echo(t)
	h.Sum()
	before := len(h.records())
	first, err := h.DialPort(t.Context(), alice, "demo", port) // it stays, so that what is open does not end meanwhile
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			c, err := h.DialPort(t.Context(), alice, "demo", port)
			if err != nil {
				t.Error(err)
				return
			}
			says(t, c, "12345")
			c.Close()
		})
	}
	all.Wait()
	first.Close()
	if got := h.awaitOutcomes(1)[0]; got != `ok {"connections":51,"bytes_in":250,"bytes_out":250}` {
		t.Errorf("the outcome says %s", got)
	}
	h.Sum()
	counted := ""
	for _, r := range h.records()[before:] {
		if strings.Contains(string(r.Data), `"port.connect":51`) {
			counted = string(r.Data)
		}
	}
	if counted == "" {
		t.Errorf("the connections were not counted: %v", h.story(before))
	}
	if n, conns := h.OpenPorts(); n+conns != 0 {
		t.Errorf("%d ports and %d connections are left", n, conns)
	}
}

func TestPortsAreRefused(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	port := echo(t)
	look := principal.Principal{Kind: principal.Token, Grant: &principal.Grant{
		ID: "0123456789ab", Owner: alice.Owner(), Roles: principal.Roles(principal.Approver),
	}}
	both := func(p principal.Principal, ref string, port int) []error {
		_, release, err := h.PublishPort(ctx, p, ref, port)
		if err == nil {
			release()
		}
		c, err2 := h.DialPort(ctx, p, ref, port)
		if err2 == nil {
			c.Close()
		}
		return []error{err, err2}
	}
	for _, err := range append(both(bob, "demo", port), both(look, "demo", port)...) {
		if !errdefs.IsPermissionDenied(err) {
			t.Errorf("another: %v", err)
		}
	}
	for _, err := range append(both(alice, "demo", 0), append(both(alice, "demo", -1), both(alice, "demo", 65536)...)...) {
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("no port: %v", err)
		}
	}
	for _, err := range both(alice, "none", port) {
		if !errdefs.IsNotFound(err) {
			t.Errorf("no workspace: %v", err)
		}
	}
	if _, err := h.Pause(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	for _, err := range both(alice, "demo", port) {
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "it is paused") {
			t.Errorf("paused: %v", err)
		}
	}
	if _, err := h.Stop(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	starts := h.rt.count("start")
	for _, err := range both(alice, "demo", port) {
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "does not run") {
			t.Errorf("stopped: %v", err)
		}
	}
	if h.rt.count("start") != starts {
		t.Error("a connection has started the workspace")
	}
	if n, _ := h.opened(); n != 0 {
		t.Errorf("%d of them were opened", n)
	}
	if n, conns := h.OpenPorts(); n+conns != 0 {
		t.Errorf("%d ports and %d connections are left", n, conns)
	}
}

// What ends ends what is open: the workspace's stop, the daemon's, and the request.
func TestPortsEnd(t *testing.T) {
	port := echo(t)
	for name, end := range map[string]func(h *house, cancel context.CancelFunc){
		"the executor goes": func(h *house, _ context.CancelFunc) { h.rt.lose() },
		"the request ends":  func(_ *house, cancel context.CancelFunc) { cancel() },
		"the daemon ends": func(h *house, _ context.CancelFunc) {
			if err := h.Close(context.Background()); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := &house{t: t, dir: t.TempDir(), rt: newDouble(), linger: time.Millisecond}
			h.admission.Workspaces = 50
			h.start()
			t.Cleanup(h.crash)
			h.create(alice, "demo")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			held, release, err := h.PublishPort(ctx, alice, "demo", port)
			if err != nil {
				t.Fatal(err)
			}
			c, err := h.DialPort(ctx, alice, "demo", port)
			if err != nil {
				t.Fatal(err)
			}
			says(t, c, "before")
			end(h, cancel)
			if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("the connection ended with %v", err)
			}
			<-held.Done()
			release()
			if n, _ := h.opened(); n != 1 {
				t.Errorf("%d publications", n)
			}
			if got := h.awaitOutcomes(1)[0]; got != `ok {"connections":1,"bytes_in":6,"bytes_out":6}` {
				t.Errorf("the outcome says %s", got)
			}
		})
	}
}

// One workspace has so many connections, and another still its own.
func TestPortsAreBounded(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	h.create(bob, "other")
	port := echo(t)
	var open []*portconn.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range 256 {
		c, err := h.DialPort(ctx, alice, "demo", port)
		if err != nil {
			t.Fatal(len(open), err)
		}
		open = append(open, c)
	}
	if _, err := h.DialPort(ctx, alice, "demo", port); !errdefs.IsResourceExhausted(err) {
		t.Errorf("one more: %v", err)
	}
	c, err := h.DialPort(ctx, bob, "other", port)
	if err != nil {
		t.Fatalf("another's: %v", err)
	}
	c.Close()
	open[0].Close()
	if c, err = h.DialPort(ctx, alice, "demo", port); err != nil {
		t.Errorf("when one has ended: %v", err)
	} else {
		c.Close()
	}
	// Published ports are bounded too.
	var release []func()
	defer func() {
		for _, f := range release {
			f()
		}
	}()
	for n := 1; ; n++ {
		_, r, err := h.PublishPort(ctx, bob, "other", n)
		if err != nil {
			if !errdefs.IsResourceExhausted(err) || n < 100 || n > 200 {
				t.Errorf("port %d: %v", n, err)
			}
			break
		}
		release = append(release, r)
	}
}
