package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/termtext"
	stagedfiles "github.com/carrel-dev/carrel/internal/files/staged"
	"github.com/carrel-dev/carrel/internal/rootless"
	"github.com/carrel-dev/carrel/internal/rootless/copies"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// stagedUse is how a staged copy is named.
const stagedUse = `RUN is the name that carrel run printed. Without one the newest staged copy of the current
directory is meant; carrel changes lists all.`

// stagedCopies are the copies that are meant by the arguments of a command, and its other arguments: paths.
func stagedCopies(args []string) (list []*copies.Copy, paths []string, err error) {
	if len(args) > 0 && id.IsWorkspace(args[0]) {
		if list, err = rootless.StagedCopies(id.Workspace(args[0])); err == nil || !errdefs.IsNotFound(err) {
			return list, cleanPaths(args[1:]), err
		}
		if _, serr := os.Lstat(args[0]); serr != nil {
			return nil, nil, err
		}
	}
	here, err := rootless.Source(".")
	if err != nil {
		return nil, nil, err
	}
	all, err := rootless.StagedCopies("")
	if err != nil {
		return nil, nil, err
	}
	for _, c := range slices.Backward(all) {
		if rel, err := filepath.Rel(c.Source, here); err == nil && !strings.HasPrefix(rel+"/", "../") {
			for _, p := range args {
				paths = append(paths, filepath.Join(rel, p))
			}
			return []*copies.Copy{c}, cleanPaths(paths), nil
		}
	}
	return nil, nil, fmt.Errorf("cannot find a staged copy of %s: no run has one; carrel changes lists all, and carrel run --here=staged "+
		"makes one: %w", here, errdefs.ErrNotFound)
}

func cleanPaths(paths []string) (clean []string) {
	for _, p := range paths {
		clean = append(clean, strings.TrimPrefix(filepath.Clean(p), "./"))
	}
	return clean
}

