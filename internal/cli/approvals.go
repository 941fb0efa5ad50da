package cli

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

func (a *app) approvalsCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "approvals",
		Short: "See and answer what waits for a person",
		Long: `approvals shows the actions that policy allows only with a person's approval, and takes the
answers. You see what you asked for and what is about your workspaces; root and the members
of the carrel group see and answer everything. Nobody can approve, in their own name, what a
model or a program wrote.`,
		Example: `  carrel approvals list
  carrel approvals show ap-0123456789abcdef
  carrel approvals approve ap-0123456789abcdef
  carrel approvals deny ap-0123456789abcdef --reason "use the mirror"
  carrel approvals watch
  carrel approvals permissions`,
	}, a.approvalsListCommand(), a.approvalsShowCommand(), a.approvalsAnswerCommand("approve"), a.approvalsAnswerCommand("deny"),
		a.permissionsCommand(), a.revokeCommand(), a.approvalsWatchCommand())
}

// actionOf is the action of a question in one line.
func actionOf(m *carrelv1.Approval) string {
	switch {
	case m.GetKind() == string(operation.RunPlan):
		return strings.Join(m.GetArgv(), "; ")
	case len(m.GetArgv()) > 0:
		return approval.Words(m.GetArgv())
	case m.GetHost() != "":
		return "connect to " + net.JoinHostPort(m.GetHost(), strconv.FormatUint(uint64(m.GetPort()), 10))
	}
	return m.GetKind()
}

func isPending(m *carrelv1.Approval) bool { return m.GetState() == string(approval.Pending) }

func (a *app) approvalsListCommand() *cobra.Command {
	var state, workspace string
	var all bool
	var most int
	c := &cobra.Command{
		Use:   "list [flags]",
		Short: "List approvals, the newest first",
		Long:  "List approvals, the newest first: the pending ones, or with --state or --all others too.",
		Example: `  carrel approvals list
  carrel approvals list --all --workspace demo -o json`,
		Args: exactly(),
	}
	f := c.Flags()
	f.StringVar(&state, "state", "pending", "only those that are pending, approved, denied, spent or expired")
	f.StringVar(&workspace, "workspace", "", "only those about this workspace")
	f.BoolVar(&all, "all", false, "those in every state")
	f.IntVarP(&most, "lines", "n", 1000, "at most this many")
	completeFrom(c, "state", "pending", "approved", "denied", "spent", "expired")
	_ = c.RegisterFlagCompletionFunc("workspace", a.completeWorkspaces()) // the flag is there
	return a.prints(c, func(c *cobra.Command, _ []string) (any, printer, error) {
		if most < 1 {
			return nil, nil, usage(c, "cannot list %d approvals: give a number from 1 on", most)
		}
		if all {
			state = ""
		}
		var found []*carrelv1.Approval
		req := &carrelv1.ListApprovalsRequest{State: state, Workspace: workspace}
		for more := true; more; more = req.GetPageToken() != "" && len(found) < most {
			req.PageSize = int32(min(most-len(found), 500))
			m, err := ask(c.Context(), a, approvals.ListApprovals, req)
			if err != nil {
				return nil, nil, err
			}
			found = append(found, m.GetApprovals()...)
			req.PageToken = m.GetNextPageToken()
		}
		t := newTable(1, "ID", "STATE", "RISK", "WORKSPACE", "ASKED BY", "WROTE", "EXPIRES AT", "ACTION").
			wideOnly("ASKED BY", "WROTE", "EXPIRES AT").freeText()
		for _, m := range found {
			until := "-"
			if isPending(m) {
				until = untilText(m)
			}
			t.add(
				m.GetId(), m.GetState(), fmt.Sprint(m.GetRiskScore()), printable(m.GetKey()), m.GetRequester(), m.GetSource(), until,
				actionOf(m),
			)
		}
		return objectsOf(found), t, nil
	})
}

func (a *app) approvalsShowCommand() *cobra.Command {
	return a.prints(&cobra.Command{
		Use:               "show ID",
		Short:             help(operation.InspectApproval),
		Example:           "  carrel approvals show ap-0123456789abcdef",
		Args:              exactly("ID"),
		ValidArgsFunction: a.completeApproval(),
	}, func(c *cobra.Command, args []string) (any, printer, error) {
		m, err := a.approval(c.Context(), args[0])
		if err != nil {
			return nil, nil, err
		}
		return objectOf(m), text(approvalText(messages.English, m)), nil
	})
}

func (a *app) approval(ctx context.Context, name string) (*carrelv1.Approval, error) {
	m, err := ask(ctx, a, approvals.GetApproval, &carrelv1.GetApprovalRequest{Id: name})
	return m.GetApproval(), err
}

