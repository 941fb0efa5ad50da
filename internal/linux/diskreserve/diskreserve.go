// Package diskreserve keeps room on a disk for what must be written when it is full: blocks that a file holds
// behind its end, which nobody else can take, and the knowledge of whether the disk is full.
//
// It must not decide what is refused then; the gate does.
package diskreserve

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Full reports whether an error says that a file system or a quota is full.
func Full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// Hold has the file system give the file its blocks for the bytes [from, to). The file does not become
// longer.
func Hold(f syscall.RawConn, from, to int64) error {
	var err error
	if cerr := f.Control(func(fd uintptr) {
		for {
			if err = unix.Fallocate(int(fd), unix.FALLOC_FL_KEEP_SIZE, from, to-from); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}); cerr != nil {
		return cerr
	}
	return err
}

// Of is Hold for an open file.
func Of(f *os.File) func(from, to int64) error {
	return func(from, to int64) error {
		conn, err := f.SyscallConn()
		if err != nil {
			return err
		}
		return Hold(conn, from, to)
	}
}

// holdAtOnce is how much Ahead asks for in one call: what a full file system still gives is kept.
const holdAtOnce = 1 << 20

// Ahead holds room behind the end of a file that is only appended to, in steps, so that it rarely has to
// ask the file system. The zero value holds nothing. It is for one goroutine at a time.
type Ahead struct {
	// Least is how many bytes are held behind the end, and Step how many more once there are fewer.
	Least, Step int64

	held int64 // the bytes of the file before this offset have their blocks
}

// Keep has the file hold its room behind end. hold is Hold for the file. The only error is that of a full
// file system: one that cannot hold room at all is not asked again.
func (a *Ahead) Keep(hold func(from, to int64) error, end int64) error {
	if a.held-end >= a.Least {
		return nil
	}
	a.held = max(a.held, end)
	for to := end + a.Least + a.Step; a.held < to; {
		next := min(a.held+holdAtOnce, to)
		err := hold(a.held, next)
		if Full(err) {
			return err
		}
		if err != nil {
			a.Least, a.Step = 0, 0
			return nil
		}
		a.held = next
	}
	return nil
}

// Has takes up what a file without holes holds already, as fi says.
func (a *Ahead) Has(fi os.FileInfo) {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		a.held = max(0, st.Blocks*512-indexes)
	}
}

// indexes is what of the blocks of a file may be the file system's own.
const indexes = 64 << 10

// Left is how many bytes behind end are held.
func (a *Ahead) Left(end int64) int64 { return max(0, a.held-end) }

// Reset forgets what is held: the file was cut off, or is another one.
func (a *Ahead) Reset() { a.held = 0 }

// Share is what to hold of a file system: so many bytes, or one part in so many of a small one.
func Share(dir string, bytes, part int64) int64 {
	size, _, err := Space(dir)
	if err != nil {
		return bytes
	}
	return min(bytes, size/part)
}

// Space returns the size of the file system of a directory, and what of it is free to this process.
func Space(dir string) (size, free int64, err error) {
	var st unix.Statfs_t
	for {
		if err = unix.Statfs(dir, &st); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return 0, 0, err
	}
	unit := st.Frsize
	if unit == 0 {
		unit = st.Bsize
	}
	return int64(st.Blocks) * unit, int64(st.Bavail) * unit, nil
}
