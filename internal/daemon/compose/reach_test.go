package compose_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// held is a request of p's that lasts.
func (h *house) held() context.Context {
	ctx, release := h.Hold(h.t.Context())
	h.t.Cleanup(release)
	return ctx
}

func (h *house) rename(from, to id.Key) {
	h.t.Helper()
	if _, err := h.Update(h.t.Context(), alice, string(from), workspace.Change{Key: to}); err != nil {
		h.t.Fatal(err)
	}
}

// denials are the operations that were refused, since the nth record.
func (h *house) denials(after int) (all []string) {
	h.Settle() // what is recorded beside a request
	for i, r := range h.records()[after:] {
		if r.Type == audit.Denial {
			all = append(all, strings.TrimPrefix(h.story(after)[i], "denial ")+" by "+r.Principal)
		}
	}
	slices.Sort(all)
	return all
}

// A token's requests that last are judged again when what it reached is renamed: those that reach it no
// more have ended when the rename is answered, and the record has why. No others end.
func TestARenameEndsWhatATokenHasUnderWay(t *testing.T) {
	h := newHouse(t)
	w := h.create(alice, "bot-1")
	h.create(alice, "bot-2")
	scoped, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator, Scope: principal.Scope{"bot-*"}})
	byName, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator, Scope: principal.Scope{string(w.Name)}})
	whole, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator})
	at := len(h.records())
	type request struct {
		ctx  context.Context
		ends bool
		done chan error
	}
	var all []request
	begin := func(p principal.Principal, ref string, ends bool) {
		r := request{h.held(), ends, make(chan error, 1)}
		w, err := h.Get(r.ctx, p, ref)
		if err != nil {
			t.Fatal(err)
		}
		go func() { r.done <- failure2(h.Wait(r.ctx, p, string(w.Name), "")) }() // which it has afterwards too
		all = append(all, r)
	}
	begin(scoped, "bot-1", true)
	begin(scoped, string(w.Name), true)
	begin(scoped, "bot-2", false)
	begin(byName, string(w.Name), false)
	begin(whole, "bot-1", false)
	begin(alice, "bot-1", false)

	h.rename("bot-1", "bot-3") // which it reaches as well
	for i, r := range all {
		if r.ctx.Err() != nil {
			t.Errorf("request %d ended: %v", i, context.Cause(r.ctx))
		}
	}
	h.rename("bot-3", "private")
	for i, r := range all {
		cause := context.Cause(r.ctx)
		if (cause != nil) != r.ends {
			t.Errorf("request %d: %v", i, cause)
		}
		if !r.ends || cause == nil {
			continue
		}
		if text := cause.Error(); !errdefs.IsPermissionDenied(cause) || !strings.Contains(text, "it was renamed") ||
			strings.Contains(text, "private") {
			t.Errorf("request %d ended with %v", i, cause)
		}
		if err := <-r.done; !errdefs.IsPermissionDenied(err) {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if got := h.denials(at); len(got) != 2 || !strings.HasPrefix(got[0], "workspace.inspect denied") ||
		!strings.HasSuffix(got[0], scoped.String()) {
		t.Errorf("recorded %q", got)
	}
	// A stop ends the others.
	for _, ref := range []string{"private", "bot-2"} {
		if _, err := h.Stop(t.Context(), alice, ref); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range all {
		if !r.ends {
			if err := <-r.done; err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		}
	}
}

// What was authorised before a rename and waits for its turn, or for a person, is not carried out
// after it.
func TestARenameComesBeforeWhatWaits(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	p, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator, Scope: principal.Scope{"demo"}})

	// It stands in line behind the rename.
	entered, release := make(chan struct{}), make(chan struct{})
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "limit" {
			close(entered)
			<-release
		}
		return nil
	})
	renamed := make(chan error, 1)
	go func() {
		renamed <- failure(h.Update(ctx, alice, "demo", workspace.Change{Key: "private", Limits: workspace.Limits{Pids: 99}}))
	}()
	<-entered
	held := h.held()
	if _, err := h.Get(held, p, "demo"); err != nil { // so far it reaches it
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- failure(h.Stop(held, p, "demo")) }()
	close(release)
	if err := <-renamed; err != nil {
		t.Fatal(err)
	}
	if err := <-stopped; !errdefs.IsPermissionDenied(err) && !errdefs.IsNotFound(err) {
		t.Errorf("stopped: %v", err)
	}
	h.rt.setHook(nil)
	if n := h.rt.count("stop"); n != 0 {
		t.Errorf("stopped %d times", n)
	}

	// It waits for a person, who answers later.
	h.rename("private", "demo")
	held = h.held()
	a, done := h.startedUnder(held, p, upload("llm", ""))
	h.rename("demo", "private")
	if err := <-done; !errdefs.IsPermissionDenied(err) {
		t.Errorf("a question of a token that does not reach its workspace any more: %v", err)
	}
	_, _ = h.Answer(ctx, root, a.ID, approval.Once, "", false) // it may be too late
	if n := h.rt.count("run"); n != 0 {
		t.Errorf("run %d times", n)
	}
}

