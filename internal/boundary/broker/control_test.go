package broker_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

func mustStart(t *testing.T, r *rig) {
	t.Helper()
	mustCreate(t, r.conn, name)
	if _, err := call[brokerapi.StartResult](t, r.conn, "start", brokerapi.NameParams{Name: name}); err != nil {
		t.Fatal(err)
	}
	r.host.reset()
}

func TestPauseAndResume(t *testing.T) {
	r := newRig(t, true)
	for _, method := range []string{"pause", "resume", "stats"} {
		if _, err := call[any](t, r.conn, method, brokerapi.NameParams{Name: name}); !errdefs.IsNotFound(err) {
			t.Errorf("%s of nothing: %v", method, err)
		}
	}
	mustStart(t, r)
	for range 2 { // repeating is no error, and no effect
		if w, err := call[brokerapi.Workspace](t, r.conn, "pause", brokerapi.NameParams{Name: name}); err != nil ||
			w.State != workspace.StatePaused || w.Executor == nil {
			t.Fatalf("paused %+v, %v", w, err)
		}
	}
	if _, err := call[any](t, r.conn, "start", brokerapi.NameParams{Name: name}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a paused workspace was started: %v", err)
	}
	if s, err := call[workspace.Stats](t, r.conn, "stats", brokerapi.NameParams{Name: name}); err != nil || s.Pids != 3 {
		t.Errorf("stats %+v, %v", s, err)
	}
	for range 2 {
		if w, err := call[brokerapi.Workspace](t, r.conn, "resume", brokerapi.NameParams{Name: name}); err != nil ||
			w.State != workspace.StateRunning {
			t.Fatalf("resumed %+v, %v", w, err)
		}
	}
	if did, want := r.host.reset(), []string{
		"Freeze " + string(name), "Stats " + string(name),
		"Thaw " + string(name),
	}; !slices.Equal(did, want) {
		t.Errorf("it did %q", did)
	}
	// A freeze that fails leaves it running.
	r.host.set("Freeze", errPlanted)
	if _, err := call[any](t, r.conn, "pause", brokerapi.NameParams{Name: name}); err == nil {
		t.Error("paused")
	}
	if e := r.life.Entries()[0]; e.State != workspace.StateRunning {
		t.Errorf("it is %s", e.State)
	}
	r.host.set("Freeze", nil)
	// A paused one is stopped and destroyed as a running one is.
	for _, method := range []string{"stop", "destroy"} {
		if _, err := call[any](t, r.conn, "start", brokerapi.NameParams{Name: name}); err != nil {
			t.Fatal(err)
		}
		if _, err := call[any](t, r.conn, "pause", brokerapi.NameParams{Name: name}); err != nil {
			t.Fatal(err)
		}
		if _, err := call[any](t, r.conn, method, brokerapi.NameParams{Name: name}); err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
}

func TestUpdate(t *testing.T) {
	r := newRig(t, true)
	mustStart(t, r)
	limits := workspace.DefaultLimits
	limits.Pids = 77
	for range 2 {
		if w, err := call[brokerapi.Workspace](t, r.conn, "update", brokerapi.UpdateParams{Name: name, Limits: limits}); err != nil ||
			w.Limits != limits {
			t.Fatalf("updated %+v, %v", w, err)
		}
	}
	r.host.set("Limit 78", errPlanted)
	more := limits
	more.Pids = 78
	if _, err := call[any](t, r.conn, "update", brokerapi.UpdateParams{Name: name, Limits: more}); err == nil {
		t.Error("updated")
	}
	more.Pids = workspace.MaxPids + 1
	if _, err := call[any](t, r.conn, "update", brokerapi.UpdateParams{Name: name, Limits: more}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a limit out of bounds: %v", err)
	}
	if e := r.life.Entries()[0]; e.Limits != limits {
		t.Errorf("the limits are %+v", e.Limits)
	}
	if did, want := r.host.reset(), []string{"Limit 77 " + string(name), "Limit 78 " + string(name)}; !slices.Equal(did, want) {
		t.Errorf("it did %q", did)
	}
	// Of a stopped workspace they are in force from the next start on.
	if _, err := call[any](t, r.conn, "stop", brokerapi.NameParams{Name: name}); err != nil {
		t.Fatal(err)
	}
	r.host.reset()
	limits.Pids = 79
	if w, err := call[brokerapi.Workspace](t, r.conn, "update", brokerapi.UpdateParams{Name: name, Limits: limits}); err != nil ||
		w.Limits != limits {
		t.Errorf("updated %+v, %v", w, err)
	}
	if did := r.host.reset(); len(did) > 0 {
		t.Errorf("it did %q", did)
	}
}

// A broker that comes back puts in force what the ledger says, whatever its predecessor
// had come to.
func TestRecoverFreezesAndLimits(t *testing.T) {
	dir := t.TempDir()
	h := newHost()
	l := lifecycle(t, dir, h)
	if _, err := l.Create(t.Context(), wanted(name, workspace.DefaultLimits), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Start(t.Context(), brokerapi.StartParams{Name: name}); err != nil {
		t.Fatal(err)
	}
	for _, frozen := range []bool{true, false} {
		freeze := map[bool]func(context.Context, brokerapi.NameParams) (brokerapi.Workspace, error){true: l.Pause, false: l.Resume}[frozen]
		if _, err := freeze(t.Context(), brokerapi.NameParams{Name: name}); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		h.reset()
		l = lifecycle(t, dir, h)
		if err := l.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		verb := map[bool]string{true: "Freeze ", false: "Thaw "}[frozen]
		if did, want := h.reset(), []string{"Adopt " + string(name), "Limit 512 " + string(name), verb + string(name)}; !slices.Equal(did, want) {
			t.Errorf("it did %q", did)
		}
	}
	// One whose limits cannot be put in force does not go on.
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	h.set("Limit 512", errPlanted)
	l = lifecycle(t, dir, h)
	if err := l.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := l.Entries()[0]; e.State != workspace.StateStopped {
		t.Errorf("it is %s", e.State)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// A limit on disk space is held or refused, and never forgotten.
func TestDiskLimitIsRefusedOrHeld(t *testing.T) {
	limits := workspace.DefaultLimits
	limits.DiskBytes = 1 << 30
	create := func(r *rig) error {
		_, err := call[any](t, r.conn, "create", brokerapi.CreateParams{Name: name, KeyDigest: digest, Limits: limits})
		return err
	}
	r := newRig(t, true)
	r.host.set("HoldsDisk", fmt.Errorf("the control disk is unavailable: planted: %w", errdefs.ErrFailedPrecondition))
	if err := create(r); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "control disk is unavailable") {
		t.Errorf("a host without: %v", err)
	}
	if did, want := r.host.reset(), []string{"NameFree " + string(name), "HoldsDisk "}; !slices.Equal(did, want) {
		t.Errorf("it did %q", did)
	}
	r.host.set("HoldsDisk", nil)
	r.host.set("MakeImage", errPlanted)
	if err := create(r); err == nil {
		t.Error("created without an image")
	}
	if did := r.host.reset(); !slices.Contains(did, "UnmakeDirs "+string(name)) {
		t.Errorf("it did %q", did)
	}
	r.host.set("MakeImage", nil)
	if err := create(r); err != nil {
		t.Fatal(err)
	}
	if did := r.host.reset(); !slices.Contains(did, "MakeImage "+string(name)) {
		t.Errorf("it did %q", did)
	}
	for _, c := range []struct {
		to int64
		ok bool
	}{{1 << 30, true}, {0, false}, {1 << 29, false}, {1 << 31, true}} {
		l := limits
		l.DiskBytes = c.to
		if _, err := call[any](t, r.conn, "update", brokerapi.UpdateParams{Name: name, Limits: l}); (err == nil) != c.ok {
			t.Errorf("changed to %d: %v", c.to, err)
		}
		if got := r.life.Entries()[0].Limits.DiskBytes; (got == c.to) != c.ok {
			t.Errorf("after a change to %d it is %d", c.to, got)
		}
	}
	r.host.set("GrowsDisk", errPlanted)
	limits.DiskBytes = 1 << 32
	if _, err := call[any](t, r.conn, "update", brokerapi.UpdateParams{Name: name, Limits: limits}); err == nil ||
		r.life.Entries()[0].Limits.DiskBytes == 1<<32 {
		t.Errorf("grown by a host that cannot: %v", err)
	}
}

// Where the host has a highest disk limit, none is more than that.
func TestNoDiskLimitIsAboveTheHighest(t *testing.T) {
	r := newRig(t, false)
	s := testSettings()
	s.LimitsMax.DiskBytes = 1 << 30
	life := lifecycleWith(t, t.TempDir(), r.host, s)
	t.Cleanup(func() { _ = life.Close() })
	r.server = &broker.Server{Life: life, Settings: s, Build: "test", Log: slog.New(slog.DiscardHandler)}
	conn := r.connect(t, true)
	for bytes, ok := range map[int64]bool{0: false, 1<<30 + 1: false, 1 << 30: true} {
		l := workspace.DefaultLimits
		l.DiskBytes = bytes
		other := id.Workspace(fmt.Sprintf("cbt-%08x", bytes))
		_, err := call[any](t, conn, "create", brokerapi.CreateParams{Name: other, KeyDigest: digest, Limits: l})
		if (err == nil) != ok || !ok && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%d: %v", bytes, err)
		}
	}
}
