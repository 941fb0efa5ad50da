package program

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/filetree"
	"github.com/carrel-dev/carrel/internal/linux/removal"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

func (s *served) mode(new fs.FileMode) fs.FileMode {
	if s.req.Mode != nil {
		return fs.FileMode(*s.req.Mode)
	}
	return new
}

// above makes what is missing of the directories above a place, if that is wanted.
func (s *served) above(p place) error {
	if !s.req.Parents || path.Dir(p.name) == "." {
		return nil
	}
	return p.root.MkdirAll(path.Dir(p.name), 0o755)
}

// write makes the file of what follows the request. Until all of it has come and is on disk, what was there is
// there.
func (s *served) write() error {
	p, err := s.locate(s.req.Path)
	if err != nil {
		return err
	}
	err = s.above(p)
	if err != nil {
		return s.explain("write", p.shown, err)
	}
	d, name, err := s.parent(p)
	if err != nil {
		return s.explain("write", p.shown, err)
	}
	defer d.Close()
	mode := fs.FileMode(0o644)
	switch i, err := d.Stat(name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return s.explain("write", p.shown, err)
	case s.req.Keep:
		return s.explain("write", p.shown, unix.EEXIST)
	case i.Mode.IsDir():
		return s.explain("write", p.shown, unix.EISDIR)
	case i.Mode.IsRegular():
		mode = i.Mode.Perm()
	case i.Mode.Type() != fs.ModeSymlink:
		return s.explain("write", p.shown, filetree.ErrIrregular)
	}
	d.Sweep()
	w, err := d.Create(name)
	if err != nil {
		return s.explain("write", p.shown, err)
	}
	defer w.Close()
	n, err := (&fileapi.Body{Frames: s.frames}).WriteTo(w)
	s.res.Bytes = n
	if err != nil {
		return s.explain("write", p.shown, err)
	}
	if err := w.Commit(filetree.Final{Mode: s.mode(mode), Sync: true, Keep: s.req.Keep}); err != nil {
		return s.explain("write", p.shown, err)
	}
	if i, err := d.Stat(name); err == nil {
		e := entryOf(i, p.shown)
		s.res.File = &e
	}
	return nil
}

// mkdir makes a directory; with Parents one that is there is no error.
func (s *served) mkdir() error {
	p, err := s.locate(s.req.Path)
	if err != nil {
		return err
	}
	if p.name == "." && s.req.Parents {
		return nil
	}
	if err := s.above(p); err != nil {
		return s.explain("make", p.shown, err)
	}
	d, name, err := s.parent(p)
	if err != nil {
		return s.explain("make", p.shown, err)
	}
	defer d.Close()
	err = d.Mkdir(name, s.mode(0o755))
	if errors.Is(err, unix.EEXIST) && s.req.Parents {
		if i, e := p.root.Stat(p.name); e == nil && i.IsDir() {
			return nil
		}
	}
	return s.explain("make", p.shown, err)
}

// move gives what a path names another path. A link is moved itself.
func (s *served) move() error {
	from, err := s.locate(s.req.Path)
	if err != nil {
		return err
	}
	to, err := s.locate(s.req.To)
	if err != nil {
		return err
	}
	if err := s.above(to); err != nil {
		return s.explain("move to", to.shown, err)
	}
	d, name, err := s.parent(from)
	if err != nil {
		return s.explain("move", from.shown, err)
	}
	defer d.Close()
	if _, err := d.Stat(name); err != nil { // so that not_found is about the right one
		return s.explain("move", from.shown, err)
	}
	t, toName, err := s.parent(to)
	if err != nil {
		return s.explain("move to", to.shown, err)
	}
	defer t.Close()
	if err := d.Rename(name, t, toName, !s.req.Keep); err != nil {
		return s.explain("move to", to.shown, err)
	}
	return nil
}

// remove removes a name, and what is below it only if that is wanted. What cannot be removed stays, and the rest
// goes.
func (s *served) remove() error {
	p, err := s.locate(s.req.Path)
	if err != nil {
		return err
	}
	d, name, err := s.parent(p)
	if err != nil {
		return s.explain("remove", p.shown, err)
	}
	defer d.Close()
	i, err := d.Stat(name)
	if err == nil && i.Mode.IsDir() && s.req.Recursive {
		f, err := p.root.Open(path.Dir(p.name))
		if err != nil {
			return s.explain("remove", p.shown, err)
		}
		defer f.Close()
		if err := removal.Remove(s.ctx, f, name); err != nil {
			return fmt.Errorf("cannot remove all of %q: %w: the rest is gone; what is left belongs to another user, or something is mounted "+
				"there: %w", p.shown, err, errdefs.ErrFailedPrecondition)
		}
		return nil
	}
	if err == nil {
		err = d.Remove(name)
	}
	return s.explain("remove", p.shown, err)
}

func (s *served) progress(sum filetree.Summary) {
	_ = s.out.JSON(fileapi.Moved, fileapi.Progress{Entries: sum.Entries, Bytes: sum.Bytes}) // who does not hear it hears the end
}

func (s *served) summed(sum filetree.Summary) {
	s.res.Entries, s.res.Bytes, s.res.Skipped, s.res.Changed = sum.Entries, sum.Bytes, sum.Skipped, sum.Changed
	s.res.First, s.res.Why = []byte(sum.First), sum.Why
}

// pack sends a file or a tree as a tar stream.
func (s *served) pack() error {
	p, err := s.locate(s.req.Path)
	if err != nil {
		return err
	}
	var d *filetree.Dir
	name, as := ".", string(s.req.To)
	if p.name == "." {
		d, err = s.dir(p, ".")
		if as == "" {
			as = path.Base(s.req.Home)
		}
	} else {
		d, name, err = s.parent(p)
	}
	if err != nil {
		return s.explain("read", p.shown, err)
	}
	defer d.Close()
	sum, err := filetree.Pack(s.ctx, s.data, d, name, as, filetree.Defaults(), nil)
	s.summed(sum)
	return s.explain("read", p.shown, err)
}

// unpack makes what a tar stream has below a directory.
func (s *served) unpack() error {
	p, err := s.locate(s.req.Path)
	if err != nil {
		return err
	}
	if s.req.Parents && p.name != "." {
		if err := p.root.MkdirAll(p.name, 0o755); err != nil {
			return s.explain("make", p.shown, err)
		}
	}
	d, err := s.dir(p, p.name)
	if err != nil {
		return s.explain("write to", p.shown, err)
	}
	defer d.Close()
	d.Sweep()
	sum, err := filetree.Unpack(s.ctx, &fileapi.Body{Frames: s.frames}, d, filetree.UnpackOptions{Links: true, Tell: s.progress})
	s.summed(sum)
	return s.explain("write to", p.shown, err)
}
