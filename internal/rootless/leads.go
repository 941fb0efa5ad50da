package rootless

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/rootless/gitdir"
	"github.com/carrel-dev/carrel/internal/spec/hostfiles"
)

// lead holds, in a writable mount, what the host's git is led to: files of its configuration, programs that it names, and
// git directories; and names below the top that programs of the host act on. It returns the places, relative to the mount's top.
// What cannot be held is told to the person.
func (s *state) lead(t *tree, asked func() ([]gitdir.Lead, error)) (held []string, err error) {
	dir, top := t.dir, t.dir.Name()
	all := s.leadsOf(t, asked)
	var others map[id.Workspace]note
	if err := s.alone(func() (err error) { others, _, err = s.others(); return err }); err != nil {
		return nil, err
	}
	var missed []string
	for _, l := range all {
		for _, p := range places(l.Path, top) {
			if slices.Contains(held, p.rel) {
				continue // each setting of a file leads to that file
			}
			if len(held) >= sandbox.MaxHeld {
				missed = append(missed, fmt.Sprintf("%s (%s)", p.rel, l.By))
				continue
			}
			if p.absent {
				if l.Absent == gitdir.Nothing {
					continue
				}
				if err := s.place(dir, p.rel, l.Absent == gitdir.File && p.rel == p.whole); err != nil {
					return nil, err
				}
			}
			if err := s.share(dir, p.rel, others); err != nil {
				return nil, err
			}
			held = append(held, p.rel)
		}
	}
	if len(missed) > 0 {
		s.tell("%s: there are more places in it than can be held; %d are not, the first is %s", top, len(missed), missed[0])
	}
	return outermost(held), nil
}

// leadsOf are the leads of a writable mount.
func (s *state) leadsOf(t *tree, asked func() ([]gitdir.Lead, error)) []gitdir.Lead {
	top := t.dir.Name()
	leads, err := asked()
	if err != nil {
		s.tell("%s: cannot tell where the configuration of git leads, so nothing that it names is held: %v", top, err)
	}
	nested := gitdir.Followed(filepath.Join(top, sandbox.GitName))
	for _, p := range t.had {
		switch e, _ := hostfiles.Match(p, t.home); {
		case path.Base(p) == sandbox.GitName:
			nested = append(nested, gitdir.Followed(filepath.Join(top, p))...)
		case e.Act >= hostfiles.HeldPresent && strings.Contains(p, "/") && !hostfiles.Within(p): // others are held by their name
			nested = append(nested, gitdir.Lead{Path: filepath.Join(top, p), By: e.Reader})
		}
	}
	for _, name := range linkedNames(top) {
		nested = append(nested, gitdir.Lead{Path: filepath.Join(top, name), By: name})
	}
	return slices.Concat(leads, nested)
}

// outermost leaves out what lies in a directory that is held as a whole.
func outermost(held []string) (out []string) {
	slices.SortFunc(held, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
	for _, h := range held {
		if n := len(out); n == 0 || h != out[n-1] && !strings.HasPrefix(h, out[n-1]+"/") {
			out = append(out, h)
		}
	}
	return out
}

// askGit begins to ask the host's git where its configuration leads, and returns how to wait for the answer.
func askGit(top string, writable []string) func() ([]gitdir.Lead, error) {
	type answer struct {
		leads []gitdir.Lead
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		leads, err := gitdir.Leads(context.Background(), top, writable)
		answers <- answer{leads, err}
	}()
	return func() ([]gitdir.Lead, error) { a := <-answers; return a.leads, a.err }
}

func (s *state) tell(format string, a ...any) { s.notes = append(s.notes, fmt.Sprintf(format, a...)) }

// place is something to hold: rel is relative to the mount. Of an absent one it is the first part that is missing of whole.
type place struct {
	rel, whole string
	absent     bool
}

// maxLinks is how many links a path may have.
const maxLinks = 40

// places are what to hold in a mount so that a path leads where it does now: the place itself, and each link on the way that
// lies in the mount. What lies in .git at the top is held already.
func places(at, top string) (all []place) {
	done := "/"
	rest := strings.Split(strings.Trim(at, "/"), "/")
	for links := 0; len(rest) > 0; {
		next := filepath.Join(done, rest[0])
		rel, in := below(next, top)
		fi, err := os.Lstat(next)
		switch {
		case rest[0] == "" || rest[0] == ".":
		case errors.Is(err, fs.ErrNotExist) && in:
			whole, _ := below(filepath.Join(append([]string{next}, rest[1:]...)...), top)
			return keepable(append(all, place{rel, whole, true}))
		case err != nil:
			return keepable(all)
		case fi.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return keepable(all)
			}
			if in {
				all = append(all, place{rel, rel, false})
			}
			to, err := os.Readlink(next)
			if err != nil {
				return keepable(all)
			}
			if filepath.IsAbs(to) {
				done = "/"
			}
			rest = append(strings.Split(strings.Trim(to, "/"), "/"), rest[1:]...)
			continue
		}
		if rest[0] == ".." {
			next = filepath.Dir(done)
		}
		done, rest = next, rest[1:]
	}
	if rel, in := below(done, top); in {
		all = append(all, place{rel, rel, false})
	}
	return keepable(all)
}

