package compose_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/service/audits"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// What a crash left is put right at the next start, nothing is run again, and
// each repair is on record.
func TestRecover(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	for _, key := range []id.Key{"undone", "finished", "purged", "kept", "stopped", "running", "dead", "starting", "vanished"} {
		if _, _, err := h.Create(ctx, alice, wanted(key, workspace.Limits{}, key == "running" || key == "dead" ||
			key == "vanished")); err != nil {
			t.Fatal(err)
		}
	}
	name := func(key id.Key) id.Workspace { return id.Derive("ws", key, 0) }
	set := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	set(h.store.SetPhase(ctx, name("undone"), workspace.Creating))
	delete(h.rt.all, name("undone"))
	set(h.store.SetPhase(ctx, name("finished"), workspace.Creating))
	set(h.store.SetDestroying(ctx, name("purged"), true))
	set(h.store.SetDestroying(ctx, name("kept"), false))
	h.rt.set(name("starting"), workspace.StateRunning)
	h.rt.kill(name("dead"))
	delete(h.rt.all, name("vanished"))
	// The broker has three that the database does not know. In one of them there is nothing.
	for _, name := range []id.Workspace{"ws-ffffffff", "ws-eeeeeeee", "ws-dddddddd"} {
		h.rt.all[name] = workspace.Real{State: workspace.StateStopped}
	}
	h.rt.kept = map[id.Workspace]bool{"ws-ffffffff": true}
	h.rt.set("ws-eeeeeeee", workspace.StateRunning)
	// A command was under way.
	intent := audit.Record{
		Type: audit.Intent, Principal: "uid:1000", Workspace: name("running"), Trace: "t",
		Action: json.RawMessage(`{"kind":"command.exec"}`),
	}
	seq, err := h.log.Append(ctx, intent)
	set(err)
	runs := h.rt.count("run")
	h.crash()
	at := int(seq)
	h.start()

	states := map[id.Key]workspace.State{}
	for _, w := range h.Due(func(*workspace.Workspace) bool { return true }) {
		states[w.Key] = w.State
	}
	want := map[id.Key]workspace.State{
		"finished": workspace.StateStopped, "stopped": workspace.StateStopped, "running": workspace.StateRunning,
		"dead": workspace.StateStopped, "starting": workspace.StateRunning, "vanished": workspace.StateStopped,
		"ws-ffffffff": workspace.StateStopped, "ws-eeeeeeee": workspace.StateRunning,
	}
	if d := cmp.Diff(want, states); d != "" {
		t.Errorf("states (-want +got):\n%s", d)
	}
	if h.rt.count("run") != runs {
		t.Error("something was run again")
	}
	if _, ok := h.rt.all["ws-ffffffff"]; !ok || !strings.Contains(h.logs.String(), "ws-ffffffff") {
		t.Error("a workspace that only the broker knows was removed, or not reported")
	}
	if _, ok := h.rt.all["ws-dddddddd"]; ok {
		t.Error("a workspace that nobody knows and in which there is nothing was left")
	}
	if _, err := h.Get(ctx, alice, "ws-ffffffff"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("anybody reaches a workspace whose owner is not known: %v", err)
	}
	var interrupted []int64
	open := map[int64]bool{}
	for _, r := range h.records() {
		switch r.Type {
		case audit.Intent:
			open[r.Seq] = true
		case audit.Outcome:
			delete(open, r.Intent)
			if r.Status == audit.StatusInterrupted {
				interrupted = append(interrupted, r.Intent)
			}
		default:
		}
	}
	if !slices.Equal(interrupted, []int64{seq}) || len(open) != 0 {
		t.Errorf("interrupted %v, open %v", interrupted, open)
	}
	for _, r := range h.records()[at:] {
		if r.Type == audit.Intent && r.Principal != "system" {
			t.Errorf("recovery by %s: %+v", r.Principal, r)
		}
	}
	// A second start finds nothing to do.
	n := len(h.records())
	h.crash()
	h.start()
	h.expect(n, "lifecycle ok")
}

func TestMarkMakesTheNextStartShort(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, _, err := audits.LoadMark(t.Context(), h.store)
	if err != nil || m.Head != h.log.Head() || len(m.Open) != 0 {
		t.Errorf("%+v, %v; head %v", m, err, h.log.Head())
	}
	path := h.log.Path()
	h.crash()
	// The end of the log is cut off between two lines: the mark shows it.
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := audit.Open(t.Context(), audit.Options{Path: path, Since: m}); !errors.Is(err, audit.ErrDamaged) {
		t.Errorf("a cut log: %v", err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	h.start()
}

// The daemon is killed, and the log loses records at its end that no checkpoint and no mark has: the store
// knows of them, because it was changed when they were on disk.
func TestALostEndOfTheLogIsKnownToTheStore(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	before := h.log.Head()
	h.create(alice, "lost")
	path := h.log.Path()
	m, known, err := audits.LoadMark(t.Context(), h.store)
	if err != nil || m.Head.Seq > before.Seq || known.Seq <= before.Seq {
		t.Fatalf("mark %+v, known %+v, %v; head %+v", m.Head, known, err, before)
	}
	h.crash()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(b, []byte("\n"))
	if err := os.WriteFile(path, bytes.Join(lines[:before.Seq], nil), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = audit.Open(t.Context(), audit.Options{Path: path, Since: m, Known: known})
	if !errors.Is(err, audit.ErrDamaged) || !strings.Contains(err.Error(), "its end was cut off") {
		t.Errorf("a log without its end: %v", err)
	}
	// Accepted, the loss is in the new log, and the store goes on with that.
	l, err := audit.Open(t.Context(), audit.Options{Path: path, Since: m, Known: known, AcceptDamage: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	h.start()
}
