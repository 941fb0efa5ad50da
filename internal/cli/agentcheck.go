package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/agent/hosts/steps"
	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/agent/vitals"
	"github.com/carrel-dev/carrel/internal/cli/attach"
	"github.com/carrel-dev/carrel/internal/spec/tools"
)

func (a *app) agentCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:     "agent",
		Short:   "Check the agent, keep notes for it, take over another's",
		Long:    `The agent of "carrel ask" and "carrel chat" runs in a workspace, with a model and no key.`,
		Example: "  carrel agent check\n  carrel agent import linuxagent",
	}, a.agentCheckCommand(), a.agentImportCommand(), a.agentMemoryCommand(), a.agentRecommendCommand())
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
		printed := format(c.Flag("output").Value.String())
		x.output = &printed // JSON is the same in every language
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
	say := k.lang.Say
	rows := [][2]string{{say(messages.CheckWorkspace), say(messages.CheckMakes, k.agent)}}
	m, err := askOf(ctx, k.client, workspaces.Get, &carrelv1.GetRequest{Workspace: k.agent})
	switch {
	case err == nil:
		rows[0][1] = m.GetWorkspace().GetName() + ", " + m.GetWorkspace().GetState()
		model := say(messages.CheckNoModel, k.agent)
		if uses := m.GetWorkspace().GetModels(); len(uses) > 0 {
			model = uses[0].GetName()
		}
		rows = append(rows, [2]string{say(messages.CheckModel), model})
		u, err := askOf(ctx, k.client, models.ModelUsage, &carrelv1.ModelUsageRequest{Workspace: k.agent})
		if err != nil {
			return nil, err
		}
		for _, used := range u.GetUsage() {
			rows = append(rows, [2]string{say(messages.CheckBudget), leftText(used.GetBudget(), used.GetToday(), used.GetWhole())})
		}
	case errdefs.IsNotFound(err):
		name, err := onlyModel(ctx, k.client)
		if k.model != "" {
			name, err = k.model, nil
		}
		if err != nil {
			name = say(messages.CheckNone, errorText(err))
		}
		rows = append(rows, [2]string{say(messages.CheckModel), name})
	default:
		return nil, err
	}
	if k.seat != nil {
		rows = append(rows, [2]string{"agent", strings.Join(k.seat.Command, " ") + ", in the place of carrel's own"})
	}
	rows = append(rows, [2]string{say(messages.CheckRunsIn), k.servedText()})
	if k.served.Local != nil {
		for _, reads := range []bool{true, false} {
			held, err := steps.Check(ctx, k.holding, reads)
			if err != nil {
				held = say(messages.CheckNotHeld, attach.Message(err.Error()))
			}
			rows = append(rows, [2]string{map[bool]string{true: say(messages.CheckOnlyReads), false: say(messages.CheckChanges)}[reads], held})
		}
		for _, r := range k.vitals(ctx) {
			rows = append(rows, [2]string{r.Name, figure(k.lang, r)})
		}
	}
	for _, name := range k.served.Remotes {
		rows = append(rows, [2]string{say(messages.CheckRemote), name})
	}
	if k.served.Remote != nil {
		rows = append(rows, [2]string{say(messages.CheckFanOut), k.orders.All.String()})
	}
	for _, g := range k.orders.Groups {
		hosts := manyOf(k.lang, len(g.Hosts), messages.OneHost, messages.Hosts)
		rows = append(rows, [2]string{say(messages.CheckFanOut), say(messages.CheckGroup, g.Name, hosts, g.Order)})
	}
	for _, x := range tools.All() {
		rows = append(rows, [2]string{say(messages.CheckTool), x.Usage()})
	}
	return append(rows, [2]string{say(messages.CheckToolsMay), tools.Limits()},
		[2]string{say(messages.CheckToolsRead), strings.Join(append(slices.Clone(k.served.Roots), tools.Roots...), " ")}), nil
}

// figure says whether a figure is over its threshold. The figures themselves are those that the agent is told.
func figure(lang messages.Language, r vitals.Reading) string {
	switch {
	case r.Missing != "":
		return lang.Say(messages.FigureMissing, r.Missing)
	case r.Over:
		return lang.Say(messages.FigureOver, r.Value, r.Limit)
	}
	return lang.Say(messages.FigureOK, r.Value, r.Limit)
}
