package compose_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

func TestConcurrentCreatesOfOneKey(t *testing.T) {
	h := newHouse(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 16 {
		wg.Go(func() {
			w, created, err := h.Create(t.Context(), alice, wanted("demo", workspace.Limits{}, true))
			if err != nil || w.Name != "ws-2a97516c" || w.State != workspace.StateRunning {
				t.Errorf("%+v %v", w, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if created {
				made++
			}
		})
	}
	wg.Wait()
	if made != 1 || h.rt.count("create") != 1 || h.rt.count("start") != 1 {
		t.Errorf("%d created, %d creates, %d starts", made, h.rt.count("create"), h.rt.count("start"))
	}
}

func TestConcurrentCommandsStartOnce(t *testing.T) {
	h := newHouse(t)
	if _, _, err := h.Create(t.Context(), alice, wanted("demo", workspace.Limits{}, false)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if err := second(h.Run(t.Context(), alice, "demo", run("x"))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if h.rt.count("start") != 1 || h.rt.count("run") != 16 {
		t.Errorf("%d starts, %d runs", h.rt.count("start"), h.rt.count("run"))
	}
}

func TestCreateTriesTheNextName(t *testing.T) {
	h := newHouse(t)
	// The broker knows the name from a database that is gone.
	h.rt.keys["ws-2a97516c"], h.rt.keys["ws-2a97516c-1"] = "other", "other"
	w, created, err := h.Create(t.Context(), alice, wanted("demo", workspace.Limits{}, false))
	if err != nil || !created || w.Name != "ws-2a97516c-2" {
		t.Fatalf("%+v %v %v", w, created, err)
	}
	h.expect(1, "intent workspace.create", "outcome failed already_exists", "intent workspace.create", "outcome failed already_exists",
		"intent workspace.create", "outcome ok")
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "create" {
			return fmt.Errorf("cannot create: %w", errdefs.ErrAlreadyExists)
		}
		return nil
	})
	if _, _, err := h.Create(t.Context(), alice, wanted("more", workspace.Limits{}, false)); !errdefs.IsResourceExhausted(err) {
		t.Errorf("no name left: %v", err)
	}
}

func TestCreateRefusals(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	for key, is := range map[id.Key]func(error) bool{"ws-2a97516c": errdefs.IsInvalidArgument, "ws-00000000-7": errdefs.IsInvalidArgument} {
		if _, _, err := h.Create(ctx, alice, wanted(key, workspace.Limits{}, false)); !is(err) {
			t.Errorf("key %s: %v", key, err)
		}
	}
	if _, _, err := h.Create(ctx, alice, wanted("demo", workspace.Limits{Pids: 1}, false)); !errdefs.IsInvalidArgument(err) {
		t.Errorf("limits: %v", err)
	}
	for i := range 50 {
		if _, _, err := h.Create(ctx, alice, wanted(id.Key(fmt.Sprint("k", i)), workspace.Limits{}, false)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := h.Create(ctx, alice, wanted("one more", workspace.Limits{}, false)); !errdefs.IsResourceExhausted(err) ||
		!strings.Contains(err.Error(), "max_workspaces") {
		t.Errorf("more than allowed: %v", err)
	}
	if _, created, err := h.Create(ctx, alice, wanted("k7", workspace.Limits{}, false)); err != nil || created {
		t.Errorf("an existing one when full: %v", err)
	}
}

func TestFailedCreateAndStart(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.rt.setHook(func(op string, _ id.Workspace) error {
		return map[string]error{
			"create": fmt.Errorf("cannot make a home: %w", errdefs.ErrInternal),
			"start":  fmt.Errorf("cannot hold the workspace: required control x: %w", errdefs.ErrFailedPrecondition),
		}[op]
	})
	if _, _, err := h.Create(ctx, alice, wanted("demo", workspace.Limits{}, true)); !errdefs.IsInternal(err) || h.store.Len() != 0 {
		t.Errorf("failed create: %v, %d stored", err, h.store.Len())
	}
	hook := h.rt.hook
	h.rt.setHook(func(op string, n id.Workspace) error {
		if op == "create" {
			return fmt.Errorf("cannot reach the broker: %w", errdefs.ErrUnavailable)
		}
		return hook(op, n)
	})
	if _, _, err := h.Create(ctx, alice, wanted("demo", workspace.Limits{}, true)); !errdefs.IsUnavailable(err) || h.store.Len() != 1 {
		t.Errorf("create of unknown outcome: %v, %d stored", err, h.store.Len())
	}
	if err := second(h.Run(ctx, alice, "demo", run("x"))); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "creating") {
		t.Errorf("command in a half-made workspace: %v", err)
	}
	h.rt.setHook(func(op string, n id.Workspace) error {
		if op == "start" {
			return hook(op, n)
		}
		return nil
	})
	w, created, err := h.Create(ctx, alice, wanted("demo", workspace.Limits{}, true))
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "control x") || !created || w.State != workspace.StateStopped {
		t.Errorf("failed start: %+v %v %v", w, created, err)
	}
	h.rt.setHook(nil)
	if w, err := h.Start(ctx, alice, "demo"); err != nil || w.State != workspace.StateRunning {
		t.Errorf("%+v %v", w, err)
	}
}

func TestExecutorLost(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	w := h.create(alice, "demo")
	before := len(h.records())
	h.rt.kill(w.Name)
	// Nobody noticed: the next command starts it again and is run once.
	if err := second(h.Run(ctx, alice, "demo", run("x"))); err != nil {
		t.Fatal(err)
	}
	h.expect(before, "intent command.exec", "intent workspace.stop", "outcome ok", "intent workspace.start", "outcome ok", "outcome ok")
	h.rt.kill(w.Name)
	h.ExecutorLost(w.Name)
	if w, err := h.Get(ctx, alice, "demo"); err != nil || w.State != workspace.StateStopped {
		t.Errorf("%+v %v", w, err)
	}
	h.rt.kill(w.Name)
	if w, err := h.Start(ctx, alice, "demo"); err != nil || w.State != workspace.StateRunning {
		t.Errorf("%+v %v", w, err)
	}
	h.rt.kill(w.Name)
	if w, err := h.Start(ctx, alice, "demo"); err != nil || w.State != workspace.StateRunning || !h.rt.alive[w.Name] {
		t.Errorf("start of a dead one: %+v %v", w, err)
	}
	// One that answers is left alone.
	h.ExecutorLost(w.Name)
	if w, _ := h.Get(ctx, alice, "demo"); w.State != workspace.StateRunning {
		t.Error("a living workspace was stopped")
	}
}

func TestExecDuringStopIsRefused(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	inStop, goOn := make(chan struct{}), make(chan struct{})
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "stop" {
			close(inStop)
			<-goOn
		}
		return nil
	})
	stopped := make(chan error)
	go func() { _, err := h.Stop(ctx, alice, "demo"); stopped <- err }()
	<-inStop
	if err := second(h.Run(ctx, alice, "demo", run("x"))); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "being stopped") {
		t.Errorf("command during a stop: %v", err)
	}
	// A start waits for the stop.
	started := make(chan error)
	go func() { _, err := h.Start(ctx, alice, "demo"); started <- err }()
	impatient, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := h.Destroy(impatient, alice, "demo", false, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("destroy by one who went: %v", err)
	}
	close(goOn)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if err := <-started; err != nil {
		t.Error(err)
	}
}