func (a *app) approvalsAnswerCommand(verb string) *cobra.Command {
	var thread, always, steps, yes bool
	var only []string
	var reason string
	c := &cobra.Command{
		Use:               verb + " [flags] ID",
		Args:              exactly("ID"),
		ValidArgsFunction: a.completeApproval(),
	}
	if verb == "approve" {
		c.Short = help(operation.AnswerApproval)
		c.Long = `Approve an action that waits for it. On a terminal the action is shown and you are asked.

Once is for this action, one time. --thread remembers the answer for the very same words, in
the same directory with the same variables, asked for by the same principal in the same
workspace and thread, until the policy changes or the permission is revoked; it is refused
for what destroys. Of a plan each of its commands that needs an answer is remembered, on its
target, for the session of the agent; a plan that changes files, undoes something or reaches
several hosts at once is not. --always is for a connection: it adds the rule HOST:PORT to the workspace,
which you must be allowed to change; "carrel egress rm" takes it back. --steps is for a plan:
its first step alone, and each further one is a question of its own; a first step that changes
several files is one too, so that --files can choose from them. --files is for a plan
that changes several files ("approvals show" names them): those alone are changed, and what
the plan does behind that is done too. The others stay as they are.`
		c.Example = `  carrel approvals approve ap-0123456789abcdef
  carrel approvals approve --thread ap-0123456789abcdef
  carrel approvals approve --always ap-0123456789abcdef
  carrel approvals approve --files src/a.go,src/b.go ap-0123456789abcdef`
		c.Flags().BoolVar(&thread, "thread", false, "remember it for the same command in its thread")
		c.Flags().BoolVar(&always, "always", false, "let the workspace make the same connection from now on")
		c.Flags().BoolVar(&steps, "steps", false, "approve a plan one step at a time: its first one, and be asked about each further one")
		c.Flags().StringSliceVar(&only, "files", nil, "approve the change to these files alone, as the question names them")
		c.MarkFlagsMutuallyExclusive("thread", "always", "steps", "files")
		c.Flags().BoolVarP(&yes, "yes", "y", false, "do not show it and ask first")
	} else {
		c.Short = "Refuse an action"
		c.Example = `  carrel approvals deny ap-0123456789abcdef --reason "use the mirror"`
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the requester and for the record")
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		req := &carrelv1.AnswerApprovalRequest{Id: args[0], Kind: string(approval.Deny), Reason: reason}
		if verb == "approve" {
			req.Kind = string(approval.Once)
			switch {
			case thread:
				req.Kind = string(approval.Thread)
			case always:
				req.Kind = string(approval.Always)
			case steps:
				req.Kind = string(approval.Steps)
			case c.Flags().Changed("files"):
				req.Kind, req.Files = string(approval.Files), only
			}
			if !yes && isTerminal(a.In) && isTerminal(a.Err) {
				m, err := a.approval(c.Context(), args[0])
				if err != nil {
					return nil, nil, err
				}
				a.forgetTyped()
				_ = say(a.Err, "%s\nLet it pass? [y/N] ", approvalText(messages.English, m))
				if line, err := a.readLine(c.Context()); err != nil || !strings.EqualFold(strings.TrimSpace(line), "y") {
					return nil, nil, fmt.Errorf("cannot go on: you did not answer y; approval %s is as it was: %w", args[0], errdefs.ErrAborted)
				}
				req.Terminal = true
			}
		}
		m, err := ask(c.Context(), a, approvals.AnswerApproval, req)
		if err != nil {
			return nil, nil, err
		}
		return objectOf(m.GetApproval()), textf("%s %s\n", m.GetApproval().GetId(), m.GetApproval().GetState()), nil
	})
}

func (a *app) permissionsCommand() *cobra.Command {
	var req carrelv1.ListPermissionsRequest
	c := &cobra.Command{
		Use:   "permissions [flags]",
		Short: "List remembered answers, and the rules of \"policy allow\"",
		Example: `  carrel approvals permissions
  carrel approvals permissions --workspace demo`,
		Args: exactly(),
	}
	c.Flags().StringVar(&req.Workspace, "workspace", "", "only those of this workspace")
	c.Flags().StringVar(&req.Thread, "thread", "", "only those of this thread")
	_ = c.RegisterFlagCompletionFunc("workspace", a.completeWorkspaces()) // the flag is there
	return a.prints(c, func(c *cobra.Command, _ []string) (any, printer, error) {
		m, err := ask(c.Context(), a, approvals.ListPermissions, &req)
		if err != nil {
			return nil, nil, err
		}
		t := newTable(-1, "ID", "WORKSPACE", "THREAD", "ASKED BY", "GIVEN BY", "AGE", "MAY RUN").wideOnly("THREAD", "ASKED BY").freeText()
		for _, p := range m.GetPermissions() {
			where, thread, by := p.GetWorkspace(), printable(p.GetThread()), p.GetRequester()
			if p.GetRule() {
				where, thread, by = whereOf(p), "(any)", "(rule)"
			}
			t.add(
				p.GetId(), where, thread, by, p.GetBy(), age(at(p.GetUnixMs())),
				printable(p.GetText()),
			)
		}
		return objectsOf(m.GetPermissions()), t, nil
	})
}

func (a *app) revokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "revoke ID",
		Short:   help(operation.RevokePermission),
		Example: "  carrel approvals revoke ap-0123456789abcdef",
		Args:    exactly("ID"),
		ValidArgsFunction: onlyFirst(a.completion(func(ctx context.Context, client *carrel.Client, _ []string) (out []string, err error) {
			m, err := askOf(ctx, client, approvals.ListPermissions, &carrelv1.ListPermissionsRequest{})
			for _, p := range m.GetPermissions() {
				out = append(out, cobra.CompletionWithDesc(p.GetId(), keyText(p.GetText())))
			}
			return out, err
		})),
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := ask(c.Context(), a, approvals.RevokePermission, &carrelv1.RevokePermissionRequest{Id: args[0]}); err != nil {
				return err
			}
			_, err := fmt.Fprintln(a.Out, args[0], "revoked")
			return err
		},
	}
}

// completeApproval completes approvals that are pending.
func (a *app) completeApproval() cobra.CompletionFunc {
	return onlyFirst(a.completion(func(ctx context.Context, client *carrel.Client, _ []string) (out []string, err error) {
		m, err := askOf(ctx, client, approvals.ListApprovals, &carrelv1.ListApprovalsRequest{State: "pending"})
		for _, x := range m.GetApprovals() {
			out = append(out, cobra.CompletionWithDesc(x.GetId(), cut(actionOf(x), 40)))
		}
		return out, err
	}))
}
