package compose_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// pendingOf returns the one question that waits, once ask has led to one.
func (h *house) pendingOf(ask func()) approval.View {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	defer cancel()
	asked, watching := make(chan approval.View, 1), make(chan struct{})
	var once sync.Once
	go h.WatchApprovals(ctx, root, func(a *approval.View) error {
		if a == nil {
			once.Do(func() { close(watching) })
			return nil
		}
		if a.State != approval.Pending {
			return nil
		}
		asked <- *a
		return errors.New("enough")
	})
	<-watching
	ask()
	select {
	case a := <-asked:
		return a
	case <-time.After(time.Minute):
		h.t.Fatal("nobody was asked")
	}
	return approval.View{}
}

// What a task asks for is an approval with the whole command, which its owner answers; the task hears the answer.
func TestTaskPermission(t *testing.T) {
	for kind, want := range map[approval.Kind]string{approval.Once: "true", approval.Deny: "false"} {
		answers := make(chan call, 1)
		h := taskHouse(t, func(a *agentDouble) int {
			_, _ = a.read()
			c, _ := a.ask(5, "request_permission", `{"title":"push\u001b[31m","command":["git","push","--force"]}`)
			answers <- c
			a.say(`{"jsonrpc":"2.0","id":1,"result":{}}`)
			return drained(a)
		})
		var task workspace.Task
		a := h.pendingOf(func() { task = h.task("") })
		if !slices.Equal(a.Argv, []string{"git", "push", "--force"}) || a.Subject.By != "inside:"+string(task.Workspace) || !a.Written ||
			!slices.ContainsFunc(a.Decision.Reasons, func(s string) bool { return strings.Contains(s, string(task.ID)+" says: push [31m") }) {
			t.Errorf("asked %+v", a)
		}
		if _, err := h.Answer(t.Context(), bob, a.ID, approval.Once, "", false); err == nil {
			t.Error("another tenant answers")
		}
		if _, err := h.Answer(t.Context(), alice, a.ID, approval.Once, "", false); err == nil {
			t.Error("its owner answers without having seen it at a terminal")
		}
		if _, err := h.Answer(t.Context(), alice, a.ID, kind, "", true); err != nil {
			t.Error(err)
		}
		if c := <-answers; fmt.Sprint(c.Result["allowed"]) != want {
			t.Errorf("%s: %+v", kind, c)
		}
		all, end := h.follows(task, 0)
		if end.State != workspace.TaskCompleted || len(all) != 4 || !strings.Contains(all[2], `"allowed":`+want) {
			t.Errorf("%q, %+v", all, end)
		}
	}
}

// Many questions at once, more than may be, and one that nobody could read: the task is told, and goes on.
func TestTaskAsksTooMuch(t *testing.T) {
	refused := make(chan string, 1)
	h := taskHouse(t, func(a *agentDouble) int {
		_, _ = a.read()
		c, _ := a.ask(5, "request_permission", `{"title":"x","command":"`+strings.Repeat("y", 9<<10)+`"}`)
		if !strings.Contains(string(c.Error), "at most 8192 are shown") {
			refused <- string(c.Error)
		}
		for i := range 17 {
			a.say(`{"jsonrpc":"2.0","id":%d,"method":"request_permission","params":{"title":"x","command":"y"}}`, 10+i)
		}
		c, _ = a.read()
		refused <- string(c.Error)
		a.say(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		return drained(a)
	})
	end := h.endOf("")
	if why := <-refused; !strings.Contains(why, "16 questions of this task are open") || end.State != workspace.TaskCompleted {
		t.Errorf("%s, %+v", why, end)
	}
	// The questions ended with the task.
	if list, _, err := h.Approvals(t.Context(), root, approval.Filter{State: approval.Pending}); err != nil || len(list) != 0 {
		t.Errorf("%d wait, %v", len(list), err)
	}
}
