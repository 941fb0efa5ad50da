package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/archive/tarfmt"
)

const (
	// smallBytes is the longest file that is passed to a creator as a whole. Longer ones are
	// written while their data arrives.
	smallBytes = 1 << 20
	creators   = 2
	// Limits of the kernel: XATTR_NAME_MAX and XATTR_SIZE_MAX of linux/limits.h.
	maxXattrName, maxXattrValue = 255, 64 << 10
)

// Read unpacks the archive r below dir, which must be an empty directory, with the process's own
// id, and reads r to its end. After an error the caller removes what was unpacked so far. Whatever
// r contains, Read touches nothing outside of dir. The mode of dir itself does not change.
//
// Set-id bits are restored only if the archive says that the file belongs to the tree's owner (0),
// and never if root unpacks. If r blocks, Read waits also after the end of ctx: whoever ends ctx
// must close r. The process's umask must keep the owner's permissions.
func Read(ctx context.Context, r io.Reader, dir *os.File, l Limits, o Options) (Summary, error) {
	l, err := l.withDefaults()
	if err != nil {
		return Summary{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	u := &unpacker{reader: newReader(ctx, r, l, o), fail: cancel, jobs: make(chan *job, 32)}
	u.to = u
	var running sync.WaitGroup
	running.Go(u.fill)
	for range creators {
		running.Go(u.create)
	}
	err = withFD(dir, func(fd int) error { return u.tree(fd, o) })
	if err != nil {
		cancel(err) // only the first cause counts
	}
	close(u.jobs)
	running.Wait()
	return u.end(ctx, err)
}

// reader goes through an archive and has each entry made.
type reader struct {
	*source
	Summary
	progress  progress
	limits    Limits
	keepSetID bool
	to        maker
	made      int64 // directories
}

// maker makes what an archive lists, or sees whether it could be made. Paths come as their names,
// which were checked. A file's data is taken from the source.
type maker interface {
	// enter goes to a directory, and makes those on the way that are missing.
	enter(names []string) error
	// describe is for the directory that was entered; root: it is the one that is unpacked into.
	describe(h *tarfmt.Header, mode uint32, root bool) error
	// The others are made in the directory that was entered.
	symlink(h *tarfmt.Header, name string) error
	fifo(h *tarfmt.Header, name string, mode uint32) error
	link(h *tarfmt.Header, name string, target []string) error
	file(h *tarfmt.Header, name string, mode uint32) error
}

func newReader(ctx context.Context, r io.Reader, l Limits, o Options) *reader {
	return &reader{
		source: newSource(ctx, r, l.Ratio), limits: l, progress: progress{tell: o.Progress}, keepSetID: fileID() != 0,
	}
}

// end is what Read returns, once nothing reads any more.
func (r *reader) end(ctx context.Context, err error) (Summary, error) {
	r.Stream, r.Archive = r.source.bytes, r.in.n
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		r.SHA256 = ""
		return r.Summary, cause(ctx, err)
	}
	return r.Summary, nil
}

// unpacker creates what the archive lists.
type unpacker struct {
	*reader
	fail    context.CancelCauseFunc
	at      *dir // the deepest open directory
	jobs    chan *job
	pending sync.WaitGroup // jobs
}

func (u *unpacker) tree(fd int, o Options) error {
	own, err := openDir(fd, ".")
	if err != nil {
		return fmt.Errorf("cannot unpack: %w: name a directory that this id may enter: %w", err, errdefs.ErrInvalidArgument)
	}
	empty, err := readDir(own, make([]byte, 4<<10), nil)
	if err == nil && len(empty) > 0 {
		err = fmt.Errorf("cannot unpack: the directory contains %q: unpack into an empty one: %w",
			empty[0].name, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		unix.Close(own)
		return err
	}
	root := &dir{fd: own}
	root.held.Store(1)
	u.at = root
	err = u.entries()
	for u.at != nil {
		u.leave()
	}
	u.pending.Wait()
	if err != nil {
		return err
	}
	if err := u.ctx.Err(); err != nil {
		return err
	}
	if err := u.sumIs(o.SHA256); err != nil {
		return err
	}
	if o.Sync {
		if err := unix.Syncfs(fd); err != nil {
			return about("write to disk", "", os.NewSyscallError("syncfs", err))
		}
	}
	return nil
}

// sumIs compares the sum of what was read with the one that the caller knows.
func (r *reader) sumIs(sum string) error {
	if sum != "" && sum != r.SHA256 {
		return fmt.Errorf("cannot use the archive: its SHA-256 is %s and not %s: take another copy: %w", r.SHA256, sum, errdefs.ErrDataLoss)
	}
	return nil
}

// entries has one entry after the other made.
func (r *reader) entries() error {
	headers := tarfmt.NewReader(r.block, r.limits.headers())
	for last := ""; ; {
		var h tarfmt.Header
		err := headers.Next(&h)
		if errors.Is(err, io.EOF) {
			r.SHA256, err = r.tail()
			if err != nil {
				return fmt.Errorf("cannot unpack after %q: %w", last, err)
			}
			return nil
		}
		if err == nil {
			if r.Entries++; r.Entries > r.limits.Entries {
				err = tooMany("entries", r.limits.Entries)
			}
		}
		if err == nil {
			err = r.entry(&h)
		}
		switch {
		case err != nil && h.Name == "":
			return fmt.Errorf("cannot unpack after %q: %w", last, err)
		case err != nil:
			return about("unpack", h.Name, err)
		}
		last = h.Name
		r.progress.step(&r.Summary)
	}
}

func (r *reader) entry(h *tarfmt.Header) error {
	names, err := r.split(h.Name)
	if err != nil {
		return err
	}
	if h.Kind == tarfmt.Char || h.Kind == tarfmt.Block {
		return refuse("it is a device")
	}
	if len(h.Target) > r.limits.PathBytes { // the headers may have one byte more, for a directory's slash
		return tooMany("bytes of a link's target", int64(r.limits.PathBytes))
	}
	if h.Sec < -maxTime || h.Sec > maxTime {
		return refuse("its time is more than 30000 years from now")
	}
	xattrs := h.Xattrs[:0]
	for _, x := range h.Xattrs {
		if !strings.HasPrefix(x.Name, "user.") {
			r.Xattrs++
			continue
		}
		switch {
		case strings.IndexByte(x.Name, 0) >= 0:
			return refuse("an attribute's name contains a NUL")
		case x.Name == "user." || len(x.Name) > maxXattrName || len(x.Value) > maxXattrValue:
			return refuse("an attribute has a name or value of a length that no system takes")
		}
		xattrs = append(xattrs, x)
	}
	h.Xattrs = xattrs
	mode := r.mode(h)
	if h.Kind == tarfmt.Directory {
		if err := r.to.enter(names); err != nil {
			return err
		}
		return r.to.describe(h, mode, len(names) == 0)
	}
	if len(names) == 0 {
		return refuse("its path is the directory itself")
	}
	name := names[len(names)-1]
	if err := r.to.enter(names[:len(names)-1]); err != nil {
		return err
	}
	switch h.Kind {
	case tarfmt.Symlink:
		return r.to.symlink(h, name)
	case tarfmt.FIFO:
		return r.to.fifo(h, name, mode)
	case tarfmt.Link:
		target, err := r.split(h.Target)
		if err == nil && len(target) == 0 {
			err = refuse("it is the directory itself")
		}
		if err != nil {
			return fmt.Errorf("its target %q: %w", h.Target, err)
		}
		return r.to.link(h, name, target)
	default:
		if err := r.fits(h); err != nil {
			return err
		}
		return r.to.file(h, name, mode)
	}
}

// fits refuses a file that is too long, or one too many bytes.
func (r *reader) fits(h *tarfmt.Header) error {
	length := h.Size
	if h.Sparse {
		length = h.RealSize
	}
	if length > r.limits.FileBytes {
		return tooMany("bytes of a file", r.limits.FileBytes)
	}
	if h.Size > r.limits.Bytes-r.Bytes {
		return tooMany("bytes of files", r.limits.Bytes)
	}
	return nil
}

func refuse(why string) error {
	return fmt.Errorf("%s: the archive is damaged or made to harm, take another copy: %w", why, errdefs.ErrInvalidArgument)
}

// split returns the names of a path; none for the directory itself.
func (r *reader) split(path string) ([]string, error) {
	if strings.HasPrefix(path, "/") {
		return nil, refuse("its path is absolute")
	}
	var names []string
	for name := range strings.SplitSeq(path, "/") {
		switch name {
		case "", ".":
		case "..":
			return nil, refuse("its path leads out of the directory")
		default:
			if len(name) > unix.NAME_MAX {
				return nil, refuse("a name of its path is longer than 255 bytes")
			}
			names = append(names, name)
		}
		if len(names) > r.limits.Depth {
			return nil, tooMany("levels of directories", int64(r.limits.Depth))
		}
	}
	return names, nil
}

// mode returns the mode of an entry. A set-id bit is restored only for a file of the tree's
// owner, which is then the owner again.
func (r *reader) mode(h *tarfmt.Header) uint32 {
	mode := h.Mode
	if !r.keepSetID || h.UID != 0 {
		mode &^= unix.S_ISUID
	}
	if !r.keepSetID || h.GID != 0 {
		mode &^= unix.S_ISGID
	}
	if mode != h.Mode {
		r.SetID++
	}
	return mode
}

func noDirectory(name string) error {
	return refuse(fmt.Sprintf("its path goes through %q, which is no directory in the archive", name))
}

func noTarget(target string) error {
	return refuse(fmt.Sprintf("its target %q was not unpacked before it", target))
}

func noFile(target string) error { return refuse(fmt.Sprintf("its target %q is no file", target)) }