// completeRuns completes the names of runs that have a staged copy.
func completeRuns(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	all, err := rootless.StagedCopies("")
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, c := range all {
		names = append(names, string(c.Run)+"\t"+c.Source)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) diffCommand() *cobra.Command {
	var o copies.DiffOptions
	c := &cobra.Command{
		Use: "diff [flags] [RUN] [PATH...]", Short: "Show what a run changed in its staged copy", Args: cobra.ArbitraryArgs,
		ValidArgsFunction: completeRuns,
		Long: `diff shows what a run with --here=staged changed in its copy of the directory, as git diff
does, and what git would not show: modes, links, binary files. What git ignores is summed up; --artefacts
or its path shows it. On a terminal, characters that it would obey are shown as escapes; elsewhere the output is a patch.

` + stagedUse,
		Example: "  carrel diff\n  carrel diff run-1a2b3c4d src/main.go\n  carrel diff run-1a2b3c4d | less",
	}
	c.Flags().BoolVar(&o.Artefacts, "artefacts", false, "show what git ignores too")
	c.RunE = func(c *cobra.Command, args []string) error {
		list, paths, err := stagedCopies(args)
		if err != nil {
			return err
		}
		o.Paths, o.Visible = paths, isTerminal(a.Out)
		for _, x := range list {
			if len(list) > 1 {
				if err := say(a.Out, "# %s\n", x.Source); err != nil {
					return err
				}
			}
			if err := a.still(c.Context(), x, func() error { return a.diff(c.Context(), x, o) }); err != nil {
				return err
			}
		}
		return nil
	}
	return c
}

// look looks at a copy, and says what became of changes that were cut off.
func (a *app) look(ctx context.Context, x *copies.Copy) (copies.Seen, error) {
	seen, err := x.Look(ctx, rootless.HostReads(x.Source))
	for _, n := range x.Notes() {
		_ = say(a.Err, "carrel: %s\n", printable(n))
	}
	return seen, err
}

// diff shows one copy.
func (a *app) diff(ctx context.Context, x *copies.Copy, o copies.DiffOptions) error {
	seen, err := a.look(ctx, x)
	if err != nil {
		return err
	}
	if _, err := x.Diff(ctx, a.Out, o, seen); err != nil {
		return err
	}
	if len(seen.Refs) > 0 && len(o.Paths) == 0 {
		return say(a.Out, "# changed in git: %s\n", strings.Join(seen.Refs, ", "))
	}
	return nil
}

func (a *app) applyCommand() *cobra.Command {
	var o copies.Options
	c := &cobra.Command{
		Use: "apply [flags] [RUN] [PATH...]", Short: "Make the changes of a staged copy in its directory", Args: cobra.ArbitraryArgs,
		ValidArgsFunction: completeRuns,
		Long: `apply makes the changes that a run with --here=staged made in its copy in the directory
itself: all that are chosen, or none. Without a PATH that is all source, and what was committed. Files on which programs
of this host act, such as .npmrc, are applied only if they are named, and what git ignores only with --artefacts or
if it is named. What was changed here meanwhile is merged where the two fit together; where they do not, nothing is
done, and the error names the files. carrel undo RUN takes it back.

` + stagedUse,
		Example: "  carrel apply\n  carrel apply run-1a2b3c4d\n  carrel apply run-1a2b3c4d src .npmrc\n  carrel apply --artefacts",
	}
	c.Flags().BoolVar(&o.Artefacts, "artefacts", false, "apply what git ignores too")
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		list, paths, err := stagedCopies(args)
		if err != nil {
			return nil, nil, err
		}
		o.Paths = paths
		var out strings.Builder
		objects := []object{}
		for _, x := range list {
			var r copies.Result
			aerr := a.still(c.Context(), x, func() (err error) {
				r, err = x.Apply(c.Context(), o, rootless.HostReads(x.Source))
				return err
			})
			out.WriteString(appliedText(x, r, len(paths) > 0))
			objects = append(objects, appliedObject(x, r))
			if err = aerr; err != nil {
				break
			}
		}
		if err != nil {
			_ = say(a.Err, "%s", out.String()) // what was done before it
		}
		return objects, text(out.String()), err
	})
}

func appliedObject(x *copies.Copy, r copies.Result) object {
	refused := []object{}
	for _, f := range r.Refused {
		refused = append(refused, object{{"path", f.Path}, {"why", f.Why}})
	}
	return object{
		{"run", string(x.Run)},
		{"directory", x.Source},
		{"applied", listOf(r.Applied)},
		{"merged", listOf(r.Merged)},
		{"left", refused},
		{"notes", listOf(r.Notes)},
	}
}

func listOf(all []string) []string {
	if all == nil {
		return []string{}
	}
	return all
}

// mostLeft is how many reasons are told with names, and mostNamed how many names with one.
const mostNamed = 3

// appliedText says what was applied, and what stays in the copy, by the reason.
func appliedText(x *copies.Copy, r copies.Result, chosen bool) string {
	var b strings.Builder
	switch n := len(r.Applied); {
	case n > 0:
		fmt.Fprintf(&b, "%s: %s applied", x.Source, count(n, "change"))
		if m := len(r.Merged); m > 0 {
			fmt.Fprintf(&b, ", %d of them merged with what was changed here (%s)", m, someNames(r.Merged))
		}
		b.WriteByte('\n')
	case len(r.Notes) == 0:
		fmt.Fprintf(&b, "%s: nothing was applied\n", x.Source)
	}
	for _, n := range r.Notes {
		b.WriteString(n + "\n")
	}
	if chosen {
		return b.String()
	}
	var reasons []string
	left := map[string][]string{}
	for _, f := range r.Refused {
		if left[f.Why] == nil {
			reasons = append(reasons, f.Why)
		}
		left[f.Why] = append(left[f.Why], f.Path)
	}
	for _, why := range reasons {
		fmt.Fprintf(&b, "%s: not applied: %s: %s\n", x.Source, someNames(left[why]), why)
	}
	return b.String()
}

