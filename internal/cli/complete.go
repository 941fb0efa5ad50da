package cli

import (
	"context"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

// A shell waits for these: what cannot be known soon is left out.
const completionTimeout = 500 * time.Millisecond

func (a *app) completeWorkspace(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeWorkspaces(c, args, prefix)
}

func (a *app) completeWorkspaces(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	client, err := a.clientIfUp()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	res, err := client.Workspaces().List(ctx, connect.NewRequest(&carrelv1.ListRequest{}))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, w := range res.Msg.GetWorkspaces() {
		if !slices.Contains(args, w.GetKey()) && !slices.Contains(args, w.GetName()) {
			out = append(out, cobra.CompletionWithDesc(w.GetKey(), w.GetState()), cobra.CompletionWithDesc(w.GetName(), w.GetKey()))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeExec completes the workspace and leaves the command to the shell.
func (a *app) completeExec(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.completeWorkspaces(c, args, prefix)
}

// completeCommand completes WORKSPACE COMMAND.
func (a *app) completeCommand(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.completeWorkspaces(c, args, prefix)
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	client, err := a.clientIfUp()
	if err != nil || len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	res, err := client.Commands().ListCommands(ctx, connect.NewRequest(&carrelv1.ListCommandsRequest{Workspace: args[0]}))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, x := range res.Msg.GetCommands() {
		out = append(out, cobra.CompletionWithDesc(x.GetCommandId(), cut(shellQuote(x.GetArgv()), 40)))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
