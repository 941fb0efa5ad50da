// Package logfile is a log that no caller can make large: lines that one caller gives rise to again and
// again are counted instead of written, and the file is emptied once it is large.
//
// It must not judge what a line says, and never names a file: whoever starts a process opens them.
package logfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// MaxSize is how large a log becomes, in bytes. It and the old one together take twice as much.
const MaxSize = 16 << 20

// Rotating is a log file that is emptied once it is large, after its content went to another file.
// Both are open from the start: the daemon has no right to their directory, which is root's, and
// root's own programs do nothing with them by name while it runs. Whoever else appends to the file, as the
// runtime does to standard error, goes on at its new end.
type Rotating struct {
	most int64

	mu       sync.Mutex
	log, old *os.File
	size     int64
}

// NewRotating returns a writer to log, which must be open for reading and appending, and is rotated
// into old before it has more than most bytes.
func NewRotating(log, old *os.File, most int64) (*Rotating, error) {
	r := &Rotating{log: log, old: old, most: most}
	for _, f := range []*os.File{log, old} {
		fi, err := f.Stat()
		if err != nil {
			return nil, fmt.Errorf("cannot use %s as a log: %w", f.Name(), err)
		}
		if !fi.Mode().IsRegular() {
			return nil, fmt.Errorf("cannot rotate %s: it is no regular file; start without --old-log-fd: %w", f.Name(),
				errdefs.ErrInvalidArgument)
		}
		if f == log {
			r.size = fi.Size()
		}
	}
	return r, nil
}

// Write implements io.Writer.
func (r *Rotating) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.size+int64(len(p)) > r.most {
		if err := r.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := r.log.Write(p)
	r.size += int64(n)
	return n, err
}

// rotate keeps the newest part of the log as the old one. If that cannot be written, because the
// disk is full, the log is emptied all the same: it must not fill the disk further.
func (r *Rotating) rotate() error {
	fi, err := r.log.Stat()
	if err != nil {
		return err
	}
	kept := errors.Join(r.old.Truncate(0), seekStart(r.old))
	if from := max(0, fi.Size()-r.most); kept == nil {
		_, kept = io.Copy(r.old, io.NewSectionReader(r.log, from, fi.Size()-from))
	}
	if err := r.log.Truncate(0); err != nil {
		return err
	}
	r.size = 0
	if kept != nil {
		n, _ := fmt.Fprintf(r.log, "the log before this line is lost: it could not be kept: %v\n", kept)
		r.size = int64(n)
	}
	return nil
}

func seekStart(f *os.File) error {
	_, err := f.Seek(0, io.SeekStart)
	return err
}

// FromFDs returns where a log goes that a program was started with: out, rotated into the inherited
// descriptor old if that is none of the standard ones and out is a file.
func FromFDs(out io.Writer, old int) (io.Writer, error) {
	f, ok := out.(*os.File)
	if old <= unix.Stderr || !ok {
		return out, nil
	}
	unix.CloseOnExec(old)
	return NewRotating(f, os.NewFile(uintptr(old), "old log"), MaxSize)
}
