package patch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Roots are the directories in which a patch may change files.
type Roots struct {
	// Dir is what relative paths are relative to. Required: an absolute path.
	Dir string
	// Allow are the directories in which files may be changed, absolute paths; Dir alone if there is none. A path that a
	// patch names must be below one of them without a symbolic link in between. They themselves may be reached by links.
	Allow []string
	// Modes are permission bits that files have afterwards, by the path that the patch names, of a move the new one. A
	// path that the patch does not name is a file of which nothing else changes.
	Modes map[string]fs.FileMode
	// Not are directories in which no file is changed, absolute paths without symbolic links.
	Not []string
}

// File is what a patch does to one file.
type File struct {
	Op Op
	// Path is what the patch calls it, and Place where it is, as an absolute path; To and ToPlace are those after a Move.
	Path, To       string
	Place, ToPlace string
	// Added and Removed count lines.
	Added, Removed int
	// Before and After are the hexadecimal SHA-256 of its content; "" where it is not there.
	Before, After string
	// OldMode and Mode are its permission bits before and after. Mode of a file that is made is 0 if the patch names none; of one
	// that the patch names, the umask is taken off.
	OldMode, Mode fs.FileMode
	// Risks say why it needs a second look: "/etc: configuration of the system". They refuse nothing.
	Risks []string
	// Relocated counts hunks that stand elsewhere than their numbers say.
	Relocated int
}

// Prepared is a patch whose files were found and whose result is computed. Nothing has changed. It holds the files'
// contents in memory.
type Prepared struct {
	files []*planned
}

// planned is one file of it.
type planned struct {
	change change
	from   place
	to     place // where it is afterwards: from, but for a move
	old    content
	new    []byte
	lines  [][]byte // of old
	edits  []edit
	moved  int
	// mode is the one that it has afterwards, nil if it keeps its own. masked: the umask is taken off it.
	mode   *uint32
	masked bool
}

// Read finds the files of a patch and computes what they would be. It changes nothing. Errors name the file and the line
// of the patch: of kind permission denied for a path or file that is not one to change, not found and already exists for
// a file that must or must not be there, failed precondition for a hunk that does not fit, invalid argument for what
// exceeds a bound.
func Read(ctx context.Context, in Roots, p Patch) (*Prepared, error) {
	f, err := newFinder(in)
	if err != nil {
		return nil, err
	}
	return f.prepare(ctx, p)
}

// prepare computes a patch of what the finder's functions find.
func (f *finder) prepare(ctx context.Context, p Patch) (*Prepared, error) {
	changes := slices.Clone(p.changes)
	named := p.Paths()
	for name := range f.modes {
		if !slices.Contains(named, name) {
			if why := checkName(name); why != "" {
				return nil, bad("cannot change the mode of %.80q: %s", name, why)
			}
			changes = append(changes, change{op: Mode, path: name})
		}
	}
	slices.SortStableFunc(changes[len(p.changes):], func(a, b change) int { return strings.Compare(a.path, b.path) })
	if len(changes) > MaxFiles {
		return nil, bad("cannot change %d files at once: at most %d are taken; split the patch", len(changes), MaxFiles)
	}
	out, total := &Prepared{}, 0
	for _, c := range changes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		pl, err := f.plan(ctx, c)
		if err != nil {
			return nil, err
		}
		if total += len(pl.old.bytes) + len(pl.new); total > MaxTotal {
			return nil, bad("cannot change the files: together they have more than %d bytes; split the patch", MaxTotal)
		}
		out.files = append(out.files, pl)
	}
	return out, out.distinct()
}

// distinct refuses paths that are one file.
func (p *Prepared) distinct() error {
	seen := map[string]string{}
	inodes := map[[2]uint64]string{}
	for _, f := range p.files {
		places := []place{f.from}
		if f.to != f.from {
			places = append(places, f.to)
		}
		for _, pl := range places {
			if first, ok := seen[pl.String()]; ok {
				return bad("cannot change %q: it is the same file as %q; name each file once", f.change.path, first)
			}
			seen[pl.String()] = f.change.path
		}
		if f.old.meta.Ino != 0 {
			key := [2]uint64{f.old.meta.Dev, f.old.meta.Ino}
			if first, ok := inodes[key]; ok {
				return bad("cannot change %q: it is the same file as %q; name each file once", f.change.path, first)
			}
			inodes[key] = f.change.path
		}
	}
	// A file that is made cannot have another one that is made as its directory.
	for a := range seen {
		for b := range seen {
			if strings.HasPrefix(b, a+"/") {
				return bad("cannot change %q and %q: the one would be a directory of the other", seen[a], seen[b])
			}
		}
	}
	return nil
}

