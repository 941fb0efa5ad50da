package asking

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/operation"
	"github.com/carrel-dev/carrel/internal/permit"
	"github.com/carrel-dev/carrel/internal/principal"
)

// Connect has a person asked whether a connection out of a running workspace may be made, for at most so long. What runs
// there asks for it: so the owner of the workspace answers, and no token does. gone is closed once no connection waits
// any more; the question ends with that, because an answer would let nothing through. why says why not, for the program
// that waits and for the record of the connection.
func (q *Questions) Connect(name id.Workspace, c operation.Connect, wait time.Duration, gone <-chan struct{}) (allowed bool, why string) {
	on, err := q.find(string(name))
	if err == nil {
		// The context does not end before the question: what a person has answered is carried through.
		err = q.gate.Do(context.Background(), operation.Request{
			By: principal.InWorkspace(on.Name, on.Owner), Op: c, On: on, Wait: wait, Gone: gone,
		}, func(context.Context, permit.Permit) (any, error) { return nil, nil })
	}
	var denial *approval.Denial
	switch {
	case err == nil:
		return true, ""
	case errors.As(err, &denial):
		return false, denial.Error()
	case errdefs.IsResourceExhausted(err):
		return false, "too many questions wait for an answer, or too much was recorded of what the workspace's owner asks"
	case errdefs.IsPermissionDenied(err):
		return false, "nobody answered in time"
	}
	q.cfg.Log.Warn("nobody can be asked about a connection", "workspace", name, "target", c.Target(), "error", err)
	return false, "nobody can be asked now"
}
