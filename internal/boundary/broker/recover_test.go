package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

func TestRecover(t *testing.T) {
	dir := t.TempDir()
	h := newHost()
	l := lifecycle(t, dir, h)
	entry := func(s string) id.Workspace { return id.Workspace("cbt-0000000" + s) }
	for _, s := range []string{"1", "2", "3", "4", "5"} {
		if _, err := l.Create(t.Context(), wanted(entry(s), workspace.DefaultLimits), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []string{"2", "3", "5"} {
		if _, err := l.Start(t.Context(), brokerapi.StartParams{Name: entry(s)}); err != nil {
			t.Fatal(err)
		}
	}
	h.set("RemoveUser", errPlanted)
	if _, err := l.Destroy(t.Context(), brokerapi.DestroyParams{Name: entry("4"), Purge: true}); err == nil {
		t.Fatal("destroyed")
	}
	h.set("AddUser", errPlanted)
	if _, err := l.Create(t.Context(), wanted(entry("6"), workspace.DefaultLimits), nil); err == nil {
		t.Fatal("created")
	}
	h.groups[entry("1")] = true // a start that was interrupted
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	h.set("RemoveUser", nil)
	h.set("AddUser", nil)
	h.reset()

	// 2 lives on, 3 has ended meanwhile, of 5 nobody can tell.
	g := &hostGone{hostDouble: h, gone: entry("3"), unsure: entry("5")}
	l = lifecycleOver(t, dir, g)
	if err := l.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	mended := map[id.Workspace]workspace.MendedKind{}
	begun, list, err := l.Mended(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		mended[m.Workspace] = m.Kind
		if m.Done == "" {
			t.Errorf("nothing is said of %+v", m)
		}
	}
	if want := (map[id.Workspace]workspace.MendedKind{
		entry("1"): workspace.StartSwept, entry("3"): workspace.ExecutorLost, entry("4"): workspace.DestroyFinished,
		entry("5"): workspace.NotMended, entry("6"): workspace.CreateUndone,
	}); begun == "" || len(list) != len(want) || !maps.Equal(mended, want) {
		t.Errorf("mended at %q: %+v", begun, list)
	}
	got := map[id.Workspace]workspace.State{}
	for _, e := range l.Entries() {
		got[e.Name] = e.State
	}
	want := map[id.Workspace]workspace.State{
		entry("1"): workspace.StateStopped, entry("2"): workspace.StateRunning, entry("3"): workspace.StateStopped,
		entry("5"): workspace.StateRunning,
	}
	if !maps.Equal(got, want) {
		t.Errorf("after recovery: %v", got)
	}
	// It is asked for, and can be told by then: it is as it was, and no other is started.
	h.reset()
	g.unsure = ""
	if res, err := l.Start(t.Context(), brokerapi.StartParams{Name: entry("5")}); err != nil || res.Workspace.State != workspace.StateRunning {
		t.Errorf("a start of what lives: %+v, %v", res, err)
	}
	for _, call := range h.reset() {
		if call == "Start "+string(entry("5")) || call == "CleanUp "+string(entry("5")) {
			t.Errorf("what lives meets %s", call)
		}
	}
	if h.groups[entry("1")] || h.groups[entry("3")] || !h.groups[entry("2")] {
		t.Errorf("groups %v", h.groups)
	}
	if _, ok := h.users[entry("4")]; ok {
		t.Error("the destroy was not finished")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func (g *hostGone) Adopt(e broker.Entry) (broker.Running, error) {
	switch e.Name {
	case g.gone:
		return broker.Running{}, fmt.Errorf("gone: %w", errdefs.ErrNotFound)
	case g.unsure:
		return broker.Running{}, errors.New("cannot tell")
	}
	return g.hostDouble.Adopt(e)
}

func TestShutdownWaits(t *testing.T) {
	r := newRig(t, true)
	mustCreate(t, r.conn, name)
	entered, release := r.host.hold()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	l := listener(t)
	go func() { served <- r.server.Serve(ctx, l) }()
	answered := make(chan error, 1)
	go func() {
		_, err := call[any](t, r.conn, "start", brokerapi.NameParams{Name: name})
		answered <- err
	}()
	<-entered
	cancel()
	close(release)
	if err := <-served; err != nil {
		t.Error(err)
	}
	<-answered // the reply may be cut off; the start is not
	if e := r.life.Entries(); len(e) != 1 || e[0].State != workspace.StateRunning {
		t.Errorf("left %+v", e)
	}
	<-r.conn.Done()
	if err := r.conn.Err(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection ended with %v", err)
	}
}

// slowHome is a home that takes more time than a start has: the first attempt to remove it is not
// finished in time.
type slowHome struct {
	*hostDouble
	tried atomic.Int32
}

func (h *slowHome) PurgeHome(ctx context.Context, name id.Workspace, ids workspace.IDs) error {
	if h.tried.Add(1) == 1 {
		<-ctx.Done()
		return fmt.Errorf("no time: %w: %w", context.Cause(ctx), errdefs.ErrUnavailable)
	}
	return h.hostDouble.PurgeHome(ctx, name, ids)
}

// A home that takes long to remove does not keep a broker from serving; it goes on behind.
func TestRecoverWithALargeHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, h := t.TempDir(), newHost()
		l := lifecycle(t, dir, h)
		if _, err := l.Create(t.Context(), wanted(name, workspace.DefaultLimits), nil); err != nil {
			t.Fatal(err)
		}
		h.set("PurgeHome", errPlanted)
		if _, err := l.Destroy(t.Context(), brokerapi.DestroyParams{Name: name, Purge: true}); err == nil {
			t.Fatal("destroyed")
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		h.set("PurgeHome", nil)
		l = lifecycleOver(t, dir, &slowHome{hostDouble: h})
		began := time.Now()
		if err := l.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the start took %v", took)
		}
		if _, list, _ := l.Mended(t.Context()); len(list) != 1 || list[0].Kind != workspace.NotMended ||
			!strings.Contains(list[0].Done, "goes on with it") {
			t.Errorf("mended: %+v", list)
		}
		synctest.Wait()
		if all := l.Entries(); len(all) != 0 {
			t.Errorf("it was not finished: %+v", all)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
