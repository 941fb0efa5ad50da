package filetree

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrName is wrapped by errors about names that lead out, and by those about links in the way.
var ErrName = errors.New("the name is refused")

// ErrStream is wrapped by errors about a stream that is no whole tar.
var ErrStream = errors.New("the stream is no whole tar stream")

// UnpackOptions say how to unpack. The zero value takes what Pack writes.
type UnpackOptions struct {
	Limits Limits
	// As, if not "", is what the stream's only entry is called: it has to be a file or a link.
	As string
	// Top, if not "", is what the stream calls the directory that d is: the names of its entries begin with it, and
	// are below d without it.
	Top string
	// Links: the stream may have further names of files that it has.
	Links bool
	Tell  Progress
}

// Unpack makes what a tar stream has below d. Directories that are there are used and keep what is in them; of
// those that the stream has, mode and time are set. Files and links replace what has their names, except a
// directory. A name that leads out, and one that goes through a link, even one that the stream has made, ends it.
// Each file appears when it is whole, so that what was done stays whole when it breaks off. Devices, FIFOs and
// sockets are left out.
func Unpack(ctx context.Context, r io.Reader, d *Dir, o UnpackOptions) (Summary, error) {
	u := &unpacker{ctx: ctx, top: d, o: o, pace: pace{tell: o.Tell}, buf: make([]byte, copyBytes)}
	if o.Limits == (Limits{}) {
		u.o.Limits = Defaults()
	}
	defer u.leave()
	in := bufio.NewReaderSize(&until{ctx, r}, copyBytes) // which the pieces of large files go past
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return u.sum, stream(err)
		}
		if err := u.entry(h, t); err != nil {
			return u.sum, err
		}
	}
	if _, err := io.Copy(io.Discard, in); err != nil { // what follows the end mark
		return u.sum, stream(err)
	}
	return u.sum, u.directories()
}

func stream(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrFieldTooLong) {
		return fmt.Errorf("%w: %w", ErrStream, err)
	}
	return err
}

// until reads as long as ctx lasts.
type until struct {
	ctx context.Context
	r   io.Reader
}

func (u *until) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.r.Read(p)
}

type unpacker struct {
	pace

	ctx context.Context
	top *Dir
	o   UnpackOptions
	sum Summary
	// in is the directory of the entry before, at the path inPath.
	in     *Dir
	inPath string
	buf    []byte
	made   []made
	// pathBytes are those of made.
	pathBytes int
}

// maxPathBytes bounds what is remembered of directories until the end.
const maxPathBytes = 32 << 20

// made is a directory whose mode and time are set at the end: before that its entries would change them.
type made struct {
	path  string
	mode  fs.FileMode
	mtime time.Time
}

func (u *unpacker) leave() {
	if u.in != nil && u.in != u.top {
		u.in.Close()
	}
	u.in = nil
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if u.sum.Entries++; u.sum.Entries > u.o.Limits.Entries {
		return fmt.Errorf("more than %d entries: %w", u.o.Limits.Entries, ErrLimit)
	}
	u.show(u.sum)
	name, err := u.name(h.Name)
	if err != nil {
		return err
	}
	if u.o.Top != "" {
		in, ok := strings.CutPrefix(name+"/", u.o.Top+"/")
		if !ok {
			return fmt.Errorf("%q is beside %q: %w", h.Name, u.o.Top, ErrName)
		}
		if name = strings.TrimSuffix(in, "/"); name == "" {
			name = "."
			if h.Typeflag == tar.TypeDir { // which gets the mode and time of the one that was packed
				u.made = append(u.made, made{".", fs.FileMode(h.Mode & 0o777), h.ModTime})
			}
		}
	}
	if u.o.As != "" {
		if u.sum.Entries > 1 || h.Typeflag == tar.TypeDir {
			return fmt.Errorf("%q is more than the one file that was asked for: %w", h.Name, ErrName)
		}
		name = u.o.As
	}
	mode := fs.FileMode(h.Mode & 0o777)
	if h.Typeflag == tar.TypeDir {
		return u.directory(name, mode, h.ModTime)
	}
	if name == "." {
		return fmt.Errorf("%q names the destination itself and is no directory: %w", h.Name, ErrName)
	}
	dir, err := u.enter(path.Dir(name))
	if err != nil {
		return err
	}
	base := path.Base(name)
	switch h.Typeflag {
	case tar.TypeReg:
		err = u.file(dir, base, h, r, mode)
	case tar.TypeSymlink:
		err = replace(dir, base, func(part string) error { return unix.Symlinkat(h.Linkname, dir.fd, part) })
		if err == nil {
			ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: h.ModTime.Unix(), Nsec: int64(h.ModTime.Nanosecond())}}
			_ = unix.UtimesNanoAt(dir.fd, base, ts, unix.AT_SYMLINK_NOFOLLOW) // the time of a link is of no use to anybody
		}
	case tar.TypeLink:
		err = u.hardLink(dir, base, h.Linkname)
	default:
		u.sum.skip(name, "it is no file, directory or link")
	}
	if err != nil {
		return fmt.Errorf("cannot make %q: %w", name, err)
	}
	return nil
}