func someNames(all []string) string {
	shown := []string{}
	for _, p := range all[:min(len(all), mostNamed)] {
		shown = append(shown, termtext.Visible(p))
	}
	if n := len(all) - mostNamed; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(shown, ", "), n)
	}
	return strings.Join(shown, ", ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (a *app) discardCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "discard [flags] [RUN...]", Short: "Remove the staged copy of a run", Args: cobra.ArbitraryArgs, ValidArgsFunction: completeRuns,
		Long: `discard removes what runs with --here=staged wrote, applied or not, and with it what carrel undo needs. The
directory itself is not touched.

--older removes the copies of all runs that began longer ago than a time, but for those that still run
and those of workspaces.

` + stagedUse,
		Example: "  carrel discard\n  carrel discard run-1a2b3c4d\n  carrel discard --older 7d",
	}
	var older lifetime
	c.Flags().Var(&older, "older", "the copies of all runs that began longer ago than this")
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		var list []*copies.Copy
		for _, name := range args {
			of, err := rootless.StagedCopies(id.Workspace(name))
			if err != nil {
				return nil, nil, err
			}
			list = append(list, of...)
		}
		var err error
		switch {
		case c.Flags().Changed("older") && (len(args) > 0 || older == never):
			return nil, nil, usage(c, "cannot use --older with a RUN or with never: give a time alone, as in 7d")
		case c.Flags().Changed("older"):
			list, err = copiesBefore(time.Now().Add(-time.Duration(older) * time.Millisecond))
		case len(args) == 0:
			list, _, err = stagedCopies(nil)
		}
		if err != nil {
			return nil, nil, err
		}
		out, objects := "", []object{}
		for _, x := range list {
			if err := a.gone(c.Context(), x); err != nil {
				return nil, nil, err
			}
			if err := x.Discard(c.Context()); err != nil {
				return nil, nil, err
			}
			for _, n := range x.Notes() {
				_ = say(a.Err, "carrel: %s\n", printable(n))
			}
			out += fmt.Sprintf("discarded: what %s wrote for %s\n", x.Run, x.Source)
			objects = append(objects, object{{"run", string(x.Run)}, {"directory", x.Source}})
		}
		return objects, text(out), nil
	})
}

// copiesBefore are the staged copies of what began before a moment and runs no more.
func copiesBefore(then time.Time) ([]*copies.Copy, error) {
	all, err := rootless.StagedCopies("")
	return slices.DeleteFunc(all, func(x *copies.Copy) bool { return !x.Made.Before(then) || x.Workspace != "" || x.Live() }), err
}

// manyCopies is how many kept copies are too many to pass over in silence.
const manyCopies = 20

// tellCopies says that many copies are kept: nothing else removes them.
func (a *app) tellCopies() error {
	all, err := rootless.StagedCopies("")
	if err != nil || len(all) < manyCopies {
		return err
	}
	oldest := slices.MinFunc(all, func(x, y *copies.Copy) int { return x.Made.Compare(y.Made) })
	return say(a.Err, "carrel: %d staged copies are kept, the oldest since %s: carrel changes lists them, and carrel discard --older 7d "+
		"removes those of more than a week\n", len(all), oldest.Made.Local().Format(time.DateOnly))
}

// gone refuses to discard the copy of a workspace that there is: it would not start again.
func (a *app) gone(ctx context.Context, x *copies.Copy) error {
	_, state, err := a.stateOf(ctx, x)
	if err == nil && state != "" {
		err = fmt.Errorf("cannot discard the staged copy of %s: the workspace %s has it mounted; carrel destroy %s ends that: %w", x.Source,
			x.Workspace, x.Workspace, errdefs.ErrFailedPrecondition)
	}
	return err
}

