package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// waitFlag adds --wait, to every command that asks for what a person may have to approve.
func waitFlag(c *cobra.Command, wait *time.Duration) {
	c.Flags().DurationVar(wait, "wait", 0,
		"how long to wait for a person's answer elsewhere if one is needed, as in 5m; without it this fails with the question's id")
}

func checkWait(c *cobra.Command, wait time.Duration) error {
	if wait < 0 {
		return usage(c, "cannot use a negative --wait: give a time such as 5m, or leave it out")
	}
	return nil
}

// tellWaiting says for which approval this process waits.
func (a *app) tellWaiting(name string) {
	_ = say(a.Err, "carrel: waiting for a person: approval %[1]s; see it with \"carrel approvals show %[1]s\", "+
		"answer it with \"carrel approvals approve %[1]s\" or deny\n", name)
}

func (a *app) waitCommand() *cobra.Command {
	return a.prints(&cobra.Command{
		Use:   "wait [flags] WORKSPACE|COMMAND",
		Short: help(operation.WaitForEnd),
		Long: `Wait until a command has ended and print its exit code, or until a workspace does not run
and print its state. The exit code of this program is 0 in both cases. "WORKSPACE COMMAND"
names a command of one workspace; COMMAND alone is searched in all that run.

Only its own client learns how an attached command ended; for others it is not found.`,
		Example: `  carrel wait $(carrel exec --detach demo -- make)
  carrel wait demo`,
		Args:              cobra.MatchAll(atLeast("WORKSPACE|COMMAND"), cobra.MaximumNArgs(2)),
		ValidArgsFunction: a.completeCommand(),
	}, func(c *cobra.Command, args []string) (any, printer, error) {
		client, err := a.client()
		if err != nil {
			return nil, nil, err
		}
		req := &carrelv1.WaitRequest{Workspace: args[0]}
		if len(args) == 2 {
			req.CommandId = args[1]
		} else if cmd, err := id.ParseCommand(args[0]); err == nil {
			if req, err = findCommand(c.Context(), client, cmd); err != nil {
				return nil, nil, err
			}
		}
		m, err := askOf(c.Context(), client, commands.Wait, req)
		if err != nil {
			return nil, nil, err
		}
		if m.GetStatus() == nil {
			return objectOf(m), textf("%s\n", m.GetState()), nil
		}
		return objectOf(m), textf("%d\n", m.GetStatus().GetCode()), nil
	})
}

// findCommand names a command with the workspace that has it.
func findCommand(ctx context.Context, client *carrel.Client, cmd id.Command) (*carrelv1.WaitRequest, error) {
	all, err := askOf(ctx, client, workspaces.List, &carrelv1.ListRequest{})
	if err != nil {
		return nil, err
	}
	for _, w := range all.GetWorkspaces() {
		if !workspace.State(w.GetState()).Live() {
			continue
		}
		m, err := askOf(ctx, client, commands.ListCommands, &carrelv1.ListCommandsRequest{Workspace: w.GetName()})
		if err != nil {
			return nil, err
		}
		for _, x := range m.GetCommands() {
			if x.GetCommandId() == string(cmd) {
				return &carrelv1.WaitRequest{Workspace: w.GetName(), CommandId: string(cmd)}, nil
			}
		}
	}
	return nil, fmt.Errorf("cannot find command %s: no workspace that runs has it; \"carrel ps WORKSPACE\" lists those there are: %w",
		cmd, errdefs.ErrNotFound)
}
