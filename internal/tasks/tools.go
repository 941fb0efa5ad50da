package tasks

import (
	"context"

	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/operation"
	"github.com/carrel-dev/carrel/internal/permit"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/runtime"
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
}

// tooled are the protocols whose programs are told of tools. carrel's own agent proposes plans instead.
var tooled = map[string]bool{ACP: true}

// openTools opens the tools of a task, if its protocol has any and they are served.
func (t *Tasks) openTools(ctx context.Context, p permit.Permit, protocol string, task id.Command, r *operation.Request) (
	argv []string, end func(), err error,
) {
	if !tooled[protocol] || t.cfg.Tools == nil {
		return nil, func() {}, nil
	}
	rt, err := t.cfg.Lifecycle.Runtime(r.On.Boundary)
	if err != nil {
		return nil, nil, err
	}
	return t.cfg.Tools.Open(ctx, Opening{Runtime: rt, Permit: p, Task: task, On: r.On.Name, By: r.By, Trace: r.Trace})
}