// A begun operation is finished although its caller has gone.
func TestBegunIsFinished(t *testing.T) {
	h := newHouse(t)
	ctx, cancel := context.WithCancel(t.Context())
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "create" {
			cancel()
		}
		return nil
	})
	_, _, err := h.Create(ctx, alice, wanted("demo", workspace.Limits{}, false))
	if w, ok := h.store.ByKey("demo"); !ok || w.Phase != workspace.Settled || err != nil {
		t.Errorf("%+v %v %v", w, ok, err)
	}
}

// Mounts are recorded as they are asked for, and chosen once.
func TestCreateWithMounts(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	mounts := []workspace.Mount{{Source: "/a", Destination: "~/a"}}
	with := func(m []workspace.Mount) workspace.Wanted {
		w := wanted("demo", workspace.Limits{}, false)
		w.Mounts = m
		return w
	}
	if _, _, err := h.Create(ctx, alice, with(mounts)); !errdefs.IsInvalidArgument(err) || h.rt.count("create") != 0 {
		t.Errorf("no grant: %v", err)
	}
	if _, _, err := h.Create(ctx, alice, with([]workspace.Mount{{Source: "/a", Destination: "/etc"}}),
		os.Stdin); !errdefs.IsInvalidArgument(err) || h.rt.count("create") != 0 {
		t.Errorf("a bad place: %v", err)
	}
	if _, created, err := h.Create(ctx, alice, with(mounts), os.Stdin); err != nil || !created {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(h.dir, "audit", "audit.jsonl"))
	if err != nil || !strings.Contains(string(log), `"mounts":[{"source":"/a","destination":"~/a"}]`) {
		t.Errorf("the record does not say what was mounted: %v\n%s", err, log)
	}
	h.rt.mounts("ws-2a97516c", []workspace.Mount{{Source: "/a", Destination: "/home/work/a", OwnerUID: 7}})
	if err := h.Recover(ctx); err != nil {
		t.Fatal(err)
	}
	if _, created, err := h.Create(ctx, alice, with(mounts), os.Stdin); err != nil || created {
		t.Errorf("the same: %v %v", created, err)
	}
	if _, created, err := h.Create(ctx, alice, with(nil)); err != nil || created {
		t.Errorf("none: %v %v", created, err)
	}
	other := []workspace.Mount{{Source: "/a", Destination: "~/a", ReadOnly: true}}
	if _, _, err := h.Create(ctx, alice, with(other), os.Stdin); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("others: %v", err)
	}
	if v, err := h.Get(ctx, alice, "demo"); err != nil || len(v.Mounts) != 1 || v.Mounts[0].OwnerUID != 7 {
		t.Errorf("%+v %v", v.Mounts, err)
	}
}

