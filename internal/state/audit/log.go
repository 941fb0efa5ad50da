package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
)

const (
	// FlushDelay bounds how long a record given to AppendAsync waits for an Append
	// before it is written and synced without one.
	FlushDelay = 15 * time.Millisecond
	// maxPending bounds the bytes waiting to be written; beyond it AppendAsync
	// waits as Append does.
	maxPending = 4 << 20
	// keepBuffer is the largest write buffer that is used again.
	keepBuffer = 256 << 10
)

// file is the part of an open file that a Log uses. Tests replace it by one that
// fails like a disk.
type file interface {
	io.WriterAt
	io.ReaderAt
	// Hold gives the file its blocks for the bytes [from, to); see diskreserve.Hold.
	Hold(from, to int64) error
	Datasync() error
	Close() error
}

// Log is the open audit log, with this process as its only writer. Its methods
// may be called from any goroutine.
//
// Records that are queued while a group is being written form the next group. An appender that
// finds nobody writing writes and syncs the queue itself, without a switch between goroutines. If
// others wait when it is done, a goroutine goes on for as long as somebody waits, so that the next
// sync begins at once, whichever goroutine runs next ("audit append, 64 appenders").
type Log struct {
	f    file
	path string

	mu sync.Mutex

	pending []byte // encoded lines in order, not yet written
	spare   []byte // the other buffer of the pair
	writing bool   // somebody writes, or is about to write the next group
	// torn is how many of the pending bytes are in the file already, and inFlight how many others are being written
	// before them.
	torn, inFlight int

	// Appenders wait on now for the group being written and on next for the pending one; nil
	// if nobody waits.
	now, next *group

	// open holds the seq of every queued intent whose outcome is not queued.
	open map[int64]struct{}

	// seq and hash of the last record queued.
	seq  int64
	hash [hashLen]byte

	durable Head // last record on disk
	size    int64

	// full are the files before the current one, whose first record is first. cut is the offset
	// in pending at which the next file begins, or negative; see rotate.
	full  []fullFile
	first int64
	cut   int
	// last describes the file of the last record queued: the number of its first record, the
	// time when that was queued, and its size.
	last struct {
		first, size int64
		began       time.Time
	}
	maxSize int64
	maxAge  time.Duration
	wrap    func(file) file

	// ahead is the room behind the end of the current file; only who writes uses it. short: it is not
	// all there. stalled is why the pending lines found no room at all. prepared is the next file, and rotating says
	// that it is being put in its place; see full.go.
	ahead    diskreserve.Ahead
	zeroed   int64 // behind size are zeros up to here, and no other bytes; see zeros.go
	spreads  bool  // zeros are written there
	zeroing  bool  // they may be, now
	reserve  *diskreserve.Reserve
	short    bool
	stalled  error
	prepared *nextFile
	rotating bool

	// err is set by the first failure and never cleared.
	err    error
	closed bool
	ended  bool // End was called: nothing is queued any more

	timer *time.Timer
	armed bool

	// failed is closed when err is set.
	failed chan struct{}

	// reached is closed when the record reachedAt is on disk; nil if nobody waits.
	reached   chan struct{}
	reachedAt int64

	// changed is closed when size grew or the log ended; nil if nobody waits.
	changed chan struct{}
}

// osFile is the real file. sync is made once and stores its result in synced: only
// one goroutine writes at a time.
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

func (o *osFile) Hold(from, to int64) error { return diskreserve.Hold(o.conn, from, to) }

func (o *osFile) Datasync() error {
	if err := o.conn.Control(o.sync); err != nil {
		return err
	}
	return o.synced
}

// Append queues r and returns its sequence number once it and everything before
// it is on disk. It checks ctx before it queues r; after that it waits for the disk
// in any case, so that its result is definite. The error is invalid_argument for an
// invalid or too long record, which changes nothing, and resource_exhausted if there is
// no room on the disk now. Any other error means that the log cannot be written
// (unavailable). After an error no effect may follow.
func (l *Log) Append(ctx context.Context, r Record) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("cannot append to the audit log: %w", err)
	}
	if err := r.check(); err != nil {
		return 0, err
	}
	var buf [usualRest]byte
	rest := r.appendRest(buf[:0])
	l.mu.Lock()
	if err := l.unstall(); err != nil {
		l.mu.Unlock()
		return 0, err
	}
	seq, err := l.queue(&r, rest)
	if err != nil {
		l.mu.Unlock()
		return 0, err
	}
	if err = l.settle(); errdefs.IsResourceExhausted(err) && r.Type == Intent {
		l.abandon(&r, seq)
	}
	return seq, err
}

// usualRest is enough for the fields of almost every record.
const usualRest = 1 << 10

