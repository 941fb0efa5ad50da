// Package gitdir lets git commit in a mounted repository of the host without write access to its .git: the
// workspace gets a git directory of its own, which reads the host's objects, and when nothing of the
// workspace runs any more the host's git fetches what was committed. docs/decisions/0012-git-in-a-mount.md
// says why.
//
// It must not let git read a configuration, an index, a hook or a link that the workspace wrote.
package gitdir

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/linux/removal"
)

//	<state>/git/NAME-0/own   the workspace's, shown as .git
//	<state>/git/NAME-0/in    a repository made here, with the objects of own
//	<state>/git/NAME-0/put   a repository made here, whose refs are the host's
//
// In own:
//
//	HEAD, index, refs, logs, config, …   copies
//	objects                              empty; objects/info/alternates leads to host/objects
//	hooks, modules, …                    links to host/hooks, host/modules, …
//	host                                 where the host's .git is mounted, read-only

// Host is the name in Own of the place for the host's .git.
const Host = "host"

// Repo is the git directory of a workspace for one repository of the host.
type Repo struct {
	// Work is the repository's directory on the host, without symbolic links.
	Work string
	// name is of the workspace, and at the directory with both repositories.
	name id.Workspace
	at   string
	// program is the host's git.
	program string
	// before are the refs that the workspace began with.
	before refs
	// held are the paths that git could not write inside.
	held []string
	// acted are the files in what moved on which programs of the host act.
	acted []string
	// moved are the branches that Take moved, and now what it found.
	moved []Moved
	now   refs
}

// Own is the directory to show as .git.
func (r *Repo) Own() string { return filepath.Join(r.at, "own") }

// HostGit is the host's git directory, to be shown read-only at Host in Own.
func (r *Repo) HostGit() string { return filepath.Join(r.Work, ".git") }

// Copied are directories of a git directory that are small and that git writes; others are linked.
var copied = []string{"info", "logs", "refs"}

// unsupported are entries of a git directory with which it stays read-only: a rebase that the host has
// begun, a directory that is not the whole repository, a lock of somebody who writes.
var unsupported = []string{"rebase-merge", "rebase-apply", "commondir", "config.worktree"}

// Prepare makes a git directory at a place that does not exist yet, of which begin is told before. It returns
// nil if work is no repository that can have one: then its .git stays read-only. writable are the directories of the host that
// commands can write, work among them.
func Prepare(work, at string, name id.Workspace, writable []string, begin func() error) (r *Repo, err error) {
	r = &Repo{Work: work, name: name, at: at}
	if r.program, err = program(writable); err != nil {
		return nil, nil //nolint:nilerr // without git on the host nobody commits in it
	}
	if st, err := os.Lstat(r.HostGit()); err != nil || !st.IsDir() {
		return nil, nil //nolint:nilerr // no repository, or another's worktree
	}
	host, err := os.OpenRoot(r.HostGit())
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", r.HostGit(), err)
	}
	defer host.Close()
	if !supported(host) {
		return nil, nil
	}
	if err := begin(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("cannot make a git directory for %s: %w", work, err), removal.Path(context.Background(), at))
		}
	}()
	for _, dir := range []string{"objects/info", "objects/pack", Host} {
		if err := os.MkdirAll(filepath.Join(r.Own(), dir), 0o700); err != nil {
			return nil, err
		}
	}
	own, err := os.OpenRoot(r.Own())
	if err != nil {
		return nil, err
	}
	defer own.Close()
	if err := own.WriteFile("objects/info/alternates", []byte("../"+Host+"/objects\n"), 0o600); err != nil {
		return nil, err
	}
	if err := fill(own, host); err != nil {
		return nil, err
	}
	r.before, _, err = readRefs(own)
	return r, err
}

// supported reports whether host is a git directory that this package knows in full.
func supported(host *os.Root) bool {
	for _, name := range []string{"objects", "refs"} {
		if st, err := host.Lstat(name); err != nil || !st.IsDir() {
			return false
		}
	}
	for _, name := range unsupported {
		if _, err := host.Lstat(name); err == nil {
			return false
		}
	}
	config, err := host.ReadFile("config")
	// Extensions change where refs and objects are, or that all of them are there.
	return err == nil && !bytes.Contains(bytes.ToLower(config), []byte("[extensions"))
}

