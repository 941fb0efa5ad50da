package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/rootless"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

func (a *app) updateCommand() *cobra.Command {
	var l limitFlags
	var key string
	var allow, asked, deny, uses, unused, unmodels []string
	var files secretFileFlags
	var m modelFlags
	c := &cobra.Command{
		Use:   "update [flags] WORKSPACE",
		Short: help(operation.UpdateWorkspace),
		Long: `Change what the flags name and leave the rest. Memory, processes and processor share
are in force at once; open files from the next start on. A memory limit below
what the commands use is refused. A lifetime counts from now. --allow, --ask and --deny add
rules of the network, as "carrel egress" does, which removes them too. --secret and
--secret-rm are for the secrets that it uses: they hold at once, and commands that start
later have the placeholders. --model and --model-rm are for models; --model-requests,
--model-tokens and --model-money change a limit, and take it away with -1.`,
		Example: `  carrel update --memory 2GiB --pids 1000 demo
  carrel update --ttl 7d demo
  carrel update --secret GITHUB_TOKEN demo
  carrel update --secret-file NPM_TOKEN=.config/npm/token demo
  carrel update --model anthropic --model-requests 500 demo
  carrel update --key "telegram:-100124" chat-1a2b3c4d`,
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	l.add(c.Flags(), false)
	c.Flags().StringVar(&key, "key", "", "give it this key; its derived name stays")
	c.Flags().StringArrayVar(&allow, "allow", nil, "let commands reach `HOST` too; may be repeated")
	completeFrom(c, "allow", rootless.SetNames()...)
	askFlag(c, &asked)
	denyFlag(c, &deny)
	a.secretFlag(c, &uses)
	files.add(c)
	c.Flags().StringArrayVar(&unused, "secret-rm", nil, "take the secret `NAME` from it; may be repeated")
	_ = c.RegisterFlagCompletionFunc("secret-rm", a.completeSecret()) // the flag is there
	a.addModels(c, &m)
	c.Flags().StringArrayVar(&unmodels, "model-rm", nil, "take the model `NAME` from it; may be repeated")
	_ = c.RegisterFlagCompletionFunc("model-rm", a.completeModel()) // the flag is there
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		changes := false
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			changes = changes || f.Changed && f.Name != "output" && f.Name != "request-id"
		})
		if !changes {
			return nil, nil, usage(c, "cannot update the workspace: nothing is to change; name at least one of the flags")
		}
		hosts, err := onlyHosts(allow)
		if err != nil {
			return nil, nil, err
		}
		use, err := m.uses()
		if err != nil {
			return nil, nil, err
		}
		names, err := a.useSecretFiles(c.Context(), uses, &files)
		if err != nil {
			a.unstore(c.Context(), err)
			return nil, nil, err
		}
		req := &carrelv1.UpdateRequest{
			Workspace: args[0], Limits: l.asked(), Key: key, TtlMs: int64(l.ttl), IdleTimeoutMs: int64(l.idle), RequestId: l.request,
			ReachAllow: hosts, ReachAsk: asked, ReachDeny: deny, Secrets: names, SecretsRemove: unused,
			SecretFiles: files.files, SecretTemplates: files.texts,
			Models: use, ModelsRemove: unmodels, ModelBudget: m.budget(),
		}
		err = a.expandReach(c.Context(), req)
		var res *carrelv1.UpdateResponse
		if err == nil {
			res, err = ask(c.Context(), a, workspaces.Update, req)
		}
		if err != nil {
			a.unstore(c.Context(), err)
			return nil, nil, err
		}
		a.tellStricter(req, res.GetWorkspace())
		a.progress("%s is changed.", res.GetWorkspace().GetName())
		return objectOf(res.GetWorkspace()), nil, a.tellWaits(res.GetWorkspace())
	})
}
