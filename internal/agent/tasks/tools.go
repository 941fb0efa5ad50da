package tasks

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// Tools give the programs of tasks carrel's tools.
type Tools interface {
	// Open serves the tools in the workspace of a task until end is called, which cuts what is under way and waits for that. argv is
	// the command that a program starts there, as a server on its stdin and stdout, to reach them.
	Open(ctx context.Context, o Opening) (argv []string, end func(), err error)
}

// Opening is for whom tools are opened: what is asked for by them, By asks for, in On alone.
type Opening struct {
	Runtime runtime.Runtime
	Permit  permit.Permit
	Task    id.Command
	On      id.Workspace
	By      principal.Principal
	Trace   id.Trace
	// Seat is what the tools propose by, of an agent in the place of carrel's own: it has those of package seat, and no others. nil for
	// programs that work in On.
	Seat Seat
}

// tooled are the protocols whose programs are told of tools. carrel's own agent proposes by a request of its protocol.
var tooled = map[string]bool{ACP: true, SeatACP: true}

// openTools opens the tools of a task, if its protocol has any and they are served.
func (t *Tasks) openTools(ctx context.Context, p permit.Permit, protocol string, task id.Command, r *operation.Request) (
	s *proposals, argv []string, end func(), err error,
) {
	switch {
	case protocol == SeatACP && t.cfg.Tools == nil:
		return nil, nil, nil, fmt.Errorf("cannot run an agent that proposes by tools: this carrel serves none: %w", errdefs.ErrFailedPrecondition)
	case !tooled[protocol] || t.cfg.Tools == nil:
		return nil, nil, func() {}, nil
	}
	rt, err := t.cfg.Lifecycle.Runtime(r.On.Boundary)
	if err != nil {
		return nil, nil, nil, err
	}
	o := Opening{Runtime: rt, Permit: p, Task: task, On: r.On.Name, By: r.By, Trace: r.Trace}
	if protocol == SeatACP {
		s = newProposals()
		o.Seat = s
	}
	argv, end, err = t.cfg.Tools.Open(ctx, o)
	return s, argv, end, err
}
