package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/agent/sessions"
	"github.com/carrel-dev/carrel/internal/rootless/paths"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/acp"
)

// maxReplayed is how many turns of a session are told to an editor again, the newest.
const maxReplayed = 64

// sessionsDir is where it is kept which task a session of an editor goes on from, in the user's state directory.
func sessionsDir() (string, error) {
	state, err := paths.State()
	if err != nil {
		return "", err
	}
	return filepath.Join(state, "sessions"), nil
}

// goOnFrom has the next question go on from a former session.
func (k *asker) goOnFrom(ctx context.Context, s sessions.Session) error {
	if s.Workspace != k.ws {
		return fmt.Errorf("cannot load the session: its agent is in workspace %s, and this one in %s; have the editor start carrel acp with "+
			"--agent %s: %w", s.Workspace, k.ws, s.Workspace, errdefs.ErrFailedPrecondition)
	}
	if _, err := k.taskBefore(ctx, s.Task); err != nil {
		if errdefs.IsNotFound(err) {
			err = fmt.Errorf("cannot load the session: what was said in it is no longer kept; begin a new one: %w", errdefs.ErrNotFound)
		}
		return err
	}
	k.after = s.Task
	return nil
}

// formerTask is what is known of a task of a session.
type formerTask struct {
	id, before, prompt string
	end                *carrelv1.Task
}

// taskBefore reads a task of the agent up to its prompt, which says what it went on from. A prompt that is no longer kept is empty.
func (k *asker) taskBefore(ctx context.Context, id string) (f formerTask, err error) {
	got, err := askOf(ctx, k.client, tasks.GetTask, &carrelv1.GetTaskRequest{Workspace: k.ws, TaskId: id})
	if err != nil {
		return f, err
	}
	f.id, f.end = id, got.GetTask()
	stop := errors.New("the prompt is read")
	_, err = k.receiveTask(ctx, k.client, &carrelv1.FollowTaskRequest{Workspace: k.ws, TaskId: id, Now: true}, reconnects,
		func(m *carrelv1.TaskMessage) error {
			var p struct {
				Text  string `json:"text"`
				After string `json:"after"`
			}
			if m.GetKind() == "prompt" && json.Unmarshal(m.GetBody(), &p) == nil {
				f.prompt, f.before = p.Text, p.After
			}
			return stop // it is the first message
		})
	if errors.Is(err, stop) {
		err = nil
	}
	return f, err
}

// Replay implements acp.Session.
func (s *editorSession) Replay(ctx context.Context, next func() *acp.Turn) error {
	var all []formerTask
	more := false
	for id := s.k.after; id != ""; {
		f, err := s.k.taskBefore(ctx, id)
		if errdefs.IsNotFound(err) || len(all) == maxReplayed {
			more = true
			break
		}
		if err != nil {
			return plainly(err)
		}
		all, id = append(all, f), f.before
	}
	slices.Reverse(all)
	for i, f := range all {
		turn := next()
		if i == 0 && more {
			if err := turn.Note("what was said before this is no longer kept, or too much"); err != nil {
				return err
			}
		}
		if err := s.replay(ctx, &f, turn); err != nil {
			return plainly(err)
		}
	}
	return nil
}

// replay tells one turn again. Nothing is asked, and nobody is offered anything.
func (s *editorSession) replay(ctx context.Context, f *formerTask, turn *acp.Turn) error {
	if err := turn.Asked(f.prompt); err != nil {
		return err
	}
	t := &turnView{
		a: s.k.app, client: s.k.client, ws: s.k.ws, task: f.end, out: asTable, plans: newPlans(), to: &editorTeller{turn: turn},
		offered: func(string) {},
	}
	end, err := s.k.receiveTask(ctx, s.k.client, &carrelv1.FollowTaskRequest{Workspace: s.k.ws, TaskId: f.id, Now: true}, reconnects,
		func(m *carrelv1.TaskMessage) error {
			if m.GetKind() == "remember" {
				return nil
			}
			return t.show(m)
		})
	if err != nil {
		return err
	}
	if state := workspace.TaskState(end.GetState()); state != workspace.TaskCompleted && state != workspace.TaskRunning {
		return turn.Note("the turn ended without an answer: " + printable(end.GetReason()))
	}
	return nil
}
