// Package copies keeps the staged copies of a user's runs: for each directory that a run was given as one, what it wrote, since when,
// and the git directory that it had. A person looks at a copy, and applies it to the directory, takes that back, or discards it.
//
// The package must not mount anything or decide who may see a directory. What the files of a copy are is package staged's.
package copies

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/files/staged"
	"github.com/carrel-dev/carrel/internal/linux/removal"
	"github.com/carrel-dev/carrel/internal/linux/wholefile"
	"github.com/carrel-dev/carrel/internal/rootless/gitdir"
	"github.com/carrel-dev/carrel/internal/rootless/paths"
)

//	<store>/RUN/N/copy.json      the record; locked while the run lives
//	<store>/RUN/N/stage/upper    what the run wrote
//	<store>/RUN/N/stage/work     the kernel's
//	<store>/RUN/N/keep           what was applied, and what it replaced
//	<store>/RUN/N/git            the git directory that the run had

// Names in the directory of a copy.
const (
	recordName = "copy.json"
	stageName  = "stage"
	keepName   = "keep"
	gitName    = "git"
	askName    = "ask"
)

// Record is what is known of a copy.
type Record struct {
	Run id.Workspace `json:"run"`
	// Source is the directory, free of links, and Device and Inode what it was when the run began.
	Source string `json:"source"`
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	// Made is when the copy was made, and Began the time of the file system's clock before the command began: the directory's files
	// that are newer were changed by others.
	Made  time.Time `json:"made"`
	Began time.Time `json:"began,omitzero"`
	// Workspace is that of a daemon whose mount it is, "" for a run without one. Own says that the daemon is the user's own.
	Workspace string `json:"workspace,omitempty"`
	Own       bool   `json:"own,omitempty"`
	// Git is the git directory that the run had, nil if none.
	Git *gitdir.Note `json:"git,omitempty"`
	// Fresh: the directory was no repository, and Apply made one.
	Fresh bool `json:"fresh,omitempty"`
	// Moved are, for each Apply that can be undone, the branches that it moved.
	Moved map[string][]gitdir.Moved `json:"moved,omitempty"`
	// Undoing is the Apply of those whose branches are moved back with its files.
	Undoing *string `json:"undoing,omitempty"`
}

// Copy is one staged copy.
type Copy struct {
	Record

	dir string
	// lock is the open record of a copy whose run lives here.
	lock *os.File
	// notes say what became of changes that were cut off.
	notes []string
}

// Store is the directory of the copies.
type Store struct{ dir string }

// In returns the store below carrel's state.
func In(state string) Store { return Store{filepath.Join(state, "staged")} }

// Create makes the copy number n of a run, and locks it until Close. It is listed from Begin on.
func (s Store) Create(run id.Workspace, n int, source *os.File) (*Copy, error) {
	c, err := s.make(run, n, source)
	if err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		c.lock = lock
		err = paths.Flock(lock, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make a staged copy of %s: %w", c.Source, err)
	}
	return c, nil
}

// For returns the copy number n for the workspace of a daemon, and makes it if there is none. name is the copy's. Of one that is
// made, Began is now.
func (s Store) For(ctx context.Context, name id.Workspace, n int, source *os.File, own bool) (c *Copy, made bool, err error) {
	all, err := s.Of(name)
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, false, err
	}
	if i := slices.IndexFunc(all, func(c *Copy) bool { return filepath.Base(c.dir) == strconv.Itoa(n) }); i >= 0 {
		c, err := all[i].source()
		if err == nil {
			err = c.Close()
		}
		if err == nil && all[i].Source != source.Name() {
			err = fmt.Errorf("cannot make a staged copy of %s: the workspace has one of %s; apply or discard %s first: %w", source.Name(),
				all[i].Source, name, errdefs.ErrFailedPrecondition)
		}
		return all[i], false, err
	}
	if c, err = s.make(name, n, source); err != nil {
		return nil, false, err
	}
	c.Own = own
	if c.Git, err = gitdir.Remember(c.Source, name); err != nil {
		return nil, false, err
	}
	if c.Began, err = staged.Clock(ctx); err == nil {
		err = c.write()
	}
	return c, true, err
}

// Serve notes the workspace whose mount the copy is.
func (c *Copy) Serve(workspace string) error {
	c.Workspace = workspace
	return c.write()
}

