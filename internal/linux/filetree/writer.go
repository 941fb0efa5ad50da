package filetree

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Part is what the names of files begin with that are being written, where a file without a name cannot be had.
const Part = ".carrel-part-"

// sweepNames bounds how many names Sweep looks at.
const sweepNames = 4096

// Writer writes one file, which has its name once it is whole. Until then it has none where the file system
// can do that, so that a process that is killed leaves nothing; elsewhere it has a name with Part, and a lock
// by which Sweep knows that its writer lives.
type Writer struct {
	dir  *Dir
	name string
	f    *os.File
	part string // its name until it is whole, "" without
}

// Create begins to write the file that d is to have under name. Close or Commit ends it.
func (d *Dir) Create(name string) (*Writer, error) {
	w := &Writer{dir: d, name: name}
	fd, err := again(func() (int, error) {
		return unix.Openat(d.fd, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	})
	switch {
	case err == nil:
		w.f = os.NewFile(uintptr(fd), name)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
		if err := w.named(); err != nil {
			return nil, err
		}
	default:
		return nil, at(name, err)
	}
	return w, nil
}

// named makes the file with a name of its own.
func (w *Writer) named() error {
	for range 16 {
		part := partName()
		fd, err := again(func() (int, error) {
			return unix.Openat(w.dir.fd, part, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		})
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return at(w.name, err)
		}
		var st unix.Stat_t
		// Somebody may have swept it away before it was locked.
		if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil && unix.Fstat(fd, &st) == nil && st.Nlink == 0 {
			unix.Close(fd)
			continue
		}
		w.f, w.part = os.NewFile(uintptr(fd), w.name), part
		return nil
	}
	return at(w.name, unix.EBUSY)
}

func partName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return Part + hex.EncodeToString(b[:])
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) { return w.f.Write(p) }

// ReadFrom implements io.ReaderFrom.
func (w *Writer) ReadFrom(r io.Reader) (int64, error) { return io.Copy(w.f, r) }

// Close ends a Writer without a Commit: nothing is left of it. After one it does nothing.
func (w *Writer) Close() {
	if w.f == nil {
		return
	}
	if w.part != "" {
		_ = unix.Unlinkat(w.dir.fd, w.part, 0)
	}
	w.f.Close()
	w.f = nil
}

// Final says how a file is put in its place.
type Final struct {
	Mode  fs.FileMode
	MTime time.Time // zero is now
	// Sync has its bytes on disk first, so that a loss of power leaves the old file or the new one.
	Sync bool
	// Keep: what has the name stays, and the error is EEXIST.
	Keep bool
}

// Commit gives the file its name. What has it is replaced, a link itself and not where it leads; a directory is
// an error. After an error what was there is as it was.
func (w *Writer) Commit(o Final) error {
	defer w.Close()
	if err := w.dress(o); err != nil {
		return at(w.name, err)
	}
	switch err := w.link(w.name); {
	case err == nil:
		return nil
	case errors.Is(err, unix.EEXIST) && o.Keep:
		return at(w.name, err)
	}
	if w.part == "" {
		part := partName()
		_ = w.control(func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }) // while it has a name with Part
		switch err := w.link(part); {
		case err == nil:
			w.part = part
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
			return at(w.name, err)
		default: // this file system, or this process, cannot name what had no name
			if err := w.copied(o); err != nil {
				return err
			}
		}
	}
	flags := uint(0)
	if o.Keep {
		flags = unix.RENAME_NOREPLACE
	}
	if err := unix.Renameat2(w.dir.fd, w.part, w.dir.fd, w.name, flags); err != nil {
		return at(w.name, err)
	}
	w.part = ""
	return nil
}

// link gives a file without a name one that nothing has.
func (w *Writer) link(name string) error {
	if w.part != "" {
		return unix.EBUSY
	}
	return w.control(func(fd int) error {
		return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), w.dir.fd, name, unix.AT_SYMLINK_FOLLOW)
	})
}

// copied makes a file with a name of its own from one without.
func (w *Writer) copied(o Final) error {
	from := w.f
	defer from.Close()
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := w.named(); err != nil {
		return err
	}
	if _, err := io.Copy(w.f, from); err != nil {
		return err
	}
	return w.dress(o)
}

// dress gives the file mode and time, and has it on disk if that is wanted.
func (w *Writer) dress(o Final) error {
	return w.control(func(fd int) error {
		if err := unix.Fchmod(fd, uint32(o.Mode.Perm())); err != nil {
			return err
		}
		if !o.MTime.IsZero() {
			if err := touch(fd, o.MTime); err != nil {
				return err
			}
		}
		if o.Sync {
			_, err := again(func() (int, error) { return 0, unix.Fsync(fd) })
			return err
		}
		return nil
	})
}

func (w *Writer) control(f func(fd int) error) (err error) {
	rc, cerr := w.f.SyscallConn()
	if cerr != nil {
		return cerr
	}
	cerr = rc.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(cerr, err)
}

// touch is futimens(3): utimensat(2) without a path.
func touch(fd int, t time.Time) error {
	ts := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: t.Unix(), Nsec: int64(t.Nanosecond())}}
	_, _, e := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&ts[0])), 0, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// Sweep removes files of writers in d that were killed.
func (d *Dir) Sweep() {
	names, _, err := d.Names(sweepNames)
	if err != nil {
		return
	}
	for _, name := range names {
		if !strings.HasPrefix(name, Part) {
			continue
		}
		f, _, err := d.Open(name)
		if err != nil {
			continue
		}
		if rc, err := f.SyscallConn(); err == nil {
			_ = rc.Control(func(fd uintptr) {
				if unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) == nil {
					_ = unix.Unlinkat(d.fd, name, 0) // the next one tries again
				}
			})
		}
		f.Close()
	}
}
