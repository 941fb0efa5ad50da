package compose_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

func (h *house) kinds() string {
	var all []string
	for _, r := range h.records() {
		if r.Type == "intent" || r.Type == "denial" {
			k, _, _ := strings.Cut(strings.TrimPrefix(string(r.Action), `{"kind":"`), `"`)
			all = append(all, k)
		}
	}
	return strings.Join(all, " ")
}

func TestPause(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	w := h.create(alice, "demo")
	if _, err := h.Pause(ctx, bob, "demo"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("bob paused it: %v", err)
	}
	for range 2 { // again is done again, which mends what is half done
		if v, err := h.Pause(ctx, alice, "demo"); err != nil || v.State != workspace.StatePaused || v.ExecutorPID == 0 {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	if _, _, err := h.Run(ctx, alice, "demo", execapi.ExecParams{Argv: []string{"true"}}); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "carrel resume") {
		t.Errorf("a command in a paused workspace: %v", err)
	}
	if v, created, err := h.Create(ctx, alice, wanted("demo", workspace.Limits{}, true)); err != nil || created ||
		v.State != workspace.StatePaused {
		t.Errorf("create: %+v, %v", v, err)
	}
	// The daemon ends and comes back: it is what the broker says, and nobody is told again.
	h.crash()
	h.start()
	if n := h.rt.count("pause"); n != 2 {
		t.Errorf("its executor was told to hold %d times", n)
	}
	// It ends in the middle of a pause: whether its executor heard of it is not known.
	broken := audit.Record{
		Type: audit.Intent, Principal: "uid:1000", Workspace: w.Name, Trace: "t",
		Action: json.RawMessage(`{"kind":"workspace.pause"}`),
	}
	if _, err := h.log.Append(ctx, broken); err != nil {
		t.Fatal(err)
	}
	h.crash()
	h.start()
	if v, err := h.Get(ctx, alice, "demo"); err != nil || v.State != workspace.StatePaused || len(v.Controls) == 0 {
		t.Errorf("%+v, %v", v, err)
	}
	if n := h.rt.count("pause"); n != 3 {
		t.Errorf("its executor was told to hold %d times", n)
	}
	if v, err := h.Resume(ctx, alice, "demo"); err != nil || v.State != workspace.StateRunning {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := h.Pause(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	// To stop it is to let it end in order.
	if v, err := h.Stop(ctx, alice, "demo"); err != nil || v.State != workspace.StateStopped || h.rt.count("resume") != 2 {
		t.Errorf("%+v, %v, %d resumed", v, err, h.rt.count("resume"))
	}
	if _, err := h.Pause(ctx, alice, "demo"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a stopped one was paused: %v", err)
	}
	if got, want := h.kinds(), "workspace.create workspace.pause workspace.pause workspace.pause workspace.pause daemon.recover "+
		"workspace.resume workspace.pause workspace.stop"; got != want {
		t.Errorf("recorded %s", got)
	}
}

func TestUpdate(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	h.create(alice, "other")
	v, err := h.Update(ctx, alice, "demo", workspace.Change{
		Limits: workspace.Limits{Pids: 99}, Key: "renamed", TTL: time.Hour,
		Idle: workspace.Forever,
	})
	if err != nil || v.Key != "renamed" || v.Limits.Pids != 99 || v.Limits.MemoryBytes != workspace.DefaultLimits.MemoryBytes ||
		time.Until(v.Expires).Round(time.Minute) != time.Hour || v.Idle != workspace.Forever {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := h.Get(ctx, alice, "demo"); !errdefs.IsNotFound(err) {
		t.Errorf("the old key: %v", err)
	}
	if v, created, err := h.Create(ctx, alice, wanted("demo", workspace.Limits{}, false)); err != nil || !created || v.Name == "ws-2a97516c" {
		t.Errorf("the old key is given to %+v, %v", v, err)
	}
	if v, err := h.Update(ctx, alice, "renamed", workspace.Change{TTL: workspace.Forever}); err != nil || !v.Expires.IsZero() {
		t.Errorf("%+v, %v", v, err)
	}
	for what, c := range map[string]struct {
		change workspace.Change
		is     func(error) bool
	}{
		"another's key":    {workspace.Change{Key: "other"}, errdefs.IsAlreadyExists},
		"a derived name":   {workspace.Change{Key: "ws-01234567"}, errdefs.IsInvalidArgument},
		"an archive's id":  {workspace.Change{Key: "ws-01234567-20260102T030405.000000"}, errdefs.IsInvalidArgument},
		"a command's id":   {workspace.Change{Key: "c-0123456789abcdef"}, errdefs.IsInvalidArgument},
		"an approval's id": {workspace.Change{Key: "ap-0123456789abcdef"}, errdefs.IsInvalidArgument},
		"a limit too low":  {workspace.Change{Limits: workspace.Limits{Pids: 1}}, errdefs.IsInvalidArgument},
		"a short life":     {workspace.Change{TTL: time.Millisecond}, errdefs.IsInvalidArgument},
		"a negative idle":  {workspace.Change{Idle: -2}, errdefs.IsInvalidArgument},
		"a request with a": {workspace.Change{Request: "a b"}, errdefs.IsInvalidArgument},
	} {
		if _, err := h.Update(ctx, alice, "renamed", c.change); !c.is(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// What the kernel refuses is not what is stored.
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "limit" {
			return fmt.Errorf("too much is used: %w", errdefs.ErrFailedPrecondition)
		}
		return nil
	})
	if _, err := h.Update(ctx, alice, "renamed", workspace.Change{Limits: workspace.Limits{Pids: 50}}); !errdefs.IsFailedPrecondition(err) {
		t.Error(err)
	}
	if v, _ := h.Get(ctx, alice, "renamed"); v.Limits.Pids != 99 {
		t.Errorf("pids %d", v.Limits.Pids)
	}
}

func TestProfile(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	v, _, err := h.Create(ctx, alice, workspace.Wanted{Key: "telegram:1", Profile: "chat", Limits: workspace.Limits{CPUWeight: 7}})
	if err != nil || !strings.HasPrefix(string(v.Name), "chat-") || v.Limits.MemoryBytes != 256<<20 || v.Limits.Pids != 200 ||
		v.Limits.CPUWeight != 7 || v.Profile != "chat" {
		t.Errorf("%+v, %v", v, err)
	}
	if _, _, err := h.Create(ctx, alice, workspace.Wanted{Key: "x", Profile: "nope"}); !errdefs.IsInvalidArgument(err) ||
		!strings.Contains(err.Error(), "there are: chat") {
		t.Error(err)
	}
	if _, _, err := h.Create(ctx, alice, workspace.Wanted{Key: "chat-01234567-20260102T030405.000000"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("the id of an archive as a key: %v", err)
	}
	// The names of one profile are no keys for another.
	if _, _, err := h.Create(ctx, alice, workspace.Wanted{Key: "chat-01234567"}); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
}

// A client that does not know whether it was heard asks again.
func TestRequestsAreCarriedOutOnce(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	want := workspace.Wanted{Key: "demo", NoStart: true, Request: "r-1"}
	first, created, err := h.Create(ctx, alice, want)
	if err != nil || !created {
		t.Fatal(err)
	}
	h.crash()
	h.start()
	again, created, err := h.Create(ctx, alice, want)
	if err != nil || !created || again.Name != first.Name {
		t.Errorf("%+v, created %v, %v", again, created, err)
	}
	want.Key = "another"
	if _, _, err := h.Create(ctx, alice, want); !errdefs.IsAlreadyExists(err) {
		t.Errorf("another action under that id: %v", err)
	}
	if _, _, err := h.Create(ctx, bob, want); err != nil {
		t.Errorf("bob's own request of that id: %v", err)
	}
	retained, err := h.Destroy(ctx, alice, "demo", false, "r-2")
	if err != nil || retained == "" {
		t.Fatal(retained, err)
	}
	if r, err := h.Destroy(ctx, alice, "demo", false, "r-2"); err != nil || r != retained {
		t.Errorf("%q, %v", r, err)
	}
	if n := h.rt.count("destroy"); n != 1 {
		t.Errorf("destroyed %d times", n)
	}
	// One that failed may be tried again.
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "create" {
			return errors.New("planted")
		}
		return nil
	})
	want = workspace.Wanted{Key: "third", NoStart: true, Request: "r-3"}
	if _, _, err := h.Create(ctx, alice, want); err == nil {
		t.Fatal("created")
	}
	h.rt.setHook(nil)
	if _, created, err := h.Create(ctx, alice, want); err != nil || !created {
		t.Errorf("created %v, %v", created, err)
	}
}

func TestIdle(t *testing.T) {
	h := newHouse(t)
	h.idle = time.Minute
	h.crash()
	h.start()
	ctx := t.Context()
	h.create(alice, "demo")
	later := func(d time.Duration) { h.Round(ctx, time.Now().Add(d)) }
	state := func(want workspace.State) {
		t.Helper()
		if v, err := h.Get(ctx, alice, "demo"); err != nil || v.State != want {
			t.Errorf("%s, want %s (%v)", v.State, want, err)
		}
	}
	set := func(list ...execapi.Command) {
		h.rt.mu.Lock()
		h.rt.list = list
		h.rt.mu.Unlock()
	}
	later(30 * time.Second)
	state(workspace.StateRunning)
	set(execapi.Command{ID: "c-1"}) // it runs
	later(2 * time.Minute)
	state(workspace.StateRunning)
	ended := &execapi.Status{EndedNS: time.Now().UnixNano()}
	set(execapi.Command{ID: "c-1", Detached: true, Status: ended}) // its output is kept
	later(2 * time.Minute)
	state(workspace.StateRunning)
	set(execapi.Command{ID: "c-1", Status: ended})
	if _, err := h.Update(ctx, alice, "demo", workspace.Change{Idle: workspace.Forever}); err != nil {
		t.Fatal(err)
	}
	later(48 * time.Hour)
	state(workspace.StateRunning)
	if _, err := h.Update(ctx, alice, "demo", workspace.Change{Idle: time.Hour}); err != nil {
		t.Fatal(err)
	}
	later(2 * time.Minute)
	state(workspace.StateRunning)
	// A command that comes while it is being stopped waits, and starts it again.
	stopping, cont := make(chan struct{}), make(chan struct{})
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "stop" {
			close(stopping)
			<-cont
		}
		return nil
	})
	var tended sync.WaitGroup
	tended.Go(func() { later(2 * time.Hour) })
	<-stopping
	ran := make(chan error, 1)
	coming := make(chan struct{})
	go func() {
		close(coming)
		_, _, err := h.Run(context.Background(), alice, "demo", execapi.ExecParams{Argv: []string{"true"}})
		ran <- err
	}()
	<-coming // and then waits, or comes when it has stopped: either way it is to run
	close(cont)
	tended.Wait()
	if err := <-ran; err != nil {
		t.Errorf("the command: %v", err)
	}
	state(workspace.StateRunning)
	if h.rt.count("start") != 2 {
		t.Errorf("started %d times", h.rt.count("start"))
	}
	if !strings.Contains(h.kinds(), "workspace.stop workspace.start command.exec") {
		t.Errorf("recorded %s", h.kinds())
	}
}

func TestExpiry(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	if _, _, err := h.Create(ctx, alice, workspace.Wanted{Key: "short", TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	h.create(alice, "long")
	h.Round(ctx, time.Now().Add(59*time.Minute))
	if h.store.Len() != 2 {
		t.Fatal("it ended before its time")
	}
	if _, err := h.Update(ctx, alice, "short", workspace.Change{TTL: 3 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	h.Round(ctx, time.Now().Add(2*time.Hour))
	if h.store.Len() != 2 {
		t.Fatal("the extension was not minded")
	}
	h.Round(ctx, time.Now().Add(4*time.Hour))
	if _, err := h.Get(ctx, alice, "short"); !errdefs.IsNotFound(err) || h.store.Len() != 1 {
		t.Errorf("it lives on: %v", err)
	}
	last := h.records()[len(h.records())-1]
	if last.Principal != "system" {
		t.Errorf("by %s", last.Principal)
	}
}

func TestStatsAndWatch(t *testing.T) {
	h := newHouse(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h.create(alice, "demo")
	h.create(bob, "bobs")
	h.rt.pids = 3
	if list, err := h.Stats(ctx, alice, nil); err != nil || len(list) != 1 || list[0].Key != "demo" || list[0].Pids != 3 {
		t.Errorf("%+v, %v", list, err)
	}
	many := slices.Repeat([]string{"demo"}, 100_000) // each would be work for the broker
	if list, err := h.Stats(ctx, alice, many); err != nil || len(list) != 1 {
		t.Errorf("one name many times: %d, %v", len(list), err)
	}
	if _, err := h.Stats(ctx, alice, []string{"bobs"}); !errdefs.IsPermissionDenied(err) {
		t.Error(err)
	}
	if err := h.Watch(ctx, alice, []string{"bobs"}, 0, nil); !errdefs.IsPermissionDenied(err) {
		t.Error(err)
	}
	got := make(chan workspace.Event, 100)
	done := make(chan error, 1)
	go func() {
		done <- h.Watch(ctx, alice, nil, 2, func(ev workspace.Event, _ int64) error { got <- ev; return nil })
	}()
	if _, err := h.Stop(ctx, bob, "bobs"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Pause(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Destroy(ctx, alice, "demo", false, ""); err != nil {
		t.Fatal(err)
	}
	// From after the first event on, and none of bob's.
	for _, want := range []struct {
		kind  string
		state workspace.State
	}{{"workspace.pause", workspace.StatePaused}, {"workspace.destroy", workspace.StateDestroyed}} {
		ev := <-got
		if ev.Kind != want.kind || ev.State != want.state || ev.Key != "demo" || ev.Status != "ok" || ev.Principal != "uid:1000" ||
			ev.Intent == 0 {
			t.Errorf("%+v, want %+v", ev, want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Who comes late learns how much was lost.
func TestWatchIsBounded(t *testing.T) {
	h := newHouse(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h.create(alice, "demo")
	for range 5000 {
		if err := h.Signal(ctx, alice, "demo", execapi.StopTaskParams{ID: "c-0", Signal: 15}); err != nil {
			t.Fatal(err)
		}
	}
	n, lost, last := 0, int64(0), int64(1)
	err := h.Watch(ctx, alice, nil, 1, func(ev workspace.Event, l int64) error {
		if n++; n == 1 {
			lost, last = l, ev.Number-1
		}
		if ev.Number != last+1 {
			t.Fatalf("number %d after %d", ev.Number, last)
		}
		last = ev.Number
		if n == 4096 {
			cancel()
		}
		return nil
	})
	if err != nil || lost+4096+1 != last || last != 5002 {
		t.Errorf("%d events, %d lost, the last is %d, %v", n, lost, last, err)
	}
}
