package copies

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/changed"
	"github.com/carrel-dev/carrel/internal/files/staged"
	"github.com/carrel-dev/carrel/internal/rootless/gitdir"
)

// Class says what Apply does with a change.
type Class string

// Source is applied. Acted is a file on which programs of the host act, and Leads a link that leads out of the directory: they are
// applied if they are named. Artefact is what git ignores, and what is installed: it is applied with Options.Artefacts. Refused is
// never applied. Repository is what git takes over: refs and objects.
const (
	Source   Class = "source"
	Acted    Class = "acted"
	Leads    Class = "leads"
	Artefact Class = "artefact"
	Refused  Class = "refused"

	Repository Class = "git"
)

// Item is one change.
type Item struct {
	staged.Change

	Class Class
	// Reader and Trigger say for Acted which program acts on it, and when.
	Reader, Trigger string
}

// Seen are the changes of a copy.
type Seen struct {
	Items []Item
	// Refs are the branches, tags and the like that the run changed in its git directory.
	Refs []string
}

// Empty reports whether the run changed nothing.
func (s Seen) Empty() bool { return len(s.Items) == 0 && len(s.Refs) == 0 }

// Count returns how many changes are of a class.
func (s Seen) Count(of Class) (n int) {
	for _, i := range s.Items {
		if i.Class == of {
			n++
		}
	}
	return n
}

// Look lists the changes of a copy. reads says on which paths programs of the host act.
func (c *Copy) Look(ctx context.Context, reads changed.Reader) (seen Seen, err error) {
	s, done, err := c.open(ctx)
	if err != nil {
		return seen, err
	}
	defer done()
	list, err := staged.Changes(ctx, s)
	if err != nil {
		return seen, fmt.Errorf("cannot read the staged copy of %s: %w", c.Source, err)
	}
	ignored, err := c.ignored(ctx, s, list)
	if err != nil {
		return seen, fmt.Errorf("cannot tell what git ignores in %s: %w", c.Source, err)
	}
	// A copy with a git directory of its own beside it has nothing of git's in it.
	inside, fresh := c.Git == nil || c.Git.At == "", isFresh(list)
	for _, ch := range list {
		i := Item{Change: ch, Class: Source}
		reader, trigger, acted := reads(ch.Path)
		switch {
		case inside && (fresh || c.Git != nil) && c.inGit(ch, fresh || c.Fresh):
			i.Class = Repository
		case ch.Refused != "":
			i.Class = Refused
		case acted:
			i.Class, i.Reader, i.Trigger = Acted, reader, trigger
		case ignored(ch):
			i.Class = Artefact
		case ch.LeadsOut:
			i.Class = Leads
		}
		seen.Items = append(seen.Items, i)
	}
	switch repo := c.repo(); {
	case inside:
		seen.Refs = refsOf(list, fresh)
	case repo != nil:
		if seen.Refs, err = repo.Pending(); err != nil {
			return seen, fmt.Errorf("cannot read what was committed in the staged copy of %s: %w", c.Source, err)
		}
	}
	return seen, nil
}

// repo is the git directory that the run had and that was not taken yet, or nil.
func (c *Copy) repo() *gitdir.Repo {
	if c.Git == nil || c.Git.At == "" {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(c.GitDir(), "own")); err != nil {
		return nil
	}
	repo, err := gitdir.Reopen(*c.Git)
	if err != nil {
		return nil
	}
	return repo
}

// installed are directories that package clients and compilers fill, for projects that no repository says more of.
var installed = []string{
	"node_modules", ".venv", "venv", "__pycache__", ".tox", ".nox", ".mypy_cache", ".pytest_cache",
	".ruff_cache", ".gradle",
}

func isInstalled(p string) bool {
	for dir := p; dir != "."; dir = path.Dir(dir) {
		if slices.Contains(installed, path.Base(dir)) {
			return true
		}
	}
	return false
}

// ignored returns what git ignores: by the files .gitignore of the directory, or of the copy if it has others.
func (c *Copy) ignored(ctx context.Context, s staged.Copy, list []staged.Change) (func(staged.Change) bool, error) {
	var paths []string
	changes := false
	for _, ch := range list {
		changes = changes || path.Base(ch.Path) == gitdir.IgnoreFile
		if ch.Refused == "" {
			paths = append(paths, asked(ch))
		}
	}
	_, err := os.Lstat(filepath.Join(c.Source, ".git"))
	repository := err == nil
	lower, upper := patterns(s, paths)
	here, err := gitdir.Ignored(ctx, c.Source, filepath.Join(c.dir, askName), lower, paths)
	if err != nil {
		return nil, err
	}
	var there map[string]bool
	if changes {
		if there, err = gitdir.Ignored(ctx, c.Source, filepath.Join(c.dir, askName), upper, paths); err != nil {
			return nil, err
		}
	}
	return func(ch staged.Change) bool {
		p := asked(ch)
		return here[p] || there[p] || !repository && isInstalled(ch.Path)
	}, nil
}

// asked is a path as git is asked about it.
func asked(ch staged.Change) string {
	if ch.New.Type == staged.Dir || ch.New.Type == staged.Absent && ch.Old.Type == staged.Dir {
		return ch.Path + "/"
	}
	return ch.Path
}

// maxIgnore bounds a file .gitignore, and maxIgnores how many of them are read.
const (
	maxIgnore  = 256 << 10
	maxIgnores = 10_000
)

// patterns reads the files .gitignore of the directories on the way to paths: those of the directory, and those of the copy.
func patterns(s staged.Copy, paths []string) (lower, upper map[string][]byte) {
	lower, upper = map[string][]byte{}, map[string][]byte{}
	looked := map[string]bool{}
	for _, p := range paths {
		for dir := path.Dir(strings.TrimSuffix(p, "/")); ; dir = path.Dir(dir) {
			if dir == "." {
				dir = ""
			}
			if looked[dir] || len(looked) > maxIgnores {
				break
			}
			looked[dir] = true
			at := path.Join(dir, gitdir.IgnoreFile)
			text, ok := readBelow(s.Lower, at)
			if ok {
				lower[dir], upper[dir] = text, text
			}
			if text, ok := readBelow(s.Upper, at); ok {
				upper[dir] = text
			}
			if dir == "" {
				break
			}
		}
	}
	return lower, upper
}

// readBelow reads a small regular file below a directory, without links.
func readBelow(dir *os.File, rel string) (text []byte, ok bool) {
	f, err := openBelow(dir, rel)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, false
	}
	text, err = io.ReadAll(io.LimitReader(f, maxIgnore))
	return text, err == nil
}

// openBelow opens a file below a directory for reading, without links, and waits for no writer of a FIFO.
func openBelow(dir *os.File, rel string) (*os.File, error) {
	rc, err := dir.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	cerr := rc.Control(func(top uintptr) {
		fd, err = unix.Openat2(int(top), rel, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
	})
	if err := errors.Join(cerr, err); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), rel), nil
}
