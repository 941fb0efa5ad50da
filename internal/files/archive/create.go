package archive

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/archive/tarfmt"
)

// dir is an open directory in which files are created. Its mode and time are set when its last
// file is complete, because creating files needs the former and changes the latter. So the memory
// in use depends on the depth of the tree and not on its size.
type dir struct {
	fd        int
	parent    *dir
	name      string
	held      atomic.Int32 // count of the walk, open child directories and jobs
	mode      uint32
	sec, nsec int64
	setMode   bool
	setTime   bool
}

func (d *dir) path() string {
	if d.parent == nil {
		return d.name
	}
	if above := d.parent.path(); above != "" {
		return above + "/" + d.name
	}
	return d.name
}

// describe keeps the mode and time for finish. The mode of the root does not change.
func (u *unpacker) describe(h *tarfmt.Header, mode uint32, root bool) error {
	d := u.at
	d.sec, d.nsec, d.setTime = h.Sec, h.Nsec, true
	if !root {
		d.mode, d.setMode = mode, true
	}
	return setXattrs(d.fd, h.Xattrs)
}

// release finishes the directory when nothing more is created in it.
func (u *unpacker) release(d *dir) {
	for ; d != nil && d.held.Add(-1) == 0; d = d.parent {
		if err := d.finish(); err != nil {
			u.fail(about("unpack", d.path(), err))
		}
	}
}

func (d *dir) finish() error {
	defer unix.Close(d.fd)
	if d.setMode {
		if err := unix.Fchmod(d.fd, d.mode); err != nil {
			return os.NewSyscallError("chmod", err)
		}
	}
	if d.setTime {
		return utimes(d.fd, d.sec, d.nsec)
	}
	return nil
}

// depth returns the number of names in d's path.
func (d *dir) depth() (n int) {
	for ; d.parent != nil; d = d.parent {
		n++
	}
	return n
}

func (u *unpacker) root() *dir {
	d := u.at
	for d.parent != nil {
		d = d.parent
	}
	return d
}

// leave goes one level up; from the root, to nowhere.
func (u *unpacker) leave() {
	d := u.at
	u.at = d.parent
	u.release(d)
}

// enter changes to the directory at the path names below the root, and makes missing
// directories.
func (u *unpacker) enter(names []string) error {
	open := make([]*dir, u.at.depth())
	for d, i := u.at, len(open)-1; i >= 0; d, i = d.parent, i-1 {
		open[i] = d
	}
	same := 0
	for same < len(names) && same < len(open) && names[same] == open[same].name {
		same++
	}
	for range len(open) - same {
		u.leave()
	}
	for _, name := range names[same:] {
		if err := u.step(name); err != nil {
			return err
		}
	}
	return nil
}

// step enters the directory name, and makes it if it is missing.
func (u *unpacker) step(name string) error {
	d := &dir{parent: u.at, name: name}
	err := unix.Mkdirat(u.at.fd, name, 0o700)
	known := errors.Is(err, unix.EEXIST)
	switch {
	case known:
		// It was left before: jobs in it must end first. Its mode and time stay, unless
		// another entry changes them.
		u.pending.Wait()
	case err != nil:
		return os.NewSyscallError("mkdir", err)
	default:
		// Directories without an entry count too: one path can name many.
		if u.made++; u.made > u.limits.Entries {
			return tooMany("directories", u.limits.Entries)
		}
	}
	if d.fd, err = openDir(u.at.fd, name); err != nil {
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return noDirectory(name)
		}
		return err
	}
	if known {
		if err := d.reopen(); err != nil {
			unix.Close(d.fd)
			return err
		}
	}
	u.at.held.Add(1)
	d.held.Store(1)
	u.at = d
	return nil
}

// reopen prepares a finished directory for more files.
func (d *dir) reopen() error {
	var st unix.Statx_t
	if err := statx(d.fd, "", &st); err != nil {
		return err
	}
	d.sec, d.nsec, d.setTime = st.Mtime.Sec, int64(st.Mtime.Nsec), true
	d.mode, d.setMode = uint32(st.Mode)&0o7777, true
	if d.mode&0o700 == 0o700 {
		return nil
	}
	return os.NewSyscallError("chmod", unix.Fchmod(d.fd, d.mode|0o700))
}

func setXattrs(fd int, xattrs []tarfmt.Xattr) error {
	for _, x := range xattrs {
		if err := unix.Fsetxattr(fd, x.Name, x.Value, 0); err != nil {
			return fmt.Errorf("attribute %q: %w", x.Name, os.NewSyscallError("fsetxattr", err))
		}
	}
	return nil
}

// job is a small file with all of its data.
type job struct {
	dir    *dir
	header tarfmt.Header
	name   string
	mode   uint32
	pieces [][]byte
	chunks []*chunk
}

