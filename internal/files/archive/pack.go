package archive

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/archive/tarfmt"
)

// packer walks a tree. It holds a descriptor for each level and opens single names without
// following links, so that it stays inside a tree that is rearranged meanwhile.
type packer struct {
	*spool
	Summary
	progress progress
	limits   Limits
	options  Options
	root     unix.Statx_t
	links    map[inode]link
	header   []byte // of the current entry
	headers  int64  // bytes of all extended headers and maps
	xattrs   []byte
}

type inode struct {
	major, minor uint32
	ino          uint64
}

// link is the first name of a file with several, as it was packed.
type link struct {
	path  string
	size  uint64
	mtime unix.StatxTimestamp
	left  uint32 // further names
}

// maxExtents is a variable for tests, which would have to write much for so many pieces.
var maxExtents int64 = tarfmt.MaxExtents

var errVanished = errors.New("vanished")

func (p *packer) tree(fd int) error {
	if err := statx(fd, "", &p.root); err != nil {
		return about("pack", "", err)
	}
	if p.root.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fmt.Errorf("cannot pack: this is no directory: name one: %w", errdefs.ErrInvalidArgument)
	}
	// Reopened, so that the offset of the caller's descriptor does not change.
	own, err := openDir(fd, ".")
	if err != nil {
		return about("pack", "", err)
	}
	defer unix.Close(own)
	h := p.entry(tarfmt.Directory, ".", &p.root)
	if err := p.addXattrs(own, h); err != nil {
		return about("pack", "", err)
	}
	if err := p.put(h); err != nil {
		return about("pack", "", err)
	}
	return p.children(own, "", 1)
}

// children packs the entries of the directory fd, in batches of a bounded size.
func (p *packer) children(fd int, path string, depth int) error {
	buf := make([]byte, 16<<10)
	var batch []dirent
	for {
		var err error
		batch, err = readDir(fd, buf, batch[:0])
		if path != "" && errors.Is(err, unix.ENOENT) {
			p.Changed++ // the directory itself was removed
			return nil
		}
		if err != nil {
			return about("pack", path, err)
		}
		if len(batch) == 0 {
			return nil
		}
		slices.SortFunc(batch, func(a, b dirent) int { return strings.Compare(a.name, b.name) })
		for _, e := range batch {
			if err := p.ctx.Err(); err != nil {
				return err
			}
			full := e.name
			if path != "" {
				full = path + "/" + e.name
			}
			if err := p.child(fd, e, full, depth); err != nil {
				return err
			}
			p.progress.step(&p.Summary)
		}
	}
}

// child packs one name of the directory at.
func (p *packer) child(at int, e dirent, path string, depth int) (err error) {
	var st unix.Statx_t
	if e.kind == unix.DT_UNKNOWN {
		switch err := statx(at, e.name, &st); {
		case errors.Is(err, unix.ENOENT):
			p.Changed++
			return nil
		case err != nil:
			return about("pack", path, err)
		}
		e.kind = byte(st.Mode & unix.S_IFMT >> 12) // what IFTODT of dirent.h does
	}
	if depth > p.limits.Depth {
		return about("pack", path, tooMany("levels of directories", int64(p.limits.Depth)))
	}
	if len(path) > p.limits.PathBytes {
		return about("pack", path, tooMany("bytes of a path", int64(p.limits.PathBytes)))
	}
	switch e.kind {
	case unix.DT_REG:
		err = p.regular(at, e.name, path)
	case unix.DT_DIR:
		var fd int
		if fd, err = openDir(at, e.name); err == nil {
			err = p.directory(fd, path, depth)
			unix.Close(fd)
			if err != nil {
				return err // names the entry
			}
		}
	case unix.DT_LNK, unix.DT_FIFO:
		err = p.nameOnly(at, e, path)
	case unix.DT_SOCK:
		p.Sockets++
	default:
		p.Devices++
	}
	switch {
	case err == nil || p.ctx.Err() != nil:
		return p.ctx.Err()
	case errors.Is(err, errVanished), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR),
		errors.Is(err, unix.ENXIO):
		p.Changed++ // it was removed or replaced after it was listed
		return nil
	case p.options.SkipUnreadable && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)):
		p.Unreadable++
		return nil
	default:
		return about("pack", path, err)
	}
}

// elsewhere reports whether st is in another mount than the tree's root.
func (p *packer) elsewhere(st *unix.Statx_t) bool {
	if st.Mask&p.root.Mask&unix.STATX_MNT_ID != 0 {
		return st.Mnt_id != p.root.Mnt_id
	}
	return st.Dev_major != p.root.Dev_major || st.Dev_minor != p.root.Dev_minor
}

