package audit

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Shared is a log to which several processes append. Each takes the file's lock for one append and
// reads the end of the chain again. It is for processes that write few records; a daemon's Log
// keeps the lock.
type Shared struct{ path string }

// OpenShared returns the log at path, an absolute one. The file is made at the first append.
func OpenShared(path string) *Shared { return &Shared{path} }

// Path returns the path that the log was opened with.
func (s *Shared) Path() string { return s.path }

// Append is Log.Append: the record is on disk when it returns.
func (s *Shared) Append(ctx context.Context, r Record) (seq int64, err error) {
	err = s.with(ctx, func(l *Log) error {
		seq, err = l.Append(ctx, r)
		return err
	})
	return seq, err
}

// AppendAsync waits for the disk as Append does: there may be no later append of this process.
func (s *Shared) AppendAsync(r Record) error {
	_, err := s.Append(context.Background(), r)
	return err
}

// Flush has nothing to do: every record is on disk when its append returns.
func (s *Shared) Flush() error { return nil }

// Unfinished returns the intents without an outcome, in order. It reads the whole log.
// Some may belong to processes that are carrying them out now.
func (s *Shared) Unfinished(ctx context.Context) (open []Record, err error) {
	err = s.with(ctx, func(l *Log) error {
		if err := l.catchUp(ctx, Mark{}); err != nil {
			return err
		}
		open, err = l.Unfinished()
		return err
	})
	return open, err
}

// with opens the log, and calls f while its lock is held.
func (s *Shared) with(ctx context.Context, f func(*Log) error) error {
	file, err := openWith(s.path, unix.LOCK_EX)
	if err != nil {
		return err
	}
	var repair *Mended
	l, data, err := inspect(file, Options{Path: s.path})
	if err == nil {
		repair, err = l.cutOff(file, data)
	}
	if err == nil {
		err = l.noteRepair(ctx, repair)
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	return errors.Join(f(l), l.Close())
}

// lockFile calls flock on f with the operation how.
func lockFile(f *os.File, how int) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := conn.Control(func(fd uintptr) {
		for {
			if err = unix.Flock(int(fd), how); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}); cerr != nil {
		return cerr
	}
	return err
}
