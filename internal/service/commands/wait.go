package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// A waiter looks again after firstLook, and then after twice as long each time up to lastLook.
const (
	firstLook = 10 * time.Millisecond
	lastLook  = 250 * time.Millisecond
)

// Wait returns how a command ended, or nil and the state of the workspace that ref names when
// that does not run, if cmd is empty. It looks until ctx ends, and holds nothing meanwhile.
//
// Errors: not_found if there is no such command, or if it was attached and has ended: then only
// its client was told how.
func (c *Commands) Wait(
	ctx context.Context, p principal.Principal, ref string, cmd id.Command,
) (status *execapi.Status, state workspace.State, err error) {
	look := func(ctx context.Context, rt runtime.Runtime, name id.Workspace) (done bool, err error) {
		status, err = ended(ctx, rt, name, cmd)
		return status != nil, err
	}
	if cmd == "" {
		look = func(ctx context.Context, _ runtime.Runtime, name id.Workspace) (bool, error) {
			var there bool
			if _, state, there = c.cfg.Lifecycle.Current(name); !there {
				state = workspace.StateDestroyed
			}
			return state == workspace.StateStopped || state == workspace.StateDestroyed, ctx.Err()
		}
	}
	err = c.do(ctx, p, ref, operation.OnCommand(operation.WaitForEnd, cmd), func(ctx context.Context, rt runtime.Runtime,
		p permit.Permit,
	) error {
		name, err := p.Workspace()
		for wait := firstLook; err == nil; wait = min(2*wait, lastLook) {
			var done bool
			if done, err = look(ctx, rt, name); done {
				return nil
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(wait):
			}
		}
		return err
	})
	return status, state, err
}

// ended returns how a command ended, or nil while it runs.
func ended(ctx context.Context, rt runtime.Runtime, name id.Workspace, cmd id.Command) (*execapi.Status, error) {
	list, err := rt.Commands(ctx, name)
	switch {
	case errors.Is(err, runtime.ErrNotRunning):
		list = nil
	case err != nil:
		return nil, err
	}
	i := slices.IndexFunc(list, func(c execapi.Command) bool { return c.ID == cmd })
	if i < 0 {
		return nil, fmt.Errorf("cannot say how %s ended: workspace %s does not have it any more, or never had; \"carrel ps\" lists what it "+
			"has: %w",
			cmd, name, errdefs.ErrNotFound)
	}
	return list[i].Status, nil
}
