package compose_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// onDescriptor starts a task whose program speaks on a descriptor.
func (h *house) onDescriptor(fd int) workspace.Task {
	h.t.Helper()
	task, err := h.RunTask(h.t.Context(), alice, "demo", run("agent"), workspace.TaskSpec{Prompt: "do it", FD: fd})
	if err != nil {
		h.t.Fatal(err)
	}
	return task
}

// A task on a descriptor: its program is given one socket for both ways, and hears its end once the task is completed. The number
// is in the record.
func TestTaskOnADescriptor(t *testing.T) {
	ended := make(chan bool, 1)
	h := taskHouse(t, func(a *agentDouble) int {
		if c, err := a.read(); err != nil || a.fd != 5 || c.Params["prompt"] != "do it" {
			return 1
		}
		a.say(`{"jsonrpc":"2.0","method":"report_message","params":{"text":"one"}}`)
		a.say(`{"jsonrpc":"2.0","method":"report_completion","params":{}}`)
		_, err := a.read()
		ended <- err != nil
		return 0
	})
	at := len(h.records())
	all, end := h.follows(h.onDescriptor(5), 0)
	want := []string{`1 prompt {"text":"do it"}`, `2 message {"text":"one"}`, `3 completion {}`}
	if !slices.Equal(all, want) || end.State != workspace.TaskCompleted {
		t.Errorf("%q, %+v", all, end)
	}
	select {
	case yes := <-ended:
		if !yes {
			t.Error("its program was sent more after its completion")
		}
	case <-time.After(10 * time.Second):
		t.Error("its program has not heard of the end of its input")
	}
	recorded := slices.ContainsFunc(h.records()[at:], func(r audit.Record) bool {
		return strings.Contains(string(r.Action), `"kind":"task.run"`) && strings.Contains(string(r.Action), `"fd":5`)
	})
	if !recorded {
		t.Error("the descriptor is not in the record")
	}
}

// A program that goes has failed its task, also where it has not read what it was sent, which resets a socket.
func TestTaskOnADescriptorThatCrashes(t *testing.T) {
	for name, agent := range map[string]func(a *agentDouble) int{
		"it has read all": func(a *agentDouble) int {
			_, _ = a.read()
			return 3
		},
		"it has read nothing": func(a *agentDouble) int {
			_, _, _ = unix.Recvfrom(int(a.stdin.Fd()), make([]byte, 1), unix.MSG_PEEK) // until there is something
			return 3
		},
	} {
		h := taskHouse(t, agent)
		_, end := h.follows(h.onDescriptor(3), 0)
		want := `Executor terminated unexpectedly: it exited with 3 before it said how its task ended; "carrel logs `
		if end.State != workspace.TaskFailed || !strings.HasPrefix(end.Reason, want) {
			t.Errorf("%s: %+v", name, end)
		}
	}
}

func TestTaskOnADescriptorThatCannotBe(t *testing.T) {
	h := taskHouse(t, func(*agentDouble) int { return 0 })
	for _, fd := range []int{-1, 1, 2, 64} {
		_, err := h.RunTask(t.Context(), alice, "demo", run("agent"), workspace.TaskSpec{Prompt: "do it", FD: fd})
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "3 to 63 can be given") {
			t.Errorf("%d: %v", fd, err)
		}
	}
}