func (p *packer) directory(fd int, path string, depth int) error {
	var st unix.Statx_t
	if err := statx(fd, "", &st); err != nil {
		return about("pack", path, err)
	}
	h := p.entry(tarfmt.Directory, path, &st)
	if p.elsewhere(&st) {
		p.Mounts++
		if err := p.put(h); err != nil {
			return about("pack", path, err)
		}
		return nil
	}
	if err := p.addXattrs(fd, h); err != nil {
		return about("pack", path, err)
	}
	if err := p.put(h); err != nil {
		return about("pack", path, err)
	}
	return p.children(fd, path, depth+1)
}

// nameOnly packs a symbolic link or FIFO, which is not opened.
func (p *packer) nameOnly(at int, e dirent, path string) error {
	var st unix.Statx_t
	if err := statx(at, e.name, &st); err != nil {
		return err
	}
	if p.elsewhere(&st) {
		p.Mounts++
		return nil
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		buf := make([]byte, p.limits.PathBytes+1)
		n, err := again(func() (int, error) { return unix.Readlinkat(at, e.name, buf) })
		if errors.Is(err, unix.EINVAL) {
			return errVanished
		} else if err != nil {
			return os.NewSyscallError("readlink", err)
		}
		if n == len(buf) {
			return tooMany("bytes of a link's target", int64(p.limits.PathBytes))
		}
		h := p.entry(tarfmt.Symlink, path, &st)
		h.Target = string(buf[:n])
		return p.put(h)
	case unix.S_IFIFO:
		return p.put(p.entry(tarfmt.FIFO, path, &st))
	default:
		return errVanished
	}
}

