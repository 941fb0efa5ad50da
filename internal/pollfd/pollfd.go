// Package pollfd puts descriptors that came from another process under Go's
// poller, so that a read or write on them can be given a deadline and ends when
// the file is closed, and no thread is held by one that waits.
//
// It must only be given descriptors whose open file description nobody else
// reads or writes through: the non-blocking mode is a property of that.
package pollfd

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Open returns a file that is under the poller in place of f, which it closes.
// If f is already, it is returned as it is.
func Open(f *os.File) (*os.File, error) {
	if f.SetDeadline(time.Time{}) == nil {
		return f, nil
	}
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("cannot poll %s: %w", f.Name(), err)
	}
	var fd int
	var dupErr error
	// os.NewFile looks at the mode once, so a second descriptor is needed.
	err = raw.Control(func(old uintptr) {
		if fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3); dupErr == nil {
			dupErr = unix.SetNonblock(fd, true)
		}
	})
	if err == nil {
		err = dupErr
	}
	if err != nil {
		if fd > 0 {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("cannot poll %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// OpenAll does Open for each of files in place. On an error all are closed.
func OpenAll(files []*os.File) error {
	for i, f := range files {
		p, err := Open(f)
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return err
		}
		files[i] = p
	}
	return nil
}
