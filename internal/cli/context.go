package cli

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrel "github.com/carrel-dev/carrel/sdk/go"
)

func (a *app) contextCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "context COMMAND",
		Short: "Name the carrels that you use, and choose one",
		Long: `A context is a name for a carrel: its host, the fingerprint of its key or the file of its
certificate authority, and the file of your token. The context in use is used unless a
command names another with --context or $` + contextEnv + `, or a carrel with --host, --rootless,
$` + carrel.HostEnv + ` or $` + rootlessEnv + `. Flags and variables for token, fingerprint and authority go before
what a context has. Contexts are in contexts.yaml below ~/.config/carrel.`,
		Example: `  carrel context add prod --host https://192.0.2.1:7443 \
    --fingerprint sha256:… --token-file ~/.carrel-token
  carrel context use prod
  carrel --context prod ls`,
	}, a.contextAddCommand(), a.contextUseCommand(), a.contextLsCommand(), a.contextShowCommand(), a.contextRmCommand())
}

func (a *app) contextAddCommand() *cobra.Command {
	var use, replace bool
	c := &cobra.Command{
		Use:   "add NAME --host HOST",
		Short: "Add a context of --host, --fingerprint, --ca-file, --token-file",
		Long: `Add a context. The token stays in its file, which only you may read; put it there without
naming it on a command line, for example with: carrel token create > FILE`,
		Example: `  carrel context add prod --host https://192.0.2.1:7443 --fingerprint sha256:… \
    --token-file ~/.carrel-token
  carrel context add here --host unix:///run/carrel/carrel.sock --use`,
		Args: exactly("NAME"),
	}
	c.Flags().BoolVar(&use, "use", false, "use it from now on")
	c.Flags().BoolVar(&replace, "replace", false, "replace a context of that name")
	c.RunE = func(c *cobra.Command, args []string) error {
		name := args[0]
		if !contextName().MatchString(name) {
			return usage(c, "cannot name a context %q: give 1 to 63 letters, digits, dots, hyphens and underscores, a letter or digit first", name)
		}
		if a.host == "" {
			return usage(c, "cannot add the context %s: --host is missing, which says where it is", name)
		}
		to := connectTo{Host: a.host, Fingerprint: a.fingerprint, CAFile: a.caFile, TokenFile: a.tokenFile}
		for _, path := range []*string{&to.CAFile, &to.TokenFile} {
			if *path == "" {
				continue
			}
			abs, err := filepath.Abs(*path)
			if err != nil {
				return fmt.Errorf("cannot use the file %q: %w", *path, err)
			}
			*path = abs
		}
		// Whether the daemon answers is not asked: it may be down.
		if _, err := carrel.New(to.options()); err != nil {
			return fmt.Errorf("cannot add the context %s: %w", name, err)
		}
		return changeContexts(func(all *contexts) error {
			if _, there := all.Contexts[name]; there && !replace {
				return fmt.Errorf("cannot add the context %s: there is one; --replace replaces it: %w", name, errdefs.ErrAlreadyExists)
			}
			all.Contexts[name] = to
			if use {
				all.Current = name
			}
			return nil
		})
	}
	return c
}

func (a *app) contextUseCommand() *cobra.Command {
	var none bool
	c := &cobra.Command{
		Use:   "use NAME | use --none",
		Short: "Choose the context that commands use from now on",
		Example: `  carrel context use prod
  carrel context use --none`,
		Args:              between(nil, "NAME"),
		ValidArgsFunction: onlyFirst(completeContexts),
	}
	c.Flags().BoolVar(&none, "none", false, "use none, and so the carrel of this host")
	c.RunE = func(c *cobra.Command, args []string) error {
		if none == (len(args) == 1) {
			return usage(c, "cannot tell which context to use: give the name of one, or --none")
		}
		return changeContexts(func(all *contexts) error {
			if all.Current = ""; none {
				return nil
			}
			all.Current = args[0]
			_, err := all.find(args[0])
			return err
		})
	}
	return c
}

func (a *app) contextLsCommand() *cobra.Command {
	return a.contextPrints(&cobra.Command{
		Use: "ls", Short: "List the contexts", Args: exactly(),
	}, func(all *contexts, _ string) (any, printer, error) {
		views, t := []object{}, newTable(-1, "IN USE", "NAME", "HOST", "TOKEN")
		for _, name := range all.names() {
			to, mark := all.Contexts[name], ""
			if name == all.Current {
				mark = "*"
			}
			views = append(views, all.view(name))
			t.add(mark, name, to.Host, cmp.Or(to.TokenFile, "-"))
		}
		return views, t, nil
	})
}

func (a *app) contextShowCommand() *cobra.Command {
	return a.contextPrints(&cobra.Command{
		Use: "show [NAME]", Short: "Show a context, or the one that a command would use", Args: between(nil, "NAME"),
		ValidArgsFunction: onlyFirst(completeContexts),
	}, func(all *contexts, name string) (any, printer, error) {
		if name == "" {
			var err error
			if name, _, _, err = a.chosenContext(); err != nil {
				return nil, nil, err
			}
		}
		if name == "" {
			return nil, nil, fmt.Errorf(
				"cannot show the context in use: there is none; choose one with \"carrel context use NAME\": %w", errdefs.ErrNotFound,
			)
		}
		to, err := all.find(name)
		return all.view(name), pairs([2]string{"name", name}, [2]string{"host", to.Host}, [2]string{"fingerprint", to.Fingerprint},
			[2]string{"authority", to.CAFile}, [2]string{"token", to.TokenFile}), err
	})
}

func (a *app) contextRmCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "rm NAME...", Short: "Remove contexts; files of tokens stay", Args: atLeast("NAME"), ValidArgsFunction: completeContexts,
	}
	c.RunE = func(_ *cobra.Command, args []string) error {
		return changeContexts(func(all *contexts) error {
			for _, name := range args {
				if _, err := all.find(name); err != nil {
					return err
				}
				delete(all.Contexts, name)
				if all.Current == name {
					all.Current = ""
				}
			}
			return nil
		})
	}
	return c
}

// contextPrints completes a command that prints contexts.
func (a *app) contextPrints(c *cobra.Command, run func(all *contexts, name string) (any, printer, error)) *cobra.Command {
	return a.prints(c, func(_ *cobra.Command, args []string) (any, printer, error) {
		all, err := readContexts()
		if err != nil {
			return nil, nil, err
		}
		return run(all, append(slices.Clone(args), "")[0])
	})
}

// view is the JSON of a context.
func (c *contexts) view(name string) object {
	to := c.Contexts[name]
	return object{
		{"name", name},
		{"in_use", name == c.Current},
		{"host", to.Host},
		{"fingerprint", to.Fingerprint},
		{"ca_file", to.CAFile},
		{"token_file", to.TokenFile},
	}
}

func (to connectTo) options() carrel.Options {
	return carrel.Options{Host: to.Host, Fingerprint: to.Fingerprint, CAFile: to.CAFile, TokenFile: to.TokenFile}
}

// completeContexts completes the names of contexts. A file that cannot be used completes nothing.
func completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	all, err := readContexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return all.names(), cobra.ShellCompDirectiveNoFileComp
}
