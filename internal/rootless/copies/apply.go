package copies

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/files/changed"
	"github.com/carrel-dev/carrel/internal/files/staged"
	"github.com/carrel-dev/carrel/internal/rootless/gitdir"
)

// Options say what Apply takes.
type Options struct {
	// Paths are what is applied, with all that is below them; none is all source, and what was committed. A file on which programs
	// of the host act is applied only if it is named itself, or a directory on which they act.
	Paths []string
	// Artefacts takes what git ignores too.
	Artefacts bool
}

// Result is what was applied.
type Result struct {
	staged.Result

	// Notes say what moved in git, and what a person has to know.
	Notes []string
}

// Apply makes changes of a copy in the directory: all that are chosen, or none.
func (c *Copy) Apply(ctx context.Context, o Options, reads changed.Reader) (r Result, err error) {
	if err := c.settled("apply"); err != nil {
		return r, err
	}
	return c.apply(ctx, o, reads, len(o.Paths) == 0)
}

// apply is Apply. commits says whether what was committed is taken over.
func (c *Copy) apply(ctx context.Context, o Options, reads changed.Reader, commits bool) (r Result, err error) {
	s, done, err := c.open(ctx)
	if err != nil {
		return r, err
	}
	defer done()
	r.Notes = c.Notes()
	seen, err := c.Look(ctx, reads)
	if err != nil {
		return r, err
	}
	if len(seen.Items) > 0 {
		choice := staged.Choice{All: len(o.Paths) == 0, Paths: o.Paths, But: but(seen.Items, o)}
		r.Result, err = staged.Apply(ctx, s, staged.Options{Choice: choice, Since: c.Began, Base: c.base(ctx)}, c.keep())
		if err != nil && r.ID == "" {
			return r, fmt.Errorf("%s: %w", c.Source, err)
		}
		taken := map[string]bool{}
		for _, i := range seen.Items {
			taken[i.Path] = i.Class == Repository
		}
		r.Refused = slices.DeleteFunc(r.Refused, func(f staged.Refusal) bool { return taken[f.Path] })
	}
	if commits {
		last, lerr := staged.Last(ctx, s.Lower, c.keep())
		if lerr != nil && !errdefs.IsNotFound(lerr) {
			return r, errors.Join(err, lerr)
		}
		err = errors.Join(err, c.take(ctx, s, seen, &r, last))
	}
	return r, err
}

func (c *Copy) keep() string { return filepath.Join(c.dir, keepName) }

// but says why a change that is chosen is not made.
func but(items []Item, o Options) func(path string) string {
	at := map[string]*Item{}
	for i := range items {
		at[items[i].Path] = &items[i]
	}
	// named reports whether a path, or a directory that it is in and that is of the class, is chosen by name.
	named := func(p string, of ...Class) bool {
		for ; p != "." && p != ""; p = parent(p) {
			if i := at[p]; slices.Contains(o.Paths, p) && (len(of) == 0 || i != nil && slices.Contains(of, i.Class)) {
				return true
			}
		}
		return false
	}
	return func(p string) string {
		switch i := at[p]; {
		case i == nil:
			return "it was changed while it was looked at"
		case i.Class == Repository:
			return byGit
		case i.Class == Acted && !named(p, Acted):
			return "programs of the host act on it (" + i.Reader + "); name it to have it applied"
		case i.Class == Artefact && !o.Artefacts && !named(p):
			return ignoredWhy
		}
		return ""
	}
}

// byGit is why what git takes over is not applied as a file.
const byGit = "it is Git's own"

// ignoredWhy is why an artefact is not applied.
const ignoredWhy = "git ignores it; --artefacts applies it too"

func parent(p string) string { return p[:max(strings.LastIndexByte(p, '/'), 0)] }

// base returns what files were when the run began, of those that were committed.
// What was committed since does not matter.
func (c *Copy) base(ctx context.Context) func(string) ([]byte, bool) {
	if c.Git == nil {
		return nil
	}
	n := *c.Git
	if n.At == "" {
		n.At = filepath.Join(c.dir, askName)
	}
	repo, err := gitdir.Reopen(n)
	if err != nil {
		return nil
	}
	return func(p string) ([]byte, bool) { return repo.Committed(ctx, p) }
}

// take takes over what the run committed, and notes that it belongs to what was applied last, id.
func (c *Copy) take(ctx context.Context, s staged.Copy, seen Seen, r *Result, id string) error {
	repo := c.repo()
	if repo == nil && (c.Git == nil || c.Git.At == "") {
		made, notes, err := c.assemble(ctx, s, seen)
		r.Notes = append(r.Notes, notes...)
		if err != nil {
			return fmt.Errorf("%s: cannot take over what was committed: %w", c.Source, err)
		}
		repo = made
	}
	if repo == nil {
		return nil
	}
	notes, err := repo.Take(ctx)
	r.Notes = append(r.Notes, notes...)
	if moved := repo.Moved(); len(moved) > 0 {
		if c.Moved == nil {
			c.Moved = map[string][]gitdir.Moved{}
		}
		c.Moved[id] = append(c.Moved[id], moved...)
	}
	if now := repo.Now(); now != nil && (c.Git == nil || c.Git.At == "") {
		// What it has now was taken: the next one begins with that.
		c.Fresh = c.Fresh || c.Git == nil
		c.Git = &gitdir.Note{Work: c.Source, Name: c.Run, Before: now}
	}
	return errors.Join(err, c.write())
}

