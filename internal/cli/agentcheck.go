package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/attend"
	"github.com/carrel-dev/carrel/internal/steps"
	"github.com/carrel-dev/carrel/internal/tools"
)

func (a *app) agentCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:     "agent",
		Short:   "Check the agent, keep notes for it, take over another's",
		Long:    `The agent of "carrel ask" and "carrel chat" runs in a workspace, with a model and no key.`,
		Example: "  carrel agent check\n  carrel agent import linuxagent",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(c, "cannot use the argument %q: agent has check, import and memory", args[0])
			}
			return nil
		},
	}, a.agentCheckCommand(), a.agentImportCommand(), a.agentMemoryCommand())
}

func (a *app) agentCheckCommand() *cobra.Command {
	var x askFlags
	c := &cobra.Command{
		Use:   "check [flags]",
		Short: "Show the agent's model, budget, hosts and what holds its commands",
		Long: `Show what "carrel ask" with the same flags has to work with: the agent's workspace and model,
what is left of its budget, the remote hosts of the inventory, and what holds commands on this
machine, those that only read and others, tried with one that does nothing. This machine is measured
against the thresholds of agent.yaml in carrel's configuration directory. Nothing is asked
of the model, nothing is made, and no host is connected to.`,
		Example: "  carrel agent check\n  carrel agent check --on remote --hosts hosts.yaml",
		Args:    exactly(),
	}
	a.addAskFlags(c, &x)
	return a.prints(c, func(c *cobra.Command, _ []string) (any, printer, error) {
		if x.llm == "" {
			x.llm = "-" // it is not asked
		}
		table := asTable
		x.output = &table
		k, err := a.asker(c, &x)
		if err != nil {
			return nil, nil, err
		}
		defer k.close()
		rows, err := k.checked(c.Context())
		if err != nil {
			return nil, nil, err
		}
		o := object{}
		for _, r := range rows {
			o = append(o, member{r[0], r[1]})
		}
		return o, pairs(rows...), nil
	})
}

// checked are the names and values of what the agent has to work with.
func (k *asker) checked(ctx context.Context) ([][2]string, error) {
	rows := [][2]string{{"workspace", k.agent + ", which the first question makes"}}
	m, err := askOf(ctx, k.client, workspaces.Get, &carrelv1.GetRequest{Workspace: k.agent})
	switch {
	case err == nil:
		rows[0][1] = m.GetWorkspace().GetName() + ", " + m.GetWorkspace().GetState()
		model := "none: give it one with \"carrel update --model NAME " + k.agent + "\""
		if uses := m.GetWorkspace().GetModels(); len(uses) > 0 {
			model = uses[0].GetName()
		}
		rows = append(rows, [2]string{"model", model})
		u, err := askOf(ctx, k.client, models.ModelUsage, &carrelv1.ModelUsageRequest{Workspace: k.agent})
		if err != nil {
			return nil, err
		}
		for _, used := range u.GetUsage() {
			rows = append(rows, [2]string{"budget", leftText(used.GetBudget(), used.GetToday(), used.GetWhole())})
		}
	case connect.CodeOf(err) == connect.CodeNotFound:
		name, err := onlyModel(ctx, k.client)
		if k.model != "" {
			name, err = k.model, nil
		}
		if err != nil {
			name = "none: " + errorText(err)
		}
		rows = append(rows, [2]string{"model", name})
	default:
		return nil, err
	}
	rows = append(rows, [2]string{"runs in", k.servedText()})
	if k.served.Local != nil {
		for _, reads := range []bool{true, false} {
			held, err := steps.Check(ctx, k.holding, reads)
			if err != nil {
				held = "it is not held, and not run: " + attend.Message(err.Error())
			}
			rows = append(rows, [2]string{map[bool]string{true: "only reads", false: "changes"}[reads], held})
		}
		for _, r := range k.vitals(ctx) {
			rows = append(rows, [2]string{r.Name, r.String()})
		}
	}
	for _, name := range k.served.Remotes {
		rows = append(rows, [2]string{"remote", name})
	}
	if k.served.Remote != nil {
		rows = append(rows, [2]string{"fan-out", k.orders.All.String()})
	}
	for _, g := range k.orders.Groups {
		rows = append(rows, [2]string{"fan-out", fmt.Sprintf("group %s, %s: %s", g.Name, counted(int64(len(g.Hosts)), "host"), g.Order)})
	}
	for _, x := range tools.All() {
		rows = append(rows, [2]string{"tool", x.Usage()})
	}
	return append(rows, [2]string{"tools may", tools.Limits()},
		[2]string{"tools read", strings.Join(append(slices.Clone(k.served.Roots), tools.Roots...), " ")}), nil
}
