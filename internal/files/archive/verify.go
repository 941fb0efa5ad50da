package archive

import (
	"context"
	"hash/maphash"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/archive/tarfmt"
)

// Verify reads the archive r to its end as Read does, and makes nothing: it takes what Read takes,
// within the same limits, refuses what Read refuses, and counts the same. What only a file system can
// refuse, such as a lack of space, it does not see. Like Read it waits for r also after the end of ctx.
//
// It takes memory for each entry, about 40 bytes while it collects what it let go of.
func Verify(ctx context.Context, r io.Reader, l Limits, o Options) (Summary, error) {
	l, err := l.withDefaults()
	if err != nil {
		return Summary{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	v := &verifier{reader: newReader(ctx, r, l, o), seed: maphash.MakeSeed(), known: map[place]struct{}{}}
	v.to = v
	v.at = []level{{place: v.in(0, "")}}
	var running sync.WaitGroup
	running.Go(v.fill)
	if err = v.entries(); err == nil {
		err = v.sumIs(o.SHA256)
	}
	if err != nil {
		cancel(err)
	}
	running.Wait()
	return v.end(ctx, err)
}

// verifier knows of each entry where it is and whether it is a directory, a file or something else.
type verifier struct {
	*reader
	seed  maphash.Seed
	known map[place]struct{}
	at    []level // the directory that was entered, from the root on
}

// place is the hash of a path, under a seed that no archive can know, with what is there in its two
// lowest bits. That two paths are taken for one, and the archive is refused for it, is to be expected
// of two in a million archives of four million entries.
type place uint64

const (
	aDirectory place = iota + 1
	aFile
	anything // else
)

type level struct {
	name  string
	place place
}

// in returns the place of a name in the directory dir.
func (v *verifier) in(dir place, name string) place {
	return place(maphash.Comparable(v.seed, level{name, dir})) &^ 3
}

func (v *verifier) is(p, what place) bool {
	_, ok := v.known[p|what]
	return ok
}

func (v *verifier) free(p place) bool {
	return !v.is(p, aDirectory) && !v.is(p, aFile) && !v.is(p, anything)
}

func (v *verifier) enter(names []string) error {
	same := 0
	for same < len(names) && same+1 < len(v.at) && names[same] == v.at[same+1].name {
		same++
	}
	v.at = v.at[:same+1]
	for _, name := range names[same:] {
		p := v.in(v.at[len(v.at)-1].place, name)
		switch {
		case v.is(p, aDirectory):
		case !v.free(p):
			return noDirectory(name)
		default:
			if v.made++; v.made > v.limits.Entries {
				return tooMany("directories", v.limits.Entries)
			}
			v.known[p|aDirectory] = struct{}{}
		}
		v.at = append(v.at, level{name, p})
	}
	return nil
}

func (v *verifier) describe(*tarfmt.Header, uint32, bool) error { return nil }

// add notes what the directory that was entered has by a name.
func (v *verifier) add(name string, what place) error {
	p := v.in(v.at[len(v.at)-1].place, name)
	if !v.free(p) {
		return unix.EEXIST
	}
	v.known[p|what] = struct{}{}
	return nil
}

func (v *verifier) symlink(_ *tarfmt.Header, name string) error { return v.add(name, anything) }

func (v *verifier) fifo(_ *tarfmt.Header, name string, _ uint32) error { return v.add(name, anything) }

func (v *verifier) link(h *tarfmt.Header, name string, target []string) error {
	p := v.at[0].place
	for i, step := range target {
		p = v.in(p, step)
		switch last := i == len(target)-1; {
		case !last && !v.is(p, aDirectory), last && v.free(p):
			return noTarget(h.Target)
		case last && !v.is(p, aFile):
			return noFile(h.Target)
		}
	}
	return v.add(name, aFile)
}

func (v *verifier) file(h *tarfmt.Header, name string, _ uint32) error {
	if err := v.add(name, aFile); err != nil {
		return err
	}
	for left := h.Size; left > 0; {
		b, c, err := v.piece(left)
		if err != nil {
			return short(err)
		}
		c.release()
		left -= int64(len(b))
		v.Bytes += int64(len(b))
		v.progress.step(&v.Summary)
	}
	return v.skip(-h.Size & (tarfmt.BlockSize - 1))
}
