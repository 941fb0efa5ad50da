package compose_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

var errNoBroker = fmt.Errorf("cannot reach the broker: %w", errdefs.ErrUnavailable)

// brokerDies has every call of the broker fail from now on.
func (h *house) brokerDies() {
	h.rt.setHook(func(string, id.Workspace) error { return errNoBroker })
}

// tick is one round of upkeep at a time, and what it began.
func (h *house) tick(now time.Time) {
	h.Round(h.t.Context(), now)
	h.Settle()
}

// What was begun when the broker died is finished when it is back, with nobody asking and without a
// restart of the daemon, and recorded once.
func TestWhatABrokerLeftIsTakenUp(t *testing.T) {
	for _, c := range []struct {
		name  string
		begin func(h *house, now time.Time)
		// lives: it is there in the end.
		lives bool
		want  []string
	}{
		{"a destroy", func(h *house, _ time.Time) {
			h.create(alice, "demo")
			h.brokerDies()
			if _, err := h.Destroy(h.t.Context(), alice, "demo", false, "r"); !errdefs.IsUnavailable(err) {
				h.t.Fatal(err)
			}
		}, false, []string{"intent daemon.recover", "outcome ok"}},
		{"a lifetime", func(h *house, now time.Time) {
			if _, _, err := h.Create(h.t.Context(), alice, workspace.Wanted{Key: "demo", TTL: time.Minute}); err != nil {
				h.t.Fatal(err)
			}
			h.brokerDies()
			h.tick(now.Add(2 * time.Minute))
		}, false, []string{"intent daemon.recover", "outcome ok"}},
		{"a creation that was not heard", func(h *house, _ time.Time) {
			h.brokerDies()
			if _, _, err := h.Create(h.t.Context(), alice, workspace.Wanted{Key: "demo"}); !errdefs.IsUnavailable(err) {
				h.t.Fatal(err)
			}
		}, false, []string{"intent daemon.recover", "outcome ok"}},
		{"a creation whose answer was lost", func(h *house, _ time.Time) {
			h.rt.setHook(func(op string, name id.Workspace) error {
				if op != "create" {
					return nil
				}
				h.brokerDies()
				sum := sha256.Sum256([]byte("demo"))
				_, _, err := h.rt.add(name, runtime.Plan{KeyDigest: hex.EncodeToString(sum[:]), Limits: workspace.DefaultLimits})
				return errors.Join(errNoBroker, err)
			})
			if _, _, err := h.Create(h.t.Context(), alice, workspace.Wanted{Key: "demo"}); !errdefs.IsUnavailable(err) {
				h.t.Fatal(err)
			}
		}, true, []string{"intent daemon.recover", "outcome ok"}},
		{"a creation that could not be undone", func(h *house, _ time.Time) {
			h.rt.setHook(func(op string, _ id.Workspace) error {
				if op == "destroy" {
					return errNoBroker
				}
				return nil
			})
			if _, _, err := h.Create(h.t.Context(), alice, workspace.Wanted{Key: "demo", Profile: "filled"}); err == nil {
				h.t.Fatal("it is filled")
			}
			h.brokerDies()
		}, false, []string{"intent daemon.recover", "outcome ok"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHouse(t)
			now := time.Now()
			c.begin(h, now)
			if k := living(h, "demo"); k.Name == "" || k.Phase == workspace.Settled {
				t.Fatalf("it is %q", k.Phase)
			}
			now = now.Add(3 * time.Minute)
			before := len(h.records())
			for range 100 { // with no broker nothing is done, and nothing recorded
				now = now.Add(time.Second)
				h.tick(now)
			}
			h.expect(before)
			h.rt.setHook(nil)
			for range 61 { // the longest wait
				now = now.Add(time.Second)
				h.tick(now)
			}
			if k := living(h, "demo"); (k.Name != "") != c.lives || c.lives && k.Phase != workspace.Settled {
				t.Errorf("%s is %q", k.Name, k.Phase)
			}
			h.expect(before, c.want...)
			// The key is free, or taken, as if nothing had been.
			if w := h.create(alice, "demo"); w.State != workspace.StateRunning {
				t.Errorf("it is %s", w.State)
			}
		})
	}
}

// A destroy that upkeep finished is the one that was asked for: who repeats it has its answer.
func TestADestroyThatWasTakenUpHasItsAnswer(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	w := h.create(alice, "demo")
	h.brokerDies()
	if _, err := h.Destroy(ctx, alice, "demo", false, "r"); !errdefs.IsUnavailable(err) {
		t.Fatal(err)
	}
	h.rt.setHook(nil)
	h.tick(time.Now())
	next := h.create(alice, "demo")
	for range 2 {
		if home, err := h.Destroy(ctx, alice, "demo", false, "r"); err != nil || home != "/retained/"+string(w.Name) {
			t.Errorf("%q, %v", home, err)
		}
	}
	if k := living(h, "demo"); k.Name != next.Name {
		t.Errorf("what has the key next is %q", k.Name)
	}
}

