package rootless

import (
	"context"
	"fmt"
	"os"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/rootless/subid"
)

// shell is the login shell of a workspace's passwd entry.
const shell = "/bin/bash"

// Launcher starts executors with the rights of an ordinary user.
type Launcher struct {
	// Executor is the path of carrel-executor. Required.
	Executor string
	// TmpfsBytes bounds what a workspace may keep on memory. Required.
	TmpfsBytes int64
	// Ranges are nil where executors share the caller's id. NoRange then says why.
	Ranges  *subid.Ranges
	NoRange string
	// Groups are the control groups of what it starts.
	Groups Groups
}

// Start starts the executor that c describes by its workspace, directories, projects and log, and
// fills in the rest. c.NoGroup says afterwards why the executor has no control groups, if it has
// none. sockets get the near ends of the executor's connections.
func (l *Launcher) Start(ctx context.Context, c *launch.Config, sockets *Sockets) (*launch.Executor, error) {
	far, err := sockets.Make()
	defer func() {
		for _, f := range far {
			f.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	// From its file: what runs inside cannot open it (the executor is not dumpable), and a
	// sealed copy in memory would take a tenth of the start.
	if c.Binary, err = os.Open(l.Executor); err != nil {
		return nil, fmt.Errorf("cannot read the executor: %w", err)
	}
	defer c.Binary.Close()
	c.Peers = far
	c.Spec.Mode, c.Spec.User, c.Spec.Shell = sandbox.Rootless, string(c.Spec.Name), shell
	c.Spec.TmpfsBytes, c.Spec.Net.LowPorts = l.TmpfsBytes, true
	if l.NoRange != "" {
		c.Outside = func(int) []sandbox.Finding {
			return []sandbox.Finding{{Control: "ids", OK: true, Evidence: "no range of ids is used: " + l.NoRange}}
		}
	}
	c.Map = l.Ranges.Put(&c.Spec)
	files, err := l.Groups.Lend(ctx, c)
	if err != nil {
		return nil, err
	}
	defer files.Close()
	x, err := launch.Start(ctx, *c)
	if err != nil {
		return nil, fmt.Errorf("cannot start a workspace without root: %w%s", err, explain())
	}
	return x, nil
}