func (p *packer) regular(at int, name, path string) error {
	// Nonblocking: it may have become a FIFO since it was listed.
	fd, err := openat(at, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if err := statx(fd, "", &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errVanished
	case p.elsewhere(&st):
		p.Mounts++
		return nil
	case st.Size > uint64(p.limits.FileBytes):
		return tooMany("bytes of a file", p.limits.FileBytes)
	}
	h := p.entry(tarfmt.Regular, path, &st)
	h.Size = int64(st.Size)
	if st.Nlink > 1 && p.linked(h, &st) {
		return p.put(h)
	}
	if err := p.addXattrs(fd, h); err != nil {
		return err
	}
	if st.Blocks*512 < st.Size {
		if err := findExtents(fd, h, p.extents(h)); err != nil {
			return err
		}
	}
	if p.Bytes+h.Size > p.limits.Bytes {
		return tooMany("bytes of files", p.limits.Bytes)
	}
	if err := p.put(h); err != nil {
		return err
	}
	if st.Nlink > 1 { // only now: further names need one that is in the archive
		p.links[inodeOf(&st)] = link{h.Name, st.Size, st.Mtime, st.Nlink - 1}
	}
	return p.data(fd, h, &st)
}

// data writes as many bytes as h says, even if the file has changed.
func (p *packer) data(fd int, h *tarfmt.Header, st *unix.Statx_t) error {
	extents := h.Extents
	if !h.Sparse {
		extents = []tarfmt.Extent{{Length: h.Size}}
	}
	changed := false
	for _, e := range extents {
		short, err := p.file(fd, e.Offset, e.Length, func(n int64) {
			p.Bytes += n
			p.progress.step(&p.Summary)
		})
		if err != nil {
			return err
		}
		changed = changed || short
	}
	var now unix.Statx_t
	if err := statx(fd, "", &now); err != nil {
		return err
	}
	if changed || now.Size != st.Size || now.Mtime != st.Mtime {
		p.Changed++
	}
	return p.write(tarfmt.Padding(h.Size))
}

func inodeOf(st *unix.Statx_t) inode { return inode{st.Dev_major, st.Dev_minor, st.Ino} }

// linked reports whether h's file was packed before, and then makes h a hard link to it.
func (p *packer) linked(h *tarfmt.Header, st *unix.Statx_t) bool {
	key := inodeOf(st)
	first, ok := p.links[key]
	// Another file may have got the inode number meanwhile.
	if !ok || first.size != st.Size || first.mtime != st.Mtime {
		return false
	}
	h.Kind, h.Target, h.Size = tarfmt.Link, first.path, 0
	if first.left--; first.left == 0 {
		delete(p.links, key)
	} else {
		p.links[key] = first
	}
	return true
}

// entry returns the header of the file st without its data. A set-id bit of another owner must
// not become the tree owner's.
func (p *packer) entry(kind tarfmt.Kind, path string, st *unix.Statx_t) *tarfmt.Header {
	h := &tarfmt.Header{Kind: kind, Name: path, Mode: uint32(st.Mode) & 0o7777, Sec: st.Mtime.Sec, Nsec: int64(st.Mtime.Nsec)}
	h.Sec = min(max(h.Sec, -maxTime), maxTime) // some file systems keep any number
	if st.Uid == p.root.Uid && st.Gid == p.root.Gid {
		return h
	}
	p.Foreign++
	kept := h.Mode
	if st.Uid != p.root.Uid {
		kept &^= unix.S_ISUID
	}
	if st.Gid != p.root.Gid {
		kept &^= unix.S_ISGID
	}
	if kept != h.Mode {
		p.SetID++
	}
	h.Mode = kept
	return h
}

func (p *packer) put(h *tarfmt.Header) error {
	if p.Entries == p.limits.Entries {
		return tooMany("entries", p.limits.Entries)
	}
	p.header = tarfmt.Append(p.header[:0], h)
	p.headers += int64(len(p.header)) - tarfmt.BlockSize
	if most := tarfmt.MaxHeaders(p.Entries); p.headers > most {
		return tooMany("bytes of extended attributes and of maps of sparse files", most)
	}
	p.Entries++
	return p.write(p.header)
}

// extents is how many pieces the map of a sparse file may have, so that it can be read again.
func (p *packer) extents(h *tarfmt.Header) int {
	const piece = 2 * 20 // two numbers, with a newline each
	left := tarfmt.MaxHeaders(p.Entries) - p.headers - int64(len(tarfmt.Append(nil, h))) - 4*tarfmt.BlockSize - int64(len(h.Name))
	return int(min(max(left/piece, 2), maxExtents))
}

// addXattrs adds the user.* attributes of the open file fd.
func (p *packer) addXattrs(fd int, h *tarfmt.Header) error {
	names, err := p.grow(func(b []byte) (int, error) { return unix.Flistxattr(fd, b) })
	if err != nil || len(names) == 0 {
		return os.NewSyscallError("flistxattr", err)
	}
	total := 0
	for name := range bytes.SplitSeq(bytes.Clone(names), []byte{0}) {
		if len(name) == 0 {
			continue
		}
		if !bytes.HasPrefix(name, []byte("user.")) {
			p.Xattrs++
			continue
		}
		value, err := p.grow(func(b []byte) (int, error) { return unix.Fgetxattr(fd, string(name), b) })
		if errors.Is(err, unix.ENODATA) {
			p.Changed++
			continue
		} else if err != nil {
			return os.NewSyscallError("fgetxattr", err)
		}
		if total += len(name) + len(value); total > p.limits.XattrBytes || len(h.Xattrs) == tarfmt.MaxXattrs {
			return tooMany("bytes of extended attributes", int64(p.limits.XattrBytes))
		}
		h.Xattrs = append(h.Xattrs, tarfmt.Xattr{Name: string(name), Value: bytes.Clone(value)})
	}
	return nil
}

// grow calls f with larger buffers until its result fits. A file system without attributes gives
// an empty result.
func (p *packer) grow(f func(b []byte) (int, error)) ([]byte, error) {
	for {
		if p.xattrs == nil {
			p.xattrs = make([]byte, 4<<10)
		}
		n, err := again(func() (int, error) { return f(p.xattrs) })
		switch {
		case errors.Is(err, unix.ENOTSUP):
			return nil, nil
		case errors.Is(err, unix.ERANGE) && len(p.xattrs) < 1<<20:
			p.xattrs = make([]byte, 4*len(p.xattrs))
		case err != nil:
			return nil, err
		default:
			return p.xattrs[:n], nil
		}
	}
}

// findExtents asks the file system where fd has data. After so many pieces it takes the rest as
// one, whose holes are zeros in the archive and holes again in what is unpacked.
func findExtents(fd int, h *tarfmt.Header, most int) error {
	var extents []tarfmt.Extent
	var sum int64
	for at := int64(0); at < h.Size; {
		from, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // only a hole follows
		}
		if errors.Is(err, unix.EINVAL) && at == 0 {
			return nil // the file system does not support holes
		}
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		to := h.Size
		if len(extents) < most-2 {
			to, err = unix.Seek(fd, from, unix.SEEK_HOLE)
			if errors.Is(err, unix.ENXIO) {
				break // it has become shorter
			}
			if err != nil {
				return os.NewSyscallError("lseek", err)
			}
		}
		from, to = min(from, h.Size), min(to, h.Size)
		if to <= from {
			break
		}
		extents = append(extents, tarfmt.Extent{Offset: from, Length: to - from})
		sum += to - from
		at = to
	}
	if sum == h.Size {
		return nil
	}
	// Some readers take the file's length from the end of the last piece.
	if len(extents) == 0 || extents[len(extents)-1].Offset+extents[len(extents)-1].Length < h.Size {
		extents = append(extents, tarfmt.Extent{Offset: h.Size})
	}
	h.Sparse, h.RealSize, h.Extents, h.Size = true, h.Size, extents, sum
	return nil
}