// fill copies what git writes, and links the rest.
func fill(own, host *os.Root) error {
	list, err := fs.ReadDir(host.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range list {
		switch name := e.Name(); {
		case name == "objects" || name == Host || strings.HasSuffix(name, ".lock"):
		case e.Type().IsRegular():
			err = copyFile(own, host, name)
		case e.IsDir() && slices.Contains(copied, name):
			err = copyTree(own, host, name)
		case e.IsDir():
			err = own.Symlink(Host+"/"+name, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func copyTree(own, host *os.Root, dir string) error {
	return fs.WalkDir(host.FS(), dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			return own.Mkdir(path, 0o700)
		case e.Type().IsRegular() && !strings.HasSuffix(path, ".lock"):
			return copyFile(own, host, path)
		}
		return nil
	})
}

func copyFile(own, host *os.Root, path string) error {
	from, err := host.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the host's git has just removed it
	}
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := own.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// refs are the objects that names point at. Under "HEAD" is the file's line: "ref: NAME" or an object.
type refs map[string]string

// Bounds of what a workspace can leave.
const (
	maxRefs       = 1 << 16
	maxRefBytes   = 4 << 10
	maxPackedRefs = 32 << 20
	maxDepth      = 16
	// batch is how many names of a directory are held at once.
	batch = 256
)

// compiled is an expression that is compiled when it is first used: this package is linked into programs that start often.
func compiled(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

var (
	object = compiled(`^[0-9a-f]{40}$`)
	// taken are names that shells, prompts and git's own commands take for nothing else; git has further
	// rules, and checks them.
	taken = compiled(`^refs/(stash|(heads|tags|notes)(/[\pL\pN_+@=#,][\pL\pN._+@=#,-]*)+)$`)
	kept  = compiled(`^refs/(heads|tags|notes|stash)(/|$)`)
)

// readRefs reads the refs of a git directory that anybody may have written, and lists those whose names
// are not taken.
func readRefs(own *os.Root) (all refs, odd []string, err error) {
	all = refs{}
	put := func(name, value string) {
		switch {
		case !object().MatchString(value) || !kept().MatchString(name):
		case !taken().MatchString(name) || strings.HasSuffix(name, ".lock"):
			odd = append(odd, name)
		default:
			all[name] = value
		}
	}
	packed, err := readFile(own, "packed-refs", maxPackedRefs)
	if err != nil {
		return nil, nil, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(packed)); lines.Scan(); {
		value, name, _ := strings.Cut(lines.Text(), " ")
		put(name, value)
	}
	n := 0
	err = each(own, "refs", maxDepth, func(path string) error {
		if n++; n > maxRefs || len(all) > maxRefs {
			return fmt.Errorf("it has more than %d refs", maxRefs)
		}
		b, err := readFile(own, path, maxRefBytes)
		put(path, strings.TrimSuffix(string(b), "\n"))
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	head, err := readFile(own, "HEAD", maxRefBytes)
	line := strings.TrimSuffix(string(head), "\n")
	if name, symbolic := strings.CutPrefix(line, "ref: "); symbolic && taken().MatchString(name) || object().MatchString(line) {
		all["HEAD"] = line
	}
	return all, odd, err
}

// each calls f with the path of each regular file in dir, a real directory, and in those below it down to
// depth. It enters no link and holds few names at a time.
func each(root *os.Root, dir string, depth int, f func(path string) error) error {
	if st, err := root.Lstat(dir); err != nil || !st.IsDir() || depth == 0 {
		return nil //nolint:nilerr // nothing is to be found there
	}
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		list, err := d.ReadDir(batch)
		for _, e := range list {
			path := dir + "/" + e.Name()
			switch {
			case e.IsDir():
				err = each(root, path, depth-1, f)
			case e.Type().IsRegular():
				err = f(path)
			}
			if err != nil {
				return err
			}
		}
		if len(list) == 0 || err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}
	}
}

// readFile reads a regular file, and nothing if there is none.
func readFile(own *os.Root, path string, most int64) ([]byte, error) {
	st, err := own.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !st.Mode().IsRegular() {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f, err := own.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s is longer than %d bytes", path, most)
	}
	return b, err
}
