package cli

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/termtext"
	"github.com/carrel-dev/carrel/internal/rootless"
)

// changesCommand lists what runs left for a person to decide: staged copies, and what was held back, which it puts back or removes.
func (a *app) changesCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "changes [flags] [RUN] [PATH...]", Short: "List staged copies, and what runs held back",
		Args: cobra.ArbitraryArgs, ValidArgsFunction: completeRuns,
		Long: `changes lists what your runs without root have left for you to decide. A staged copy has what a run
with --here=staged wrote: "carrel changes RUN" lists its files, "carrel diff" shows them, and "carrel apply" or
"carrel discard" ends it. With the name of a workspace of the daemon it lists what was changed in the directories that
this may write, or without any in its home, since it was made, by what it may do to who uses them.

Held back are new files on which programs of this host act without asking, such as .npmrc,
which the end of another run moved out of the project into carrel's state. docs/hostfiles.md has the list of names.

--restore puts what a run held back where it was, and --discard removes it: all of it, or
the paths that are named. A file that is there already stays.`,
		Example: "  carrel changes\n  carrel changes run-1a2b3c4d\n" +
			"  carrel changes --restore run-1a2b3c4d\n  carrel changes --discard run-1a2b3c4d .npmrc",
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
		case len(args) == 1:
			return a.changesBy(c.Context(), args[0])
		case len(args) > 0:
			return nil, nil, fmt.Errorf("cannot tell what to do with %s: add --restore RUN or --discard RUN: %w",
				termtext.Visible(args[0]), errdefs.ErrInvalidArgument)
		}
		all, err := rootless.ListBack()
		if err != nil {
			return nil, nil, err
		}
		copied, err := rootless.StagedCopies("")
		if err != nil {
			return nil, nil, err
		}
		t, list := newTable(-1, "RUN", "PROJECT", "PATH", "READER", "WHEN").wideOnly("WHEN").freeText(), []object{}
		for _, x := range copied {
			sum := "still runs"
			if !x.Live() {
				seen, err := a.look(c.Context(), x)
				if sum = stagedSum(seen); err != nil {
					sum = errtext.Text(err)
				}
				if err == nil && seen.Empty() {
					sum = "applied; carrel undo takes it back"
				}
			}
			t.add(string(x.Run), termtext.Visible(x.Source), "(a staged copy)", sum, "")
			list = append(list, object{{"run", string(x.Run)}, {"project", x.Source}, {"staged", true}, {"live", x.Live()}, {"sum", sum}})
		}
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

// changesBy lists what a run or a workspace of the daemon changed.
func (a *app) changesBy(ctx context.Context, ref string) (any, printer, error) {
	if id.IsWorkspace(ref) {
		list, err := rootless.StagedCopies(id.Workspace(ref))
		if err == nil {
			return a.stagedItems(ctx, list)
		}
		if !errdefs.IsNotFound(err) {
			return nil, nil, err
		}
	}
	if all, err := rootless.ChangesOf(ctx, a.nameOf(ctx, ref)); err != nil || len(all) > 0 {
		objects, rows := changesOf(all)
		return objects, rows, err
	}
	m, err := ask(ctx, a, files.ListChanges, &carrelv1.ListChangesRequest{Workspace: ref})
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list what %s changed: no run left a staged copy with this name, and as a workspace of the daemon: %w",
			termtext.Visible(ref), err)
	}
	objects, rows := changesIn(m)
	return objects, rows, nil
}

// changesOf lists what was changed in directories, by what it may do on the host.
func changesOf(all []rootless.Changes) ([]object, *table) {
	t, objects := newTable(-1, "KIND", "PATH", "READER").wideOnly("READER").freeText(), []object{}
	for _, c := range all {
		for _, f := range c.List {
			t.add(string(f.Kind), termtext.Visible(f.Path), f.Reader)
			o := object{{"project", c.Source}, {"path", f.Path}, {"kind", string(f.Kind)}}
			if f.Reader != "" {
				o = append(o, object{{"reader", f.Reader}, {"trigger", f.Trigger}}...)
			}
			objects = append(objects, o)
		}
		if c.Missed > 0 {
			objects = append(objects, object{{"project", c.Source}, {"missed", c.Missed}})
		}
	}
	return objects, t
}

// changesIn lists what was changed in the home of a workspace.
func changesIn(m *carrelv1.ListChangesResponse) ([]object, *table) {
	t, objects := newTable(-1, "KIND", "PATH", "READER").wideOnly("READER").freeText(), []object{}
	for _, x := range m.GetChanges() {
		t.add(printable(x.GetKind()), printable(pathOf(x.GetFile())), printable(x.GetReader()))
		o := object{{"path", pathOf(x.GetFile())}, {"kind", x.GetKind()}}
		if x.GetReader() != "" {
			o = append(o, object{{"reader", x.GetReader()}, {"trigger", x.GetTrigger()}}...)
		}
		objects = append(objects, o)
	}
	if m.GetTruncated() || m.GetSkipped() > 0 {
		objects = append(objects, object{{"missed", m.GetSkipped()}, {"more", m.GetTruncated()}})
	}
	return objects, t
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
