package apitest

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// TaskID is that of the one task that there is.
const TaskID id.Command = "c-0123456789abcdef"

func task(ref string) workspace.Task {
	return workspace.Task{
		ID: TaskID, Workspace: id.Workspace(ref), Protocol: "carrel", Argv: []string{"agent"}, State: workspace.TaskCompleted, Last: 2,
	}
}

// RunTask implements api.Gate. Nothing runs.
func (g *Gate) RunTask(_ context.Context, p principal.Principal, ref string, _ execapi.ExecParams, _ workspace.TaskSpec) (
	workspace.Task, error,
) {
	return task(ref), g.permit(p, operation.RunTask)
}

// ServeHosts implements api.Gate. No step comes, and the task has ended.
func (g *Gate) ServeHosts(_ context.Context, p principal.Principal, ref string, name id.Command, _ runtime.Hosts) (
	func(), <-chan struct{}, error,
) {
	_, err := g.one(p, operation.RunTask, ref, name)
	over := make(chan struct{})
	close(over)
	return func() {}, over, err
}

// ListTasks implements api.Gate.
func (g *Gate) ListTasks(_ context.Context, p principal.Principal, ref string) ([]workspace.Task, error) {
	if err := g.permit(p, operation.ListTasks); err != nil {
		return nil, err
	}
	return []workspace.Task{task(ref)}, nil
}

// one is the task with an id.
func (g *Gate) one(p principal.Principal, op operation.Name, ref string, name id.Command) (workspace.Task, error) {
	if err := g.permit(p, op); err != nil {
		return workspace.Task{}, err
	}
	if name != TaskID {
		return workspace.Task{}, fmt.Errorf("cannot find task %s: there is none: %w", name, errdefs.ErrNotFound)
	}
	return task(ref), nil
}

// Task implements api.Gate.
func (g *Gate) Task(_ context.Context, p principal.Principal, ref string, name id.Command) (workspace.Task, error) {
	return g.one(p, operation.ShowTask, ref, name)
}

// StopTask implements api.Gate.
func (g *Gate) StopTask(_ context.Context, p principal.Principal, ref string, name id.Command) (workspace.Task, error) {
	return g.one(p, operation.StopTask, ref, name)
}

// FollowTask implements api.Gate.
func (g *Gate) FollowTask(_ context.Context, p principal.Principal, ref string, name id.Command, after int64, _ bool,
	emit func(workspace.TaskMessage, int64) error,
) (workspace.Task, error) {
	t, err := g.one(p, operation.FollowTask, ref, name)
	for n := after + 1; err == nil && n <= t.Last; n++ {
		err = emit(workspace.TaskMessage{Number: n, Kind: "message", Body: json.RawMessage(`{"text":"hello\u001b[31m"}`)}, 0)
	}
	return t, err
}
