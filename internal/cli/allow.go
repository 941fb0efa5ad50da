package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

func (a *app) policyAllowCommand() *cobra.Command {
	var req carrelv1.AllowCommandRequest
	c := &cobra.Command{
		Use:   "allow [flags] -- COMMAND [ARG...]",
		Short: help(operation.AllowCommands),
		Long: `allow writes a rule: commands with these words pass unasked from now on, in one workspace or in
all of yours. "carrel policy rules" lists the rules, "carrel policy disallow ID" takes one back.

The words are the command's own, and no shell reads them: ; | $( ) and > stand for themselves. A *
in a word but the first stands for any text without a slash and, outside of a URL, without a colon;
** stands for any text; neither stands for "..", for an option, or for another host. Quote them, or
your shell replaces them. In a line of shell each command is compared by itself, if all its words
are plain; what else is in the line is judged as before.

A rule covers what you could approve: an administrator's covers everybody who works in these
workspaces, anybody else's what they and their tokens ask for. It covers no command that does
more than those words do, and none that destroys, reads secrets or is never remembered for another
reason: that is refused here, with the reason. No token may write a rule.`,
		Example: `  carrel policy allow --workspace demo -- git push origin main
  carrel policy allow -- npm publish --tag next
  carrel policy allow -- git push origin 'feature/*'
  carrel policy allow --workspace demo -- curl 'https://example.org/*'
  sudo carrel policy allow --everybody -- git push`,
		Args: atLeast("COMMAND"),
	}
	f := c.Flags()
	f.SetInterspersed(false) // the flags of the command are its own
	f.StringVar(&req.Workspace, "workspace", "", "only in this `WORKSPACE` (default all of your own)")
	f.BoolVar(&req.Everybody, "everybody", false, "in the workspaces of everybody, also later ones (administrators)")
	c.MarkFlagsMutuallyExclusive("workspace", "everybody")
	_ = c.RegisterFlagCompletionFunc("workspace", a.completeWorkspaces()) // the flag is there
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		req.Argv = args
		m, err := ask(c.Context(), a, approvals.AllowCommand, &req)
		if err != nil {
			return nil, nil, err
		}
		return objectOf(m.GetPermission()), textf("%s\n", m.GetPermission().GetId()), nil
	})
}

// whereOf is where a rule holds.
func whereOf(p *carrelv1.Permission) string {
	switch {
	case p.GetWorkspace() != "":
		return p.GetWorkspace()
	case p.GetOwner() != "":
		return "all of " + p.GetOwner()
	}
	return "everybody's"
}

func (a *app) policyRulesCommand() *cobra.Command {
	var req carrelv1.ListPermissionsRequest
	c := &cobra.Command{
		Use:   "rules [flags]",
		Short: "List the rules that let commands pass unasked",
		Long: `rules lists what "carrel policy allow" wrote and you may see. The built-in rules and those of
policy.path are in their files; "carrel policy explain" names those that judge a command.`,
		Example: `  carrel policy rules
  carrel policy rules --workspace demo -o json`,
		Args: exactly(),
	}
	c.Flags().StringVar(&req.Workspace, "workspace", "", "only those for this one `WORKSPACE`")
	_ = c.RegisterFlagCompletionFunc("workspace", a.completeWorkspaces()) // the flag is there
	return a.prints(c, func(c *cobra.Command, _ []string) (any, printer, error) {
		rules, err := a.rules(c.Context(), &req)
		if err != nil {
			return nil, nil, err
		}
		t := newTable(-1, "ID", "WHERE", "BY", "AGE", "MAY", "COMMAND").wideOnly("BY", "MAY").freeText()
		for _, p := range rules {
			t.add(
				p.GetId(), whereOf(p), p.GetBy(), age(at(p.GetUnixMs())), strings.Join(p.GetCapabilities(), ","), printable(p.GetText()),
			)
		}
		return objectsOf(rules), t, nil
	})
}

// rules are the permissions that are rules.
func (a *app) rules(ctx context.Context, req *carrelv1.ListPermissionsRequest) ([]*carrelv1.Permission, error) {
	m, err := ask(ctx, a, approvals.ListPermissions, req)
	if err != nil {
		return nil, err
	}
	var rules []*carrelv1.Permission
	for _, p := range m.GetPermissions() {
		if p.GetRule() {
			rules = append(rules, p)
		}
	}
	return rules, nil
}

func (a *app) policyDisallowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "disallow ID",
		Short: "Take a rule of \"policy allow\" back",
		Long: `disallow takes a rule back: what it let pass is asked about again, from the next command on.
"carrel approvals revoke" does the same.`,
		Example: "  carrel policy disallow al-0123456789abcdef",
		Args:    exactly("ID"),
		ValidArgsFunction: onlyFirst(a.completion(func(ctx context.Context, client *carrel.Client, _ []string) (out []string, err error) {
			m, err := askOf(ctx, client, approvals.ListPermissions, &carrelv1.ListPermissionsRequest{})
			for _, p := range m.GetPermissions() {
				if p.GetRule() {
					out = append(out, cobra.CompletionWithDesc(p.GetId(), keyText(p.GetText())))
				}
			}
			return out, err
		})),
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := ask(c.Context(), a, approvals.RevokePermission, &carrelv1.RevokePermissionRequest{Id: args[0]}); err != nil {
				return err
			}
			_, err := fmt.Fprintln(a.Out, args[0], "disallowed")
			return err
		},
	}
}