// What is no command does not wait for a person unless it is told to: it fails at once with the id and what answers it.
func TestCreateDoesNotWaitForAnAnswer(t *testing.T) {
	h := newHouse(t)
	token, _ := h.issue(admin, principal.Wanted{Roles: principal.Operator, Owner: "uid:1000"})
	w := wanted("demo", workspace.Limits{}, false)
	w.Mounts = []workspace.Mount{{Source: "/a", Destination: "~/a"}}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, _, err := h.Create(ctx, token, w, os.Stdin)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "carrel approvals approve ap-") {
		t.Fatalf("it is not told how to be answered: %v", err)
	}
	w.Wait = 50 * time.Millisecond
	if _, _, err := h.Create(ctx, token, w, os.Stdin); !errdefs.IsPermissionDenied(err) ||
		!strings.Contains(err.Error(), "nobody has answered in the time that it was to wait") {
		t.Fatalf("it did not wait for as long as it was told: %v", err)
	}
	list, _, err := h.Approvals(ctx, root, approval.Filter{State: approval.Pending, Limit: 9})
	if err != nil || len(list) != 1 {
		t.Fatalf("%d questions, %v", len(list), err)
	}
	h.answer(root, list[0], approval.Once)
	w.Wait = 0
	if _, created, err := h.Create(ctx, token, w, os.Stdin); err != nil || !created {
		t.Errorf("answered: %v %v", created, err)
	}
}

// What is opened is part of the action and its record, chosen once, and what the configuration
// does not permit is denied and recorded.
func TestCreateWithOpenings(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	with := func(key string, allow ...workspace.Opening) workspace.Wanted {
		w := wanted(id.Key(key), workspace.Limits{}, false)
		w.Allow = allow
		return w
	}
	if _, _, err := h.Create(ctx, alice, with("demo", workspace.IOUring)); !errdefs.IsPermissionDenied(err) ||
		!strings.Contains(err.Error(), `(allow: "userns")`) {
		t.Errorf("what the configuration does not name: %v", err)
	}
	chat := with("demo", workspace.UserNS)
	chat.Profile = "chat"
	if _, _, err := h.Create(ctx, alice, chat); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "chat.allow") {
		t.Errorf("what the profile does not name: %v", err)
	}
	if _, _, err := h.Create(ctx, alice, with("demo", "root")); !errdefs.IsInvalidArgument(err) || h.rt.count("create") != 0 {
		t.Errorf("no opening: %v", err)
	}
	if v, created, err := h.Create(ctx, alice, with("demo", workspace.UserNS)); err != nil || !created || len(v.Allow) != 1 {
		t.Fatal(v.Allow, err)
	}
	log, err := os.ReadFile(filepath.Join(h.dir, "audit", "audit.jsonl"))
	if err != nil || !strings.Contains(string(log), `"allow":["userns"]`) || strings.Count(string(log), `"status":"denied"`) != 2 {
		t.Errorf("the record does not say what was opened and denied: %v\n%s", err, log)
	}
	if _, created, err := h.Create(ctx, alice, with("demo")); err != nil || created {
		t.Errorf("who asks for none takes what there is: %v", err)
	}
	if _, _, err := h.Create(ctx, alice, with("closed")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Create(ctx, alice, with("closed", workspace.UserNS)); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("opened later: %v", err)
	}
}
