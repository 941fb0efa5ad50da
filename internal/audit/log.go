package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	// FlushDelay is the longest that a record given to AppendAsync waits for
	// company before it is written and synced on its own.
	FlushDelay = 15 * time.Millisecond
	// maxPending bounds the bytes waiting to be written; beyond it AppendAsync
	// waits as Append does.
	maxPending = 4 << 20
	// keepBuffer is the largest write buffer kept for the next group.
	keepBuffer = 256 << 10
)

// file is what a Log needs of its open file. Tests replace it by one that fails
// where a disk would.
type file interface {
	io.Writer
	io.ReaderAt
	Datasync() error
	Close() error
}

// Log is the open audit log, with this process as its only writer. Its methods
// may be called from any goroutine.
//
// There is no writing goroutine. The first appender to find nobody writing
// writes and syncs what all have queued; those that come meanwhile queue, and
// one of them does the next group. An appender alone thus pays for write and
// fdatasync and nothing else.
type Log struct {
	f    file
	path string

	mu   sync.Mutex
	done sync.Cond // a group was written, or the log failed

	pending []byte // encoded lines in order, not yet written
	spare   []byte // the other buffer of the pair
	writing bool   // a group is being written, with mu released
	waiting int    // appenders waiting for it or for the next
	company bool   // some were waiting when the last group ended

	// open holds the seq of every intent queued whose outcome is not.
	open map[int64]struct{}

	head    Head // last record queued
	durable Head // last record on disk
	size    int64

	// err is set by the first failure and never cleared.
	err    error
	closed bool

	timer *time.Timer
	armed bool

	// changed is closed when size grew or the log ended; nil if nobody waits.
	changed chan struct{}
}

// osFile is the real file. sync is made once and leaves its result in synced: a
// group is written by one goroutine at a time.
type osFile struct {
	*os.File
	conn   syscall.RawConn
	sync   func(fd uintptr)
	synced error
}

func newFile(f *os.File) (*osFile, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("cannot open the audit log: %w", err)
	}
	o := &osFile{File: f, conn: conn}
	o.sync = func(fd uintptr) {
		for {
			if o.synced = unix.Fdatasync(int(fd)); !errors.Is(o.synced, unix.EINTR) {
				return
			}
		}
	}
	return o, nil
}

func (o *osFile) Datasync() error {
	if err := o.conn.Control(o.sync); err != nil {
		return err
	}
	return o.synced
}

// Append queues r and returns its sequence number once it and everything before
// it is on disk. ctx is looked at before r is queued; after that Append waits for
// the disk, so that its answer is never in doubt. An invalid or over-long record
// is invalid_argument and changes nothing; any other error means that the log
// cannot be written (unavailable), and no effect may follow.
func (l *Log) Append(ctx context.Context, r Record) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("cannot append to the audit log: %w", err)
	}
	if err := r.check(); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seq, err := l.queue(&r)
	if err != nil {
		return 0, err
	}
	return seq, l.await(seq)
}

// AppendAsync queues r behind everything queued before and returns. It is on disk
// with the next Append or after FlushDelay, whichever is first. A failure to
// write it shows in the next call.
func (l *Log) AppendAsync(r Record) error {
	if err := r.check(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seq, err := l.queue(&r)
	if err != nil {
		return err
	}
	if len(l.pending) > maxPending {
		return l.await(seq)
	}
	if !l.armed {
		l.armed = true
		if l.timer == nil {
			l.timer = time.AfterFunc(FlushDelay, l.flushLate)
		} else {
			l.timer.Reset(FlushDelay)
		}
	}
	return nil
}

func (l *Log) flushLate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	_ = l.await(l.head.Seq) // kept in l.err, for the next caller
}

// queue encodes r behind what is pending. l.mu is held.
func (l *Log) queue(r *Record) (int64, error) {
	switch {
	case l.err != nil:
		return 0, l.err
	case l.closed:
		return 0, l.errClosed()
	}
	now := r.Time
	if now.IsZero() {
		now = time.Now()
	}
	prev := l.head.Hash
	if l.head.Seq == 0 {
		prev = Genesis
	}
	start := len(l.pending)
	b := r.appendLine(l.pending, prev, l.head.Seq+1, now)
	if n := len(b) - start; n > MaxRecord {
		return 0, fmt.Errorf("cannot append to the audit log: the %s record is %d bytes long and at most %d are allowed: %w",
			r.Type, n, MaxRecord, errdefs.ErrInvalidArgument)
	}
	l.pending = b
	l.head = Head{Seq: l.head.Seq + 1, Hash: seal(b[start:])}
	l.track(r.Type, l.head.Seq, r.Intent)
	return l.head.Seq, nil
}

// await returns when seq is on disk, writing a group itself whenever nobody
// else does. l.mu is held, and released while it waits or writes.
func (l *Log) await(seq int64) error {
	for {
		switch {
		case l.durable.Seq >= seq:
			return nil
		case l.err != nil:
			return l.err
		case l.writing:
			l.waiting++
			l.done.Wait()
			l.waiting--
		default:
			l.writeGroup()
		}
	}
}

// writeGroup writes and syncs everything pending. l.mu is held, and released
// for the system calls.
func (l *Log) writeGroup() {
	l.writing = true
	// Let those whom the last group woke run first: they may append again, and
	// share this sync instead of waiting for the next.
	if l.company {
		l.mu.Unlock()
		runtime.Gosched()
		l.mu.Lock()
	}
	group, head := l.pending, l.head
	l.pending, l.spare = l.spare[:0], nil
	l.mu.Unlock()

	_, err := l.f.Write(group)
	if err == nil {
		err = l.f.Datasync()
	}

	l.mu.Lock()
	l.writing = false
	if cap(group) <= keepBuffer {
		l.spare = group
	}
	if err != nil {
		// What reached the disk is unknown, and a later fdatasync would report
		// success for pages that the kernel has dropped: nothing more may be
		// acknowledged through this file.
		l.err = fmt.Errorf("cannot write the audit log %s, so no further action is carried out: %w; free space or mend the disk, then restart carreld: %w",
			l.path, err, errdefs.ErrUnavailable)
	} else {
		l.durable = head
		l.size += int64(len(group))
	}
	l.company = l.waiting > 0
	l.announce()
	l.done.Broadcast()
}

// announce wakes the readers that follow. l.mu is held.
func (l *Log) announce() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Head returns the last record that is on disk.
func (l *Log) Head() Head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.durable
}

// Path returns the path that the log was opened with.
func (l *Log) Path() string { return l.path }

// Close writes what is pending and lets go of the file. Later calls fail. It
// reports a failure to write, also an earlier one.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	// Closed first, so that nothing is queued behind what is now written.
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	err := l.await(l.head.Seq)
	l.announce()
	if cerr := l.f.Close(); cerr != nil && err == nil {
		err = fmt.Errorf("cannot close the audit log %s: %w", l.path, cerr)
	}
	return err
}

func (l *Log) errClosed() error {
	return fmt.Errorf("cannot use the audit log %s: it is closed: %w", l.path, errdefs.ErrUnavailable)
}