// AppendAsync queues r, has the kernel write it, and returns: unless another record is in its way, a killed process does not
// lose it. r is on disk with the next Append or after FlushDelay, whichever is first. If it cannot be written the next
// call fails.
func (l *Log) AppendAsync(r Record) error {
	if err := r.check(); err != nil {
		return err
	}
	var buf [usualRest]byte
	rest := r.appendRest(buf[:0])
	l.mu.Lock()
	if len(l.pending) > maxPending {
		if err := l.unstall(); err != nil { // what waits for room is bounded too
			l.mu.Unlock()
			return err
		}
	}
	if _, err := l.queue(&r, rest); err != nil {
		l.mu.Unlock()
		return err
	}
	if len(l.pending) > maxPending {
		return l.settle()
	}
	l.early()
	if !l.armed {
		l.armed = true
		if l.timer == nil {
			l.timer = time.AfterFunc(FlushDelay, l.flushLate)
		} else {
			l.timer.Reset(FlushDelay)
		}
	}
	l.mu.Unlock()
	return nil
}

// early writes what is pending where its group will, without a sync: the kernel keeps it when this process is killed.
// What fails is tried again with the group. l.mu is held.
func (l *Log) early() {
	if l.cut >= 0 || l.rotating || l.zeroing || l.short || l.stalled != nil {
		return
	}
	n, _ := l.f.WriteAt(l.pending[l.torn:], l.size+int64(l.inFlight+l.torn))
	l.torn += n
}

// Flush returns when everything queued before is on disk. The error is resource_exhausted if there is no
// room for it now: it waits in its place then.
func (l *Log) Flush() error {
	l.mu.Lock()
	if err := l.unstall(); err != nil {
		l.mu.Unlock()
		return err
	}
	return l.settle()
}

func (l *Log) flushLate() {
	l.mu.Lock()
	l.armed = false
	_ = l.settle() // the next caller gets l.err
	l.spread()
}

// queue appends r, of which rest is encoded already, to the pending lines. l.mu is held.
func (l *Log) queue(r *Record, rest []byte) (int64, error) {
	switch {
	case l.err != nil:
		return 0, l.err
	case l.closed:
		return 0, l.errClosed()
	case l.ended:
		return 0, fmt.Errorf("cannot append to the audit log %s: its last record is written, because the daemon is ending: %w",
			l.path, errdefs.ErrUnavailable)
	}
	now := r.Time
	if now.IsZero() {
		now = time.Now()
	}
	if l.isFull(now) && l.prepare() {
		l.queueRotation(now)
	}
	if l.seq < l.last.first {
		l.last.began = now
	}
	start := len(l.pending)
	b := appendStart(l.pending, l.hash[:], l.seq+1, now)
	if n := len(b) - start + len(rest); n > MaxRecord {
		return 0, fmt.Errorf("cannot append to the audit log: the %s record is %d bytes long and at most %d are allowed: %w",
			r.Type, n, MaxRecord, errdefs.ErrInvalidArgument)
	}
	b = append(b, rest...)
	seal(b[start:])
	l.pending = b
	l.last.size += int64(len(b) - start)
	l.seq++
	copy(l.hash[:], hashOf(b[start:]))
	l.track(r.Type, l.seq, r.Intent)
	return l.seq, nil
}

// queued returns the head of the last record queued. l.mu is held.
func (l *Log) queued() Head {
	if l.seq == 0 {
		return Head{}
	}
	return Head{Seq: l.seq, Hash: string(l.hash[:])}
}

// announce wakes the readers that follow. l.mu is held.
func (l *Log) announce() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Failed is closed when the log can no longer be written. Only opening it again can help then.
func (l *Log) Failed() <-chan struct{} { return l.failed }

// Reached returns a channel that is closed once the record seq is on disk. Only one caller may wait
// at a time: a channel that was returned before may stay open.
func (l *Log) Reached(seq int64) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reached == nil {
		l.reached = make(chan struct{})
	}
	l.reachedAt = seq
	c := l.reached
	if l.durable.Seq >= seq {
		close(l.reached)
		l.reached = nil
	}
	return c
}

// Head returns the last record that is on disk.
func (l *Log) Head() Head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.durable
}

// Path returns the path that the log was opened with.
func (l *Log) Path() string { return l.path }

// Close writes what is pending and closes the file. Later calls fail. It returns the
// error of this or an earlier write.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	// Closed first, so that nothing is queued behind the last group.
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	err := l.settle()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.announce()
	if l.prepared != nil && l.prepared.err == nil {
		_ = errors.Join(l.prepared.file.Close(), os.Remove(l.prepared.real.Name())) // else the next start does
	}
	if cerr := l.f.Close(); cerr != nil && err == nil {
		err = fmt.Errorf("cannot close the audit log %s: %w", l.path, cerr)
	}
	return err
}

func (l *Log) errClosed() error {
	return fmt.Errorf("cannot use the audit log %s: it is closed: %w", l.path, errdefs.ErrUnavailable)
}