// undoStaged takes back what was applied of a staged copy.
func (a *app) undoStaged(ctx context.Context, run string) (any, printer, error) {
	list, err := rootless.StagedCopies(id.Workspace(run))
	if err != nil {
		return nil, nil, err
	}
	out, objects := "", []object{}
	for _, x := range slices.Backward(list) {
		var r copies.Result
		err := a.still(ctx, x, func() (err error) { r, err = x.Undo(ctx); return err })
		if errdefs.IsNotFound(err) && len(list) > 1 {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		out += fmt.Sprintf("%s: %s taken back; carrel apply %s makes them again\n", x.Source, count(len(r.Applied), "change"), run)
		for _, n := range r.Notes {
			out += n + "\n"
		}
		objects = append(objects, object{
			{"run", run}, {"directory", x.Source}, {"undone", listOf(r.Applied)}, {"notes", listOf(r.Notes)},
		})
	}
	if len(objects) == 0 {
		return nil, nil, fmt.Errorf("cannot undo anything of %s: nothing of it is applied: %w", run, errdefs.ErrNotFound)
	}
	return objects, text(out), nil
}

// keptCopy is the staged copy of one of the mounts of a workspace.
type keptCopy struct {
	*copies.Copy

	made bool
}

// undo removes a copy that was made for a workspace that was not.
func (k *keptCopy) undo(ctx context.Context) error {
	if !k.made {
		return nil
	}
	k.made = false
	return k.Discard(context.WithoutCancel(ctx))
}

// copyName is how the staged copies of the workspace for a key are called.
func (a *app) copyName(key string) id.Workspace {
	prefix := "ws" // as such workspaces are called
	if a.usesOwn() {
		prefix = "own"
	}
	return id.Derive(prefix, id.Key(key), 0)
}

// usesOwn reports whether the caller's own carrel is meant.
func (a *app) usesOwn() bool {
	t, err := a.target()
	return err == nil && t.host == ""
}

// stage makes the staged copies that mounts ask for.
func (a *app) stage(ctx context.Context, name id.Workspace, mounts []mount) (kept []*keptCopy, err error) {
	for i, m := range mounts {
		if !m.staged {
			continue
		}
		c, made, err := rootless.StageFor(ctx, name, i, m.Source, a.usesOwn())
		if err != nil {
			return nil, err
		}
		kept = append(kept, &keptCopy{c, made})
	}
	return kept, nil
}

// staged are the mounts as the daemon is asked for them.
func staged(mounts []mount, kept []*keptCopy) (all []carrel.Mount) {
	for _, m := range mounts {
		if m.staged {
			m.Stage, kept = kept[0].StageDir(), kept[1:]
		}
		all = append(all, m.Mount)
	}
	return all
}

// lookBefore looks at the directories that commands of a daemon's workspace are to write, and has what the host is led to held there.
func (a *app) lookBefore(name id.Workspace, mounts []mount) (*rootless.Around, error) {
	var sources []string
	var at []int
	for i, m := range mounts {
		if source, err := rootless.Source(m.Source); err == nil && !m.ReadOnly && !m.staged { // the daemon says why it is none
			sources, at = append(sources, source), append(at, i)
		}
	}
	if len(sources) == 0 {
		return nil, nil
	}
	around, held, notes, err := rootless.Before(name, sources)
	if err != nil {
		return nil, err
	}
	for n, i := range at {
		mounts[i].Held = held[n]
	}
	for _, n := range notes {
		_ = say(a.Err, "carrel: %s\n", n)
	}
	return around, nil
}

// lookAfter says what was left in those directories, and moves aside what the host would run.
func (a *app) lookAfter(around *rootless.Around) error {
	if around == nil {
		return nil
	}
	notes, err := around.After()
	for _, n := range notes {
		_ = say(a.Err, "carrel: %s\n", n)
	}
	return err
}

// settleKept is settle for the copies of a workspace that is gone.
func (a *app) settleKept(ctx context.Context, kept []*keptCopy, apply bool) error {
	var list []rootless.Staged
	for _, k := range kept {
		if k.Workspace == "" {
			continue // it was never made
		}
		seen, err := k.Look(ctx, rootless.HostReads(k.Source))
		switch {
		case err != nil:
			return fmt.Errorf("%w; the staged copy is kept: carrel changes lists it", err)
		case seen.Empty():
			if err := k.Discard(ctx); err != nil {
				return err
			}
		default:
			list = append(list, rootless.Staged{Copy: k.Copy, Seen: seen})
		}
	}
	return a.settle(ctx, list, apply)
}

// stateOf is the state of the workspace that has a copy mounted, "" if there is none any more.
func (a *app) stateOf(ctx context.Context, x *copies.Copy) (client *carrel.Client, state string, err error) {
	if x.Workspace == "" {
		return nil, "", nil
	}
	if own := a.usesOwn(); own != x.Own {
		word := "leave --rootless and " + rootlessEnv + " out"
		if x.Own {
			word = "add --rootless"
		}
		return nil, "", fmt.Errorf("cannot tell whether %s still runs: it is a workspace of another carrel; %s: %w", x.Workspace, word,
			errdefs.ErrFailedPrecondition)
	}
	if client, err = a.client(); err != nil {
		return nil, "", err
	}
	m, err := askOf(ctx, client, workspaces.Get, &carrelv1.GetRequest{Workspace: x.Workspace})
	if errdefs.IsNotFound(err) || err == nil && m.GetWorkspace().GetState() == string(workspace.StateDestroyed) {
		return client, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("cannot tell whether %s still runs: %w", x.Workspace, err)
	}
	return client, m.GetWorkspace().GetState(), nil
}

// still does something to a copy while nothing writes to it: a workspace that runs is paused meanwhile.
func (a *app) still(ctx context.Context, x *copies.Copy, do func() error) error {
	client, state, err := a.stateOf(ctx, x)
	if err != nil {
		return err
	}
	if state != string(workspace.StateRunning) {
		return do()
	}
	if _, err := askOf(ctx, client, workspaces.Pause, &carrelv1.PauseRequest{Workspace: x.Workspace}); err != nil {
		return fmt.Errorf("cannot pause %s, so that nothing writes to the staged copy meanwhile: %w", x.Workspace, err)
	}
	err = do()
	_, rerr := askOf(context.WithoutCancel(ctx), client, workspaces.Resume, &carrelv1.ResumeRequest{Workspace: x.Workspace})
	return errors.Join(err, rerr)
}

// signs are how a kind of change is shown, as git status has them.
var signs = map[stagedfiles.Kind]string{
	stagedfiles.Create: "A", stagedfiles.Modify: "M", stagedfiles.Delete: "D", stagedfiles.Mode: "m", stagedfiles.Retype: "T",
	stagedfiles.Relink: "M", stagedfiles.Other: "T",
}

// stagedItems lists the changes of a run's staged copies.
func (a *app) stagedItems(ctx context.Context, list []*copies.Copy) (any, printer, error) {
	t, objects := newTable(-1, "", "CLASS", "PATH", "READER").wideOnly("READER").freeText(), []object{}
	for _, x := range list {
		seen, err := a.look(ctx, x)
		if err != nil {
			return nil, nil, err
		}
		for _, i := range seen.Items {
			t.add(signs[i.Kind], string(i.Class), termtext.Visible(i.Path), i.Reader)
			o := object{
				{"run", string(x.Run)}, {"project", x.Source}, {"path", i.Path}, {"kind", string(i.Kind)}, {"class", string(i.Class)},
			}
			if i.Reader != "" {
				o = append(o, object{{"reader", i.Reader}, {"trigger", i.Trigger}}...)
			}
			if i.Refused != "" {
				o = append(o, object{{"refused", i.Refused}}...)
			}
			objects = append(objects, o)
		}
		for _, r := range seen.Refs {
			t.add("M", "git", termtext.Visible(r), "")
			objects = append(objects, object{{"run", string(x.Run)}, {"project", x.Source}, {"ref", r}, {"class", "git"}})
		}
	}
	return objects, t, nil
}

// stagedSum says in a line what is in a staged copy.
func stagedSum(seen copies.Seen) string {
	var parts []string
	for _, k := range []struct {
		of   copies.Class
		what string
	}{
		{copies.Source, "of source"},
		{copies.Acted, "on which programs of the host act"},
		{copies.Leads, "that lead out of it"},
		{copies.Artefact, "ignored by git"},
		{copies.Refused, "that cannot be applied"},
	} {
		n := seen.Count(k.of)
		if n == 0 {
			continue
		}
		part := fmt.Sprintf("%d %s", n, k.what)
		if k.of != copies.Source && k.of != copies.Artefact {
			var names []string
			for _, i := range seen.Items {
				if i.Class == k.of {
					names = append(names, i.Path)
				}
			}
			part += " (" + someNames(names) + ")"
		}
		parts = append(parts, part)
	}
	if len(seen.Refs) > 0 {
		parts = append(parts, "in git "+someNames(seen.Refs))
	}
	return strings.Join(parts, ", ")
}

// settle says what a run left in its staged copies, and applies it if that was asked for, or the person at the terminal says so.
func (a *app) settle(ctx context.Context, list []rootless.Staged, apply bool) error {
	var all error
	for _, s := range list {
		_ = say(a.Err, "carrel: the staged copy of %s has changes: %s\n", s.Source, stagedSum(s.Seen))
		all = errors.Join(all, a.settleOne(ctx, s, apply))
	}
	return all
}

func (a *app) settleOne(ctx context.Context, s rootless.Staged, apply bool) error {
	run := string(s.Run)
	if !apply && isTerminal(a.In) && isTerminal(a.Err) {
		answer, err := a.askApply(ctx, s)
		if err != nil {
			return err
		}
		switch answer {
		case "a":
			apply = true
		case "x":
			if err := s.Discard(ctx); err != nil {
				return err
			}
			return say(a.Err, "carrel: discarded\n")
		}
	}
	if !apply {
		err := say(a.Err, "carrel: nothing of it is applied: carrel diff %s shows it, carrel apply %s makes the changes, and carrel discard %s "+
			"removes it\n", run, run, run)
		return cmp.Or(err, a.tellCopies())
	}
	r, err := s.Apply(ctx, copies.Options{}, rootless.HostReads(s.Source))
	for line := range strings.Lines(appliedText(s.Copy, r, false)) {
		_ = say(a.Err, "carrel: %s", line)
	}
	if err != nil {
		return fmt.Errorf("%w; the staged copy is kept: carrel diff %s shows it", err, run)
	}
	return say(a.Err, "carrel: carrel undo %s takes it back\n", run)
}

// sync begins to apply staged copies as they change. What it returns ends that, and waits for it.
func (a *app) sync(ctx context.Context, run func(context.Context, func(*copies.Copy, copies.Result, error))) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx, func(x *copies.Copy, _ copies.Result, err error) {
			if err != nil {
				_ = say(a.Err, "carrel: not in step: %s\n", errtext.Text(err))
			}
		})
	}()
	return func() { cancel(); <-done }
}