// keepable leaves out what a mount of its own holds or hides: .git at the top with all in it.
func keepable(all []place) []place {
	return slices.DeleteFunc(all, func(p place) bool {
		first, _, _ := strings.Cut(p.rel, "/")
		return first == sandbox.GitName
	})
}

// below is a path relative to a directory that it lies in.
func below(at, dir string) (rel string, in bool) {
	rel, err := filepath.Rel(dir, at)
	return rel, err == nil && rel != "." && rel != ".." && !strings.HasPrefix(rel, "../")
}

// place makes an empty file or directory where there is nothing, and notes it before.
func (s *state) place(dir *os.File, rel string, file bool) error {
	parent, err := openBelow(dir, filepath.Dir(rel))
	if err != nil {
		return fmt.Errorf("cannot hold %s in %s: %w", rel, dir.Name(), err)
	}
	defer parent.Close()
	here, err := nameIn(parent, filepath.Base(rel))
	if err != nil {
		return err
	}
	here.File = file
	s.note.Placed = append(s.note.Placed, here)
	if err := s.alone(s.write); err != nil {
		return fmt.Errorf("cannot note what is held: %w", err)
	}
	err = withFD(parent, func(fd int) error {
		if !file {
			return unix.Mkdirat(fd, here.Name, 0o755)
		}
		made, err := unix.Openat(fd, here.Name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		if err == nil {
			err = unix.Close(made)
		}
		return err
	})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("cannot hold %s in %s, to which git is led: %w; mount it read-only (:ro)", rel, dir.Name(), err)
	}
	return nil
}

// share notes a place that another run made to hold it: it stays as long as either runs.
func (s *state) share(dir *os.File, rel string, others map[id.Workspace]note) error {
	if len(others) == 0 {
		return nil
	}
	parent, err := openBelow(dir, filepath.Dir(rel))
	if err != nil {
		return nil //nolint:nilerr // a link is on the way, and so it was not made by a run
	}
	defer parent.Close()
	here, err := nameIn(parent, filepath.Base(rel))
	if err != nil {
		return err
	}
	for _, file := range []bool{false, true} {
		here.File = file
		if !sharedName(others, "", here) || slices.Contains(s.note.Placed, here) {
			continue
		}
		s.note.Placed = append(s.note.Placed, here)
		if err := s.alone(s.write); err != nil {
			return fmt.Errorf("cannot note what is held: %w", err)
		}
	}
	return nil
}

// openBelow opens a directory below another without links. Its name is its path.
func openBelow(dir *os.File, rel string) (f *os.File, err error) {
	err = withFD(dir, func(fd int) error {
		got, err := unix.Openat2(fd, rel, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
		if err == nil {
			f = os.NewFile(uintptr(got), filepath.Join(dir.Name(), rel))
		}
		return err
	})
	return f, err
}

// apart refuses writable mounts of which one contains another: what is held by one path could be written by the other.
func apart(dirs []*os.File) error {
	var all [][]file
	for _, d := range dirs {
		var above []file
		if err := withFD(d, func(fd int) (err error) { above, err = ancestors(fd); return err }); err != nil {
			return fmt.Errorf("cannot mount %s: cannot tell where it lies: %w", d.Name(), err)
		}
		for i, other := range all {
			if slices.Contains(above, other[0]) || slices.Contains(other, above[0]) {
				return fmt.Errorf("cannot mount %s and %s writable: one contains the other, and what is read-only by one path would be "+
					"writable by the other; mount one of them read-only (:ro), or the outer one alone: %w",
					dirs[i].Name(), d.Name(), errdefs.ErrInvalidArgument)
			}
		}
		all = append(all, above)
	}
	return nil
}
