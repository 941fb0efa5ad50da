package rootless

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
	"github.com/carrel-dev/carrel/internal/base/termtext"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/files/changed"
	"github.com/carrel-dev/carrel/internal/linux/removal"
	"github.com/carrel-dev/carrel/internal/linux/wholefile"
	"github.com/carrel-dev/carrel/internal/spec/hostfiles"
)

// tree is a writable mount of a run: what it had that programs of the host act on, and since when commands could write.
type tree struct {
	dir   *os.File
	home  bool
	had   []string // sorted
	since time.Time
	// unknown: what it had could not be found out in time, so that nothing is taken for new.
	unknown bool
}

// fileTime returns the earliest time that the kernel would give a file that is changed now. It advances by ticks.
func fileTime() (time.Time, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return time.Time{}, os.NewSyscallError("clock_gettime", err)
	}
	return time.Unix(now.Unix()), nil
}

// How long a tree is looked through before a run, and at its end.
const (
	lookTime = 5 * time.Second
	endTime  = 30 * time.Second
)

// remember looks at a writable mount before the run.
func (s *state) remember(dir *os.File, home bool) (*tree, error) {
	own, err := openDir(dir.Name())
	if err != nil {
		return nil, err
	}
	t := &tree{dir: own, home: home}
	s.trees = append(s.trees, t)
	if t.since, err = fileTime(); err != nil {
		return nil, err
	}
	s.note.Trees = append(s.note.Trees, own.Name())
	if s.note.Since.IsZero() {
		s.note.Since = t.since
	}
	if err := s.alone(s.write); err != nil {
		return nil, fmt.Errorf("cannot note the mounts of the run: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	found, err := changed.Walk(ctx, own, changed.Options{Skip: hostfiles.Passed, Match: t.listed})
	if errors.Is(err, context.DeadlineExceeded) {
		s.tell("%s: it is too large to be looked through in %v, so names below its top are not held, and new ones stay; mount a part of it",
			dir.Name(), lookTime)
		t.unknown = true
		return t, nil
	}
	t.had = found.Names
	if n := found.More + len(found.Unread); n > 0 {
		s.tell("%s: %d directories below it were not looked into for names that programs of the host act on", dir.Name(), n)
	}
	return t, err
}

// listed reports whether programs of the host act on a path.
func (t *tree) listed(p string) bool {
	_, ok := hostfiles.Match(p, t.home)
	return ok
}

// backNote is the file of what a run's end held back, beside it.
const backNote = "back.json"

// Back is what the end of a run held back: new files that programs of the host would act on, moved out of the project.
type Back struct {
	Run   id.Workspace `json:"run"`
	Moved []Moved      `json:"moved"`
}

// Moved is one file or directory. Path is relative to Source, and Reader acts on it when Trigger is done.
type Moved struct {
	Source  string `json:"source"`
	Path    string `json:"path"`
	Reader  string `json:"reader"`
	Trigger string `json:"trigger"`
}

// maxBack bounds how much is held back.
const maxBack = 1000

// look says what a run changed, and holds back what is new and acted on. Nothing of the run is alive any more.
func (s *state) look(name id.Workspace) error {
	var all error
	for _, t := range s.trees {
		all = errors.Join(all, s.lookAt(t, name), t.dir.Close())
	}
	s.trees = nil
	return all
}

func (s *state) lookAt(t *tree, name id.Workspace) error {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	found, err := changed.Walk(ctx, t.dir, changed.Options{
		Since: t.since, Match: t.listed, Skip: func(p string) bool { return p == sandbox.GitName },
	})
	if errors.Is(err, context.DeadlineExceeded) {
		s.tell("%s: it is too large to be looked through in %v, so what was changed is not said; see git status --ignored", t.dir.Name(), endTime)
		return nil
	}
	if err != nil {
		return err
	}
	busy, err := s.busy(t.dir.Name())
	if err != nil {
		return err
	}
	back := t.isNew(found.Names)
	if busy && len(back) > 0 {
		s.tell("%s: another run is at work in it, so new files that programs of the host act on stay", t.dir.Name())
		back = nil
	}
	if err := s.holdBack(t, name, back); err != nil {
		return err
	}
	rest := slices.DeleteFunc(found.Changed, func(e changed.Entry) bool {
		return slices.ContainsFunc(back, func(m Moved) bool { return e.Path == m.Path || strings.HasPrefix(e.Path, m.Path+"/") })
	})
	seen := Changes{t.dir.Name(), changed.Classify(rest, t.reads), found.More + len(found.Unread)}
	s.changes = append(s.changes, seen)
	for _, line := range seen.Text() {
		s.tell("%s: %s", t.dir.Name(), line)
	}
	return nil
}

// lookAfterKill says what was changed in a directory since a run began there that was killed. Nothing is moved aside: what is new may be
// the person's, who was there since.
func (s *state) lookAfterKill(dir string, name id.Workspace, since time.Time) {
	own, err := openDir(dir)
	if err != nil || since.IsZero() {
		return // it is gone, or the note is of an earlier version
	}
	defer own.Close()
	home, _ := os.UserHomeDir()
	t := &tree{dir: own, home: dir == home}
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	found, err := changed.Walk(ctx, own, changed.Options{Since: since, Skip: func(p string) bool { return p == sandbox.GitName }})
	if err != nil {
		s.tell("%s: %s was killed there, and what was changed since could not be looked at: %v", dir, name, err)
		return
	}
	for _, line := range changed.Text(changed.Classify(found.Changed, t.reads), termtext.Visible) {
		s.tell("%s: since %s, which was killed, began: %s", dir, name, line)
	}
}

// busy reports whether another run lives that can write a directory, or one that it lies in or has.
func (s *state) busy(dir string) (found bool, err error) {
	err = s.alone(func() error {
		all, dead, err := s.others()
		for name, n := range all {
			found = found || !slices.Contains(dead, name) && slices.ContainsFunc(n.Trees, func(other string) bool {
				return other == dir || strings.HasPrefix(other+"/", dir+"/") || strings.HasPrefix(dir+"/", other+"/")
			})
		}
		return err
	})
	return found, err
}

func (t *tree) reads(p string) (reader, trigger string, ok bool) {
	return hostfiles.Reads(p, t.home)
}

// isNew are the listed names that were not there before and are acted on without a question.
func (t *tree) isNew(names []string) (back []Moved) {
	if t.unknown {
		return nil
	}
	for _, p := range names {
		e, _ := hostfiles.Match(p, t.home)
		if _, had := slices.BinarySearch(t.had, p); !had && e.Aside() && !hostfiles.Within(p) {
			back = append(back, Moved{Source: t.dir.Name(), Path: p, Reader: e.Reader, Trigger: e.Trigger})
		}
	}
	return back
}

// holdBack moves names out of the project. What they are is noted before.
func (s *state) holdBack(t *tree, name id.Workspace, back []Moved) error {
	if len(back) == 0 {
		return nil
	}
	over := max(0, len(back)-maxBack)
	back = back[:len(back)-over]
	to := s.backDir(name)
	if err := os.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("cannot hold back what the host would run: %w", err)
	}
	kept, err := readBack(to)
	if err != nil {
		return err
	}
	kept.Run, kept.Moved = name, append(kept.Moved, back...)
	b, err := json.Marshal(kept)
	if err == nil {
		err = wholefile.Put(filepath.Join(to, backNote), b)
	}
	if err != nil {
		return fmt.Errorf("cannot note what is held back: %w", err)
	}
	var moved, left []string
	for _, m := range back {
		if err := moveOut(t.dir, m.Path, kept.at(to, m)); err != nil {
			left = append(left, fmt.Sprintf("%s (%v)", termtext.Visible(m.Path), err))
		} else {
			reader, _, _ := strings.Cut(m.Reader, ",")
			moved = append(moved, fmt.Sprintf("%s (%s)", termtext.Visible(m.Path), reader))
		}
	}
	if len(moved) > 0 {
		s.tell("%s: held back, as programs of the host act on it: %s; carrel changes shows it, and carrel changes --restore %s puts it there",
			t.dir.Name(), few(moved), name)
	}
	if len(left) > 0 || over > 0 {
		s.tell("%s: programs of the host act on %d files that could not be held back: %s", t.dir.Name(), len(left)+over, few(left))
	}
	return nil
}

// at is where something is kept, in the directory of its run: by its number in the note.
func (b Back) at(dir string, m Moved) string {
	return filepath.Join(dir, strconv.Itoa(slices.Index(b.Moved, m))+".kept")
}

func few(all []string) string {
	const most = 3
	if n := len(all) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), n)
	}
	return strings.Join(all, ", ")
}

