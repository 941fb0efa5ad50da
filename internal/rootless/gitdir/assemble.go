package gitdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/linux/removal"
)

// state are the files of a git directory that Assemble reads: what there is of refs, and where HEAD was.
var state = compiled(`^(HEAD|packed-refs|shallow|logs/HEAD|refs/.+)$`)

// IsState reports whether a path in a git directory is of refs or objects, which Take takes over. Everything else there says how git
// behaves.
func IsState(rel string) bool {
	return state().MatchString(rel) || strings.HasPrefix(rel, "objects/") || rel == "objects" || rel == "refs" || rel == "logs" ||
		rel == "index" || rel == "COMMIT_EDITMSG" || rel == "ORIG_HEAD" || rel == "FETCH_HEAD" || strings.HasPrefix(rel, "logs/")
}

// Remember notes the refs of a repository for Assemble, before a workspace has a copy of it. It is nil where there is none that is known
// in full.
func Remember(work string, name id.Workspace) (*Note, error) {
	host, err := os.OpenRoot(filepath.Join(work, ".git"))
	if err != nil {
		return nil, nil //nolint:nilerr // no repository, or another's work tree
	}
	defer host.Close()
	if !supported(host) {
		return nil, nil
	}
	before, _, err := readRefs(host)
	if err != nil {
		return nil, fmt.Errorf("cannot read the branches of %s: %w", work, err)
	}
	return &Note{Work: work, Name: name, Before: before}, nil
}

// Changed is what a workspace did to a path in the git directory of its copy. Open opens what it is now, nil if it is gone.
type Changed struct {
	Rel  string
	Open func() (*os.File, error)
}

// Assemble makes the git directory at, of a workspace that had a copy of the host's, from what it changed there. If the
// host has no repository, one is made, with the branch that the workspace was on and no configuration of the workspace's.
func Assemble(ctx context.Context, n Note, at string, list []Changed) (r *Repo, notes []string, err error) {
	n.At = at
	if r, err = Reopen(n); err != nil {
		return nil, nil, err
	}
	if err := removal.Path(ctx, at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	if err := os.MkdirAll(filepath.Join(r.Own(), "objects/pack"), 0o700); err != nil {
		return nil, nil, err
	}
	own, err := os.OpenRoot(r.Own())
	if err != nil {
		return nil, nil, err
	}
	defer own.Close()
	if n.Before != nil {
		if err := r.copyState(own); err != nil {
			return nil, nil, err
		}
	}
	for _, c := range list {
		if err := follow(own, c); err != nil {
			return nil, nil, fmt.Errorf("cannot read .git/%s of the copy: %w", c.Rel, err)
		}
	}
	if n.Before == nil {
		if notes, err = r.begin(ctx, own); err != nil {
			return nil, nil, err
		}
	}
	return r, notes, nil
}

// copyState copies the host's refs.
func (r *Repo) copyState(own *os.Root) error {
	host, err := os.OpenRoot(r.HostGit())
	if err != nil {
		return err
	}
	defer host.Close()
	for _, name := range []string{"HEAD", "packed-refs"} {
		if err := copyFile(own, host, name); err != nil {
			return err
		}
	}
	return copyTree(own, host, "refs")
}

// follow does to own what was done to the copy.
func follow(own *os.Root, c Changed) error {
	if !state().MatchString(c.Rel) && !loose().MatchString("own/"+c.Rel) && !pack().MatchString("own/"+c.Rel) {
		return nil
	}
	if err := own.RemoveAll(c.Rel); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if c.Open == nil {
		return nil
	}
	from, err := c.Open()
	if err != nil {
		return err
	}
	defer from.Close()
	if st, err := from.Stat(); err != nil || !st.Mode().IsRegular() {
		return err // a directory, or what no ref and no object is
	}
	if err := own.MkdirAll(path.Dir(c.Rel), 0o700); err != nil {
		return err
	}
	to, err := own.OpenFile(c.Rel, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = to.ReadFrom(from)
	return errors.Join(err, to.Close())
}

// shallowLines are what a file "shallow" has.
var shallowLines = compiled(`^([0-9a-f]{40}\n)+$`)

// begin makes a repository for the host, on the branch that own is on.
func (r *Repo) begin(ctx context.Context, own *os.Root) (notes []string, err error) {
	now, _, err := readRefs(own)
	if err != nil {
		return nil, err
	}
	branch, symbolic := strings.CutPrefix(now["HEAD"], "ref: refs/heads/")
	if !symbolic {
		branch = "main"
	}
	c := exec.CommandContext(ctx, r.program, "init", "--quiet", "--template=", "--initial-branch="+branch, "--", r.Work)
	c.Dir, c.Env = "/", plain
	var said bytes.Buffer
	c.Stderr = &said
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("git init: %.300s: %w", strings.TrimSpace(said.String()), err)
	}
	if err := os.Mkdir(filepath.Join(r.HostGit(), "logs"), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	text, err := readFile(own, "shallow", maxPackedRefs)
	if err == nil && shallowLines().Match(text) {
		err = os.WriteFile(filepath.Join(r.HostGit(), "shallow"), text, 0o600)
	}
	r.before = refs{"HEAD": "ref: refs/heads/" + branch}
	return []string{r.Work + ": a repository was made here, with a configuration of its own"}, err
}

// plainURL is an address that is no program's words and that a person can paste.
var plainURL = compiled(`^((https|http|ssh|git)://)?[A-Za-z0-9][A-Za-z0-9._@-]*(:[0-9]+)?[:/][A-Za-z0-9._~+-][A-Za-z0-9._~/+-]*$`)

// remote is a section of a configuration.
var remote = compiled(`(?m)^\[remote "([A-Za-z0-9][A-Za-z0-9._-]*)"\]\s*$(?:\n[ \t]+.*)*?\n[ \t]+url[ \t]*=[ \t]*(\S+)[ \t]*$`)

// Remotes names the remotes in the text of a configuration, as the words with which a person takes them over.
func Remotes(text []byte) (words []string) {
	for _, m := range remote().FindAllSubmatch(text, 8) {
		if plainURL().Match(m[2]) {
			words = append(words, fmt.Sprintf("git remote add %s %s", m[1], m[2]))
		}
	}
	return words
}