// make makes the directories of a copy.
func (s Store) make(run id.Workspace, n int, source *os.File) (*Copy, error) {
	c := &Copy{dir: filepath.Join(s.dir, string(run), strconv.Itoa(n))}
	c.Run, c.Source, c.Made = run, source.Name(), time.Now().UTC()
	st, err := identity(source)
	if err != nil {
		return nil, fmt.Errorf("cannot make a staged copy of %s: %w", source.Name(), err)
	}
	c.Device, c.Inode = st.Dev, st.Ino
	stage := filepath.Join(c.dir, stageName)
	for _, d := range []string{stage, filepath.Join(stage, sandbox.StageUpper), filepath.Join(stage, sandbox.StageWork)} {
		err := os.MkdirAll(d, 0o700)
		if err == nil && os.Geteuid() == 0 {
			err = os.Lchown(d, int(st.Uid), int(st.Gid)) // commands are to be that user
		}
		if err != nil {
			return nil, fmt.Errorf("cannot make a staged copy of %s: %w", c.Source, err)
		}
	}
	if err := os.Mkdir(c.keep(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("cannot make a staged copy of %s: %w", c.Source, err)
	}
	// The top of the copy is shown with the mode of its upper directory.
	if err := os.Chmod(filepath.Join(stage, sandbox.StageUpper), os.FileMode(st.Mode&0o777)); err != nil {
		return nil, fmt.Errorf("cannot make a staged copy of %s: %w", c.Source, err)
	}
	return c, nil
}

func identity(f *os.File) (st unix.Stat_t, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return st, err
	}
	cerr := rc.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) })
	return st, errors.Join(cerr, err)
}

func (c *Copy) write() error {
	b, err := json.Marshal(c.Record)
	if err != nil {
		return err
	}
	return wholefile.Put(filepath.Join(c.dir, recordName), b)
}

// Stage opens the directory that the overlay writes to.
func (c *Copy) Stage() (*os.File, error) { return os.Open(c.StageDir()) }

// StageDir is the path of that.
func (c *Copy) StageDir() string { return filepath.Join(c.dir, stageName) }

// OpenStage opens the stage of one of the copies by its path.
func (s Store) OpenStage(path string) (*os.File, error) {
	rel, err := filepath.Rel(s.dir, path)
	parts := strings.Split(rel, "/")
	if err != nil || len(parts) != 3 || !id.IsWorkspace(parts[0]) || parts[2] != stageName || parts[1] == ".." {
		return nil, fmt.Errorf("cannot use %s for a staged copy: they are kept in %s: %w", path, s.dir, errdefs.ErrInvalidArgument)
	}
	return os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// GitDir is where the git directory of the run is made.
func (c *Copy) GitDir() string { return filepath.Join(c.dir, gitName) }

// Claim locks a copy for another run, which goes on with it.
func (c *Copy) Claim() error {
	if c.Workspace != "" {
		return fmt.Errorf("cannot go on with the staged copy of %s: it is that of the workspace %s; use carrel exec: %w", c.Source, c.Workspace,
			errdefs.ErrFailedPrecondition)
	}
	dir, err := c.source()
	if err != nil {
		return err
	}
	_ = dir.Close()
	lock, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("cannot go on with the staged copy of %s: %w", c.Source, err)
	}
	if err := paths.Flock(lock, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return c.settled("go on with")
	}
	c.lock = lock
	return nil
}

// Repo is the git directory that the run before had and that was not taken yet, nil if there is none.
func (c *Copy) Repo() *gitdir.Repo { return c.repo() }

// Begin notes what is known when the command begins.
func (c *Copy) Begin(since time.Time, repo *gitdir.Repo) error {
	if c.Began.IsZero() {
		c.Began = since
	}
	if repo != nil {
		n := repo.Note()
		c.Git = &n
	}
	// It need not outlive the host yet: Keep sees to that.
	b, err := json.Marshal(c.Record)
	at := filepath.Join(c.dir, recordName)
	if err == nil {
		err = os.WriteFile(at+".new", b, 0o600)
	}
	if err == nil {
		err = os.Rename(at+".new", at)
	}
	if err != nil {
		return fmt.Errorf("cannot note the staged copy of %s: %w", c.Source, err)
	}
	return nil
}

// Keep makes the copy outlive the host.
func (c *Copy) Keep() error {
	stage, err := c.Stage()
	if err != nil {
		return err
	}
	defer stage.Close()
	rc, err := stage.SyscallConn()
	if err != nil {
		return err
	}
	cerr := rc.Control(func(fd uintptr) { err = unix.Syncfs(int(fd)) })
	return errors.Join(cerr, err, c.write())
}

// Close says that the run has ended.
func (c *Copy) Close() error {
	if c.lock == nil {
		return nil
	}
	err := c.lock.Close()
	c.lock = nil
	return err
}

// Live reports whether the run of a copy still lives, in another process.
func (c *Copy) Live() bool {
	if c.lock != nil {
		return false
	}
	f, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return paths.Flock(f, unix.LOCK_SH|unix.LOCK_NB) != nil
}

// List returns all copies, the oldest first.
func (s Store) List() ([]*Copy, error) {
	runs, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the staged copies: %w", err)
	}
	var all []*Copy
	for _, r := range runs {
		if !id.IsWorkspace(r.Name()) {
			continue
		}
		list, err := s.Of(id.Workspace(r.Name()))
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, err
		}
		all = append(all, list...)
	}
	slices.SortStableFunc(all, func(a, b *Copy) int { return a.Made.Compare(b.Made) })
	return all, nil
}