// Whoever watches everything is told nothing more of what was renamed out of reach, nor what is kept of
// it, and neither sees nor answers the questions about it.
func TestARenameHidesEventsAndQuestions(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	h.create(alice, "demo-2")
	p, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator | principal.Approver, Scope: principal.Scope{"demo*"}})
	a := h.askNow(alice, upload("llm", ""))
	if list, _, err := h.Approvals(ctx, p, approval.Filter{Limit: 9}); err != nil || len(list) != 1 {
		t.Fatalf("sees %d questions, %v", len(list), err)
	}
	h.rename("demo", "private")
	h.create(alice, "demo-last")
	err := h.Watch(ctx, p, nil, -1, func(ev workspace.Event, _ int64) error {
		if ev.Workspace == a.Subject.Workspace {
			t.Errorf("told of %s by its key %q: %s", ev.Workspace, ev.Key, ev.Kind)
		}
		if ev.Key == "demo-last" {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Error(err)
	}
	if list, _, err := h.Approvals(ctx, p, approval.Filter{Limit: 9}); err != nil || len(list) != 0 {
		t.Errorf("sees %d questions, %v", len(list), err)
	}
	if _, err := h.Approval(ctx, p, a.ID); !errdefs.IsPermissionDenied(err) {
		t.Errorf("sees the question: %v", err)
	}
	if _, err := h.Answer(ctx, p, a.ID, approval.Deny, "", false); !errdefs.IsPermissionDenied(err) {
		t.Errorf("answers the question: %v", err)
	}
	if err := h.WatchApprovals(ctx, p, func(v *approval.View) error {
		if v != nil {
			t.Errorf("told of %s", v.ID)
		}
		return errEnough
	}); !errors.Is(err, errEnough) {
		t.Error(err)
	}
	h.answer(alice, a, approval.Deny)
}

func failure2[T, U any](_ T, _ U, err error) error { return err }

// What is followed is the workspace and not its key: of one that is made anew under the key, by whomever,
// who follows the one before learns nothing.
func TestFollowersDoNotPassToTheNextWithTheKey(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	first := h.create(alice, "demo")
	p, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator, Scope: principal.Scope{"demo", "last"}})
	for _, by := range []principal.Principal{alice, p} {
		watched := make(chan error, 1)
		var seen []string
		begun := make(chan struct{})
		go func() {
			watched <- h.Watch(h.held(), by, []string{"demo"}, -1, func(ev workspace.Event, _ int64) error {
				if ev.Workspace != first.Name {
					t.Errorf("%s is told of %s: %s", by, ev.Workspace, ev.Kind)
				}
				if seen = append(seen, ev.Kind); len(seen) == 1 {
					close(begun)
				}
				if ev.Kind == "workspace.destroy" {
					return errEnough
				}
				return nil
			})
		}()
		<-begun
		done := make(chan workspace.State, 1)
		waiting := h.held()
		if _, err := h.Get(waiting, by, "demo"); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, state, _ := h.Wait(waiting, by, string(first.Name), "")
			done <- state
		}()
		if _, err := h.Destroy(ctx, alice, "demo", true, ""); err != nil {
			t.Fatal(err)
		}
		next := h.create(bob, "demo")
		if err := <-watched; !errors.Is(err, errEnough) {
			t.Errorf("%s: %v", by, err)
		}
		if state := <-done; state != workspace.StateDestroyed && state != "" { // "": it came too late to find it
			t.Errorf("%s waits until it is %s", by, state)
		}
		over, cancel := context.WithCancel(ctx)
		cancel() // it would not end
		if err := h.Watch(over, by, []string{"demo"}, 0, nil); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s reaches %s: %v", by, next.Name, err)
		}
		if _, err := h.Destroy(ctx, bob, "demo", true, ""); err != nil {
			t.Fatal(err)
		}
		first = h.create(alice, "demo")
	}
}