// recover finishes or undoes what was cut off.
func (c *Copy) recover(ctx context.Context, lower *os.File) error {
	all, err := staged.Recover(ctx, lower, c.keep())
	for _, r := range all {
		note := fmt.Sprintf("%s: a change that was cut off is %s", c.Source, r.Outcome)
		if len(r.Left) > 0 {
			note += fmt.Sprintf("; %d files were changed by others, and stay; the first is %q", len(r.Left), r.Left[0].Path)
		}
		c.notes = append(c.notes, note)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", c.Source, err)
	}
	return err
}

// Notes says, once, what became of changes that were cut off, which any use of a copy finishes or takes back.
func (c *Copy) Notes() (notes []string) {
	notes, c.notes = c.notes, nil
	return notes
}

// Undo takes back what was applied last: the files, and the branches that it moved.
func (c *Copy) Undo(ctx context.Context) (r Result, err error) {
	if err := c.settled("undo what was applied of"); err != nil {
		return r, err
	}
	s, done, err := c.open(ctx)
	if err != nil {
		return r, err
	}
	defer done()
	r.Notes = c.Notes()
	was, err := staged.Last(ctx, s.Lower, c.keep())
	if c.Undoing != nil && (err == nil || errdefs.IsNotFound(err)) && was != *c.Undoing {
		// The files were taken back, and then it was cut off.
		return r, c.moveBack(ctx, *c.Undoing, &r)
	}
	moved, committed := c.Moved[was]
	if err != nil && (!errdefs.IsNotFound(err) || !committed) {
		return r, fmt.Errorf("%s: %w", c.Source, err)
	}
	// A branch that is elsewhere now ends it before a file is touched.
	if err := gitdir.MayMoveBack(ctx, c.Source, filepath.Join(c.dir, askName), moved); err != nil {
		return r, fmt.Errorf("%s: %w", c.Source, err)
	}
	if committed {
		c.Undoing = &was
		if err := c.write(); err != nil {
			return r, err
		}
	}
	if was != "" {
		notes := r.Notes
		r.Result, err = staged.Undo(ctx, s.Lower, c.keep())
		if r.Notes = notes; err != nil && r.ID == "" {
			c.Undoing = nil
			return r, errors.Join(fmt.Errorf("%s: %w", c.Source, err), c.write())
		}
	}
	if committed {
		err = errors.Join(err, c.moveBack(ctx, was, &r))
	}
	return r, err
}

// moveBack moves back the branches that an Apply moved.
func (c *Copy) moveBack(ctx context.Context, id string, r *Result) error {
	moved := c.Moved[id]
	if err := gitdir.MoveBack(ctx, c.Source, filepath.Join(c.dir, askName), moved); err != nil {
		return fmt.Errorf("%s: the files are as they were, and the branches are not: %w", c.Source, err)
	}
	for _, m := range moved {
		if c.Git != nil && c.Git.At == "" {
			c.Git.Before[m.Ref] = m.Before
		}
		r.Notes = append(r.Notes, fmt.Sprintf("%s: %s is back where it was; what was committed is still there, at %.9s", c.Source,
			strings.TrimPrefix(m.Ref, "refs/heads/"), m.Now))
	}
	delete(c.Moved, id)
	c.Undoing = nil
	return c.write()
}

// DiffOptions say what Diff shows.
type DiffOptions struct {
	// Paths are what is shown, with all that is below them; none is all but artefacts.
	Paths     []string
	Artefacts bool
	// Visible is staged.DiffOptions.Visible.
	Visible bool
}

// Diff writes the changes of a copy as git does, and behind them, in lines that begin with "# ", what is not shown.
func (c *Copy) Diff(ctx context.Context, w io.Writer, o DiffOptions, seen Seen) (staged.Stat, error) {
	s, done, err := c.open(ctx)
	if err != nil {
		return staged.Stat{}, err
	}
	defer done()
	var list []staged.Change
	hidden := map[string]int{}
	for _, i := range seen.Items {
		switch {
		case len(o.Paths) > 0 && !slices.ContainsFunc(o.Paths, func(p string) bool { return i.Path == p || strings.HasPrefix(i.Path, p+"/") }):
		case i.Class == Repository && len(o.Paths) == 0: // said as what was changed in git
		case i.Class == Artefact && !o.Artefacts && len(o.Paths) == 0:
			top, _, _ := strings.Cut(i.Path, "/")
			hidden[top]++
		default:
			list = append(list, i.Change)
		}
	}
	stat, err := staged.Diff(ctx, w, s, list, staged.DiffOptions{Visible: o.Visible})
	for _, top := range slices.Sorted(maps.Keys(hidden)) {
		if err == nil {
			_, err = fmt.Fprintf(w, "# %s: %d changes that git ignores; --artefacts shows them\n", staged.Quote(top), hidden[top])
		}
	}
	return stat, err
}
