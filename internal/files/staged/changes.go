package staged

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Changes lists what a run changed, in the order of ComparePaths. A file that the overlay copied up and that is equal to the
// lower one in content and mode is no change. Of a directory that was deleted or replaced, all that was in it is listed too,
// but for directories of Git's, which are listed alone. What is out of bounds, and what cannot be read for certain, is an
// error: there is no list that leaves something out.
func Changes(ctx context.Context, c Copy) ([]Change, error) {
	w, err := newWalker(ctx, c)
	if err != nil {
		return nil, err
	}
	defer w.close()
	for len(w.todo) > 0 {
		t := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		if err := w.directory(t); err != nil {
			return nil, err
		}
	}
	if err := w.unmade(c.Made); err != nil {
		return nil, err
	}
	slices.SortFunc(w.found, func(a, b Change) int { return ComparePaths(a.Path, b.Path) })
	return w.found, nil
}

// walker goes through an upper directory. It holds two descriptors at a time, however deep the tree is.
type walker struct {
	ctx          context.Context
	lower, upper folder
	format       *format
	todo         []task
	found        []Change
	seen, text   int
	bufs         [2][]byte
}

// task is a directory of the upper tree.
type task struct {
	path string
	// merged: the lower directory has one of this path. hidden: what the lower one has in it is not seen in the copy.
	merged, hidden bool
}

func newWalker(ctx context.Context, c Copy) (w *walker, err error) {
	w = &walker{ctx: ctx, format: newFormat(c.UserXattr), todo: []task{{merged: true}}, upper: folder{-1}}
	if w.lower, err = hold(c.Lower); err != nil {
		return nil, err
	}
	if w.upper, err = hold(c.Upper); err != nil {
		w.close()
		return nil, err
	}
	for i := range w.bufs {
		w.bufs[i] = make([]byte, 64<<10)
	}
	return w, nil
}

func (w *walker) close() {
	w.lower.close()
	w.upper.close()
}

// wrong is an error about a path.
func wrong(path string, err error) error {
	return fmt.Errorf("cannot read what the run did to %q: %w", path, err)
}

// count bounds what is looked at, and sees whether there is still time.
func (w *walker) count(path string) error {
	w.seen++
	switch {
	case w.seen > maxSeen:
		return bad("cannot list the changes: the run touched more than %d names; discard the copy", maxSeen)
	case len(path) > maxPath || strings.Count(path, "/") >= MaxDepth:
		return bad("cannot list the changes: %.80q… is deeper than %d directories or longer than %d bytes; discard the copy", path,
			MaxDepth, maxPath)
	case w.seen%256 == 0 && w.ctx.Err() != nil:
		return fmt.Errorf("cannot list the changes: %w", context.Cause(w.ctx))
	}
	return nil
}

// add notes a change.
func (w *walker) add(path string, kind Kind, from, to Entry) error {
	c := Change{Path: path, Kind: kind, Old: from, New: to}
	c.LeadsOut = to.Type == Symlink && leadsOut(path, to.Target)
	c.Refused = refusal(&c)
	w.text += len(path) + len(from.Target) + len(to.Target)
	if len(w.found) == MaxChanges || w.text > maxText {
		return bad("cannot list the changes: the run made more than %d, or paths and links of more than %d bytes; discard the copy",
			MaxChanges, maxText)
	}
	w.found = append(w.found, c)
	return nil
}

// refusal says why a change is never made.
func refusal(c *Change) string {
	odd := func(t Type) bool { return t == FIFO || t == Socket || t == Device }
	switch {
	case inGit(c.Path):
		return "it is Git's own"
	case odd(c.New.Type):
		return "it is a " + string(c.New.Type)
	case odd(c.Old.Type):
		return "it was a " + string(c.Old.Type)
	case c.Kind == Mode && c.Old.Mode&0o777 == c.New.Mode&0o777:
		return "only its bits for set-user-id, set-group-id or sticky changed, which are not taken"
	}
	return ""
}

// directory reads one directory of the upper tree.
func (w *walker) directory(t task) error {
	upper, err := w.upper.sub(t.path)
	if err != nil {
		return wrong(t.path, err)
	}
	defer upper.close()
	lower := folder{-1}
	if t.merged {
		if lower, err = w.lower.sub(t.path); err != nil {
			return wrong(t.path, err)
		}
		defer lower.close()
	}
	in, err := w.format.marks(upper, ".")
	if err != nil {
		return wrong(t.path, err)
	}
	t.hidden = t.hidden || in.opaque == opaqueAll
	err = upper.each(func(name string) error { return w.name(t, upper, lower, name, in) })
	if err == nil && t.merged && t.hidden {
		err = w.lost(t, upper, lower)
	}
	return err
}

// lost notes what the lower directory has and the upper one, which hides it, lacks.
func (w *walker) lost(t task, upper, lower folder) error {
	return lower.each(func(name string) error {
		path := join(t.path, name)
		if err := w.count(path); err != nil {
			return err
		}
		if _, there, err := upper.stat(name); err != nil || there {
			return err
		}
		e, err := lower.entry(name)
		if err != nil {
			return wrong(path, err)
		}
		return w.deleted(path, e)
	})
}