// finder finds files.
type finder struct {
	dir   string
	roots []root
	given []string
	modes map[string]fs.FileMode
	not   []string
	// find says where a path is, read what is there, and free is an error if something is.
	find func(name string) (place, error)
	read func(place) (content, error)
	free func(place) error
}

func newFinder(in Roots) (*finder, error) {
	f := &finder{dir: in.Dir, given: in.Allow, modes: in.Modes, not: in.Not, read: readPlace, free: free}
	f.find = f.place
	if len(f.given) == 0 {
		f.given = []string{in.Dir}
	}
	if !path.IsAbs(in.Dir) || path.Clean(in.Dir) != in.Dir {
		return nil, bad("cannot use %.80q as a directory: it must be an absolute path without empty parts, \".\" and \"..\"", in.Dir)
	}
	for _, dir := range f.given {
		r, err := newRoot(dir)
		if err != nil {
			return nil, err
		}
		f.roots = append(f.roots, r)
	}
	return f, nil
}

func (f *finder) place(name string) (place, error) {
	abs := name
	if !path.IsAbs(name) {
		abs = path.Join(f.dir, name)
	}
	p, ok := within(f.roots, f.given, abs)
	if !ok {
		return p, fmt.Errorf("cannot change %q: it is not in a directory in which files may be changed: %s: %w", name,
			strings.Join(f.given, ", "), errdefs.ErrPermissionDenied)
	}
	for _, dir := range f.not {
		if isIn(dir, p.String()) {
			return p, fmt.Errorf("cannot change %q: no file in %s is changed by a patch; propose a command for it: %w", name, dir,
				errdefs.ErrPermissionDenied)
		}
	}
	return p, nil
}

// plan computes one change.
func (f *finder) plan(ctx context.Context, c change) (pl *planned, err error) {
	pl = &planned{change: c}
	if pl.from, err = f.find(c.path); err != nil {
		return nil, err
	}
	pl.to = pl.from
	if c.op == Move {
		if pl.to, err = f.find(c.to); err != nil {
			return nil, err
		}
	}
	if c.op != Create {
		if pl.old, err = f.read(pl.from); err != nil {
			return nil, fmt.Errorf("cannot change %q: %w", c.path, err)
		}
	}
	if c.op == Create || c.op == Move {
		if err := f.free(pl.to); err != nil {
			return nil, fmt.Errorf("cannot make %q: %w", pl.name(), err)
		}
	}
	if err := pl.compute(ctx); err != nil {
		return nil, err
	}
	return pl, pl.setMode(f.modes)
}

// name is what the patch calls the file afterwards.
func (pl *planned) name() string {
	if pl.change.op == Move {
		return pl.change.to
	}
	return pl.change.path
}

// compute finds the hunks in the old content and makes the new one.
func (pl *planned) compute(ctx context.Context) (err error) {
	c := &pl.change
	pl.lines = splitLines(pl.old.bytes)
	if c.op == Delete && len(c.hunks) == 0 {
		if len(pl.lines) > 0 {
			pl.edits = []edit{{start: 0, end: len(pl.lines)}}
		}
		return nil
	}
	if pl.edits, pl.moved, err = c.locate(ctx, pl.old.bytes); err != nil {
		return err
	}
	if pl.new, err = build(pl.lines, pl.edits); err != nil {
		return bad("cannot change %q: %s", c.path, err)
	}
	if c.op == Delete && len(pl.new) > 0 {
		return fmt.Errorf("cannot delete %q: the patch removes %d of its %d bytes; read the file again: %w", c.path,
			len(pl.old.bytes)-len(pl.new), len(pl.old.bytes), errdefs.ErrFailedPrecondition)
	}
	return nil
}

