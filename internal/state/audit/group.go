package audit

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
)

// group wakes the appenders of one group, all at once. They need no lock to read err.
type group struct {
	done chan struct{}
	err  error // set before done is closed
}

func join(g **group) *group {
	if *g == nil {
		*g = &group{done: make(chan struct{})}
	}
	return *g
}

// settle unlocks l.mu, which is held, and returns when everything queued until then is on disk.
func (l *Log) settle() error {
	switch {
	case l.err != nil || l.seq == l.durable.Seq:
		defer l.mu.Unlock()
		return l.err
	case !l.writing:
		err := l.writeGroup()
		if l.writing = l.next != nil; l.writing {
			go l.writeOn()
		}
		l.mu.Unlock()
		return err
	}
	which := &l.next
	if len(l.pending) == 0 {
		which = &l.now // everything queued is being written
	}
	g := join(which)
	l.mu.Unlock()
	<-g.done
	return g.err
}

// writeOn writes groups for as long as somebody waits for one.
func (l *Log) writeOn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.next != nil {
		_ = l.writeGroup() // the waiting appenders get the error
	}
	l.writing = false
}

// writeGroup writes and syncs everything pending, and wakes the appenders that wait for it. l.mu is
// held, and released during the system calls.
func (l *Log) writeGroup() error {
	if l.err != nil { // nothing is written after a failure
		l.next.end(l.err)
		l.next = nil
		return l.err
	}
	l.writing = true
	lines, head, cut, torn, short := l.pending, l.queued(), l.cut, l.torn, l.short
	l.pending, l.spare, l.cut = l.spare[:0], nil, -1
	l.now, l.next = l.next, nil
	l.torn, l.inFlight = 0, len(lines)
	l.zeroing = l.spreads && !short && cut < 0 && l.size+int64(len(lines)) > l.zeroed
	zeroing := l.zeroing
	l.rotating = cut >= 0
	l.mu.Unlock()

	if !short && cut < 0 { // if it is, Room tries again
		short = l.ahead.Keep(l.f.Hold, l.size+int64(len(lines))) != nil
	}
	end := len(lines)
	if cut >= 0 {
		end = cut
	}
	n, err := l.write(l.f, lines[torn:end], l.size+int64(torn))
	stalled := diskreserve.Full(err)
	if err == nil && cut < 0 {
		if zeroing && !short {
			l.zero(l.size + int64(end))
		}
		err = l.f.Datasync()
	} else if err == nil {
		err = l.rotate(lines, cut)
		stalled = errors.Is(err, errPutOff)
	}

	l.mu.Lock()
	l.short, l.rotating, l.zeroing, l.inFlight = short, false, false, 0
	if stalled {
		l.stall(lines, cut, torn+n, err)
		return l.stalled
	}
	l.stalled = nil
	if cap(lines) <= keepBuffer {
		l.spare = lines
	}
	if err != nil {
		l.fail(err)
	} else {
		l.durable = head
		if cut < 0 {
			l.size += int64(len(lines))
		}
		if l.reached != nil && head.Seq >= l.reachedAt {
			close(l.reached)
			l.reached = nil
		}
	}
	l.announce()
	l.now.end(l.err)
	l.now = nil
	return l.err
}

// fail ends the log after a failed write or sync. What reached the disk is unknown, and a later fdatasync
// would report success for pages that the kernel has dropped: nothing more may be acknowledged through this
// file. l.mu is held.
func (l *Log) fail(err error) {
	l.err = fmt.Errorf("cannot write the audit log %s, so no further action is carried out: %w; "+
		"see with df -h and df -i what is full, free some or mend the disk, then restart carreld with \"carrel up\": %w",
		l.path, err, errdefs.ErrUnavailable)
	close(l.failed)
}

// alone calls f while nobody else writes, without l.mu, which is held, then done with it, and then serves those
// who came meanwhile.
func (l *Log) alone(f func() error, done func(error)) {
	l.writing, l.zeroing = true, true
	l.mu.Unlock()
	err := f()
	l.mu.Lock()
	l.zeroing = false
	done(err)
	if l.stalled != nil || l.next != nil {
		_ = l.writeGroup() // who waits gets the error
	}
	if l.writing = l.next != nil; l.writing {
		go l.writeOn()
	}
}

// end wakes the appenders that wait for g.
func (g *group) end(err error) {
	if g != nil {
		g.err = err
		close(g.done)
	}
}
