package patch

import (
	"context"
	"fmt"
	"io/fs"
	"path"

	"github.com/containerd/errdefs"
)

// Found is what another machine says of a path: see Elsewhere.
type Found struct {
	// Absent: nothing is there. Why says why what is there is no file to change, "" if it is one.
	Absent  bool
	Why     string
	Content []byte
	// Mode has its permission bits.
	Mode uint32
}

// Elsewhere computes a change to files of another machine: see Read. dir is the directory there that relative paths are
// relative to, and not are directories in which no file is changed, all of them absolute paths without symbolic links. found
// has what is there under each absolute path that the patch names. Prepared.Apply is not for it; Changes says what is to be done.
func Elsewhere(ctx context.Context, dir string, not []string, w Wanted, found map[string]Found) (*Prepared, error) {
	parsed, err := Parse([]byte(w.Text))
	if err != nil {
		return nil, err
	}
	p, err := elsewhere(dir, not, w, found).prepare(ctx, parsed)
	if err == nil && len(w.Only) > 0 {
		p, err = p.Only(w.Only...)
	}
	return p, err
}

// MergeElsewhere is Merge for Elsewhere: the change that was computed from what the paths were, made to what they are now, with the paths
// of the files that changed in between. It is an error if what was is not what a change with the digest of w was computed from, and if
// nothing has changed since.
func MergeElsewhere(ctx context.Context, dir string, not []string, w Wanted, was, now map[string]Found) (m *Prepared, paths []string,
	err error,
) {
	planned, err := Elsewhere(ctx, dir, not, w, was)
	if err != nil {
		return nil, nil, err
	}
	if planned.Digest() != w.Digest {
		return nil, nil, fmt.Errorf("cannot merge the change: it is not known what its files were: %w", errdefs.ErrFailedPrecondition)
	}
	f := elsewhere(dir, not, w, now)
	if m, err = planned.merge(ctx, f.read, f.free); err != nil {
		return nil, nil, err
	}
	if paths = m.moved(planned); len(paths) == 0 {
		return nil, nil, fmt.Errorf("cannot merge the change: the contents of its files are what they were: %w", errdefs.ErrFailedPrecondition)
	}
	return m, paths, nil
}

// elsewhere finds files by what another machine says of them.
func elsewhere(dir string, not []string, w Wanted, found map[string]Found) *finder {
	f := &finder{modes: w.modes()}
	f.find = func(name string) (place, error) {
		abs := Absolute(dir, name)
		for _, n := range not {
			if isIn(n, abs) {
				return place{}, fmt.Errorf("cannot change %q: no file in %s is changed by a patch: %w", name, n, errdefs.ErrPermissionDenied)
			}
		}
		return place{root{Path: "/"}, abs[1:]}, nil
	}
	f.read = func(p place) (content, error) {
		is, ok := found[p.String()]
		switch {
		case !ok || is.Absent:
			return content{}, errAbsent
		case is.Why != "":
			return content{}, fmt.Errorf("%s: %w", is.Why, errdefs.ErrPermissionDenied)
		}
		return content{bytes: is.Content, meta: meta{Mode: is.Mode}}, nil
	}
	f.free = func(p place) error {
		is, ok := found[p.String()]
		switch {
		case ok && is.Why != "":
			return fmt.Errorf("%s: %w", is.Why, errdefs.ErrPermissionDenied)
		case !ok || !is.Absent:
			return fmt.Errorf("something is there already: %w", errdefs.ErrAlreadyExists)
		}
		return nil
	}
	return f
}

// Absolute is the absolute path of one that a patch names.
func Absolute(dir, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(dir, name)
}

// Names are the paths that a change names, in the text and by their modes, each once.
func (w Wanted) Names() ([]string, error) {
	parsed, err := Parse([]byte(w.Text))
	if err != nil {
		return nil, err
	}
	names := parsed.Paths()
	seen := map[string]bool{}
	for _, n := range names {
		seen[n] = true
	}
	for n := range w.Modes {
		if why := checkName(n); why != "" {
			return nil, bad("cannot change the mode of %.80q: %s", n, why)
		}
		if !seen[n] {
			names = append(names, n)
		}
	}
	return names, nil
}

// Read returns the paths that a change names, as Names does, and those of them that have to be read to compute it: all but those of files
// that it makes.
func (w Wanted) Read() (names, read []string, err error) {
	if names, err = w.Names(); err != nil {
		return nil, nil, err
	}
	parsed, err := Parse([]byte(w.Text))
	if err != nil {
		return nil, nil, err
	}
	made := map[string]bool{}
	for _, c := range parsed.changes {
		switch c.op {
		case Create:
			made[c.path] = true
		case Move:
			made[c.to] = true
		case Update, Delete, Mode:
		}
	}
	for _, n := range names {
		if !made[n] {
			read = append(read, n)
		}
	}
	return names, read, nil
}

// modes are the permission bits that are wanted.
func (w Wanted) modes() map[string]fs.FileMode {
	all := make(map[string]fs.FileMode, len(w.Modes))
	for name, bits := range w.Modes {
		all[name] = fs.FileMode(bits).Perm()
	}
	return all
}

// Change is what is to become of one name.
type Change struct {
	// Action is "create", "replace" or "remove".
	Action string
	// Path is absolute. Old and New are hexadecimal SHA-256, "" without a content.
	Path, Old, New string
	Content        []byte
	// Mode is the one that it gets, nil if it keeps its own; with Masked the umask is taken off it.
	Mode   *uint32
	Masked bool
	// From is the index of the change whose file gives a new one its owner and attributes, -1 for none.
	From int
}

// Changes are what is to be done, in this order.
func (p *Prepared) Changes() (all []Change) {
	t := &txn{j: &journal{}}
	for _, f := range p.files {
		t.plan(f)
	}
	for i, e := range t.j.Entries {
		it := &t.items[i]
		c := Change{
			Action: string(e.Action), Path: e.Place.String(), Old: e.Old, New: e.New, Content: it.content, Mode: it.mode, Masked: it.masked,
			From: -1,
		}
		if e.Action == create && it.keep {
			c.From = it.of
		}
		all = append(all, c)
	}
	return all
}

// NewID is a name for a change, which no other one has.
func NewID() string { return newID() }

// IsID reports whether a text is the name of a change.
func IsID(s string) bool { return isID(s) }
