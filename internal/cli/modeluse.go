package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// modelFlags are those of what the daemon makes or changes.
type modelFlags struct {
	names            []string
	requests, tokens int64
	money, per       string
}

// addModels adds the flags of models.
func (a *app) addModels(c *cobra.Command, m *modelFlags) {
	f := c.Flags()
	f.StringArrayVar(&m.names, "model", nil, "let commands use the model `NAME`, with a key that they do not have; NAME=SECRET names a "+
		"secret of yours that is the key; may be repeated")
	_ = c.RegisterFlagCompletionFunc("model", a.completeModel()) // the flag is there
	m.addBudget(c)
}

// addBudget adds those that are the budget of a workspace.
func (m *modelFlags) addBudget(c *cobra.Command) {
	f := c.Flags()
	f.Var((*bound)(&m.requests), "model-requests", "make at most `N` requests to models")
	f.Var((*bound)(&m.tokens), "model-tokens", "make no further request to a model once `N` tokens are used")
	m.addRest(c)
}

// addRest adds what a run without root has not.
func (m *modelFlags) addRest(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&m.money, "model-money", "", "make no further request to a model once `AMOUNT` is spent, as 12.50, by the host's prices")
	f.StringVar(&m.per, "model-per", "", "the time that the budget is for: day, from 00:00 UTC, or whole, the workspace's life (default day)")
	completeFrom(c, "model-per", workspace.PerDay, workspace.PerWhole)
}

// uses are the models that the flags name.
func (m *modelFlags) uses() (uses []*carrelv1.ModelUse, err error) {
	for _, text := range m.names {
		name, secret, named := strings.Cut(text, "=")
		if named && secret == "" {
			return nil, fmt.Errorf("cannot use --model %.40q: behind \"=\" stands the name of a secret; write NAME or NAME=SECRET: %w", name+"=",
				errdefs.ErrInvalidArgument)
		}
		uses = append(uses, &carrelv1.ModelUse{Name: name, Secret: secret})
	}
	return uses, nil
}

// noModels is the error of a budget without a model.
func noModels() error {
	return fmt.Errorf("cannot bound models that are not there: add --model NAME, or leave --model-requests and --model-tokens out: %w",
		errdefs.ErrInvalidArgument)
}

// tellModels says what a workspace has used of models.
func (a *app) tellModels(ctx context.Context, client *carrel.Client, name string) {
	m, err := askOf(context.WithoutCancel(ctx), client, models.ModelUsage, &carrelv1.ModelUsageRequest{Workspace: name})
	if err != nil || len(m.GetUsage()) == 0 {
		return // the record has it
	}
	used := m.GetUsage()[0].GetWhole()
	if used.GetRequests() == 0 {
		return
	}
	line := "models: " + counted(used.GetRequests(), "request") + ", " + counted(used.GetTokens(), "token")
	if used.GetMoney() != "" {
		line += ", " + used.GetMoney()
	}
	_ = say(a.Err, "carrel: %s\n", line)
}

// budget is the budget that the flags name, nil for none.
func (m *modelFlags) budget() *carrelv1.ModelBudget {
	if m.requests == 0 && m.tokens == 0 && m.money == "" && m.per == "" {
		return nil
	}
	return &carrelv1.ModelBudget{Requests: m.requests, Tokens: m.tokens, Money: m.money, Per: m.per}
}

func (a *app) completeModel() cobra.CompletionFunc {
	return a.completion(func(ctx context.Context, client *carrel.Client, _ []string) (out []string, err error) {
		m, err := askOf(ctx, client, models.ListModels, &carrelv1.ListModelsRequest{})
		for _, x := range m.GetModels() {
			out = append(out, cobra.CompletionWithDesc(x.GetName(), x.GetUrl()))
		}
		return out, err
	})
}

func (a *app) modelCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "model",
		Short: "Show which models workspaces may use, and what was used",
		Long: `A workspace that is made with --model reaches a model inside by plain HTTP, without its key.
The host's egress.yaml names models, and has budgets for them and for the workspaces of each
user together. A workspace has a budget of its own: --model-requests, --model-tokens and
--model-money of "carrel create" and "carrel update".`,
		Example: `  carrel model ls
  carrel create --model anthropic --model-requests 200 demo
  carrel model usage demo`,
	}, a.modelLsCommand(), a.modelUsageCommand())
}

