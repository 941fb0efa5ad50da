package gitdir

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/linux/removal"
)

// patience bounds each call of git: a workspace chooses how much there is to fetch.
const patience = 5 * time.Minute

// settings are those of each call. What is fetched is checked as from any stranger, and no program of the
// repository's own is asked.
var settings = []string{
	"core.hooksPath=/dev/null", "core.fsmonitor=false", "gc.auto=0", "maintenance.auto=false", "fetch.fsckObjects=true",
	"fetch.recurseSubmodules=false", "fetch.writeCommitGraph=false", "log.showSignature=false", "protocol.file.allow=always",
}

// run runs the host's git on the host's repository, and returns its output.
func (r *Repo) run(ctx context.Context, stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	all := []string{"--git-dir=" + r.HostGit(), "--work-tree=" + r.Work, "--no-pager"}
	for _, s := range settings {
		all = append(all, "-c", s)
	}
	c := exec.CommandContext(ctx, r.git, append(all, args...)...)
	c.Dir, c.Stdin = "/", strings.NewReader(stdin)
	c.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GIT_") })
	c.Env = append(c.Env, "GIT_TERMINAL_PROMPT=0", "LC_ALL=C")
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		err = fmt.Errorf("git %s: %.500s: %w", args[0], strings.TrimSpace(said.String()), err)
	}
	return string(out), err
}

// Take has the host fetch what the workspace committed, and moves its branches as the workspace did.
// Nothing of the workspace may run any more. It says what a person has to know; the git directory is
// removed, unless something in it could not be taken.
func (r *Repo) Take(ctx context.Context) (notes []string, err error) {
	root, err := os.OpenRoot(r.at)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	own, err := root.OpenRoot("own")
	if err != nil {
		return nil, err
	}
	defer own.Close()
	now, odd, err := readRefs(own)
	if err != nil {
		return nil, r.failed(err)
	}
	note := func(format string, a ...any) {
		notes = append(notes, r.Work+": "+fmt.Sprintf(format, a...))
	}
	if now["HEAD"] == "" {
		note("nothing was taken over, because what was .git inside is no repository any more")
		return notes, removal.Path(ctx, r.at)
	}
	if gone := r.removed(now); len(gone) > 0 {
		note("%d branches or tags that were removed inside stay here, the first is %s", len(gone), gone[0])
	}
	if len(odd) > 0 {
		note("%d branches or tags were not taken over, as a name may have letters, digits and . _ + @ = # , - only; the first is %.100q",
			len(odd), odd[0])
	}
	c := r.changes(now)
	if len(c) == 0 && now["HEAD"] == r.before["HEAD"] {
		return notes, removal.Path(ctx, r.at)
	}
	if err := r.fetch(ctx, root, c, now); err != nil {
		return notes, r.failed(err)
	}
	why, err := r.move(ctx, c)
	if err != nil {
		return notes, r.failed(err)
	}
	if why != "" {
		note("its branches stay where they were, because %s; what was committed is below %s: see git log --all", why, r.under())
		return notes, removal.Path(ctx, r.at)
	}
	if !r.underWay() && slices.ContainsFunc(unfinished, func(name string) bool { _, err := own.Lstat(name); return err == nil }) {
		note("a merge or rebase was not finished inside; here none is under way, and the files are as it left them")
		now["HEAD"] = r.before["HEAD"]
	}
	if why, err = r.moveHead(ctx, now); err != nil {
		return notes, r.failed(err)
	}
	if why != "" {
		note("HEAD and the index stay as they are, because %s", why)
	}
	return notes, removal.Path(ctx, r.at)
}

// Rescue fetches what a workspace committed that was killed, and moves nothing. work, at and name are those
// of its Prepare.
func Rescue(ctx context.Context, work, at string, name id.Workspace) (note string, err error) {
	r := &Repo{Work: work, name: name, at: at, before: refs{}}
	if r.git, err = exec.LookPath("git"); err != nil {
		return "", fmt.Errorf("cannot find git: %w", err)
	}
	root, err := os.OpenRoot(at)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer root.Close()
	own, err := root.OpenRoot("own")
	if errors.Is(err, fs.ErrNotExist) {
		return "", removal.Path(ctx, at)
	}
	if err != nil {
		return "", err
	}
	defer own.Close()
	list, err := r.run(ctx, "", "for-each-ref", "--format=%(objectname) %(refname)")
	if err != nil {
		return "", r.failed(err)
	}
	for line := range strings.Lines(list) {
		value, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		r.before[name] = value
	}
	now, _, err := readRefs(own)
	if err != nil {
		return "", r.failed(err)
	}
	if c := r.changes(now); len(c) > 0 {
		if err := r.fetch(ctx, root, c, now); err != nil {
			return "", r.failed(err)
		}
		note = fmt.Sprintf("%s: %s was killed; what it committed is below %s: see git log --all", work, name, r.under())
	}
	return note, removal.Path(ctx, at)
}

// under is where the refs of the workspace are fetched to.
func (r *Repo) under() string { return "refs/carrel/" + string(r.name) }

func (r *Repo) failed(err error) error {
	return fmt.Errorf("cannot take over what was committed in %s: %w; the objects are kept: git fetch %s '+refs/*:%s/*' tries again, "+
		"and rm -r %s gives them up", r.Work, err, filepath.Join(r.at, "in"), r.under(), r.at)
}

// change is what a workspace did to a ref; before is "" if it made it.
type change struct{ name, before, now string }

// changes are those to what there is now.
func (r *Repo) changes(now refs) []change {
	var list []change
	for _, name := range slices.Sorted(maps.Keys(now)) {
		c := change{name, r.before[name], now[name]}
		if name != "HEAD" && c.before != c.now && (name != "refs/stash" || r.stashed(c)) {
			list = append(list, c)
		}
	}
	return list
}

