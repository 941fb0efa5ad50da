package archives

import (
	"fmt"
	"io"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/archivestore"
)

// Bounds are what the archives of one owner may come to, those under way included. Zero fields bound
// nothing. An administrator may make more.
type Bounds struct {
	Number int
	Bytes  int64
}

const (
	// keepFree is the part of the file system of the archives that no archive may fill: one
	// in so many bytes.
	keepFree = 20
	// lookAgain is how many bytes all archives together may grow by before the free space is looked at
	// again: others write to that file system too.
	lookAgain = 16 << 20
)

// shelf counts the archives of each owner, those under way included, and what space is left for all.
type shelf struct {
	files  *archivestore.Store
	bounds Bounds

	mu     sync.Mutex
	owners map[string]share
	// room is what was free for archives at the last look, less what was written since.
	room, written int64
}

// share is what an owner has.
type share struct {
	number int
	bytes  int64
}

// put changes the share of an owner. s.mu is held.
func (s *shelf) put(owner string, number int, bytes int64) {
	n := s.owners[owner]
	n.number, n.bytes = n.number+number, n.bytes+bytes
	if n.number <= 0 {
		delete(s.owners, owner)
		return
	}
	s.owners[owner] = n
}

// add counts archives that there are; remove is its reverse.
func (s *shelf) add(all ...workspace.Archive) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range all {
		s.put(a.Owner, 1, a.Size)
	}
}

func (s *shelf) remove(a workspace.Archive) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(a.Owner, -1, -a.Size)
	s.written = lookAgain // there is more room
}

// place is the place of one archive that is being written.
type place struct {
	s     *shelf
	k     workspace.Kept
	bound bool
	bytes int64
	w     io.Writer
}

// reserve takes a place for an archive of k. Its writer is set before it is written to.
func (s *shelf) reserve(p principal.Principal, k workspace.Kept) (*place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &place{s: s, k: k, bound: !p.Can(principal.Any)}
	if has := s.owners[k.Owner].number; l.bound && s.bounds.Number > 0 && has >= s.bounds.Number {
		return nil, fmt.Errorf("cannot archive workspace %s: %s has %d archives, those under way included, the most that one owner may have; "+
			"remove some (\"carrel archive ls\", \"carrel archive rm\"), or have an administrator raise max_archives_per_owner in carreld.yaml: %w",
			k.Name, k.Owner, has, errdefs.ErrResourceExhausted)
	}
	s.put(k.Owner, 1, 0)
	s.written = lookAgain
	if err := l.take(1); err != nil { // before the workspace is started and read for nothing
		s.put(k.Owner, -1, -l.bytes)
		return nil, err
	}
	return l, nil
}

// leave gives the place back: there is no archive in it.
func (l *place) leave() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.put(l.k.Owner, -1, -l.bytes)
	l.s.written = lookAgain
}

// settle has the place hold what the archive has become.
func (l *place) settle(size int64) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.put(l.k.Owner, 0, size-l.bytes)
	l.bytes = size
}

// take counts n more bytes before they are written. l.s.mu is held.
func (l *place) take(n int64) error {
	s := l.s
	if s.written+n > lookAgain {
		size, free, err := s.files.Space()
		if err != nil {
			return err
		}
		s.room, s.written = free-size/keepFree, 0
	}
	has := s.owners[l.k.Owner].bytes
	switch {
	case n > s.room:
		return fmt.Errorf("cannot archive workspace %s: less than one part in %d is free where archives are kept; remove some with "+
			"\"carrel archive rm\", or archive it into a file of yours (--file): %w", l.k.Name, keepFree, errdefs.ErrResourceExhausted)
	case l.bound && s.bounds.Bytes > 0 && has+n > s.bounds.Bytes:
		return fmt.Errorf("cannot archive workspace %s: the archives of %s, those under way included, would be more than %d MiB, the most that "+
			"those of one owner may be; remove some (\"carrel archive ls\", \"carrel archive rm\"), archive it into a file of yours (--file), or "+
			"have an administrator raise archive_bytes_per_owner in carreld.yaml: %w",
			l.k.Name, l.k.Owner, s.bounds.Bytes>>20, errdefs.ErrResourceExhausted)
	}
	s.room, s.written = s.room-n, s.written+n
	s.put(l.k.Owner, 0, n)
	l.bytes += n
	return nil
}

// Write implements io.Writer.
func (l *place) Write(p []byte) (int, error) {
	l.s.mu.Lock()
	err := l.take(int64(len(p)))
	l.s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return l.w.Write(p)
}