// One that fails again and again is tried after ever longer waits, and one that hangs holds up nothing
// but itself.
func TestWhatIsTakenUpWaitsLongerEachTime(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	stuck, hung := h.create(alice, "stuck").Name, h.create(alice, "hung").Name
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var mu sync.Mutex
	tries := map[id.Workspace]int{}
	dead := true
	h.rt.setHook(func(op string, name id.Workspace) error {
		if op != "destroy" {
			return nil
		}
		mu.Lock()
		tries[name]++
		mu.Unlock()
		switch {
		case dead, name == stuck:
			return errNoBroker
		case name == hung:
			once.Do(func() { close(entered) })
			<-release
		}
		return nil
	})
	for _, key := range []string{"stuck", "hung"} {
		if _, err := h.Destroy(ctx, alice, key, true, ""); !errdefs.IsUnavailable(err) {
			t.Fatal(err)
		}
	}
	dead = false
	clear(tries)
	now := time.Now()
	h.Round(ctx, now)
	<-entered
	// The first round is over when one of the two hangs. Every later one waits for the other's attempt.
	attempts := func() int {
		mu.Lock()
		defer mu.Unlock()
		return tries[stuck]
	}
	for deadline := time.Now().Add(10 * time.Second); attempts() < 2 && time.Now().Before(deadline); {
		now = now.Add(time.Second)
		h.Round(ctx, now)
	}
	for range 600 {
		now = now.Add(time.Second)
		h.Round(ctx, now)
	}
	// 1, 2, 4 … 32 seconds after the one before, and then each minute.
	mu.Lock()
	if n := tries[stuck]; n < 10 || n > 20 {
		t.Errorf("tried %d times in ten minutes", n)
	}
	if n := tries[hung]; n != 1 {
		t.Errorf("what hangs was tried %d times", n)
	}
	mu.Unlock()
	// Others are seen to meanwhile.
	if _, _, err := h.Create(ctx, alice, workspace.Wanted{Key: "short", TTL: time.Second}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); living(h, "short").Name != ""; {
		now = now.Add(time.Second)
		h.Round(ctx, now)
		if time.Now().After(end) {
			t.Fatal("a lifetime does not end")
		}
	}
	close(release)
	h.Settle()
	if living(h, "hung").Name != "" {
		t.Error("what hung is not gone")
	}
}

// What the broker refuses takes a person to mend: it is left alone for a minute, and then tried once
// in a long while.
func TestWhatWasRefusedIsLeftToPeople(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	linked := true
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "destroy" && linked {
			return fmt.Errorf("something stands in its place: %w", errdefs.ErrFailedPrecondition)
		}
		return nil
	})
	if _, err := h.Destroy(t.Context(), alice, "demo", false, ""); !errdefs.IsFailedPrecondition(err) {
		t.Fatal(err)
	}
	now := time.Now()
	tries := func(seconds int) int {
		before := h.rt.count("destroy")
		for range seconds {
			now = now.Add(time.Second)
			h.tick(now)
		}
		return h.rt.count("destroy") - before
	}
	if n := tries(60); n != 0 {
		t.Errorf("tried %d times in the first minute", n)
	}
	if n := tries(3 * 3600); n < 4 || n > 9 {
		t.Errorf("tried %d times in three hours", n)
	}
	linked = false
	if n := tries(3601); n != 1 || living(h, "demo").Name != "" {
		t.Errorf("tried %d times, and it is %q", n, living(h, "demo").Phase)
	}
}

