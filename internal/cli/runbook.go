package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/carrel-dev/carrel/internal/agent/runbooks"
	"github.com/carrel-dev/carrel/internal/linux/treefile"
)

// runbooksDir is the default of runbooks.dir in the daemon's configuration.
const runbooksDir = "/etc/carrel/runbooks"

func (a *app) runbookCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "runbook",
		Short: "List, show and check the runbooks of the agent",
		Long: `A runbook is what is written down about finding a fault: commands that look, and advice. The
model of "carrel ask" is told of each by name and title, and reads one by a tool. It unlocks
nothing: commands that a model takes out of it are judged as all others.

carrel brings some; those of an administrator are in /etc/carrel/runbooks, or where
runbooks.dir of the daemon's configuration says. No daemon is needed.`,
		Example: "  carrel runbook ls\n  carrel runbook show disk\n  carrel runbook check /etc/carrel/runbooks/mail.yaml",
	}, a.runbookListCommand(), a.runbookShowCommand(), a.runbookCheckCommand())
}

// dirFlag adds the flag that names the administrator's directory.
func dirFlag(c *cobra.Command) *string {
	return c.Flags().String("dir", runbooksDir, "the directory of the administrator's runbooks")
}

// readRunbooks reads those of carrel and of a directory, which take the place of carrel's of the same name. What cannot be
// used is in the second result.
func readRunbooks(dir string) (all []*runbooks.Runbook, bad []error, err error) {
	if all, err = runbooks.Builtin(); err != nil {
		return nil, nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot use the directory %s: %w: %w", dir, err, errdefs.ErrInvalidArgument)
	}
	for _, file := range files {
		r, err := readRunbook(file)
		if err != nil {
			bad = append(bad, err)
			continue
		}
		all = append(slices.DeleteFunc(all, func(other *runbooks.Runbook) bool { return other.Name == r.Name }), r)
	}
	slices.SortFunc(all, func(a, b *runbooks.Runbook) int { return strings.Compare(a.Name, b.Name) })
	return all, bad, nil
}

// maxRunbook bounds the file of a runbook, in bytes.
const maxRunbook = 1 << 20

func readRunbook(file string) (*runbooks.Runbook, error) {
	b, err := treefile.Read(file, maxRunbook)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the runbook: %w: %w", err, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the runbook: %w", err)
	}
	return runbooks.Parse(file, b)
}

func (a *app) runbookListCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "ls [flags]", Short: "List the runbooks", Example: "  carrel runbook ls", Args: exactly(),
		Long: `ls lists the runbooks of carrel and of the administrator by name. One that cannot be used is
named on stderr.`,
	}
	dir := dirFlag(c)
	return a.prints(c, func(*cobra.Command, []string) (any, printer, error) {
		all, bad, err := readRunbooks(*dir)
		if err != nil {
			return nil, nil, err
		}
		for _, err := range bad {
			if err := say(a.Err, "carrel: %v\n", err); err != nil {
				return nil, nil, err
			}
		}
		t, list := newTable(-1, "NAME", "STEPS", "FILE", "TITLE").wideOnly("FILE").freeText(), []object{}
		for _, r := range all {
			t.add(r.Name, fmt.Sprint(len(r.Steps)), r.File, r.Title)
			list = append(list, object{{"name", r.Name}, {"title", r.Title}, {"match", r.Match}, {"file", r.File}})
		}
		return list, t, nil
	})
}

func (a *app) runbookShowCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "show [flags] NAME", Short: "Show a runbook as a model is told it", Args: exactly("NAME"),
		Long: `show prints a runbook as the agent's model is told it, with the values of its parameters in
place. Values are put into commands as one word each, quoted.`,
		Example: "  carrel runbook show disk\n  carrel runbook show --set dir=/srv disk",
	}
	dir := dirFlag(c)
	set := c.Flags().StringArray("set", nil, "a value for a parameter, as NAME=VALUE (several times)")
	c.ValidArgsFunction = onlyFirst(func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
		all, _, err := readRunbooks(*dir)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, r := range all {
			names = append(names, r.Name+"\t"+r.Title)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		values := map[string]string{}
		for _, s := range *set {
			name, value, ok := strings.Cut(s, "=")
			if !ok {
				return nil, nil, usage(c, "cannot use --set %q: write NAME=VALUE", s)
			}
			values[name] = value
		}
		all, _, err := readRunbooks(*dir)
		if err != nil {
			return nil, nil, err
		}
		r := runbooks.Find(all, args[0])
		if r == nil {
			return nil, nil, fmt.Errorf("cannot find the runbook %q: there is none; \"carrel runbook ls\" lists them: %w", args[0],
				errdefs.ErrNotFound)
		}
		told, err := r.Text(values)
		if err != nil {
			return nil, nil, err
		}
		return r, text(told), nil
	})
}

func (a *app) runbookCheckCommand() *cobra.Command {
	var file string
	var noBuiltin bool
	c := &cobra.Command{
		Use: "check [flags] [FILE]", Short: "Check runbooks against the policy", Args: between(nil, "FILE"),
		Long: `check reads a runbook, or all, and has each step that says that it only reads judged as what a
person types for a host. A runbook of another form, or with a step that is not SAFE or
changes something, is an error with its file and reason, and the exit code is 1. The daemon
leaves such a runbook out.`,
		Example: "  carrel runbook check\n  carrel runbook check --policy /etc/carrel/policy.yaml mail.yaml",
	}
	dir := dirFlag(c)
	c.Flags().StringVar(&file, "policy", "", "a file of rules to judge by as well")
	c.Flags().BoolVar(&noBuiltin, "no-builtin", false, "judge by the rules of --policy alone")
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		if noBuiltin && file == "" {
			return nil, nil, usage(c, "cannot judge without rules: --no-builtin needs --policy")
		}
		e, err := compilePolicy(file, noBuiltin)
		if err != nil {
			return nil, nil, err
		}
		var all []*runbooks.Runbook
		var bad []error
		if len(args) == 1 {
			r, err := readRunbook(args[0])
			if err != nil {
				return nil, nil, err
			}
			all = []*runbooks.Runbook{r}
		} else if all, bad, err = readRunbooks(*dir); err != nil {
			return nil, nil, err
		}
		for _, r := range all {
			if err := r.Check(e); err != nil {
				bad = append(bad, err)
			}
		}
		if len(bad) > 0 {
			return nil, nil, errors.Join(bad...)
		}
		return object{{"checked", len(all)}}, text(fmt.Sprintf("ok: %s\n", counted(len(all), "runbook"))), nil
	})
}
