package compose_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// mendedEvents are the events that p is given of those that are kept, but for others' kinds.
func (h *house) mendedEvents(p principal.Principal) []string {
	h.t.Helper()
	var said []string
	ctx, cancel := context.WithCancel(h.t.Context())
	defer cancel()
	last := h.create(admin, id.Key("last for "+strings.ReplaceAll(p.String(), ":", " "))).Name
	err := h.Watch(ctx, admin, nil, 1, func(ev workspace.Event, _ int64) error {
		if ev.Kind == "broker.mended" && p.MayReach(ev.Owner) {
			said = append(said, ev.Status+" "+string(ev.Workspace)+" "+string(ev.Key)+" "+ev.Note+ev.Error)
		}
		if ev.Workspace == last {
			cancel()
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return said
}

func TestMendedIsToldOnce(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	name := h.create(alice, "demo").Name
	h.rt.start, h.rt.mended = "first", []workspace.Mended{
		{Kind: workspace.ExecutorLost, Workspace: name, Done: "it is stopped"},
		{Kind: workspace.UserDatabase, Done: "removed a lock"},
		{Kind: workspace.NotMended, Workspace: "ws-ffffffff", Done: "it sleeps"},
	}
	before := len(h.records())
	h.crash()
	h.start()
	count := func(from int) (n int) {
		t.Helper()
		for _, r := range h.records()[from:] {
			if r.Type == audit.Lifecycle && strings.Contains(string(r.Data), "broker.mended") {
				n++
			}
		}
		return n
	}
	if n := count(before); n != 3 {
		t.Errorf("%d of three are on record", n)
	}
	for _, r := range h.records()[before:] {
		if r.Workspace != name || r.Type != audit.Lifecycle {
			continue
		}
		var data map[string]string
		if err := json.Unmarshal(r.Data, &data); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(map[string]string{"event": "broker.mended", "kind": "executor_lost", "done": "it is stopped"}, data); d != "" ||
			r.Principal != "system" || r.Status != audit.StatusOK {
			t.Errorf("%+v: %s", r, d)
		}
	}
	if list, err := h.Mended(ctx, admin); err != nil || len(list) != 3 || list[0].Workspace != name {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := h.Mended(ctx, alice); !errdefs.IsPermissionDenied(err) {
		t.Errorf("an ordinary user is told: %v", err)
	}
	if d := cmp.Diff([]string{
		"ok " + string(name) + " demo executor_lost: it is stopped", "ok   user_database: removed a lock",
		"failed ws-ffffffff  not_mendedit sleeps",
	}, h.mendedEvents(admin)); d != "" {
		t.Errorf("events: %s", d)
	}
	if d := cmp.Diff([]string{"ok " + string(name) + " demo executor_lost: it is stopped"}, h.mendedEvents(alice)); d != "" {
		t.Errorf("events of the owner: %s", d)
	}
	if _, err := h.VerifyAudit(ctx, admin); err != nil {
		t.Error(err)
	}

	// The same start of the broker is not told again, another one is, also while the daemon
	// lives.
	before = len(h.records())
	h.crash()
	h.start()
	if list, err := h.Mended(ctx, admin); err != nil || len(list) != 0 || count(before) != 0 {
		t.Errorf("told again: %v, %v", list, err)
	}
	h.rt.start, h.rt.mended = "second", h.rt.mended[:1]
	if err := h.NoteMended(ctx); err != nil {
		t.Fatal(err)
	}
	if list, err := h.Mended(ctx, root); err != nil || len(list) != 1 || count(before) != 1 {
		t.Errorf("another start: %v, %v, %d records", list, err, count(before))
	}
}

func TestHomesAreKeptForTheirTime(t *testing.T) {
	h := newHouse(t)
	h.keepHomes = 48 * time.Hour
	h.crash()
	h.start()
	ctx := t.Context()
	for _, key := range []id.Key{"old", "purged"} {
		h.create(alice, key)
		if _, err := h.Destroy(ctx, alice, string(key), key == "purged", ""); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := h.Retained(ctx, alice)
	if err != nil || len(kept) != 1 || kept[0].Key != "old" || kept[0].Home == "" ||
		kept[0].ExpiresMS-kept[0].DestroyedAtMS != h.keepHomes.Milliseconds() {
		t.Fatalf("%+v, %v", kept, err)
	}
	if others, err := h.Retained(ctx, bob); err != nil || len(others) != 0 {
		t.Errorf("another user is shown %+v, %v", others, err)
	}
	if all, err := h.Retained(ctx, admin); err != nil || len(all) != 1 {
		t.Errorf("an administrator is shown %+v, %v", all, err)
	}
	step := "forget " + kept[0].Home
	if err := h.ForgetHomes(ctx, time.Now().Add(47*time.Hour)); err != nil || h.rt.count(step) != 0 {
		t.Errorf("removed too early: %v", err)
	}
	planted := errors.New("planted")
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == step {
			return planted
		}
		return nil
	})
	later := time.Now().Add(49 * time.Hour)
	if err := h.ForgetHomes(ctx, later); !errors.Is(err, planted) {
		t.Errorf("a removal that fails: %v", err)
	}
	if kept, err := h.Retained(ctx, alice); err != nil || len(kept) != 1 {
		t.Errorf("after a removal that failed: %+v, %v", kept, err)
	}
	h.rt.setHook(nil)
	before := len(h.records())
	if err := h.ForgetHomes(ctx, later); err != nil || h.rt.count(step) != 2 {
		t.Errorf("%v, %d times", err, h.rt.count(step))
	}
	if kept, err := h.Retained(ctx, alice); err != nil || len(kept) != 0 {
		t.Errorf("after all: %+v, %v", kept, err)
	}
	h.expect(before, "intent home.remove", "outcome ok")
	for _, r := range h.records()[before:] {
		if r.Principal != "system" || r.Workspace != kept[0].Workspace {
			t.Errorf("%+v", r)
		}
	}
	// 0 is for ever.
	h.create(alice, "for ever")
	if _, err := h.Destroy(ctx, alice, "for ever", false, ""); err != nil {
		t.Fatal(err)
	}
	h.keepHomes = 0
	h.crash()
	h.start()
	if err := h.ForgetHomes(ctx, time.Now().Add(100*365*24*time.Hour)); err != nil {
		t.Error(err)
	}
	if kept, err := h.Retained(ctx, alice); err != nil || len(kept) != 1 || kept[0].ExpiresMS != 0 {
		t.Errorf("for ever: %+v, %v", kept, err)
	}
}
