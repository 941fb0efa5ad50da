package compose_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

func TestAdmission(t *testing.T) {
	h := newHouse(t)
	h.admission = lifecycle.Admission{Workspaces: 6, PerOwner: 3, Running: 3, Memory: 5 << 30, OwnerMemory: 2 << 30}
	h.crash()
	h.start()
	ctx := t.Context()
	h.create(alice, "a1")
	h.create(alice, "a2")
	refused := func(err error, setting string) {
		t.Helper()
		if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), setting) {
			t.Errorf("%s: %v", setting, err)
		}
	}
	_, _, err := h.Create(ctx, alice, wanted("a3", workspace.Limits{}, true))
	refused(err, "max_running_memory_per_owner")
	_, _, err = h.Create(ctx, alice, wanted("a4", workspace.Limits{}, false))
	refused(err, "max_workspaces_per_owner")
	operator, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator})
	_, _, err = h.Create(ctx, operator, wanted("a4", workspace.Limits{}, false))
	refused(err, "max_workspaces_per_owner")
	h.create(bob, "b1")
	_, _, err = h.Create(ctx, bob, wanted("b2", workspace.Limits{}, true))
	refused(err, "max_running:")
	if _, err := h.Stop(ctx, alice, "a1"); err != nil {
		t.Fatal(err)
	}
	_, _, err = h.Create(ctx, admin, wanted("c1", workspace.Limits{MemoryBytes: 4 << 30}, true))
	refused(err, "max_running_memory;")
	if _, err := h.Start(ctx, bob, "b2"); err != nil {
		t.Errorf("there is room: %v", err)
	}
	_, _, err = h.Create(ctx, root, wanted("d1", workspace.Limits{}, false))
	refused(err, "max_workspaces:")
	// Many at once do not get past each other.
	if _, err := h.Stop(ctx, bob, "b2"); err != nil {
		t.Fatal(err)
	}
	var started sync.WaitGroup
	var mu sync.Mutex
	n := 0
	for _, ref := range []string{"a1", "b2", "a3"} {
		started.Go(func() {
			if _, err := h.Start(context.Background(), admin, ref); err == nil {
				mu.Lock()
				n++
				mu.Unlock()
			}
		})
	}
	started.Wait()
	if n != 1 {
		t.Errorf("%d were started where there was room for one", n)
	}
}

// Who creates and destroys without end spends their own share, and nobody else's.
func TestCreationHasAPace(t *testing.T) {
	h := newHouse(t)
	h.crash()
	h.admission = lifecycle.Admission{Workspaces: 50, PerOwner: 3, Hourly: 1}
	h.start()
	round := func(p principal.Principal, key string) error {
		_, _, err := h.Create(t.Context(), p, wanted(id.Key(key), workspace.Limits{}, false))
		if err == nil {
			_, err = h.Destroy(t.Context(), p, key, true, "")
		}
		return err
	}
	for i := range 5 {
		err := round(alice, fmt.Sprint("a", i))
		if late := i >= 3; late != errdefs.IsResourceExhausted(err) || late && !strings.Contains(err.Error(), "max_creates_per_hour") {
			t.Errorf("%d: %v", i, err)
		}
		if err := round(root, fmt.Sprint("r", i)); err != nil {
			t.Errorf("an administrator: %v", err)
		}
	}
	if err := round(bob, "b"); err != nil {
		t.Errorf("another owner: %v", err)
	}
	// What is there already takes none.
	h.create(bob, "again")
	for range 5 {
		h.create(bob, "again")
	}
}

// The bound of one owner is for tenants: administrators make as many as there may be.
func TestAdministratorsAreNotBoundAsOwners(t *testing.T) {
	h := newHouse(t)
	h.crash()
	h.admission = lifecycle.Admission{Workspaces: 4, PerOwner: 1}
	h.start()
	try := func(p principal.Principal, key id.Key) error {
		_, _, err := h.Create(t.Context(), p, wanted(id.Key(key), workspace.Limits{}, false))
		return err
	}
	robot, _ := h.issue(root, principal.Wanted{Roles: principal.Operator, Owner: "uid:0"})
	for key, p := range map[id.Key]principal.Principal{"c1": admin, "c2": admin, "r1": root} {
		if err := try(p, key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	if err := try(robot, "r2"); !errdefs.IsResourceExhausted(err) {
		t.Errorf("a token of an administrator's without the role: %v", err)
	}
	if err := try(root, "r3"); err != nil {
		t.Error(err)
	}
	if err := try(root, "r4"); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "max_workspaces:") {
		t.Errorf("one more than there may be: %v", err)
	}
}

// A create takes one place, also if it has to start the workspace a second time.
func TestCreateTakesOnePlace(t *testing.T) {
	h := newHouse(t)
	h.crash()
	h.admission = lifecycle.Admission{Running: 1}
	h.start()
	starts := 0
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "start" {
			if starts++; starts == 1 {
				return fmt.Errorf("not yet: %w", errdefs.ErrUnavailable)
			}
		}
		return nil
	})
	if _, _, err := h.Create(t.Context(), alice, workspace.Wanted{Key: "k", Profile: "filled"}); !errors.Is(err, errSkeleton) || starts != 2 {
		t.Errorf("after %d starts: %v", starts, err)
	}
}
