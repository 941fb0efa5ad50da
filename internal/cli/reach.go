package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/rootless"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// denyFlag adds --deny.
func denyFlag(c *cobra.Command, deny *[]string) {
	c.Flags().StringArrayVar(deny, "deny", nil, "keep commands from `HOST`, whatever else allows it; may be repeated")
}

// askFlag adds --ask.
func askFlag(c *cobra.Command, ask *[]string) {
	c.Flags().StringArrayVar(ask, "ask", nil, "have a person asked when commands connect to `HOST`, whatever allows it; may be repeated")
	completeFrom(c, "ask", rootless.SetNames()...)
}

// newReach expands the rules of a workspace that is to be made with these mounts, as the daemon takes them.
func newReach(ctx context.Context, r *workspace.Reach, mounts []mount) (err error) {
	var writable []string
	for _, m := range mounts {
		// One that is not there is an error where it is mounted.
		if source, err := rootless.Source(m.Source); err == nil && !m.ReadOnly {
			writable = append(writable, source)
		}
	}
	expand := rootless.ExpandClientSets(ctx, written(writable...))
	for _, list := range []*[]string{&r.Allow, &r.Ask, &r.Deny} {
		if *list, err = expand(*list); err != nil {
			return err
		}
	}
	return nil
}

// expandReach expands the rules of a change. For the sets of clients it looks at what the workspace has mounted.
func (a *app) expandReach(ctx context.Context, req *carrelv1.UpdateRequest) error {
	lists := []*[]string{&req.ReachAllow, &req.ReachAsk, &req.ReachDeny, &req.ReachRemove}
	if !slices.ContainsFunc(slices.Concat(req.ReachAllow, req.ReachAsk, req.ReachDeny, req.ReachRemove), rootless.IsClientSet) {
		return nil
	}
	m, err := ask(ctx, a, workspaces.Get, &carrelv1.GetRequest{Workspace: req.GetWorkspace()})
	if err != nil {
		return err
	}
	var writable []string
	for _, x := range m.GetWorkspace().GetMounts() {
		if !x.GetReadOnly() {
			writable = append(writable, x.GetSource())
		}
	}
	expand := rootless.ExpandClientSets(ctx, written(writable...))
	for _, list := range lists {
		if *list, err = expand(*list); err != nil {
			return err
		}
	}
	return nil
}

// changeReach changes the rules of a workspace.
func (a *app) changeReach(ctx context.Context, req *carrelv1.UpdateRequest) (any, printer, error) {
	if err := a.expandReach(ctx, req); err != nil {
		return nil, nil, err
	}
	m, err := ask(ctx, a, workspaces.Update, req)
	if err != nil {
		return nil, nil, err
	}
	w := m.GetWorkspace()
	a.tellStricter(req, w)
	a.progress("%s is changed.", w.GetName())
	return reachObject(w), nil, a.tellWaits(w)
}

// tellWaits says that what a workspace may reach does not hold yet.
func (a *app) tellWaits(w *carrelv1.Workspace) error {
	if !waits(w) {
		return nil
	}
	return say(a.Err, "carrel: %s was started without a way out: what it may reach holds from its next start on: "+
		"carrel restart %[1]s\n", w.GetName())
}

// tellStricter says which of the rules that were just added change nothing, because a stricter one has the same text.
func (a *app) tellStricter(req *carrelv1.UpdateRequest, w *carrelv1.Workspace) {
	for _, rule := range slices.Concat(req.GetReachAllow(), req.GetReachAsk()) {
		if slices.Contains(w.GetReachDeny(), rule) {
			_ = say(a.Err, "carrel: %s is denied too, and what any rule denies is denied; remove both with: carrel egress rm %s %[1]s\n", rule,
				w.GetName())
		}
	}
	for _, rule := range req.GetReachAllow() {
		if slices.Contains(w.GetReachAsk(), rule) {
			_ = say(a.Err, "carrel: a person is still asked about %s, whatever allows it; remove both with: carrel egress rm %s %[1]s\n", rule,
				w.GetName())
		}
	}
}

// reachOf are the rules of a workspace.
func reachOf(w *carrelv1.Workspace) workspace.Reach {
	return workspace.Reach{Allow: w.GetReachAllow(), Ask: w.GetReachAsk(), Approved: w.GetReachApproved(), Deny: w.GetReachDeny()}
}

