package gitdir

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/termtext"
	"github.com/carrel-dev/carrel/internal/linux/removal"
	"github.com/carrel-dev/carrel/internal/spec/hostfiles"
)

// Take puts what the workspace committed into the host's repository, and moves the branches that it was on. Everything
// else that it did to refs stays below refs/carrel/NAME. Nothing of the workspace may run any more. It says what moved
// and what a person has to know; the git directory is removed, unless something in it could not be taken.
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
	r.now = now
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
	list := r.changes(now)
	if len(list) == 0 && now["HEAD"] == r.before["HEAD"] {
		return notes, removal.Path(ctx, r.at)
	}
	if err := r.keep(ctx, root, list); err != nil {
		return notes, r.failed(err)
	}
	m, err := r.judge(ctx, own, list, now)
	if err != nil {
		return notes, r.failed(err)
	}
	if m.why == "" {
		if m.why, err = r.move(ctx, m.moved); err != nil {
			return notes, r.failed(err)
		}
	}
	if m.why == "" {
		for _, c := range m.moved {
			r.moved = append(r.moved, Moved{c.name, c.before, c.now})
		}
	}
	notes = append(notes, r.tell(m)...)
	if len(r.acted) > 0 && m.why == "" {
		note("the commits have files on which programs of the host act once they are checked out: %s", some(r.acted))
	}
	if m.why == "" {
		if note := r.followIndex(ctx, own, m, now); note != "" {
			notes = append(notes, r.Work+": "+note)
		}
	}
	return notes, removal.Path(ctx, r.at)
}

