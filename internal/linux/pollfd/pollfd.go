// Package pollfd puts descriptors from another process under Go's poller, so that
// a read or write can have a deadline, ends when the file is closed, and blocks no
// thread.
//
// Nobody else may read or write through the same open file description, because
// nonblocking mode is a property of the description.
package pollfd

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Open returns a file under the poller for f, which it closes. If f is under the
// poller already, Open returns f.
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

// OpenAll replaces each of files by Open. On an error all are closed.
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
