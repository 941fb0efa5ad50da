package broker

import (
	"bufio"
	"errors"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// compact rewrites the ledger with one line for each workspace that is remembered, and replaces it
// atomically. Others read and write meanwhile: what they add is copied at the end, and that is all
// that they wait for.
func (l *Ledger) compact() error {
	l.mu.Lock()
	from, seen := l.size, l.lines
	lines, forgotten := l.current()
	l.mu.Unlock()
	f, size, err := l.rewrite(lines)
	crashpoint.Here("broker.ledger.compacted")
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		err = l.replace(f, size, from)
	}
	l.compactAt = max(compactAbove, 2*l.size)
	if err != nil {
		closeFiles(f)
		return errors.Join(err, removeAt(l.dir, ledgerNew))
	}
	for _, name := range forgotten {
		if l.order[name] <= seen { // it was not created again
			delete(l.entries, name)
			delete(l.order, name)
		}
	}
	return nil
}

// current returns the lines that state all that is to be remembered, and the names of those destroyed
// so long ago that they are not. l.mu is held.
func (l *Ledger) current() (lines []ledgerLine, forgotten []id.Workspace) {
	destroyed := 0
	for _, e := range slices.Backward(l.byOrder()) {
		if e.State == workspace.StateDestroyed {
			destroyed++
		}
		if e.State == workspace.StateDestroyed && destroyed > keepDestroyed {
			forgotten = append(forgotten, e.Name)
		} else {
			lines = append(lines, ledgerLine{Workspace: &e})
		}
	}
	lines = append(lines, ledgerLine{NextUID: l.next, PaceMS: max(l.paced.UnixMilli(), 0)})
	slices.Reverse(lines)
	return lines, forgotten
}

// rewrite writes lines into a file beside the ledger.
func (l *Ledger) rewrite(lines []ledgerLine) (f *os.File, size int64, err error) {
	f, err = openAt(l.dir, ledgerNew, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|unix.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, err
	}
	out := bufio.NewWriter(f)
	for _, x := range lines {
		n, err := put(out, x)
		if err != nil {
			return f, size, err
		}
		size += n
	}
	return f, size, errors.Join(out.Flush(), syncFile(f))
}

// replace puts f, which has size bytes, into the place of the ledger, with what that has got since it
// had from bytes. l.mu is held.
func (l *Ledger) replace(f *os.File, size, from int64) error {
	if l.broken != nil {
		return l.broken
	}
	added, err := io.Copy(f, io.NewSectionReader(l.file, from, l.size-from))
	ahead := diskreserve.Ahead{Least: l.ahead.Least, Step: l.ahead.Step}
	if err == nil {
		err = ahead.Keep(diskreserve.Of(f), size+added) // before the room of the old one is given up
	}
	if err == nil {
		err = syncFile(f)
	}
	if err == nil {
		err = withFD(l.dir, func(fd int) error { return unix.Renameat(fd, ledgerNew, fd, ledgerName) })
	}
	if err != nil {
		return err
	}
	crashpoint.Here("broker.ledger.replaced")
	old := l.file
	l.file, l.size, l.ahead = f, size+added, ahead
	// Until this is on disk a crash of the host brings back the old one, without what is written next.
	l.broken = syncFile(l.dir)
	_ = old.Close() // it was only read
	return nil
}