// Rescue keeps what a workspace committed that was killed, and moves nothing. work, at and name are those
// of its Prepare.
func Rescue(ctx context.Context, work, at string, name id.Workspace) (note string, err error) {
	r := &Repo{Work: work, name: name, at: at, before: refs{}}
	if r.program, err = program([]string{work}); err != nil {
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
	now, _, err := readRefs(own)
	if err != nil {
		return "", r.failed(err)
	}
	if err := r.makeRepositories(root); err != nil {
		return "", r.failed(err)
	}
	if r.before, err = r.hostRefs(ctx); err != nil {
		return "", r.failed(err)
	}
	if list := r.changes(now); len(list) > 0 {
		if err := r.keep(ctx, root, list); err != nil {
			return "", r.failed(err)
		}
		note = fmt.Sprintf("%s: %s was killed; what it committed is below %s: see git log --all", work, name, r.under())
	}
	return note, removal.Path(ctx, at)
}

// hostRefs are the refs of the host as they are now.
func (r *Repo) hostRefs(ctx context.Context) (refs, error) {
	list, err := r.git(ctx, call{dir: put, args: []string{"for-each-ref", "--format=%(objectname) %(refname)"}})
	all := refs{}
	for line := range strings.Lines(list) {
		value, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[name] = value
	}
	return all, err
}

// under is where the refs of the workspace are kept.
func (r *Repo) under() string { return "refs/carrel/" + string(r.name) }

// below is where a ref of the workspace is kept.
func (r *Repo) below(name string) string { return r.under() + "/" + strings.TrimPrefix(name, "refs/") }

func (r *Repo) failed(err error) error {
	return fmt.Errorf("cannot take over what was committed in %s: %w; the objects are kept in %s, and rm -r %s gives them up",
		r.Work, err, filepath.Join(r.at, in, "objects"), r.at)
}

// change is what a workspace did to a ref; before is "" if it made it.
type change struct{ name, before, now string }

// changes are those to what there is now. Of HEAD it is one only if it leads to a commit without a branch.
func (r *Repo) changes(now refs) []change {
	var list []change
	for _, name := range slices.Sorted(maps.Keys(now)) {
		c := change{name, r.before[name], now[name]}
		if c.before == c.now || name == "refs/stash" && !r.stashed(c) || name == "HEAD" && !object().MatchString(c.now) {
			continue
		}
		list = append(list, c)
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

// keep puts the objects of what changed into the host's repository, and a ref for each change below under. It takes them
// from a repository that has the workspace's objects and nothing else of it, through git's own checks.
func (r *Repo) keep(ctx context.Context, root *os.Root, list []change) error {
	if err := r.makeRepositories(root); err != nil {
		return err
	}
	if len(list) == 0 {
		return nil // HEAD alone was changed
	}
	err := each(root, "own/objects", 2, func(path string) error {
		if !loose().MatchString(path) && !pack().MatchString(path) {
			return nil
		}
		to := in + strings.TrimPrefix(path, "own")
		if err := root.Mkdir(filepath.Dir(to), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return root.Rename(path, to)
	})
	if err != nil {
		return err
	}
	var tips, make strings.Builder
	for _, c := range list {
		fmt.Fprintln(&tips, c.now)
		fmt.Fprintf(&make, "update %s %s\n", r.below(c.name), c.now)
	}
	if err := r.carry(ctx, root, tips.String()); err != nil {
		return err
	}
	// All that the tips lead to is there.
	if _, err := r.git(ctx, call{
		dir: put, stdin: strings.NewReader(tips.String()), args: []string{"rev-list", "--objects", "--quiet", "--stdin", "--not", "--all"},
	}); err != nil {
		return err
	}
	_, err = r.git(ctx, call{dir: put, stdin: strings.NewReader(make.String()), args: []string{"update-ref", "-m", "carrel run", "--stdin"}})
	return err
}

// carry packs what the tips lead to and the host had not at the start, and has the pack checked on its way into the
// host's objects.
func (r *Repo) carry(ctx context.Context, root *os.Root, tips string) error {
	revs := strings.NewReader(tips + r.known())
	f, err := root.OpenFile("new.pack", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := r.git(ctx, call{dir: in, stdin: revs, stdout: f, args: []string{"pack-objects", "--revs", "--stdout", "-q"}}); err != nil {
		return err
	}
	// The header: PACK, the version, and how many objects follow (gitformat-pack(5)).
	var header [12]byte
	if _, err := f.ReadAt(header[:], 0); err != nil {
		return err
	}
	if binary.BigEndian.Uint32(header[8:]) == 0 {
		return nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err = r.git(ctx, call{dir: put, stdin: f, args: []string{"index-pack", "--strict", "--stdin"}})
	return err
}

// known are the commits that the host had at the start, as what is not to be packed.
func (r *Repo) known() string {
	var b strings.Builder
	for name, value := range r.before {
		if object().MatchString(value) && name != "refs/stash" {
			fmt.Fprintf(&b, "^%s\n", value)
		}
	}
	return b.String()
}

// none is the object of a ref that does not exist.
const none = "0000000000000000000000000000000000000000"

// move moves the host's branches as the workspace did, all or none. why says why not.
func (r *Repo) move(ctx context.Context, list []change) (why string, err error) {
	if len(list) == 0 {
		return "", nil
	}
	// A submodule is a directory in which git status does what the .git there says, and the workspace
	// can write that.
	added, err := r.git(ctx, call{dir: put, args: []string{
		"log", "--format=", "--raw", "--no-abbrev", "-r", "-m", "--root", "--no-renames", "--no-ext-diff", "--no-textconv",
		"--glob=" + r.under() + "/", "--not", "--exclude=refs/carrel/*", "--all",
	}})
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(added) {
		if mode, name, _ := strings.Cut(line, "\t"); !strings.HasPrefix(mode, ":160000") && strings.Contains(mode, " 160000 ") {
			return fmt.Sprintf("a commit adds the submodule %.100q, where git status runs what the configuration says",
				strings.TrimSpace(name)), nil
		}
	}
	if path, err := r.putBack(ctx, added); err != nil {
		return "", err
	} else if path != "" {
		return fmt.Sprintf("a commit puts %.100q back to what it was when the run began: it is read-only inside, so git could not write it there",
			path), nil
	}
	r.acted = acted(added)
	var do strings.Builder
	for _, c := range list {
		fmt.Fprintf(&do, "update %s %s %s\ndelete %s %s\n", c.name, c.now, cmp.Or(c.before, none), r.below(c.name), c.now)
	}
	if _, err := r.git(ctx, call{
		dir: put, stdin: strings.NewReader(do.String()), args: []string{"update-ref", "--create-reflog", "-m", "carrel run", "--stdin"},
	}); err != nil {
		return fmt.Sprintf("they were changed here too, or cannot be (%v)", err), nil
	}
	return "", nil
}

// followIndex has the host's index follow its branch. note says why it did not.
func (r *Repo) followIndex(ctx context.Context, own *os.Root, m moves, now refs) (note string) {
	branch, symbolic := strings.CutPrefix(r.before["HEAD"], "ref: ")
	i := slices.IndexFunc(m.moved, func(c change) bool { return c.name == branch })
	if !symbolic || i < 0 {
		return ""
	}
	if r.underWay() {
		return "a merge or rebase is under way here, so the index stays as it is"
	}
	b, err := os.ReadFile(filepath.Join(r.HostGit(), "HEAD"))
	if err != nil || strings.TrimSpace(string(b)) != r.before["HEAD"] {
		return "another branch was checked out here meanwhile, so the index stays as it is"
	}
	left := func(name string) bool { _, err := own.Lstat(name); return err == nil }
	if now["HEAD"] == r.before["HEAD"] && slices.ContainsFunc(unfinished, left) {
		note = "a merge or rebase was not finished inside; here none is under way, and the files are as it left them"
	}
	// What is staged here and untouched by the commits stays so. No file of the tree is looked at: git would pass it
	// through the filters that the configuration names.
	c := m.moved[i]
	if c.before != "" {
		if _, err := r.git(ctx, call{dir: put, index: true, args: []string{"read-tree", "-m", "-i", c.before, c.now}}); err == nil {
			return note
		}
	}
	if _, err := r.git(ctx, call{dir: put, index: true, args: []string{"read-tree", c.now}}); err != nil {
		return fmt.Sprintf("the index stays as it is (%v); git reset mends it", err)
	}
	return note
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

// putBack names a path that git could not write inside, and that a commit has as it was when the run began though its parent has not.
// added is the output of git log --raw.
func (r *Repo) putBack(ctx context.Context, added string) (path string, err error) {
	start := r.before["HEAD"]
	if name, symbolic := strings.CutPrefix(start, "ref: "); symbolic {
		start = r.before[name]
	}
	if len(r.held) == 0 || start == "" {
		return "", nil
	}
	for line := range strings.Lines(added) {
		// :100644 100644 BEFORE NOW M TAB PATH (git-diff(1)). A name that is quoted is none of those that are held.
		fields, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		words := strings.Fields(fields)
		if len(words) != 5 || !slices.ContainsFunc(r.held, func(h string) bool { return within(name, h) }) {
			continue
		}
		was, err := r.git(ctx, call{dir: put, args: []string{"ls-tree", "--full-tree", "-z", start, "--", name}})
		if err != nil {
			return "", err
		}
		if entry := strings.Fields(was); len(entry) > 3 && entry[2] == words[3] { // MODE TYPE OBJECT TAB PATH
			return name, nil
		}
	}
	return "", nil
}

// acted names the files of commits on which programs of the host act once they are checked out, each with its reader. added is the
// output of git log --raw.
func acted(added string) (names []string) {
	for line := range strings.Lines(added) {
		fields, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		e, ok := hostfiles.Match(name, false)
		if !ok || e.Act <= hostfiles.Report || strings.HasSuffix(fields, " D") {
			continue
		}
		reader, _, _ := strings.Cut(e.Reader, ",")
		if said := fmt.Sprintf("%s (%s)", termtext.Visible(name), reader); !slices.Contains(names, said) {
			names = append(names, said)
		}
	}
	return names
}
