package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/carrel-dev/carrel/internal/files/changed"
	"github.com/carrel-dev/carrel/internal/linux/filetree"
	"github.com/carrel-dev/carrel/internal/spec/hostfiles"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// kernels are what the kernel shows as files, below the root.
var kernels = []string{"proc", "sys", "dev"}

// changes lists what was changed below a directory since a moment, what programs act on first. It ends early at its bounds, and
// says so.
func (s *served) changes() error {
	p, err := s.locate(s.req.Path)
	if err != nil {
		return err
	}
	d, err := s.dir(p, p.name)
	if err != nil {
		return s.explain("look for changes in", p.shown, err)
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(s.ctx, searchTime)
	defer cancel()
	found, err := s.changedIn(ctx, d, p)
	if err != nil {
		return err
	}
	isHome := p.home && p.name == "."
	reads := func(at string) (reader, trigger string, ok bool) { return hostfiles.Reads(at, isHome) }
	s.res.Skipped = int64(found.More + len(found.Unread))
	out, limit := entries{out: s.out}, cmp.Or(s.req.Limit, fileapi.MaxEntries)
	for _, f := range changed.Classify(found.Changed, reads) {
		if int(s.res.Entries) == limit {
			s.res.Truncated = true
			break
		}
		if err := out.add(changeOf(f)); errors.Is(err, errEnough) {
			s.res.Truncated = true
			break
		} else if err != nil {
			return err
		}
		s.res.Entries++
	}
	return out.flush()
}

// changedIn walks a directory that is open.
func (s *served) changedIn(ctx context.Context, d *filetree.Dir, p place) (changed.Found, error) {
	top, err := d.File()
	if err != nil {
		return changed.Found{}, s.explain("look for changes in", p.shown, err)
	}
	defer top.Close()
	found, err := changed.Walk(ctx, top, changed.Options{
		Since: time.Unix(0, s.req.SinceNS),
		Skip:  func(at string) bool { return !p.home && p.name == "." && slices.Contains(kernels, at) },
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("it takes more than %v; name a directory below: %w", searchTime, os.ErrDeadlineExceeded)
	}
	if err != nil {
		return found, s.explain("look for changes in", p.shown, err)
	}
	return found, nil
}

func changeOf(f changed.Finding) fileapi.Entry {
	mode := filetree.ModeOf(f.Mode)
	e := fileapi.Entry{
		Path: []byte(f.Path), Type: typeWord(mode), Mode: uint32(mode.Perm()), Size: f.Size, Kind: string(f.Kind), Reader: f.Reader,
		Trigger: f.Trigger,
	}
	if f.Target != "" {
		e.Target = []byte(f.Target)
	}
	return e
}
