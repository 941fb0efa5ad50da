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

	"github.com/carrel-dev/carrel/internal/archive/tarfmt"
)

const (
	// smallBytes is the longest file that is passed to a creator as a whole. Longer ones are
	// written while their data arrives.
	smallBytes = 1 << 20
	creators   = 2
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
	src := newSource(ctx, r, l.Ratio)
	u := &unpacker{
		source: src, fail: cancel, limits: l, progress: progress{tell: o.Progress},
		jobs: make(chan *job, 32), keepSetID: os.Geteuid() != 0,
	}
	var running sync.WaitGroup
	running.Go(src.fill)
	for range creators {
		running.Go(u.create)
	}
	err = withFD(dir, func(fd int) error { return u.tree(fd, o) })
	if err != nil {
		cancel(err) // only the first cause counts
	}
	close(u.jobs)
	running.Wait()
	u.Stream, u.Archive = src.bytes, src.in.n
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		u.SHA256 = ""
		return u.Summary, cause(ctx, err)
	}
	return u.Summary, nil
}

// unpacker creates what the archive lists.
type unpacker struct {
	*source
	Summary
	fail      context.CancelCauseFunc
	progress  progress
	limits    Limits
	keepSetID bool

	at      *dir // the deepest open directory
	jobs    chan *job
	pending sync.WaitGroup // jobs
	made    int64          // directories
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
	if o.SHA256 != "" && o.SHA256 != u.SHA256 {
		return fmt.Errorf("cannot use the archive: its SHA-256 is %s and not %s: take another copy: %w",
			u.SHA256, o.SHA256, errdefs.ErrDataLoss)
	}
	if o.Sync {
		if err := unix.Syncfs(fd); err != nil {
			return about("write to disk", "", os.NewSyscallError("syncfs", err))
		}
	}
	return nil
}

// entries creates one entry after the other.
func (u *unpacker) entries() error {
	headers := tarfmt.NewReader(u.block, u.limits.headers())
	for last := ""; ; {
		var h tarfmt.Header
		err := headers.Next(&h)
		if errors.Is(err, io.EOF) {
			u.SHA256, err = u.tail()
			if err != nil {
				return fmt.Errorf("cannot unpack after %q: %w", last, err)
			}
			return nil
		}
		if err == nil {
			if u.Entries++; u.Entries > u.limits.Entries {
				err = tooMany("entries", u.limits.Entries)
			}
		}
		if err == nil {
			err = u.entry(&h)
		}
		switch {
		case err != nil && h.Name == "":
			return fmt.Errorf("cannot unpack after %q: %w", last, err)
		case err != nil:
			return about("unpack", h.Name, err)
		}
		last = h.Name
		u.progress.step(&u.Summary)
	}
}

func (u *unpacker) entry(h *tarfmt.Header) error {
	names, err := u.split(h.Name)
	if err != nil {
		return err
	}
	if h.Kind == tarfmt.Char || h.Kind == tarfmt.Block {
		return refuse("it is a device")
	}
	if h.Sec < -1<<40 || h.Sec > 1<<40 {
		return refuse("its time is more than 30000 years from now")
	}
	xattrs := h.Xattrs[:0]
	for _, x := range h.Xattrs {
		if !strings.HasPrefix(x.Name, "user.") {
			u.Xattrs++
			continue
		}
		if strings.IndexByte(x.Name, 0) >= 0 {
			return refuse("an attribute's name contains a NUL")
		}
		xattrs = append(xattrs, x)
	}
	h.Xattrs = xattrs
	mode := u.mode(h)
	if h.Kind == tarfmt.Directory {
		if err := u.enter(names); err != nil {
			return err
		}
		return u.at.describe(h, mode, len(names) == 0)
	}
	if len(names) == 0 {
		return refuse("its path is the directory itself")
	}
	name := names[len(names)-1]
	if err := u.enter(names[:len(names)-1]); err != nil {
		return err
	}
	switch h.Kind {
	case tarfmt.Symlink:
		if err := unix.Symlinkat(h.Target, u.at.fd, name); err != nil {
			return os.NewSyscallError("symlink", err)
		}
		return utimesAt(u.at.fd, name, h.Sec, h.Nsec)
	case tarfmt.FIFO:
		return u.fifo(h, name, mode)
	case tarfmt.Link:
		return u.link(h, name)
	default:
		return u.file(h, name, mode)
	}
}

func refuse(why string) error {
	return fmt.Errorf("%s: the archive is damaged or made to harm, take another copy: %w", why, errdefs.ErrInvalidArgument)
}

// split returns the names of a path; none for the directory itself.
func (u *unpacker) split(path string) ([]string, error) {
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
		if len(names) > u.limits.Depth {
			return nil, tooMany("levels of directories", int64(u.limits.Depth))
		}
	}
	return names, nil
}

// mode returns the mode of an entry. A set-id bit is restored only for a file of the tree's
// owner, which is then the owner again.
func (u *unpacker) mode(h *tarfmt.Header) uint32 {
	mode := h.Mode
	if !u.keepSetID || h.UID != 0 {
		mode &^= unix.S_ISUID
	}
	if !u.keepSetID || h.GID != 0 {
		mode &^= unix.S_ISGID
	}
	if mode != h.Mode {
		u.SetID++
	}
	return mode
}

// fifo makes a FIFO. It does not open it, which would block.
func (u *unpacker) fifo(h *tarfmt.Header, name string, mode uint32) error {
	if err := unix.Mknodat(u.at.fd, name, unix.S_IFIFO|0o600, 0); err != nil {
		return os.NewSyscallError("mkfifo", err)
	}
	// Only here is a mode set by name. That is safe: the name was made just now, in a
	// directory of this process.
	if mode != 0o600 {
		if err := unix.Fchmodat(u.at.fd, name, mode, 0); err != nil {
			return os.NewSyscallError("chmod", err)
		}
	}
	return utimesAt(u.at.fd, name, h.Sec, h.Nsec)
}

// link makes another name for a file that was unpacked before.
func (u *unpacker) link(h *tarfmt.Header, name string) error {
	target, err := u.split(h.Target)
	if err == nil && len(target) == 0 {
		err = refuse("it is the directory itself")
	}
	if err != nil {
		return fmt.Errorf("its target %q: %w", h.Target, err)
	}
	u.pending.Wait() // a creator may be writing the target
	if err := u.ctx.Err(); err != nil {
		return err
	}
	// From the root by single names, without following links, as everywhere.
	at, opened := u.root().fd, -1
	defer func() { closeFD(opened) }()
	for _, step := range target[:len(target)-1] {
		fd, err := openDir(at, step)
		if err != nil {
			return noTarget(h.Target, err)
		}
		closeFD(opened)
		at, opened = fd, fd
	}
	base := target[len(target)-1]
	var st unix.Statx_t
	if err := statx(at, base, &st); err != nil {
		return noTarget(h.Target, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return refuse(fmt.Sprintf("its target %q is no file", h.Target))
	}
	if err := unix.Linkat(at, base, u.at.fd, name, 0); err != nil {
		return os.NewSyscallError("link", err)
	}
	return nil
}

func noTarget(target string, err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return refuse(fmt.Sprintf("its target %q was not unpacked before it", target))
	}
	return err
}

func closeFD(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}