// rulesOf are their texts, each once.
func rulesOf(w *carrelv1.Workspace) (all []string) {
	r := reachOf(w)
	for _, rule := range slices.Concat(r.Allow, r.Ask, r.Approved, r.Deny) {
		if !slices.Contains(all, rule) {
			all = append(all, rule)
		}
	}
	return all
}

// reachObject is the JSON of the rules of a workspace.
func reachObject(w *carrelv1.Workspace) object {
	list := func(rules []string) []string { return append([]string{}, rules...) } // a list is never null
	return object{
		{"workspace", w.GetName()},
		{"egress", w.GetEgress()},
		{"allow", list(w.GetReachAllow())},
		{"deny", list(w.GetReachDeny())},
		{"ask", list(w.GetReachAsk())},
		{"approved", list(w.GetReachApproved())},
	}
}

// reachText is what inspect shows of the rules.
func reachText(w *carrelv1.Workspace) string {
	const shown = 5
	all := reachOf(w).Texts()
	for i, rule := range all {
		all[i] = printable(rule)
	}
	text := strings.Join(all[:min(shown, len(all))], ", ")
	if n := len(all) - shown; n > 0 {
		text += fmt.Sprintf(" and %d more; see carrel egress rules %s", n, w.GetName())
	}
	if waits(w) && len(all) > 0 {
		text += "; from its next start on"
	}
	return text
}

// waits reports whether the rules and models of a workspace let nothing out before it starts again.
func waits(w *carrelv1.Workspace) bool {
	return (reachOf(w).Any() || len(w.GetModels()) > 0) && !w.GetEgress() && workspace.State(w.GetState()).Live()
}

func (a *app) egressCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "egress",
		Short: "Show and change what workspaces may reach of the network",
		Long: `egress shows and changes the rules of what the commands of a workspace may reach. They are
in force when the command returns, and cut what they no longer allow. A workspace that was
started without any rule gets its way out when it starts next, and its rules hold then: see
"carrel restart".

RULE is example.org (ports 80 and 443), example.org:22, *.example.org, 192.0.2.0/24:5432, or
a set as @github. The sets @npm, @pip, @go, @apt and @cargo are the mirrors that your own
package clients are configured with, on this host and now: the workspace gets their hosts.
Names that resolve to private addresses are refused unless a rule names the network.

allow and deny also take requests, as 'GET,HEAD api.example.org/v1/*' or 'DELETE *.example.org',
and one protocol, as tls://mail.example.org:993 or http://example.org. The requests of such
hosts are read with an authority that the workspace trusts from its start on: one that was
started without takes the first rule after a stop. "test" says what holds for a request.

What any rule denies is denied, what none allows is refused. What a rule with "ask" names waits for a
person, whatever allows it: "carrel approvals" shows and answers that.

~/.config/carrel/egress.yaml is for "carrel run" without root, and is not used here.`,
		Example: `  carrel create --no-start demo
  carrel egress allow demo @github example.org
  carrel egress ask demo '*.example.net'
  carrel egress deny demo ads.example.org 'DELETE api.github.com'
  carrel egress rules demo
  carrel egress test demo example.org
  carrel egress rm demo example.org
  sudo carrel egress log demo`,
	}, a.egressAllowCommand(), a.egressAskCommand(), a.egressDenyCommand(), a.egressRemoveCommand(), a.egressRulesCommand(),
		a.egressTestCommand(), a.egressTopCommand(), a.egressLogCommand())
}

func (a *app) egressAllowCommand() *cobra.Command {
	return a.prints(&cobra.Command{
		Use:   "allow [flags] WORKSPACE RULE...",
		Short: "Let the commands of a workspace reach hosts",
		Long:  `allow adds rules to what a workspace may reach. "carrel egress --help" says what a rule is.`,
		Example: `  carrel egress allow demo @github example.org:22
  carrel egress allow demo 'GET,HEAD api.example.org/v1/*'`,
		Args:              atLeast("WORKSPACE", "RULE"),
		ValidArgsFunction: a.completeRules(),
	}, func(c *cobra.Command, args []string) (any, printer, error) {
		return a.changeReach(c.Context(), &carrelv1.UpdateRequest{Workspace: args[0], ReachAllow: args[1:]})
	})
}