// removed are the branches and tags that the workspace removed.
func (r *Repo) removed(now refs) []string {
	var list []string
	for name := range r.before {
		if now[name] == "" && name != "refs/stash" {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// stashed reports whether a change of the stash is a new entry. The others are in its log alone, and taking
// one away would take all.
func (r *Repo) stashed(c change) bool {
	log, err := os.ReadFile(filepath.Join(r.HostGit(), "logs/refs/stash"))
	return (err == nil || errors.Is(err, fs.ErrNotExist)) && !bytes.Contains(log, []byte(c.now))
}

var (
	loose = compiled(`^own/objects/[0-9a-f]{2}/[0-9a-f]{38}$`)
	pack  = compiled(`^own/objects/pack/pack-[0-9a-f]{40}\.(pack|idx)$`)
)

// fetch fetches what changed to refs below under, from a repository that has the workspace's objects, and
// nothing else of it.
func (r *Repo) fetch(ctx context.Context, root *os.Root, list []change, now refs) error {
	for _, dir := range []string{"in/objects/info", "in/objects/pack", "in/refs"} {
		if err := root.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	var packed strings.Builder
	for _, c := range list {
		fmt.Fprintf(&packed, "%s %s\n", c.now, c.name)
	}
	if object().MatchString(now["HEAD"]) {
		fmt.Fprintf(&packed, "%s refs/detached/HEAD\n", now["HEAD"])
	}
	for name, text := range map[string]string{
		"HEAD": "ref: refs/heads/none\n", "config": "[core]\n\trepositoryformatversion = 0\n\tbare = true\n",
		"packed-refs": packed.String(), "objects/info/alternates": r.HostGit() + "/objects\n",
	} {
		if err := root.WriteFile("in/"+name, []byte(text), 0o600); err != nil {
			return err
		}
	}
	if packed.Len() == 0 {
		return nil // HEAD alone was changed
	}
	err := each(root, "own/objects", 2, func(path string) error {
		if !loose().MatchString(path) && !pack().MatchString(path) {
			return nil
		}
		to := "in" + strings.TrimPrefix(path, "own")
		if err := root.Mkdir(filepath.Dir(to), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return root.Rename(path, to)
	})
	if err == nil {
		_, err = r.run(ctx, "", "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules",
			filepath.Join(r.at, "in"), "+refs/*:"+r.under()+"/*")
	}
	return err
}

// none is the object of a ref that does not exist.
const none = "0000000000000000000000000000000000000000"

// move moves the host's refs as the workspace did, all or none. why says why not.
func (r *Repo) move(ctx context.Context, list []change) (why string, err error) {
	// A submodule is a directory in which git status does what the .git there says, and the workspace
	// can write that.
	added, err := r.run(ctx, "", "log", "--format=", "--raw", "--no-abbrev", "-r", "-m", "--root", "--no-renames", "--no-ext-diff",
		"--glob="+r.under()+"/", "--not", "--exclude=refs/carrel/*", "--all")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(added) {
		if mode, name, _ := strings.Cut(line, "\t"); !strings.HasPrefix(mode, ":160000") && strings.Contains(mode, " 160000 ") {
			return fmt.Sprintf("a commit adds the submodule %.100q, where git status runs what the configuration says",
				strings.TrimSpace(name)), nil
		}
	}
	var do strings.Builder
	for _, c := range list {
		fmt.Fprintf(&do, "update %s %s %s\ndelete %s/%s %s\n",
			c.name, c.now, cmp.Or(c.before, none), r.under(), strings.TrimPrefix(c.name, "refs/"), c.now)
	}
	if _, err := r.run(ctx, do.String(), "update-ref", "--create-reflog", "-m", "carrel run", "--stdin"); err != nil {
		return fmt.Sprintf("they were changed here too, or cannot be (%v)", err), nil
	}
	return "", nil
}

// moveHead moves HEAD as the workspace did, and has the index follow. why says why not.
func (r *Repo) moveHead(ctx context.Context, now refs) (why string, err error) {
	from, to := r.before["HEAD"], now["HEAD"]
	b, err := os.ReadFile(filepath.Join(r.HostGit(), "HEAD"))
	switch branch, symbolic := strings.CutPrefix(to, "ref: "); {
	case err != nil:
		return "", err
	case strings.TrimSpace(string(b)) != from:
		return "another branch was checked out here meanwhile", nil
	case from == to:
	case symbolic:
		_, err = r.run(ctx, "", "symbolic-ref", "-m", "carrel run", "HEAD", branch)
	default:
		_, err = r.run(ctx, "delete "+r.under()+"/detached/HEAD\nupdate HEAD "+to+"\n", "update-ref", "--no-deref", "-m", "carrel run", "--stdin")
	}
	before, after := r.before.head(), now.head()
	if err != nil || before == after || after == "" {
		return "", err
	}
	// What is staged here and untouched by the commits stays so, unless a merge was under way.
	if before != "" && !r.underWay() {
		if _, err := r.run(ctx, "", "read-tree", "-m", "-i", before, after); err == nil {
			return "", nil
		}
	}
	_, err = r.run(ctx, "", "reset", "--quiet")
	return "", err
}

// underWay reports whether the host has a merge or rebase that is not finished.
func (r *Repo) underWay() bool {
	return slices.ContainsFunc(unfinished, func(name string) bool {
		_, err := os.Lstat(filepath.Join(r.HostGit(), name))
		return err == nil
	})
}

// unfinished are what a git directory has while a merge or rebase is under way.
var unfinished = []string{"MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply"}