// setMode takes the mode that the caller names, or else the patch.
func (pl *planned) setMode(modes map[string]fs.FileMode) error {
	m, ok := modes[pl.name()]
	if ok && pl.change.op == Delete {
		return bad("cannot change the mode of %q: the patch deletes it", pl.name())
	}
	if !ok && pl.change.op == Move {
		if _, old := modes[pl.change.path]; old {
			return bad("cannot change the mode of %q: it is called %q afterwards", pl.change.path, pl.change.to)
		}
	}
	if ok && m&^fs.ModePerm != 0 {
		return bad("cannot give %q the mode %o: only the nine permission bits are taken", pl.name(), uint32(m))
	}
	if !ok {
		m = pl.change.mode
		// Git knows two modes. It means whether a file is a program.
		if m != 0 && pl.change.op != Create {
			m = fs.FileMode(pl.old.meta.Mode) &^ 0o111
			if pl.change.mode&0o100 != 0 {
				m |= (m & 0o444) >> 2
			}
		}
		// The umask decides about a file that is made, of which the patch says nothing but that.
		if m == 0 || m == 0o644 && pl.change.op == Create {
			return nil
		}
	}
	mode := uint32(m)
	pl.mode, pl.masked = &mode, !ok && pl.change.op == Create
	return nil
}

// readPlace reads the file at a place.
func readPlace(p place) (content, error) {
	dir, base, err := p.parent()
	if errors.Is(err, fs.ErrNotExist) {
		return content{}, errAbsent
	}
	if err != nil {
		return content{}, err
	}
	defer func() { _ = unix.Close(dir) }()
	return read(dir, base)
}

// free checks that nothing is at a place. Its directories may be missing too.
func free(p place) error {
	dir, base, err := p.parent()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	return absent(dir, base)
}

// Files lists what would be done, in the order of the patch.
func (p *Prepared) Files() []File {
	var all []File
	for _, f := range p.files {
		all = append(all, f.file())
	}
	return all
}

func (pl *planned) file() File {
	f := File{
		Op: pl.change.op, Path: pl.change.path, To: pl.change.to, Place: pl.from.String(), Relocated: pl.moved,
		OldMode: fs.FileMode(pl.old.meta.Mode), Mode: fs.FileMode(pl.old.meta.Mode),
	}
	for _, e := range pl.edits {
		f.Added += len(e.lines)
		f.Removed += e.end - e.start
	}
	if f.Op != Create {
		f.Before = digest(pl.old.bytes)
	}
	if f.Op != Delete {
		f.After = digest(pl.new)
	} else {
		f.Mode = 0
	}
	f.Risks = risks(f.Place)
	if f.Op == Move {
		f.ToPlace = pl.to.String()
		for _, r := range risks(f.ToPlace) {
			if !slices.Contains(f.Risks, r) {
				f.Risks = append(f.Risks, r)
			}
		}
	}
	if pl.mode != nil {
		f.Mode = fs.FileMode(*pl.mode)
		f.Risks = append(f.Risks, modeRisks(f.OldMode, f.Mode)...)
	}
	return f
}

// Only returns the part of it that is about some files, by the paths that the patch names; a move has two and is whole.
// An unknown path is an error of kind not found.
func (p *Prepared) Only(paths ...string) (*Prepared, error) {
	out := &Prepared{}
	used := map[string]bool{}
	for _, f := range p.files {
		take := false
		for _, name := range []string{f.change.path, f.change.to} {
			if name != "" && slices.Contains(paths, name) {
				take, used[name] = true, true
			}
		}
		if take {
			out.files = append(out.files, f)
		}
	}
	for _, name := range paths {
		if !used[name] {
			return nil, fmt.Errorf("cannot choose %q: the patch does not change it: %w", name, errdefs.ErrNotFound)
		}
	}
	return out, nil
}

// Digest is "sha256:" and the hexadecimal SHA-256 of the digests of all files, each with a newline. A file's own is that of
// everything that Apply would do to it: places, operation, contents before and after, mode. An answer of a person's is bound
// to it; so the digest of a part of the patch follows from what was shown of the whole.
func (p *Prepared) Digest() string {
	h := sha256.New()
	for _, f := range p.files {
		_, _ = h.Write([]byte(f.digest() + "\n")) // a hash takes everything
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// digest covers what is done to one file.
func (pl *planned) digest() string {
	v := pl.file()
	// The mode before is no part of what is done, unless it is changed.
	if pl.mode == nil {
		v.OldMode, v.Mode = 0, 0
	}
	h := sha256.New()
	_ = json.NewEncoder(h).Encode([]any{v.Op, v.Place, v.ToPlace, v.Before, v.After, v.Mode, pl.mode != nil}) // as above
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}
