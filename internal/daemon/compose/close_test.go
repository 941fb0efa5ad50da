package compose_test

import (
	"context"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/service/audits"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// What is at work while the daemon ends records itself before the end, which is the last record. What comes later is
// refused, and the next start takes the log.
func TestCloseWaitsForWhatWrites(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	write := func(what string) error {
		return h.log.AppendAsync(audit.Record{Type: audit.Connection, Principal: "system", Workspace: "ws-00000001", Error: what})
	}
	begun, release := make(chan struct{}), make(chan struct{})
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "stop" {
			close(begun)
			<-release
		}
		return nil
	})
	h.crash() // with what Close waits for
	h.requests = func(context.Context) {
		if err := write("request"); err != nil {
			t.Error(err)
		}
	}
	h.cutWays = func() {
		if err := write("way"); err != nil {
			t.Error(err)
		}
		close(release) // what was begun ends after the ways
	}
	h.start()
	at := len(h.records())
	stopped := make(chan error, 1)
	go func() {
		_, err := h.Stop(context.WithoutCancel(t.Context()), alice, "demo")
		stopped <- err
	}()
	<-begun
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	var got []string
	for _, r := range h.records()[at:] {
		got = append(got, string(r.Type)+r.Error)
	}
	if want := []string{"intent", "connectionrequest", "connectionway", "outcome", "lifecycle"}; !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
	if err := write("late"); !errdefs.IsUnavailable(err) {
		t.Errorf("behind the end: %v", err)
	}
	m, _, err := audits.LoadMark(t.Context(), h.store)
	if err != nil || !m.Sealed || m.Head != h.log.Head() {
		t.Errorf("%+v, %v", m, err)
	}
	if err := h.Mark(t.Context()); err != nil {
		t.Error(err)
	}
	if again, _, err := audits.LoadMark(t.Context(), h.store); err != nil || !again.Sealed {
		t.Errorf("the mark of the end was replaced by %+v, %v", again, err)
	}
	h.crash()
	h.requests, h.cutWays = nil, nil
	h.start()
}