func (a *app) modelLsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "ls [flags]",
		Short:   help(operation.ListModels),
		Example: "  carrel model ls\n  carrel model ls -o json",
		Args:    exactly(),
	}
	return a.prints(c, func(c *cobra.Command, _ []string) (any, printer, error) {
		m, err := ask(c.Context(), a, models.ListModels, &carrelv1.ListModelsRequest{})
		if err != nil {
			return nil, nil, err
		}
		t := newTable(-1, "MODEL", "API", "URL", "KEY", "LEFT").wideOnly("URL").freeText()
		for _, x := range m.GetModels() {
			key := "the host's"
			switch x.GetKey() {
			case workspace.KeyOwn:
				key = "your " + x.GetSecret()
			case workspace.KeyMissing:
				key = "none: " + x.GetSecret()
				if x.GetSecret() == "" {
					key = "none"
				}
			}
			t.add(x.GetName(), x.GetApi(), cut(x.GetUrl(), 48), key, leftText(x.GetBudget(), x.GetUsed(), x.GetUsed()))
		}
		own := leftText(m.GetOwn().GetBudget(), m.GetOwn().GetToday(), m.GetOwn().GetWhole())
		out := both{t, text("\nLeft for all of your workspaces: " + own + "\n")}
		return object{{"models", objectsOf(m.GetModels())}, {"own", objectOf(m.GetOwn())}}, out, nil
	})
}

// leftText is what is left of a budget.
func leftText(b *carrelv1.ModelBudget, today, whole *carrelv1.ModelSums) string {
	if b == nil {
		return "unlimited"
	}
	used := today
	if b.GetPer() == workspace.PerWhole {
		used = whole
	}
	var parts []string
	for _, x := range []struct {
		limit, used int64
		what        string
	}{{b.GetRequests(), used.GetRequests(), "request"}, {b.GetTokens(), used.GetTokens(), "token"}} {
		if x.limit > 0 {
			parts = append(parts, counted(max(x.limit-x.used, 0), x.what))
		}
	}
	if b.GetMoney() != "" {
		spent := used.GetMoney()
		if spent == "" {
			spent = "0.00"
		}
		parts = append(parts, spent+" of "+b.GetMoney()+" spent")
	}
	left := strings.Join(parts, ", ")
	if b.GetPer() == workspace.PerDay {
		left += " today"
	}
	return left
}

// budgetText is a budget for a person.
func budgetText(b *carrelv1.ModelBudget) string {
	if b == nil {
		return ""
	}
	var parts []string
	if n := b.GetRequests(); n > 0 {
		parts = append(parts, counted(n, "request"))
	}
	if n := b.GetTokens(); n > 0 {
		parts = append(parts, counted(n, "token"))
	}
	if b.GetMoney() != "" {
		parts = append(parts, b.GetMoney())
	}
	per := " a day"
	if b.GetPer() == workspace.PerWhole {
		per = " in all"
	}
	return strings.Join(parts, ", ") + per
}

// modelsText are the models of a workspace.
func modelsText(uses []*carrelv1.ModelUse) string {
	var all []string
	for _, u := range uses {
		key := "the host's key"
		if u.GetSecret() != "" {
			key = "key " + u.GetSecret()
		}
		all = append(all, u.GetName()+" ("+key+")")
	}
	return strings.Join(all, ", ")
}

func (a *app) modelUsageCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "usage [flags] [WORKSPACE]",
		Short: help(operation.ModelUsage),
		Long: `Show what workspaces have used of models today, since 00:00 UTC, and in all: one workspace by
model, or all that you may reach, and then users with all of their workspaces.`,
		Example:           "  carrel model usage\n  carrel model usage demo\n  carrel model usage -o json",
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
		Args:              cobra.MaximumNArgs(1),
	}
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		ref := ""
		if len(args) > 0 {
			ref = args[0]
		}
		m, err := ask(c.Context(), a, models.ModelUsage, &carrelv1.ModelUsageRequest{Workspace: ref})
		if err != nil {
			return nil, nil, err
		}
		t := newTable(-1, "WORKSPACE", "KEY", "OWNER", "TODAY", "TOKENS", "IN ALL", "ALL TOKENS", "MONEY", "LEFT").
			wideOnly("WORKSPACE", "OWNER", "IN ALL", "ALL TOKENS").freeText()
		number := func(n int64) string { return strconv.FormatInt(n, 10) }
		for _, u := range m.GetUsage() {
			name, key := u.GetWorkspace(), keyText(u.GetKey())
			if name == "" {
				name, key = "", "(all)"
			}
			t.add(name, key, u.GetOwner(), number(u.GetToday().GetRequests()), number(u.GetToday().GetTokens()),
				number(u.GetWhole().GetRequests()), number(u.GetWhole().GetTokens()), u.GetWhole().GetMoney(),
				leftText(u.GetBudget(), u.GetToday(), u.GetWhole()))
			if ref == "" {
				continue
			}
			today := map[string]*carrelv1.ModelSum{}
			for _, x := range u.GetToday().GetByModel() {
				today[x.GetModel()] = x
			}
			for _, x := range u.GetWhole().GetByModel() { // names that programs chose
				now := today[x.GetModel()]
				t.add("", "  "+printable(cut(x.GetModel(), 48)), "", number(now.GetRequests()), number(now.GetTokens()), number(x.GetRequests()),
					number(x.GetTokens()), x.GetMoney(), "")
			}
		}
		return objectsOf(m.GetUsage()), t, nil
	})
}