func (a *app) checkpointCommand() *cobra.Command {
	var list bool
	c := &cobra.Command{
		Use: "checkpoint [flags] [RUN] [NAME]", Short: "Keep what a staged copy is now, to restore it", Args: cobra.MaximumNArgs(2),
		ValidArgsFunction: completeRuns,
		Long: `checkpoint keeps what the staged copy of a run is now, under a name or the next number. "carrel restore RUN
NAME" makes the copy that again, and "carrel run --continue RUN" goes on with it. The copy must be of a run that has
ended, or of a workspace, which is paused meanwhile. Checkpoints go with the copy. The directory itself is not touched.

` + stagedUse,
		Example: "  carrel checkpoint run-1a2b3c4d before-refactoring\n  carrel checkpoint --list run-1a2b3c4d\n" +
			"  carrel restore run-1a2b3c4d before-refactoring",
	}
	c.Flags().BoolVar(&list, "list", false, "list the checkpoints")
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		of, names, err := stagedCopies(args)
		if err != nil {
			return nil, nil, err
		}
		name := ""
		if len(names) > 0 {
			name = names[0]
		}
		t, objects := newTable(-1, "RUN", "CHECKPOINT", "MADE"), []object{}
		for _, x := range of {
			var points []copies.Point
			if list {
				points, err = x.Points()
			} else {
				var p copies.Point
				err = a.still(c.Context(), x, func() (err error) { p, err = x.Checkpoint(c.Context(), name); return err })
				points = []copies.Point{p}
			}
			if err != nil {
				return nil, nil, err
			}
			for _, p := range points {
				t.add(string(x.Run), p.Name, p.Made.Local().Format(time.RFC3339))
				objects = append(objects, object{{"run", string(x.Run)}, {"directory", x.Source}, {"checkpoint", p.Name}, {"made", p.Made}})
			}
		}
		return objects, t, nil
	})
}

