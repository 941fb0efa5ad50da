package broker_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

func TestFailedCreateLeavesNothing(t *testing.T) {
	for _, step := range []string{"AddUser", "MakeDirs"} {
		r := newRig(t, true)
		r.host.set(step, errPlanted)
		if _, err := create(t, r.conn, name); err == nil || !strings.Contains(err.Error(), "planted") {
			t.Errorf("%s: got %v", step, err)
		}
		if u, h, _ := r.host.left(); len(u)+len(h) > 0 {
			t.Errorf("%s: left %v %v", step, u, h)
		}
		if l, err := call[brokerapi.ListResult](t, r.conn, "list", nil); err != nil || len(l.Workspaces) > 0 {
			t.Errorf("%s: listed %+v, %v", step, l, err)
		}
		r.host.set(step, nil)
		mustCreate(t, r.conn, name)
	}
}

// Ids that somebody else takes between the look and the tool are left, and others used: twice, and then it is an error. Nothing is left
// of what was begun.
func TestIDsThatSomebodyTakes(t *testing.T) {
	for taken, fails := range map[int]bool{1: false, 2: false, 3: true} {
		r := newRig(t, true)
		r.host.mu.Lock()
		r.host.taken = taken
		r.host.mu.Unlock()
		_, err := create(t, r.conn, name)
		if fails != (err != nil) || fails && !strings.Contains(err.Error(), "given to somebody else meanwhile; try again") {
			t.Errorf("%d: %v", taken, err)
		}
		if u, h, _ := r.host.left(); fails && len(u)+len(h) > 0 || !fails && (len(u) != 1 || len(h) != 1) {
			t.Errorf("%d: left %v %v", taken, u, h)
		}
	}
}

func TestFailedUndoIsTriedAgain(t *testing.T) {
	r := newRig(t, true)
	r.host.set("MakeDirs", errPlanted)
	r.host.set("RemoveUser", errPlanted)
	if _, err := create(t, r.conn, name); err == nil || !strings.Contains(err.Error(), "undoing it failed too") {
		t.Errorf("got %v", err)
	}
	if _, err := create(t, r.conn, name); err == nil {
		t.Error("a create over one that is not undone succeeded")
	}
	r.host.set("MakeDirs", nil)
	r.host.set("RemoveUser", nil)
	mustCreate(t, r.conn, name)
}

func TestFailedStartStaysStopped(t *testing.T) {
	r := newRig(t, true)
	mustCreate(t, r.conn, name)
	r.host.set("Start", fmt.Errorf("cannot hold the workspace: required control seccomp is failed: %w", errdefs.ErrFailedPrecondition))
	if _, err := call[any](t, r.conn, "start", brokerapi.NameParams{Name: name}); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "seccomp") {
		t.Errorf("got %v", err)
	}
	if l, err := call[brokerapi.ListResult](t, r.conn, "list", nil); err != nil || l.Workspaces[0].State != workspace.StateStopped {
		t.Errorf("listed %+v, %v", l, err)
	}
}

func TestFailedDestroyIsFinishedLater(t *testing.T) {
	for _, step := range []string{"EndProcesses", "RemoveUser", "KeepHome", "RemoveTemporary"} {
		r := newRig(t, true)
		mustCreate(t, r.conn, name)
		r.host.set(step, errPlanted)
		if _, err := call[any](t, r.conn, "destroy", brokerapi.DestroyParams{Name: name}); !errdefs.IsInternal(err) {
			t.Errorf("%s: got %v", step, err)
		}
		if _, err := create(t, r.conn, name); err == nil {
			t.Errorf("%s: the name was given out while its destruction was not finished", step)
		}
		if _, err := call[any](t, r.conn, "start", brokerapi.NameParams{Name: name}); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: started while destroying: %v", step, err)
		}
		r.host.set(step, nil)
		if w, err := call[brokerapi.Workspace](t, r.conn, "destroy", brokerapi.DestroyParams{Name: name}); err != nil || w.Retained == "" {
			t.Errorf("%s: got %+v, %v", step, w, err)
		}
	}
}

func TestExecutorThatEndsByItself(t *testing.T) {
	r := newRig(t, true)
	mustCreate(t, r.conn, name)
	old, err := call[brokerapi.StartResult](t, r.conn, "start", brokerapi.NameParams{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	r.host.crash(name)
	// Whether the watch or this request comes first, there is a new executor.
	s, err := call[brokerapi.StartResult](t, r.conn, "start", brokerapi.NameParams{Name: name})
	if err != nil || s.Workspace.Executor.PID == old.Workspace.Executor.PID {
		t.Errorf("got %+v, %v", s, err)
	}
}