func (s *state) backDir(name id.Workspace) string { return filepath.Join(s.dir, "back", string(name)) }

// moveOut moves a file or directory below an open directory to a path of the state, without following links. What cannot be renamed
// because that is another file system is copied if it is a file or a link.
func moveOut(dir *os.File, rel, to string) error {
	parent, err := openBelow(dir, filepath.Dir(rel))
	if err != nil {
		return err
	}
	defer parent.Close()
	name := filepath.Base(rel)
	return withFD(parent, func(fd int) error {
		err := unix.Renameat2(fd, name, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EXDEV) {
			return err
		}
		if err := copyAt(fd, name, to); err != nil {
			return err
		}
		return unix.Unlinkat(fd, name, 0)
	})
}

// copyAt copies a regular file or a link.
func copyAt(dir int, name, to string) error {
	var target [unix.PathMax]byte
	if n, err := unix.Readlinkat(dir, name, target[:]); err == nil {
		return os.Symlink(string(target[:n]), to)
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	from := os.NewFile(uintptr(fd), name)
	defer from.Close()
	fi, err := from.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return errors.Join(err, errors.New("it is no file, and lies on another file system"))
	}
	made, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fi.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = made.ReadFrom(from)
	return errors.Join(err, made.Sync(), made.Close())
}