// name is the path of an entry below the top, clean, or "." for the top.
func (u *unpacker) name(name string) (string, error) {
	clean := path.Clean(strings.TrimLeft(name, "/"))
	switch {
	case name == "" || strings.HasPrefix(name, "/") || slices.Contains(strings.Split(name, "/"), ".."):
		return "", fmt.Errorf("%q leads out of the destination: %w", name, ErrName)
	case len(name) >= unix.PathMax || strings.Count(clean, "/") >= u.o.Limits.Depth:
		return "", fmt.Errorf("%.80q… is too long or too deep: %w", name, ErrLimit)
	}
	return clean, nil
}

// enter opens the directory of an entry, and makes what is missing of it.
func (u *unpacker) enter(p string) (*Dir, error) {
	if u.in != nil && u.inPath == p {
		return u.in, nil
	}
	u.leave()
	d, err := u.walk(p, true)
	if err != nil {
		return nil, err
	}
	u.in, u.inPath = d, p
	return d, nil
}

// walk opens a directory below the top, which the caller closes unless it is the top.
func (u *unpacker) walk(p string, make bool) (*Dir, error) {
	d := u.top
	if p == "." {
		return d, nil
	}
	for name := range strings.SplitSeq(p, "/") {
		next, err := d.Sub(name)
		if make && errors.Is(err, unix.ENOENT) {
			if err = d.Mkdir(name, 0o755); err == nil || errors.Is(err, unix.EEXIST) {
				next, err = d.Sub(name)
			}
		}
		if err != nil && d != nil {
			err = inTheWay(d, name, p, err)
		}
		if d != u.top {
			d.Close()
		}
		if err != nil {
			return nil, err
		}
		d = next
	}
	return d, nil
}

// inTheWay says more of what is no directory.
func inTheWay(d *Dir, name, p string, err error) error {
	if i, serr := d.Stat(name); serr == nil && i.Mode.Type() == fs.ModeSymlink {
		return fmt.Errorf("%q is a link in the destination, which is not followed: %w", p, ErrName)
	}
	return fmt.Errorf("cannot enter %q: %w", p, err)
}

func (u *unpacker) directory(name string, mode fs.FileMode, mtime time.Time) error {
	if name == "." {
		return nil // the destination stays as it is
	}
	if _, err := u.enter(name); err != nil {
		return err
	}
	if u.pathBytes += len(name) + 64; u.pathBytes > maxPathBytes {
		return fmt.Errorf("the paths of the directories have more than %d bytes: %w", maxPathBytes, ErrLimit)
	}
	u.made = append(u.made, made{name, mode, mtime})
	return nil
}

// directories gives the directories their modes and times, the deepest first.
func (u *unpacker) directories() error {
	u.leave()
	for _, m := range slices.Backward(u.made) {
		d, err := u.walk(m.path, false)
		if err != nil {
			return err
		}
		err = unix.Fchmod(d.fd, uint32(m.mode.Perm()))
		if err == nil {
			err = touch(d.fd, m.mtime)
		}
		if d != u.top {
			d.Close()
		}
		if err != nil {
			return fmt.Errorf("cannot set mode and time of %q: %w", m.path, err)
		}
	}
	return nil
}

func (u *unpacker) file(d *Dir, name string, h *tar.Header, r io.Reader, mode fs.FileMode) error {
	if h.Size < 0 || u.sum.Bytes+h.Size > u.o.Limits.Bytes {
		return fmt.Errorf("more than %d bytes: %w", u.o.Limits.Bytes, ErrLimit)
	}
	w, err := d.Create(name)
	if err != nil {
		return err
	}
	defer w.Close()
	for left := h.Size; left > 0; {
		n, err := r.Read(u.buf[:min(int64(len(u.buf)), left)])
		if n > 0 {
			if _, werr := w.Write(u.buf[:n]); werr != nil {
				return werr
			}
		}
		left -= int64(n)
		u.sum.Bytes += int64(n)
		u.show(u.sum)
		if errors.Is(err, io.EOF) && left == 0 {
			break
		}
		if err != nil {
			return stream(err)
		}
	}
	return w.Commit(Final{Mode: mode, MTime: h.ModTime})
}

// replace has f make something under another name, and moves it to name.
func replace(d *Dir, name string, f func(part string) error) error {
	if i, err := d.Stat(name); err == nil && i.Mode.IsDir() {
		return at(name, unix.EISDIR)
	}
	part := partName()
	if err := f(part); err != nil {
		return at(name, err)
	}
	if err := unix.Renameat(d.fd, part, d.fd, name); err != nil {
		_ = unix.Unlinkat(d.fd, part, 0)
		return at(name, err)
	}
	_ = unix.Unlinkat(d.fd, part, 0) // rename leaves both names where they are of one file
	return nil
}

// hardLink makes another name of a file that is in the destination.
func (u *unpacker) hardLink(d *Dir, name, of string) error {
	if !u.o.Links {
		return fmt.Errorf("it is another name of a file, which this stream may not have: %w", ErrName)
	}
	of, err := u.name(of)
	if err != nil {
		return err
	}
	from, err := u.walk(path.Dir(of), false)
	if err != nil {
		return err
	}
	if from != u.top {
		defer from.Close()
	}
	i, err := from.Stat(path.Base(of))
	if err != nil {
		return err
	}
	if !i.Mode.IsRegular() {
		return at(of, ErrIrregular)
	}
	return replace(d, name, func(part string) error { return unix.Linkat(from.fd, path.Base(of), d.fd, part, 0) })
}
