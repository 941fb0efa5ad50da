package gate_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/record"
)

var scoped = principal.Principal{Kind: principal.Token, Grant: &principal.Grant{
	ID: "0123456789ab", Owner: "uid:1000", Roles: principal.Operator, Scope: principal.Scope{"demo"},
}}

// holding is a gate whose one workspace is called something else when the test says so.
func holding(b *book) (g *gate.Gate, rename func(id.Key)) {
	now := demo
	g = gate.New(gate.Config{
		Records: record.NewWriter(b, nil), Judge: judge.New(nil), Ask: new(answers), Log: slog.New(slog.DiscardHandler),
		Now: func(name id.Workspace) (operation.Target, bool) { return now, name == now.Name },
	})
	return g, func(key id.Key) {
		now.Key = key
		g.Renamed(now)
	}
}

func nothing(context.Context, permit.Permit) (any, error) { return nil, nil }

// A request that was authorised, and admitted, before its workspace was renamed out of reach has no
// effect after it, and is recorded once.
func TestNothingIsDoneAfterARename(t *testing.T) {
	b := &book{}
	g, rename := holding(b)
	ctx, release := g.Hold(t.Context())
	defer release()
	r := operation.Request{By: scoped, Op: operation.Simple(operation.PauseWorkspace), On: demo}
	a, err := g.Admit(ctx, r, nil)
	if err != nil {
		t.Fatal(err)
	}
	// What the daemon does on the way is its own.
	self := r
	self.By = principal.Self()
	own, err := g.Admit(ctx, self, nil)
	if err != nil {
		t.Fatal(err)
	}
	rename("private")
	called := false
	// As a begun operation is carried out: also when its caller has gone.
	err = a.Do(context.WithoutCancel(ctx), func(context.Context, permit.Permit) (any, error) { called = true; return nil, nil })
	if called || !errdefs.IsPermissionDenied(err) {
		t.Errorf("called %v, %v", called, err)
	}
	if _, err := g.Authorise(ctx, r, nil); !errdefs.IsPermissionDenied(err) {
		t.Errorf("authorised again: %v", err)
	}
	g.Settle()
	if got := b.story(0); !slices.Equal(got, []string{"denial workspace.pause denied", "denial workspace.pause denied"}) {
		t.Errorf("recorded %q", got) // the end, and the request after it
	}
	if err := own.Do(ctx, nothing); err != nil {
		t.Errorf("the daemon's own: %v", err)
	}
}

// A rename between the look at a target and the note that it was reached is seen; a request that is over
// is not ended, and nothing of it is kept.
func TestHoldSeesARenameBefore(t *testing.T) {
	b := &book{}
	g, rename := holding(b)
	r := operation.Request{By: scoped, Op: operation.Simple(operation.WaitForEnd)}
	over, release := g.Hold(t.Context())
	if _, err := g.Authorise(over, r, func() (operation.Target, error) { return demo, nil }); err != nil {
		t.Fatal(err)
	}
	release()
	ctx, release := g.Hold(t.Context())
	defer release()
	_, err := g.Authorise(ctx, r, func() (operation.Target, error) {
		rename("private")
		return demo, nil
	})
	if !errdefs.IsPermissionDenied(err) {
		t.Errorf("authorised by a name of before: %v", err)
	}
	g.Settle()
	if got := b.story(0); !slices.Equal(got, []string{"denial command.wait denied"}) {
		t.Errorf("recorded %q", got)
	}
}
