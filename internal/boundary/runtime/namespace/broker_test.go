package namespace_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/runtime/namespace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// What is not served is refused with the reason, and without a connection.
func TestUnservedRefuses(t *testing.T) {
	b, ctx := namespace.Unserved("nothing stays; carrel up serves it"), t.Context()
	p := brokerapi.NameParams{Name: "ws-2a97516c"}
	for method, call := range map[string]func() error{
		"create":  func() error { _, err := b.Create(ctx, brokerapi.CreateParams{Name: p.Name}, nil); return err },
		"start":   func() error { _, err := b.Start(ctx, brokerapi.StartParams{Name: p.Name}); return err },
		"stop":    func() error { _, err := b.Stop(ctx, p); return err },
		"destroy": func() error { _, err := b.Destroy(ctx, brokerapi.DestroyParams{Name: p.Name}); return err },
		"pause":   func() error { _, err := b.Pause(ctx, p); return err },
		"resume":  func() error { _, err := b.Resume(ctx, p); return err },
		"update":  func() error { _, err := b.Update(ctx, brokerapi.UpdateParams{Name: p.Name}); return err },
		"list":    func() error { _, err := b.List(ctx, brokerapi.ListParams{}); return err },
		"report":  func() error { _, err := b.Report(ctx, p); return err },
		"stats":   func() error { _, err := b.Stats(ctx, p); return err },
		"forget":  func() error { return b.Forget(ctx, brokerapi.ForgetParams{Name: p.Name}) },
		"revive":  func() error { _, err := b.Revive(ctx, brokerapi.ForgetParams{Name: p.Name}); return err },
		"countersign": func() error {
			_, err := b.Countersign(ctx, brokerapi.CountersignParams{})
			return err
		},
	} {
		err := call()
		if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "cannot "+method+": nothing stays; carrel up serves it") {
			t.Errorf("%s: %v", method, err)
		}
	}
	if start, list, err := b.Mended(ctx); start != "" || list != nil || err != nil {
		t.Errorf("it mended %q %v %v", start, list, err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