func (a *app) egressAskCommand() *cobra.Command {
	return a.prints(&cobra.Command{
		Use:   "ask [flags] WORKSPACE RULE...",
		Short: "Have a person asked when commands of a workspace reach hosts",
		Long: `ask adds rules about which a person is asked, whatever other rules allow. A command that
connects to such a host waits, for five minutes at most. "carrel approvals list" shows what
waits, "carrel approvals approve ID" lets it through once, and with --always from then on.

An answer holds a minute for that host and port, so that a program that opens several
connections has a person asked once. "carrel egress --help" says what a rule is.`,
		Example: `  carrel egress ask demo '*.example.net' db.example.org:5432
  carrel egress ask demo '*'`,
		Args:              atLeast("WORKSPACE", "RULE"),
		ValidArgsFunction: a.completeRules(),
	}, func(c *cobra.Command, args []string) (any, printer, error) {
		return a.changeReach(c.Context(), &carrelv1.UpdateRequest{Workspace: args[0], ReachAsk: args[1:]})
	})
}

func (a *app) egressDenyCommand() *cobra.Command {
	return a.prints(&cobra.Command{
		Use:   "deny [flags] WORKSPACE RULE...",
		Short: "Keep the commands of a workspace from hosts",
		Long: `deny adds rules to what a workspace may not reach, whatever its other rules allow. A host
without a port means every port. "carrel egress --help" says what a rule is.`,
		Example:           "  carrel egress deny demo ads.example.org",
		Args:              atLeast("WORKSPACE", "RULE"),
		ValidArgsFunction: a.completeRules(),
	}, func(c *cobra.Command, args []string) (any, printer, error) {
		return a.changeReach(c.Context(), &carrelv1.UpdateRequest{Workspace: args[0], ReachDeny: args[1:]})
	})
}

func (a *app) egressRemoveCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "rm [flags] WORKSPACE [RULE...]",
		Short: "Remove rules of what a workspace may reach",
		Long: `rm removes rules, as "carrel egress rules" prints them: one that is allowed and denied is
removed from both lists. A workspace without rules reaches nothing.`,
		Example: `  carrel egress rm demo example.org:22
  carrel egress rm --all demo`,
		ValidArgsFunction: a.completeOwnRules(),
	}
	c.Args = func(c *cobra.Command, args []string) error {
		if all {
			return exactly("WORKSPACE")(c, args)
		}
		return atLeast("WORKSPACE", "RULE")(c, args)
	}
	c.Flags().BoolVar(&all, "all", false, "remove every rule")
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		req := &carrelv1.UpdateRequest{Workspace: args[0], ReachRemove: args[1:]}
		if all {
			m, err := ask(c.Context(), a, workspaces.Get, &carrelv1.GetRequest{Workspace: args[0]})
			if err != nil {
				return nil, nil, err
			}
			w := m.GetWorkspace()
			if req.ReachRemove = rulesOf(w); len(req.ReachRemove) == 0 {
				return reachObject(w), nil, nil
			}
		}
		return a.changeReach(c.Context(), req)
	})
}

func (a *app) egressRulesCommand() *cobra.Command {
	return a.prints(&cobra.Command{
		Use:   "rules [flags] WORKSPACE",
		Short: "List the rules of what a workspace may reach",
		Example: `  carrel egress rules demo
  carrel egress rules demo -o json`,
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}, func(c *cobra.Command, args []string) (any, printer, error) {
		m, err := ask(c.Context(), a, workspaces.Get, &carrelv1.GetRequest{Workspace: args[0]})
		if err != nil {
			return nil, nil, err
		}
		w := m.GetWorkspace()
		t := newTable(-1, "ACTION", "RULE")
		for _, rule := range reachOf(w).Texts() {
			action, host, _ := strings.Cut(rule, " ")
			t.add(action, printable(host))
		}
		return reachObject(w), t, a.tellWaits(w)
	})
}

