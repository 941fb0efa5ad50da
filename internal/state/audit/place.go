package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/untrustedfile"
)

// InPlace returns nil if the log's name leads to the file that this process writes. If it does
// not, the file was removed or another was put in its place: records would go where nobody looks,
// so nothing is written any more. data_loss: that is so.
func (l *Log) InPlace() error {
	for range 100 {
		l.mu.Lock()
		if l.writing && !l.closed && l.err == nil { // a rotation may be under way
			l.mu.Unlock()
			if _, err := l.Mark(); err != nil {
				return err
			}
			continue
		}
		defer l.mu.Unlock()
		return l.inPlace()
	}
	return nil // it is always being written; the next checkpoint asks again
}

// inPlace is InPlace while nothing is being written. l.mu is held.
func (l *Log) inPlace() error {
	switch {
	case l.closed:
		return l.errClosed()
	case l.err != nil && errdefs.IsDataLoss(l.err):
		return l.err
	case l.err != nil: // of the disk: what is there can be verified
		return nil
	}
	ours, ok := l.f.(interface{ Stat() (os.FileInfo, error) })
	if !ok {
		return nil // a double of a test, which is no file
	}
	is, err := ours.Stat()
	if err != nil {
		return fmt.Errorf("cannot look at the audit log: %w", err)
	}
	there, err := os.Lstat(l.path)
	switch {
	case err == nil && os.SameFile(is, there):
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cannot look at the audit log: %w", err)
	}
	l.err = fmt.Errorf("cannot go on with the audit log %s: it was removed, or another file was put in its place, while it was written; "+
		"what was written last is lost with it, and no further action is carried out; see what else that user changed, then \"carrel up\": %w",
		l.path, errdefs.ErrDataLoss)
	close(l.failed)
	l.announce()
	return l.err
}

// InUse reports whether a daemon has the log at path open.
func InUse(path string) (bool, error) {
	f, err := untrustedfile.Open(path)
	if err != nil {
		return false, fmt.Errorf("cannot open the audit log: %w", err)
	}
	defer f.Close()
	err = lockFile(f, unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}
