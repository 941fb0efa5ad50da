package audit

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
)

// When the disk is full, the log goes on in the room that it holds behind the end of its file: nobody
// else can take that. Once it is used up, or where the file system holds none, lines wait in memory in
// their order, and nothing new is begun:
//
//	all room is held ─► short: it is used up, and begins no other file ─► stalled: lines wait
//	      ▲                     │                                               │
//	      └─────────────────────┴──────────────────── Room ◄────────────────────┘

// Room has the log hold its room again after it could not, and write the lines that wait. The error is
// resource_exhausted if there is no room for that. It is cheap when nothing is missing.
func (l *Log) Room(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || l.closed || l.writing {
		return l.missing()
	}
	if l.seq == l.durable.Seq && l.ahead.Left(l.size) >= l.ahead.Least {
		l.short = false
		return nil
	}
	end := l.size + int64(len(l.pending))
	l.alone(func() error { return l.ahead.Keep(l.f.Hold, end) }, func(err error) { l.short = err != nil })
	return l.missing()
}

// missing says what of its room the log lacks. l.mu is held.
func (l *Log) missing() error {
	switch {
	case l.stalled != nil:
		return l.stalled
	case l.short:
		return fmt.Errorf("cannot hold room for the audit log %s: %w", l.path, errdefs.ErrResourceExhausted)
	}
	return nil
}

// Left reports whether more than a part in so many of the room that the log should hold is there.
func (l *Log) Left(part int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stalled == nil && (l.writing || l.ahead.Least == 0 || l.ahead.Left(l.size) > l.ahead.Least/part)
}

// errPutOff says that a rotation found no room before it had changed anything.
var errPutOff = errors.New("the rotation is put off")

// write writes at an offset of a file of the log, and takes room from the reserve where there is no other.
func (l *Log) write(f file, b []byte, at int64) (n int, err error) {
	n, err = f.WriteAt(b, at)
	for diskreserve.Full(err) && l.reserve.Give() {
		var more int
		more, err = f.WriteAt(b[n:], at+int64(n))
		n += more
	}
	return n, err
}

// stall keeps lines that found no room, of which done bytes are in the file, for the next attempt. Those
// who wait for them have the error. l.mu is held.
func (l *Log) stall(lines []byte, cut, done int, err error) {
	if l.cut >= 0 {
		l.cut += len(lines)
	} else {
		l.cut = cut
	}
	l.pending, l.torn, l.short = append(lines, l.pending...), done, true
	l.stalled = fmt.Errorf("cannot write the audit log %s now: %w; see with df -h and df -i what is full, and free some: %w",
		l.path, err, errdefs.ErrResourceExhausted)
	l.now.end(l.stalled)
	l.now = nil
}

// unstall tries again to write lines that found no room. Nothing new may be begun while they wait. l.mu is
// held.
func (l *Log) unstall() error {
	if l.stalled == nil || l.err != nil || l.closed || l.writing {
		return l.stalled
	}
	err := l.writeGroup()
	if l.writing = l.next != nil; l.writing {
		go l.writeOn()
	}
	return err
}

// abandon records that an intent was not carried out, whose line found no room when it was to be.
func (l *Log) abandon(intent *Record, seq int64) {
	_ = l.AppendAsync(Record{ // else the next start closes it
		Type: Outcome, Trace: intent.Trace, Principal: intent.Principal, Owner: intent.Owner, Workspace: intent.Workspace, Intent: seq,
		Status: StatusFailed, Error: "it was not carried out: there was no room on the disk to record it in time",
		ErrorKind: "resource_exhausted",
	})
}

// nextFile is a file that a rotation goes on in, made before the rotation is recorded: so a full disk
// puts a rotation off and is no failure of one.
type nextFile struct {
	real   *os.File
	file   file
	ahead  diskreserve.Ahead
	zeroed int64
	err    error // why there is none, and the rotation fails
}

// prepare makes the next file with its room. It returns false if there is no room for it; then the log goes on
// in the current one. l.mu is held, once for each file.
func (l *Log) prepare() bool {
	if l.prepared != nil || l.rotating || l.short || l.stalled != nil {
		return false
	}
	n, err := l.makeNext()
	if diskreserve.Full(err) {
		l.short = true // until Room finds otherwise
		return false
	}
	if err != nil {
		n = &nextFile{err: err}
	}
	l.prepared = n
	return true
}

func (l *Log) makeNext() (n *nextFile, err error) {
	f, err := os.OpenFile(l.path+newSuffix, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	n = &nextFile{real: f, ahead: diskreserve.Ahead{Least: l.ahead.Least, Step: l.ahead.Step}}
	real, err := newFile(f)
	if err == nil {
		n.file = real
		if l.wrap != nil {
			n.file = l.wrap(real)
		}
		if err = lockFile(f, unix.LOCK_EX|unix.LOCK_NB); err == nil {
			err = n.ahead.Keep(n.file.Hold, 0)
		}
		if err == nil && l.spreads {
			n.zeroed = writeZeros(n.file, 0, zeroStep)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return n, nil
}