// restorePoint makes the staged copies of a run what they were at a checkpoint.
func (a *app) restorePoint(ctx context.Context, run, name string) (any, printer, error) {
	list, err := rootless.StagedCopies(id.Workspace(run))
	if err != nil {
		return nil, nil, err
	}
	for _, x := range list {
		if _, state, err := a.stateOf(ctx, x); err != nil {
			return nil, nil, err
		} else if state != "" && state != string(workspace.StateStopped) {
			return nil, nil, fmt.Errorf("cannot restore the staged copy of %s: the workspace %s has it mounted; carrel stop %s first: %w",
				x.Source, x.Workspace, x.Workspace, errdefs.ErrFailedPrecondition)
		}
		if err := x.Restore(ctx, name); err != nil {
			return nil, nil, err
		}
	}
	out := fmt.Sprintf("the staged copy of %s is as it was at %s\n", run, printable(name))
	return object{{"run", run}, {"checkpoint", name}}, text(out), nil
}

// askApply asks the person at the terminal, once, what becomes of a copy.
func (a *app) askApply(ctx context.Context, s rootless.Staged) (string, error) {
	a.forgetTyped()
	for {
		_ = say(a.Err, "carrel: [a]pply it, show the [d]iff, [k]eep it for later, or discard it [x]? ")
		line, err := a.readLine(ctx)
		if err != nil {
			return "k", nil //nolint:nilerr // nobody is there any more, and it is kept
		}
		switch key := strings.ToLower(strings.TrimSpace(line)); key {
		case "a", "apply":
			return "a", nil
		case "x", "discard":
			return "x", nil
		case "k", "keep", "":
			return "k", nil
		case "d", "diff":
			if _, err := s.Diff(ctx, a.Err, copies.DiffOptions{Visible: true}, s.Seen); err != nil {
				return "", err
			}
		}
	}
}

// codingAgents are programs that write what a model says, as they are called and as their packages are.
var codingAgents = []string{
	"aider", "aider-chat", "amp", "auggie", "claude", "claude-code", "claude-code-acp", "cline", "codex", "codex-acp", "copilot", "crush",
	"cursor-agent", "droid", "forge", "gemini", "gemini-cli", "goose", "gptme", "kilo", "kilocode", "kimi", "mini-swe-agent", "opencode",
	"opencode-ai", "openhands", "plandex", "qwen", "qwen-code", "vibe",
}

// starters are programs that start the package or program that is named behind them.
var starters = []string{"npx", "bunx", "pnpx", "uvx", "pipx", "env"}

// isCodingAgent reports whether a command is a coding agent that is known.
func isCodingAgent(argv []string) bool {
	for i, word := range argv {
		name, _, _ := strings.Cut(filepath.Base(word), "@")
		switch {
		case slices.Contains(codingAgents, name):
			return true
		case i == 0 && !slices.Contains(starters, name):
			return false
		case i > 0 && !strings.HasPrefix(word, "-") && word != "run" && word != "exec" && !strings.Contains(word, "="):
			return false
		}
	}
	return false
}
