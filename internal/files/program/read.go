package program

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/filetree"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// open opens the regular file at a path, through links that stay below the root.
func (s *served) open(p place) (*os.File, filetree.Info, error) {
	var none filetree.Info
	// Opening a FIFO or a device may have an effect; whether it is a file is seen of what is open.
	if i, err := p.root.Stat(p.name); err != nil {
		return nil, none, err
	} else if i.IsDir() {
		return nil, none, unix.EISDIR
	} else if !i.Mode().IsRegular() {
		return nil, none, filetree.ErrIrregular
	}
	f, err := p.root.OpenFile(p.name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, none, err
	}
	i, err := filetree.StatOf(f, path.Base(p.name))
	if err == nil && !i.Mode.IsRegular() {
		err = filetree.ErrIrregular
	}
	if err == nil {
		err = ordinaryFile(f, p.shown)
	}
	if err != nil {
		f.Close()
		return nil, none, err
	}
	return f, i, nil
}

// read sends a part of a file. One that grows is read as far as it was long when it was opened.
func (s *served) read() error {
	p, err := s.locate(s.req.Path)
	if err != nil {
		return err
	}
	f, i, err := s.open(p)
	if err != nil {
		return s.explain("read", p.shown, err)
	}
	defer f.Close()
	e := entryOf(i, p.shown)
	s.res.File = &e
	length := max(0, i.Size-s.req.Offset)
	if s.req.Length > 0 {
		length = min(length, s.req.Length)
	}
	part := io.NewSectionReader(f, s.req.Offset, length)
	for {
		n, err := part.Read(s.data.Room(int(min(fileapi.Piece, max(length, 1)))))
		if n > 0 {
			if err := s.data.SendRoom(fileapi.Data, n); err != nil {
				return err
			}
			s.res.Bytes += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return s.explain("read", p.shown, err)
		}
	}
}

// stat looks at one name.
func (s *served) stat() error {
	p, err := s.locate(s.req.Path)
	if err != nil {
		return err
	}
	i, err := s.look(p, s.req.Follow)
	if err != nil {
		return s.explain("look at", p.shown, err)
	}
	e := entryOf(i, p.shown)
	s.res.File = &e
	return nil
}

func (s *served) look(p place, follow bool) (filetree.Info, error) {
	if p.name == "." {
		d, err := s.dir(p, ".")
		if err != nil {
			return filetree.Info{}, err
		}
		defer d.Close()
		return d.Self(".")
	}
	d, name, err := s.parent(p)
	if err != nil {
		return filetree.Info{}, err
	}
	defer d.Close()
	i, err := d.Stat(name)
	if err != nil || i.Target == "" || !follow {
		return i, err
	}
	at, err := p.root.Stat(p.name)
	if err != nil {
		return i, err
	}
	return filetree.Info{Name: name, Mode: at.Mode().Type() | at.Mode().Perm(), Size: at.Size(), MTime: at.ModTime()}, nil
}

// batch is how many bytes of entries go into one frame, about.
const batch = 64 << 10

// entries sends entries in batches.
type entries struct {
	out  *fileapi.Writer
	list []fileapi.Entry
	size int
	// all is what was sent of fileapi.MaxListed.
	all int
}

func (e *entries) add(x fileapi.Entry) error {
	if e.all += x.Weigh(); e.all > fileapi.MaxListed {
		return errEnough
	}
	e.list = append(e.list, x)
	if e.size += 2*(len(x.Path)+len(x.Target)+len(x.Text)) + 128; e.size < batch {
		return nil
	}
	return e.flush()
}

func (e *entries) flush() error {
	if len(e.list) == 0 {
		return nil
	}
	err := e.out.JSON(fileapi.Entries, e.list)
	e.list, e.size = e.list[:0], 0
	return err
}

var errEnough = errors.New("that is enough")

// list sends the entries of a directory, to a depth, in the order of their paths; of anything else, itself.
func (s *served) list() error {
	p, err := s.locate(s.req.Path)
	if err != nil {
		return err
	}
	i, err := s.look(p, true)
	if err != nil {
		return s.explain("list", p.shown, err)
	}
	e := entryOf(i, p.shown)
	s.res.File = &e
	out := entries{out: s.out}
	if !i.Mode.IsDir() {
		s.res.Entries = 1
		return errors.Join(out.add(e), out.flush())
	}
	d, err := s.dir(p, p.name)
	if err != nil {
		return s.explain("list", p.shown, err)
	}
	defer d.Close()
	limit := cmp.Or(s.req.Limit, fileapi.MaxEntries)
	w := walk{s: s, depth: cmp.Or(s.req.Depth, 1), visit: func(_ *filetree.Dir, i filetree.Info, at string) error {
		if int(s.res.Entries) == limit {
			return errEnough
		}
		if err := out.add(entryOf(i, at)); err != nil {
			return err
		}
		s.res.Entries++
		return nil
	}}
	var after []string
	if len(s.req.After) > 0 {
		after = strings.Split(string(s.req.After), "/")
	}
	return s.ended("list", p, &out, w.below(d, "", 1, after))
}

// ended is the end of a walk, which may have been at a bound.
func (s *served) ended(verb string, p place, out *entries, err error) error {
	if errors.Is(err, errEnough) {
		s.res.Truncated, err = true, nil
	}
	if err != nil {
		return s.explain(verb, p.shown, err)
	}
	return out.flush()
}

// walk goes through a tree, in the order of the paths. What cannot be read is counted and passed over; no link is
// followed.
type walk struct {
	s     *served
	depth int
	visit func(d *filetree.Dir, i filetree.Info, at string) error
}

// below visits what is in d, which is called at. after is where the visit before ended, seen from d.
func (w *walk) below(d *filetree.Dir, at string, level int, after []string) error {
	if err := ordinary(d, at); err != nil {
		w.skip(at, err)
		return nil
	}
	names, cut, err := d.Names(1 << 30)
	if err != nil {
		if level == 1 {
			return err
		}
		w.skip(at, err)
		return nil
	}
	w.s.res.Truncated = w.s.res.Truncated || cut
	slices.Sort(names)
	for _, name := range names {
		var rest []string
		seen := false
		if len(after) > 0 {
			switch c := strings.Compare(name, after[0]); {
			case c < 0:
				continue
			case c == 0:
				seen, rest = true, after[1:]
			}
		}
		i, err := d.Stat(name)
		in := path.Join(at, name)
		if err != nil { // it has gone meanwhile
			w.skip(in, err)
			continue
		}
		if !seen {
			if err := w.visit(d, i, in); err != nil {
				return err
			}
		}
		if i.Mode.IsDir() && level < w.depth {
			if err := w.enter(d, name, in, level, rest); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *walk) enter(d *filetree.Dir, name, in string, level int, after []string) error {
	sub, err := d.Sub(name)
	if err != nil {
		w.skip(in, err)
		return nil
	}
	defer sub.Close()
	return w.below(sub, in, level+1, after)
}

func (w *walk) skip(p string, err error) {
	r := &w.s.res
	if r.Skipped++; r.Skipped == 1 {
		r.First, r.Why = bytes.Clone([]byte(p)), err.Error()
	}
}
