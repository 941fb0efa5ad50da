package approvals

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// Connect has a person asked whether a connection out of a running workspace may be made, for at most so long. What runs
// there asks for it: so the owner of the workspace answers, and no token does. gone is closed once no connection waits
// any more; the question ends with that, because an answer would let nothing through. why says why not, for the program
// that waits and for the record of the connection.
func (q *Questions) Connect(name id.Workspace, c operation.Connect, wait time.Duration, gone <-chan struct{}) (allowed bool, why string) {
	allowed, why, err := q.inside(name, c, wait, gone)
	if err != nil {
		q.cfg.Log.Warn("nobody can be asked about a connection", "workspace", name, "target", c.Target(), "error", err)
	}
	return allowed, why
}

// AllowTask has a person asked what a task in a workspace asks for, as Connect does for a connection.
func (q *Questions) AllowTask(name id.Workspace, asks operation.TaskAsks, wait time.Duration, gone <-chan struct{}) (
	allowed bool, why string,
) {
	allowed, why, err := q.inside(name, asks, wait, gone)
	if err != nil {
		q.cfg.Log.Warn("nobody can be asked for a task", "workspace", name, "task", asks.ID, "error", err)
	}
	return allowed, why
}

// inside has a person asked for what runs in a workspace. The error is one that the program is not told.
func (q *Questions) inside(name id.Workspace, op operation.Operation, wait time.Duration, gone <-chan struct{}) (
	allowed bool, why string, _ error,
) {
	thread := ""
	if a, ok := op.(operation.TaskAsks); ok {
		thread = string(a.ID) // so that clients know whose question it is: nothing is remembered for it
	}
	on, err := q.find(string(name))
	if err == nil {
		// The context does not end before the question: what a person has answered is carried through.
		err = q.gate.Do(context.Background(), operation.Request{
			By: principal.InWorkspace(on.Name, on.Owner), Op: op, On: on, Wait: wait, Gone: gone, Thread: thread,
		}, func(context.Context, permit.Permit) (any, error) { return nil, nil })
	}
	var denial *approval.Denial
	switch {
	case err == nil:
		return true, "", nil
	case errors.As(err, &denial):
		return false, denial.Error(), nil
	case errdefs.IsResourceExhausted(err):
		return false, "too many questions wait for an answer, or too much was recorded of what the workspace's owner asks", nil
	case errdefs.IsPermissionDenied(err):
		return false, "nobody answered in time", nil
	}
	return false, "nobody can be asked now", err
}
