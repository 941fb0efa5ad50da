package compose_test

import (
	"context"
	"slices"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// leaving is the context of a caller who leaves at a moment that only the record shows.
type leaving struct {
	context.Context
	left func() bool
}

var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (l leaving) Done() <-chan struct{} {
	if l.left() {
		return closed
	}
	return nil
}

func (l leaving) Err() error {
	if l.left() {
		return context.Canceled
	}
	return nil
}

// once returns a context whose caller leaves once the record has a record of that type behind at.
func (h *house) once(at int, of audit.Type) context.Context {
	return leaving{h.t.Context(), func() bool {
		return slices.ContainsFunc(h.records()[at:], func(r audit.Record) bool { return r.Type == of })
	}}
}

// The caller of a request that a person is asked about leaves: that it was not done is recorded.
func TestTheCallerLeavesAQuestion(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	at := len(h.records())
	ctx, leave := context.WithCancel(t.Context())
	a, done := h.startedUnder(ctx, alice, upload("llm", ""))
	leave()
	if err := <-done; err == nil {
		t.Error("it was let through")
	}
	h.expect(at, "request command.exec", "denial command.exec denied canceled")
	if a, err := h.Approval(t.Context(), alice, a.ID); err != nil || a.State != approval.Pending {
		t.Errorf("%s %v", a.State, err)
	}
}

// One leaves as soon as the question is recorded: it is kept, so that it gets an end.
func TestTheCallerLeavesWhileItAsks(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	at := len(h.records())
	if _, _, err := h.Run(h.once(at, audit.Request), alice, "demo", upload("llm", "")); err == nil {
		t.Error("it was let through")
	}
	h.expect(at, "request command.exec", "denial command.exec denied canceled")
	list, _, err := h.Approvals(t.Context(), root, approval.Filter{State: approval.Pending, Limit: 2})
	if err != nil || len(list) != 1 {
		t.Errorf("%d questions, %v", len(list), err)
	}
}

// Who answers leaves as soon as the answer is recorded: it counts, as the record says.
func TestWhoAnswersLeaves(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	at := len(h.records())
	a, done := h.started(alice, upload("llm", ""))
	if _, err := h.Answer(h.once(at, audit.Approval), root, a.ID, approval.Once, "", false); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	h.expect(at, "request command.exec", "approval ok", "intent command.exec", "outcome ok")
}

// What is refused is recorded, also if who asked does not wait for the answer.
func TestARefusedCallerLeaves(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	at := len(h.records())
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if _, err := h.Stop(ctx, bob, "demo"); err == nil {
		t.Error("it was let through")
	}
	_ = h.Login(ctx, "192.0.2.1", principal.Principal{}, "", "unknown") // told to nobody
	h.expect(at, "denial workspace.stop denied permission_denied", "denial login denied unauthenticated")
}
