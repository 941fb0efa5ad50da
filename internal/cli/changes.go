package cli

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/termtext"
	"github.com/carrel-dev/carrel/internal/rootless"
)

// changesCommand lists what the ends of runs held back, puts it back or removes it.
func (a *app) changesCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "changes [flags] [PATH...]", Short: "Show, restore or discard what runs held back", Args: cobra.ArbitraryArgs,
		Long: `changes lists what the ends of your runs without root have held back: new files on which
programs of this host act without asking, such as .npmrc, moved out of the project into
carrel's state. docs/hostfiles.md has the list of names.

--restore puts what a run held back where it was, and --discard removes it: all of it, or
the paths that are named. A file that is there already stays.`,
		Example: "  carrel changes\n  carrel changes --restore run-1a2b3c4d\n  carrel changes --discard run-1a2b3c4d .npmrc",
	}
	restore := c.Flags().String("restore", "", "put back what the run `RUN` held back")
	discard := c.Flags().String("discard", "", "remove what the run `RUN` held back")
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		switch {
		case *restore != "" && *discard != "":
			return nil, nil, usage(c, "cannot use --restore with --discard: leave one of them out")
		case *restore != "":
			return moved(rootless.Restore(id.Workspace(*restore), args))("restored")
		case *discard != "":
			return moved(rootless.Discard(id.Workspace(*discard), args))("discarded")
		case len(args) > 0:
			return nil, nil, fmt.Errorf("cannot tell what to do with %s: add --restore RUN or --discard RUN: %w",
				termtext.Visible(args[0]), errdefs.ErrInvalidArgument)
		}
		all, err := rootless.ListBack()
		if err != nil {
			return nil, nil, err
		}
		t, list := newTable(-1, "RUN", "PROJECT", "PATH", "READER", "WHEN").wideOnly("WHEN").freeText(), []object{}
		for _, b := range all {
			for _, m := range b.Moved {
				t.add(string(b.Run), termtext.Visible(m.Source), termtext.Visible(m.Path), m.Reader, m.Trigger)
				list = append(list, object{
					{"run", string(b.Run)}, {"project", m.Source}, {"path", m.Path}, {"reader", m.Reader}, {"trigger", m.Trigger},
				})
			}
		}
		return list, t, nil
	})
}

// moved says what was done to what was held back, also beside an error.
func moved(list []rootless.Moved, err error) func(what string) (any, printer, error) {
	return func(what string) (any, printer, error) {
		paths, out := []string{}, ""
		for _, m := range list {
			paths = append(paths, m.Path)
			out += termtext.Visible(m.Path) + "\n"
		}
		return object{{what, paths}}, text(out), err
	}
}