// Another broker answers than before. What it says counts, at once and without being asked about each
// workspace: of what runs, of what is paused, and of what callers were told had failed.
func TestAnotherBrokerIsBelieved(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.rt.mu.Lock()
	h.rt.start = "first"
	h.rt.mu.Unlock()
	if err := h.NoteMended(ctx); err != nil {
		t.Fatal(err)
	}
	for _, key := range []id.Key{"goes", "stops", "pauses", "ended", "limits", "stays"} {
		h.create(alice, key)
	}
	name := func(key id.Key) id.Workspace { return living(h, string(key)).Name }
	h.brokerDies()
	_, destroyed := h.Destroy(ctx, alice, "goes", true, "")
	_, stopped := h.Stop(ctx, alice, "stops")
	_, paused := h.Pause(ctx, alice, "pauses")
	_, limited := h.Update(ctx, alice, "limits", workspace.Change{Limits: workspace.Limits{Pids: 77}})
	_, _, created := h.Create(ctx, alice, workspace.Wanted{Key: "new"})
	for what, err := range map[string]error{"destroy": destroyed, "stop": stopped, "pause": paused, "update": limited, "create": created} {
		if !errdefs.IsUnavailable(err) {
			t.Errorf("%s without a broker: %v", what, err)
		}
	}
	gone := name("goes")
	h.rt.setHook(nil)
	h.rt.set(name("stops"), workspace.StateStopped)
	h.rt.set(name("ended"), workspace.StateStopped)
	h.rt.mu.Lock()
	h.rt.start = "second"
	h.rt.mu.Unlock()
	before, resumed := len(h.records()), h.rt.count("resume")
	list, err := h.Mended(ctx, admin)
	h.Settle()
	if err != nil {
		t.Fatal(err)
	}
	var kinds []workspace.MendedKind
	for _, m := range list {
		kinds = append(kinds, m.Kind)
	}
	slices.Sort(kinds)
	if !slices.Equal(kinds, []workspace.MendedKind{workspace.CreateUndone, workspace.DestroyFinished}) {
		t.Errorf("told %v", list)
	}
	states := map[id.Key]workspace.State{}
	for _, w := range h.Due(func(*workspace.Workspace) bool { return true }) {
		states[w.Key] = w.State
		if h.Unsettled(&w) {
			t.Errorf("%s is unsettled", w.Key)
		}
	}
	want := map[id.Key]workspace.State{
		"stops": workspace.StateStopped, "pauses": workspace.StateRunning, "ended": workspace.StateStopped, "limits": workspace.StateRunning,
		"stays": workspace.StateRunning,
	}
	if d := cmp.Diff(want, states); d != "" {
		t.Errorf("states (-want +got):\n%s", d)
	}
	if h.rt.count("resume") == resumed {
		t.Error("a pause that failed is not undone")
	}
	for _, r := range h.records()[before:] {
		if r.Type == audit.Intent && (r.Principal != "system" || r.Workspace == name("stays") || r.Workspace == name("ended")) {
			t.Errorf("recorded: %+v", r)
		}
	}
	if _, there := h.rt.all[gone]; there {
		t.Error("what was to be destroyed is there")
	}
	// The same broker again, and a round of upkeep, find nothing to do.
	before = len(h.records())
	if _, err := h.Mended(ctx, admin); err != nil {
		t.Error(err)
	}
	h.tick(time.Now().Add(2 * time.Minute))
	if _, err := h.Reconcile(ctx); err != nil {
		t.Error(err)
	}
	h.Settle()
	h.expect(before)
}

// While no broker answers, one line of the log is enough for all that waits for it.
func TestAMissingBrokerIsSaidOnce(t *testing.T) {
	h := newHouse(t)
	for n := range 20 {
		h.create(alice, id.Key(fmt.Sprint("demo ", n)))
	}
	h.brokerDies()
	for n := range 20 {
		if _, err := h.Destroy(t.Context(), alice, fmt.Sprint("demo ", n), true, ""); !errdefs.IsUnavailable(err) {
			t.Fatal(err)
		}
	}
	before := strings.Count(h.logs.String(), "level=ERROR")
	now := time.Now()
	for range 50 {
		now = now.Add(time.Second)
		h.tick(now)
	}
	if n := strings.Count(h.logs.String(), "level=ERROR") - before; n != 1 {
		t.Errorf("%d errors are logged for 20 workspaces in 50 seconds:\n%s", n, h.logs)
	}
}

// A start whose executor runs and does not greet in time has failed, and is not taken for one that runs nothing. What the error says of
// brokers does not matter.
func TestAStartThatBrokeOffIsTakenUp(t *testing.T) {
	h := newHouse(t)
	if _, _, err := h.Create(t.Context(), alice, workspace.Wanted{Key: "demo", NoStart: true}); err != nil {
		t.Fatal(err)
	}
	late := errors.New("cannot greet its executor: the deadline is over")
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "link" {
			return late
		}
		return nil
	})
	if _, err := h.Start(t.Context(), alice, "demo"); !errors.Is(err, late) {
		t.Fatal(err)
	}
	if w, err := h.Get(t.Context(), alice, "demo"); err != nil || w.State != workspace.StateRunning {
		t.Errorf("it is %q, and runs; %v", w.State, err)
	}
	before := len(h.records())
	h.rt.setHook(nil)
	h.tick(time.Now())
	h.expect(before, "intent daemon.recover", "outcome ok")
	h.tick(time.Now().Add(time.Minute))
	h.expect(before, "intent daemon.recover", "outcome ok") // once
}

// What the broker was asked for by a daemon that was killed may come to its end after the next one has looked. That one sees it within
// seconds.
func TestWhatABrokerEndsLateIsSeen(t *testing.T) {
	h := newHouse(t)
	w, _, err := h.Create(t.Context(), alice, workspace.Wanted{Key: "demo", NoStart: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); h.Tend(ctx) }()
	defer func() { stop(); <-ended }()
	if _, err := h.rt.set(w.Name, workspace.StateRunning); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); ; <-tick.C {
		now, err := h.Get(t.Context(), alice, "demo")
		if err == nil && now.State == workspace.StateRunning {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it is %q, and runs; %v", now.State, err)
		}
	}
}