// name looks at one name of an upper directory.
func (w *walker) name(t task, upper, lower folder, name string, in marks) error {
	path := join(t.path, name)
	if err := w.count(path); err != nil {
		return err
	}
	var st unix.Stat_t
	err := unix.Fstatat(upper.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return wrong(path, err)
	}
	var was Entry
	if t.merged {
		if was, err = lower.entry(name); err != nil {
			return wrong(path, err)
		}
	}
	m, err := w.format.marks(upper, name)
	if err != nil {
		return wrong(path, err)
	}
	gone, err := m.isWhiteout(stampOf(&st), uint64(st.Rdev), in)
	if err != nil {
		return wrong(path, err)
	}
	if gone {
		return w.deleted(path, was)
	}
	is, err := upper.entry(name)
	if err != nil {
		return wrong(path, err)
	}
	return w.compare(t, path, upper, lower, was, is)
}

// compare notes how an entry of the upper tree differs from the lower one.
func (w *walker) compare(t task, path string, upper, lower folder, was, is Entry) error {
	if is.Type == Dir {
		w.todo = append(w.todo, task{path, was.Type == Dir, t.hidden})
	}
	switch {
	case was.Type == Absent:
		return w.add(path, Create, was, is)
	case was.Type != is.Type:
		if err := w.add(path, Retype, was, is); err != nil || was.Type != Dir {
			return err
		}
		return w.deletedIn(path)
	}
	kind, err := w.differ(path, upper, lower, was, is)
	if err != nil || kind == "" {
		return err
	}
	return w.add(path, kind, was, is)
}

// differ says how two entries of the same type differ, "" if they do not.
func (w *walker) differ(path string, upper, lower folder, was, is Entry) (Kind, error) {
	_, name := split(path)
	switch is.Type {
	case File:
		same := was.Size == is.Size
		if same && is.Size > 0 {
			var err error
			if same, err = w.equal(upper, lower, name); err != nil {
				return "", wrong(path, err)
			}
		}
		if !same {
			return Modify, nil
		}
	case Symlink:
		if was.Target != is.Target {
			return Relink, nil
		}
		return "", nil
	case Device:
		var a, b unix.Stat_t
		if err := errors.Join(unix.Fstatat(upper.fd, name, &a, unix.AT_SYMLINK_NOFOLLOW),
			unix.Fstatat(lower.fd, name, &b, unix.AT_SYMLINK_NOFOLLOW)); err != nil {
			return "", wrong(path, err)
		}
		if a.Rdev != b.Rdev || a.Mode&unix.S_IFMT != b.Mode&unix.S_IFMT {
			return Other, nil
		}
	default: // has nothing but its mode
	}
	if was.Mode != is.Mode {
		return Mode, nil
	}
	return "", nil
}

// equal compares two files of one size.
func (w *walker) equal(upper, lower folder, name string) (bool, error) {
	a, err := upper.file(name)
	if err != nil {
		return false, err
	}
	defer a.Close()
	b, err := lower.file(name)
	if err != nil {
		return false, err
	}
	defer b.Close()
	return w.equalFiles(a, b)
}

func (w *walker) equalFiles(a, b *os.File) (bool, error) {
	for {
		if err := w.ctx.Err(); err != nil {
			return false, context.Cause(w.ctx)
		}
		n, aerr := io.ReadFull(a, w.bufs[0])
		m, berr := io.ReadFull(b, w.bufs[1])
		if n != m || !bytes.Equal(w.bufs[0][:n], w.bufs[1][:m]) {
			return false, nil
		}
		for _, err := range []error{aerr, berr} {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return false, err
			}
		}
		if aerr != nil || berr != nil {
			return aerr != nil && berr != nil, nil
		}
	}
}

// deleted notes that something is gone, with all that is in it.
func (w *walker) deleted(path string, was Entry) error {
	if was.Type == Absent { // the host has deleted it meanwhile
		return nil
	}
	if err := w.add(path, Delete, was, Entry{}); err != nil || was.Type != Dir || inGit(path) {
		return err
	}
	return w.deletedIn(path)
}

// deletedIn notes that all that a lower directory has in it is gone.
func (w *walker) deletedIn(path string) error {
	for todo := []string{path}; len(todo) > 0; {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		more, err := w.deletedNames(dir)
		if err != nil {
			return err
		}
		todo = append(todo, more...)
	}
	return nil
}

// deletedNames notes that the names in a lower directory are gone, and returns those of directories.
func (w *walker) deletedNames(dir string) (dirs []string, err error) {
	lower, err := w.lower.sub(dir)
	if err != nil {
		return nil, wrong(dir, err)
	}
	defer lower.close()
	return dirs, lower.each(func(name string) error {
		path := join(dir, name)
		if err := w.count(path); err != nil {
			return err
		}
		e, err := lower.entry(name)
		if err != nil {
			return wrong(path, err)
		}
		if e.Type == Dir && !isGit(name) {
			dirs = append(dirs, path)
		}
		return w.add(path, Delete, e, Entry{})
	})
}
