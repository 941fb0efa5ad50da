package rootless

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/files/changed"
	"github.com/carrel-dev/carrel/internal/files/staged"
	"github.com/carrel-dev/carrel/internal/rootless/copies"
	"github.com/carrel-dev/carrel/internal/rootless/gitdir"
	"github.com/carrel-dev/carrel/internal/spec/hostfiles"
)

// stagedCopy is a staged mount of a run that lives.
type stagedCopy struct {
	*copies.Copy

	repo *gitdir.Repo
	// goesOn: an earlier run made it.
	goesOn bool
}

// Staged is a staged copy, with what is in it.
type Staged struct {
	*copies.Copy

	Seen copies.Seen
}

// stage makes the last of projects a staged copy. Nothing in it is held, as nothing that is written reaches the directory.
func (s *state) stage(projects []launch.Project, name id.Workspace, writable []string) ([]launch.Project, error) {
	p := &projects[len(projects)-1]
	made, err := s.copyOf(p.Dir, name)
	if err != nil {
		return projects, err
	}
	c := made.Copy
	s.copies = append(s.copies, made)
	p.Staged = true
	if p.Stage, err = c.Stage(); err != nil {
		return projects, fmt.Errorf("cannot open the staged copy of %s: %w", c.Source, err)
	}
	if made.repo = c.Repo(); made.repo != nil {
		return showGit(projects, made.repo)
	}
	made.repo, err = gitdir.Prepare(c.Source, c.GitDir(), name, writable, func() error { return nil })
	if made.repo == nil || err != nil {
		return projects, err
	}
	return showGit(projects, made.repo)
}

// copyOf makes a staged copy of a directory, or takes up that of the run that this one goes on with.
func (s *state) copyOf(dir *os.File, name id.Workspace) (*stagedCopy, error) {
	if s.goesOn == "" {
		var c *copies.Copy
		err := s.alone(func() (err error) { // another run's sweep would take one that is half made for one that was left
			c, err = copies.In(s.dir).Create(name, len(s.copies), dir)
			return err
		})
		return &stagedCopy{Copy: c}, err
	}
	all, err := copies.In(s.dir).Of(s.goesOn)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(c *copies.Copy) bool { return c.Source == dir.Name() })
	if i < 0 {
		return nil, fmt.Errorf("cannot go on with %s in %s: it has a staged copy of %s: %w", s.goesOn, dir.Name(), all[0].Source,
			errdefs.ErrInvalidArgument)
	}
	return &stagedCopy{Copy: all[i], goesOn: true}, all[i].Claim()
}

// clock begins to read the clock of file systems for the staged copies, while the workspace is started. What it returns waits for
// that, and notes it: before the command begins.
func (s *state) clock(ctx context.Context) (begun func() error) {
	if len(s.copies) == 0 {
		return func() error { return nil }
	}
	type answer struct {
		at  time.Time
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		at, err := staged.Clock(ctx)
		answers <- answer{at, err}
	}()
	return func() error {
		a := <-answers
		for _, c := range s.copies {
			a.err = errors.Join(a.err, c.Begin(a.at, c.repo))
		}
		return a.err
	}
}

// keepCopies closes the staged copies, once nothing of the workspace runs. One in which nothing was changed is removed.
func (s *state) keepCopies(ctx context.Context) error {
	var all error
	for _, c := range s.copies {
		all = errors.Join(all, s.keepCopy(ctx, c))
	}
	s.copies = nil
	return all
}

func (s *state) keepCopy(ctx context.Context, c *stagedCopy) error {
	if c.Began.IsZero() && !c.goesOn { // no command was begun
		return errors.Join(c.Close(), c.Discard(ctx))
	}
	seen, err := c.Look(ctx, HostReads(c.Source))
	err = errors.Join(err, c.Close())
	if err == nil && seen.Empty() && !c.goesOn {
		return c.Discard(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w; the staged copy is kept: carrel changes lists it", err)
	}
	s.kept = append(s.kept, Staged{c.Copy, seen})
	return c.Keep()
}

// StagedCopies returns the staged copies of a run or of the workspace of a daemon, all if run is "".
func StagedCopies(run id.Workspace) ([]*copies.Copy, error) {
	s, err := openState()
	if err != nil {
		return nil, err
	}
	store := copies.In(s.dir)
	if run == "" {
		return store.List()
	}
	list, err := store.Of(run)
	if !errdefs.IsNotFound(err) {
		return list, err
	}
	all, lerr := store.List()
	if lerr != nil {
		return nil, lerr
	}
	list = slices.DeleteFunc(all, func(c *copies.Copy) bool { return c.Workspace != string(run) })
	if len(list) > 0 {
		err = nil
	}
	return list, err
}

// StageFor returns the staged copy of a directory for a mount of a daemon's workspace, the number n of its mounts, and makes it if there
// is none.
func StageFor(ctx context.Context, name id.Workspace, n int, source string, own bool) (c *copies.Copy, made bool, err error) {
	s, err := openState()
	if err != nil {
		return nil, false, err
	}
	real, err := Source(source)
	if err != nil {
		return nil, false, err
	}
	dir, err := openDir(real)
	if err != nil {
		return nil, false, fmt.Errorf("cannot mount %s: %w", source, err)
	}
	defer dir.Close()
	err = s.alone(func() (err error) {
		c, made, err = copies.In(s.dir).For(ctx, name, n, dir, own)
		return err
	})
	return c, made, err
}

// HostReads says on which paths of a directory programs of the host act: by their names, and because the host's git is led there.
func HostReads(source string) changed.Reader {
	home, _ := os.UserHomeDir()
	isHome := home == source
	led := sync.OnceValue(func() map[string]string { return ledTo(source) }) // most copies have nothing to ask about
	return func(p string) (reader, trigger string, ok bool) {
		if e, ok := hostfiles.Match(p, isHome); ok && e.Act > hostfiles.Report && !hostfiles.Within(p) {
			return e.Reader, e.Trigger, true
		}
		at := led()
		for dir := p; dir != "."; dir = filepath.Dir(dir) {
			if by, ok := at[dir]; ok {
				return by, "any command of it", true
			}
		}
		for led, by := range at {
			if strings.HasPrefix(led, p+"/") {
				return by, "any command of it", true
			}
		}
		return "", "", false
	}
}

// ledTo are the places in a directory to which the host's git is led, and those that protected names lead to, each with what leads there.
func ledTo(source string) map[string]string {
	leads, err := gitdir.Leads(context.Background(), source, []string{source})
	if err != nil {
		leads = nil // a configuration that git cannot read leads nowhere
	}
	at := map[string]string{}
	for _, l := range leads {
		for _, p := range places(l.Path, source) {
			at[p.rel] = "git by " + l.By
		}
	}
	for _, name := range linkedNames(source) {
		for _, p := range places(filepath.Join(source, name), source) {
			at[p.rel] = "what reads " + name
		}
	}
	return at
}

// linkedNames are the names at the top of a directory that are protected and that are links: what they lead to is read by the same
// programs.
func linkedNames(top string) (names []string) {
	for _, p := range hostfiles.Protected() {
		if fi, err := os.Lstat(filepath.Join(top, p.Name)); err == nil && fi.Mode()&fs.ModeSymlink != 0 {
			names = append(names, p.Name)
		}
	}
	return names
}