func (a *app) egressTestCommand() *cobra.Command {
	return a.prints(&cobra.Command{
		Use:   "test [flags] WORKSPACE HOST...",
		Short: help(operation.ExplainReach),
		Long: `test says what the rules of a workspace and those of the host say of HOST, which is
example.org, for port 443, or example.org:22. It resolves and connects to nothing: the
addresses of a name are judged when a connection is made, and one that is not public is
refused then unless a rule names it. The exit code is 1 if a host is refused.`,
		Example: `  carrel egress test demo api.example.org
  carrel egress test demo db.example.org:5432 -o json
  carrel egress test demo 'POST https://api.example.org/v1/x'`,
		Args:              atLeast("WORKSPACE", "HOST"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}, func(c *cobra.Command, args []string) (any, printer, error) {
		m, err := ask(c.Context(), a, workspaces.ExplainReach, &carrelv1.ExplainReachRequest{Workspace: args[0], Hosts: args[1:]})
		if err != nil {
			return nil, nil, err
		}
		t, hints := newTable(-1, "HOST", "VERDICT", "WHY", "SECRETS"), []string{}
		all := []object{}
		for i, v := range m.GetVerdicts()[:min(len(m.GetVerdicts()), len(args)-1)] {
			verdict := "allowed"
			switch v.GetAction() {
			case "allow":
			case "ask":
				verdict, a.code = "asked", exitFailure
			default:
				verdict, a.code = "refused", exitFailure
			}
			all = append(all, object{
				{"host", v.GetHost()},
				{"action", v.GetAction()},
				{"rule", v.GetRule()},
				{"reason", v.GetReason()},
				{"secrets", append([]string{}, v.GetSecrets()...)},
			})
			why, rule := v.GetReason(), v.GetHost()
			if request := requestRule(args[1+i], v.GetHost()); request != "" {
				rule = "'" + request + "'"
			} else {
				why = "no rule names it"
			}
			if strings.HasSuffix(why, "no rule allows it") {
				why = "no rule names it"
			}
			switch {
			case v.GetRule() != "":
				why = "rule " + v.GetRule()
			case why == "no rule names it":
				hints = append(hints, "Allow it with: carrel egress allow "+args[0]+" "+rule)
			}
			t.add(printable(v.GetHost()), verdict, printable(why), printable(strings.Join(v.GetSecrets(), ", ")))
		}
		got, err := ask(c.Context(), a, workspaces.Get, &carrelv1.GetRequest{Workspace: args[0]})
		if err == nil {
			err = a.tellWaits(got.GetWorkspace())
		}
		if err != nil {
			return nil, nil, err
		}
		if len(hints) > 0 {
			return all, both{t, lines(append([]string{""}, hints...))}, nil
		}
		return all, t, nil
	})
}

// requestRule is the rule for a request as "carrel egress test" takes it, "" for what is only a host.
func requestRule(asked, host string) string {
	method, url, ok := strings.Cut(asked, "://")
	if !ok {
		return ""
	}
	method, _, given := strings.Cut(method, " ")
	if !given {
		method = "GET"
	}
	path := ""
	if at := strings.IndexByte(url, '/'); at >= 0 {
		path, _, _ = strings.Cut(url[at:], "?")
	}
	return strings.ToUpper(method) + " " + host + path
}

// completeRules completes a workspace and then sets of hosts.
func (a *app) completeRules() cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return a.completeWorkspaces()(c, args, prefix)
		}
		return rootless.SetNames(), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeOwnRules completes a workspace and then rules that it has.
func (a *app) completeOwnRules() cobra.CompletionFunc {
	rules := a.completion(func(ctx context.Context, client *carrel.Client, args []string) (out []string, err error) {
		m, err := askOf(ctx, client, workspaces.Get, &carrelv1.GetRequest{Workspace: args[0]})
		w := m.GetWorkspace()
		for _, rule := range rulesOf(w) {
			if !slices.Contains(args[1:], rule) {
				out = append(out, rule)
			}
		}
		return out, err
	})
	return func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return a.completeWorkspaces()(c, args, prefix)
		}
		return rules(c, args, prefix)
	}
}

// onlyHosts are the values of an --allow that takes hosts alone.
func onlyHosts(allow []string) ([]string, error) {
	openings, hosts, err := openingsAndHosts(allow)
	if len(openings) > 0 {
		return nil, fmt.Errorf("cannot allow %s in a workspace that is there: that is chosen when one is made; destroy it first, or choose "+
			"another key: %w", workspace.JoinOpenings(openings), errdefs.ErrFailedPrecondition)
	}
	return hosts, err
}