// file creates a regular file: a creator does it if the file is small, else this goroutine.
func (u *unpacker) file(h *tarfmt.Header, name string, mode uint32) error {
	if h.Sparse || h.Size > smallBytes {
		return u.large(h, name, mode)
	}
	j := &job{dir: u.at, header: *h, name: name, mode: mode}
	for left := h.Size; left > 0; {
		b, c, err := u.piece(left)
		if err != nil {
			j.release()
			return short(err)
		}
		j.pieces, j.chunks = append(j.pieces, b), append(j.chunks, c)
		left -= int64(len(b))
	}
	u.Bytes += h.Size
	u.at.held.Add(1)
	u.pending.Add(1)
	select {
	case u.jobs <- j:
	case <-u.ctx.Done():
		u.drop(j)
		return u.ctx.Err()
	}
	return u.skip(-h.Size & (tarfmt.BlockSize - 1))
}

func (j *job) release() {
	for _, c := range j.chunks {
		c.release()
	}
}

// drop releases the chunks and the directory of a job. Once none is pending, every directory
// that the walk has left is finished.
func (u *unpacker) drop(j *job) {
	j.release()
	u.release(j.dir)
	u.pending.Done()
}

// create creates small files until there are no more jobs.
func (u *unpacker) create() {
	for j := range u.jobs {
		if u.ctx.Err() == nil {
			if err := j.make(); err != nil {
				u.fail(about("unpack", j.header.Name, err))
			}
		}
		u.drop(j)
	}
}

func (j *job) make() error {
	fd, err := newFile(j.dir.fd, j.name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, b := range j.pieces {
		if err := writeAll(fd, b, -1); err != nil {
			return err
		}
	}
	return finishFile(fd, &j.header, j.mode)
}

// large writes a file while its data arrives, and leaves the holes of a sparse one.
func (u *unpacker) large(h *tarfmt.Header, name string, mode uint32) error {
	fd, err := newFile(u.at.fd, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	extents := h.Extents
	if !h.Sparse {
		extents = []tarfmt.Extent{{Length: h.Size}}
	}
	for _, e := range extents {
		for at, end := e.Offset, e.Offset+e.Length; at < end; {
			b, c, err := u.piece(end - at)
			if err != nil {
				return short(err)
			}
			if h.Sparse {
				err = writeHoles(fd, b, at)
			} else {
				err = writeAll(fd, b, at)
			}
			c.release()
			if err != nil {
				return err
			}
			at += int64(len(b))
			u.Bytes += int64(len(b))
			u.progress.step(&u.Summary)
		}
	}
	if h.Sparse {
		if err := unix.Ftruncate(fd, h.RealSize); err != nil {
			return os.NewSyscallError("ftruncate", err)
		}
	}
	if err := finishFile(fd, h, mode); err != nil {
		return err
	}
	return u.skip(-h.Size & (tarfmt.BlockSize - 1))
}

// newFile creates a file. It fails if the name exists, even as a symbolic link.
func newFile(at int, name string) (int, error) {
	return openat(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
}

// writeAll writes b at offset at, or at the file's own offset if at is negative.
func writeAll(fd int, b []byte, at int64) error {
	for len(b) > 0 {
		n, err := again(func() (int, error) {
			if at < 0 {
				return unix.Write(fd, b)
			}
			return unix.Pwrite(fd, b, at)
		})
		if err != nil {
			return os.NewSyscallError("write", err)
		}
		b = b[n:]
		if at >= 0 {
			at += int64(n)
		}
	}
	return nil
}

var zeroBlock [4 << 10]byte

// writeHoles writes b at offset at, but for blocks of zeros: a file with more pieces than an archive
// can list was sparse there, and might not fit otherwise.
func writeHoles(fd int, b []byte, at int64) error {
	const block = len(zeroBlock)
	for len(b) > 0 {
		next := func(n int) []byte { return b[n:min(len(b), n+block-int((at+int64(n))%int64(block)))] }
		empty := func(b []byte) bool { return bytes.Equal(b, zeroBlock[:len(b)]) }
		hole, n := empty(next(0)), 0
		for n < len(b) && empty(next(n)) == hole {
			n += len(next(n))
		}
		if !hole {
			if err := writeAll(fd, b[:n], at); err != nil {
				return err
			}
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}

// finishFile sets attributes, mode and time, the time last: the others change it.
func finishFile(fd int, h *tarfmt.Header, mode uint32) error {
	if err := setXattrs(fd, h.Xattrs); err != nil {
		return err
	}
	if mode != 0o600 {
		if err := unix.Fchmod(fd, mode); err != nil {
			return os.NewSyscallError("chmod", err)
		}
	}
	return utimes(fd, h.Sec, h.Nsec)
}
