package cli

import (
	"context"

	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/rootless"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

func (a *app) startCommand() *cobra.Command {
	return changeCommand(a, "start", operation.StartWorkspace, "started", workspaces.Start, func(name string) *carrelv1.StartRequest {
		return &carrelv1.StartRequest{Workspace: name}
	})
}

func (a *app) stopCommand() *cobra.Command {
	return a.changes("stop", help(operation.StopWorkspace), "stopped", func(ctx context.Context, ref string) (*carrelv1.Workspace, error) {
		m, err := ask(ctx, a, workspaces.Stop, &carrelv1.StopRequest{Workspace: ref})
		if err == nil {
			a.tellChanges(ctx, id.Workspace(m.GetWorkspace().GetName()))
		}
		return m.GetWorkspace(), err
	})
}

// tellChanges says what the commands of a workspace changed in the directories of the caller's that it may write.
func (a *app) tellChanges(ctx context.Context, name id.Workspace) {
	all, err := rootless.ChangesOf(ctx, name)
	if err != nil {
		_ = say(a.Err, "carrel: %s\n", errtext.Text(err))
	}
	for _, c := range all {
		for _, line := range c.Text() {
			_ = say(a.Err, "carrel: %s: %s\n", printable(c.Source), line)
		}
	}
}

// nameOf is the name of a workspace that is named by its key, "" if it has nothing to look at or cannot be asked for.
func (a *app) nameOf(ctx context.Context, ref string) id.Workspace {
	if id.IsWorkspace(ref) {
		return id.Workspace(ref)
	}
	if !rootless.Watches() {
		return ""
	}
	m, err := ask(ctx, a, workspaces.Get, &carrelv1.GetRequest{Workspace: ref})
	if err != nil {
		return "" // what follows says why
	}
	return id.Workspace(m.GetWorkspace().GetName())
}

func (a *app) restartCommand() *cobra.Command {
	c := a.changes("restart", "Stop workspaces and start them again", "started again",
		func(ctx context.Context, ref string) (*carrelv1.Workspace, error) {
			if _, err := ask(ctx, a, workspaces.Stop, &carrelv1.StopRequest{Workspace: ref}); err != nil {
				return nil, err
			}
			m, err := ask(ctx, a, workspaces.Start, &carrelv1.StartRequest{Workspace: ref})
			return m.GetWorkspace(), err
		})
	c.Long = `restart ends everything that runs in a workspace and starts it again: with the network rules,
secrets and mounts that it has by then, and its isolation proved anew. If the start fails, it stays
stopped.`
	return c
}

func (a *app) reviveCommand() *cobra.Command {
	of := func(name string) *carrelv1.ReviveRequest { return &carrelv1.ReviveRequest{Workspace: name} }
	c := changeCommand(a, "revive", operation.ReviveWorkspace, "back, and stopped", workspaces.Revive, of)
	c.Long = `Bring a destroyed workspace back as it was when it was stopped last: name, ids, home, limits
and what it may do, but without its project mounts. "carrel ls --retained" lists the homes that are kept; a key means the
one that was destroyed last. A lifetime that has ended has no end. Whoever may make
workspaces and owns it can do that, as long as nothing else has its key.`
	c.ValidArgsFunction = nil
	return c
}

func (a *app) pauseCommand() *cobra.Command {
	return changeCommand(a, "pause", operation.PauseWorkspace, "paused", workspaces.Pause, func(name string) *carrelv1.PauseRequest {
		return &carrelv1.PauseRequest{Workspace: name}
	})
}

func (a *app) resumeCommand() *cobra.Command {
	return changeCommand(a, "resume", operation.ResumeWorkspace, "running", workspaces.Resume, func(name string) *carrelv1.ResumeRequest {
		return &carrelv1.ResumeRequest{Workspace: name}
	})
}

// changed is an answer that holds the workspace as it is now.
type changed[R any] interface {
	*R
	GetWorkspace() *carrelv1.Workspace
}

// changeCommand is a command that does one thing to each workspace named.
func changeCommand[Q, R any, A changed[R]](
	a *app, name string, op operation.Name, done string, call unary[workspaces, Q, R], of func(string) *Q,
) *cobra.Command {
	return a.changes(name, help(op), done, func(ctx context.Context, ref string) (*carrelv1.Workspace, error) {
		m, err := ask(ctx, a, call, of(ref))
		if err != nil {
			return nil, err
		}
		return A(m).GetWorkspace(), nil
	})
}

// changes is a command that changes each workspace named.
func (a *app) changes(name, short, done string, change func(context.Context, string) (*carrelv1.Workspace, error)) *cobra.Command {
	return a.prints(&cobra.Command{
		Use:               name + " [flags] WORKSPACE...",
		Short:             short,
		Example:           "  carrel " + name + " demo",
		Args:              atLeast("WORKSPACE"),
		ValidArgsFunction: a.completeWorkspaces(),
	}, func(c *cobra.Command, args []string) (any, printer, error) {
		var all []*carrelv1.Workspace
		for _, ref := range args {
			w, err := change(c.Context(), ref)
			if err != nil {
				return nil, nil, err
			}
			all = append(all, w)
			a.progress("%s is %s.", w.GetName(), done)
		}
		return objectsOf(all), nil, nil
	})
}