// Of returns the copies of a run, in the order of its mounts.
func (s Store) Of(run id.Workspace) (all []*Copy, err error) {
	missing := fmt.Errorf("cannot find a staged copy of %s: there is none; carrel changes lists them: %w", run, errdefs.ErrNotFound)
	if !id.IsWorkspace(string(run)) {
		return nil, missing
	}
	list, err := os.ReadDir(filepath.Join(s.dir, string(run)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the staged copies of %s: %w", run, err)
	}
	for _, e := range list {
		c, err := load(filepath.Join(s.dir, string(run), e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was not made in full, or not removed in full
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read the staged copy in %s: %w", c.dir, err)
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, missing
	}
	return all, nil
}

// open opens both directories of a copy, and finishes or takes back what was cut off before.
func (c *Copy) open(ctx context.Context) (s staged.Copy, done func(), err error) {
	lower, err := c.source()
	if err != nil {
		return s, nil, err
	}
	upper, err := os.Open(filepath.Join(c.dir, stageName, sandbox.StageUpper))
	if err != nil {
		lower.Close()
		return s, nil, fmt.Errorf("cannot open the staged copy of %s: %w", c.Source, err)
	}
	s, done = staged.Copy{Lower: lower, Upper: upper, UserXattr: true}, func() { lower.Close(); upper.Close() }
	if err := c.recover(ctx, lower); err != nil {
		done()
		return s, nil, err
	}
	if s.Made, err = staged.Made(ctx, lower, c.keep()); err != nil {
		done()
		return s, nil, fmt.Errorf("cannot read what was applied of the staged copy of %s: %w", c.Source, err)
	}
	return s, done, nil
}

// source opens the directory, if it is the one that the run was given.
func (c *Copy) source() (*os.File, error) {
	f, err := os.OpenFile(c.Source, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s, of which %s has a staged copy: %w", c.Source, c.Run, err)
	}
	st, err := identity(f)
	if err == nil && (st.Dev != c.Device || st.Ino != c.Inode) {
		err = fmt.Errorf("cannot use %s: it is another directory than the one that %s has a staged copy of; put that back, or give the "+
			"copy up with carrel discard %s: %w", c.Source, c.Run, c.Run, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// settled refuses to touch what a run that lives is at.
func (c *Copy) settled(what string) error {
	if c.Live() {
		return fmt.Errorf("cannot %s the staged copy of %s: %s still runs; wait for its end: %w", what, c.Source, c.Run,
			errdefs.ErrFailedPrecondition)
	}
	return nil
}

// Discard removes a copy, and what would undo what was applied.
func (c *Copy) Discard(ctx context.Context) error {
	if err := c.settled("discard"); err != nil {
		return err
	}
	if lower, err := c.source(); err == nil { // what is cut off could not be taken back without what is kept here
		err := c.recover(ctx, lower)
		lower.Close()
		if err != nil {
			return err
		}
	}
	// Without the record it is no copy any more, whatever else is left.
	if err := os.Remove(filepath.Join(c.dir, recordName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot discard the staged copy of %s: %w", c.Source, err)
	}
	if err := removal.Path(ctx, c.dir); err != nil {
		return fmt.Errorf("cannot discard all of the staged copy of %s: %w", c.Source, err)
	}
	if err := os.Remove(filepath.Dir(c.dir)); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("cannot discard all of the staged copy of %s: %w", c.Source, err)
	}
	return nil
}

// Sweep removes what is left of copies that were not made or not removed in full, and finishes or takes back what was cut off while it
// was applied, of which notes say what became. No copy may be made meanwhile.
func (s Store) Sweep(ctx context.Context) (notes []string, all error) {
	runs, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil //nolint:nilerr // there are none
	}
	for _, r := range runs {
		list, err := os.ReadDir(filepath.Join(s.dir, r.Name()))
		if err != nil {
			continue
		}
		left := 0
		for _, e := range list {
			c := &Copy{dir: filepath.Join(s.dir, r.Name(), e.Name())}
			if _, err := os.Lstat(filepath.Join(c.dir, recordName)); err == nil || c.Live() {
				left++
				notes = append(notes, mend(ctx, c.dir)...)
				continue
			}
			all = errors.Join(all, removal.Path(ctx, c.dir))
		}
		if left == 0 {
			_ = os.Remove(filepath.Join(s.dir, r.Name())) // it is empty, or one is just made in it
		}
	}
	return notes, all
}

// load reads the record of the copy in dir.
func load(dir string) (*Copy, error) {
	c := &Copy{dir: dir}
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if err == nil {
		err = json.Unmarshal(b, &c.Record)
	}
	return c, err
}

// mend finishes or takes back what was cut off in the copy in dir. Where that cannot be, whoever uses the copy next is told why.
func mend(ctx context.Context, dir string) (notes []string) {
	if !staged.CutOff(filepath.Join(dir, keepName)) {
		return nil
	}
	c, err := load(dir)
	var lower *os.File
	if err == nil {
		lower, err = c.source()
	}
	if err == nil {
		err = c.recover(ctx, lower)
		lower.Close()
	}
	if err != nil {
		return []string{fmt.Sprintf("what was applied to a directory was cut off, and cannot be finished or taken back: %v", err)}
	}
	return c.Notes()
}