func readBack(dir string) (b Back, err error) {
	text, err := os.ReadFile(filepath.Join(dir, backNote))
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	if err != nil {
		err = fmt.Errorf("cannot read what was held back: %w", err)
	}
	return b, err
}

// ListBack returns what runs of the caller have held back, and was neither restored nor discarded, the oldest run first.
func ListBack() ([]Back, error) {
	s, err := openState()
	if err != nil {
		return nil, err
	}
	dirs, err := os.ReadDir(filepath.Join(s.dir, "back"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read what was held back: %w", err)
	}
	var all []Back
	for _, d := range dirs {
		dir := filepath.Join(s.dir, "back", d.Name())
		b, err := readBack(dir)
		if err != nil {
			return nil, err
		}
		kept := b
		kept.Moved = slices.DeleteFunc(slices.Clone(b.Moved), func(m Moved) bool { _, err := os.Lstat(b.at(dir, m)); return err != nil })
		if len(kept.Moved) > 0 {
			all = append(all, kept)
		}
	}
	return all, nil
}

// Restore puts what a run held back where it was, or of that the named paths alone. What is there already stays, and is an error.
func Restore(run id.Workspace, paths []string) (restored []Moved, err error) {
	return takeBack(run, paths, func(from string, m Moved) error {
		dir, err := openDir(m.Source)
		if err != nil {
			return err
		}
		defer dir.Close()
		parent, err := openBelow(dir, filepath.Dir(m.Path))
		if err != nil {
			return err
		}
		defer parent.Close()
		return withFD(parent, func(fd int) error {
			err := unix.Renameat2(unix.AT_FDCWD, from, fd, filepath.Base(m.Path), unix.RENAME_NOREPLACE)
			if errors.Is(err, unix.EXDEV) {
				err = fmt.Errorf("it is kept on another file system, in %s; copy it", from)
			}
			return err
		})
	})
}

// Discard removes what a run held back, or of that the named paths alone.
func Discard(run id.Workspace, paths []string) ([]Moved, error) {
	return takeBack(run, paths, func(from string, _ Moved) error { return removal.Path(context.Background(), from) })
}

// takeBack does something with each thing that a run held back and that is named, and forgets the run when nothing is left.
func takeBack(run id.Workspace, paths []string, do func(from string, m Moved) error) (done []Moved, err error) {
	s, err := openState()
	if err != nil {
		return nil, err
	}
	dir := s.backDir(run)
	if !id.IsWorkspace(string(run)) {
		return nil, fmt.Errorf("cannot find the run %s: that is no name of one; carrel changes lists them: %w", run, errdefs.ErrNotFound)
	}
	b, err := readBack(dir)
	if err != nil {
		return nil, err
	}
	if len(b.Moved) == 0 {
		return nil, fmt.Errorf("cannot find what the run %s held back: there is nothing; carrel changes lists the runs: %w", run,
			errdefs.ErrNotFound)
	}
	for _, p := range paths {
		if !slices.ContainsFunc(b.Moved, func(m Moved) bool { return m.Path == p }) {
			return nil, fmt.Errorf("cannot find %s: the run %s held back nothing of that name: %w", p, run, errdefs.ErrNotFound)
		}
	}
	left := 0
	for _, m := range b.Moved {
		from := b.at(dir, m)
		_, gone := os.Lstat(from)
		switch {
		case gone != nil:
		case len(paths) > 0 && !slices.Contains(paths, m.Path):
			left++
		default:
			if derr := do(from, m); derr != nil {
				left++
				err = errors.Join(err, fmt.Errorf("cannot put %s into %s: %w", m.Path, m.Source, derr))
				continue
			}
			done = append(done, m)
		}
	}
	if left == 0 {
		err = errors.Join(err, removal.Path(context.Background(), dir))
	}
	return done, err
}
