package filetree

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Limits bound a stream in either direction.
type Limits struct {
	Bytes, Entries int64
	Depth          int
}

// Defaults are the limits of a Pack and an Unpack.
func Defaults() Limits { return Limits{Bytes: 64 << 30, Entries: 1 << 20, Depth: 128} }

// Summary is what was packed or unpacked.
type Summary struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
	// Skipped counts what was left out: devices, FIFOs, sockets, and what could not be read. First is the
	// name of the first, and Why what was the matter with it.
	Skipped int64  `json:"skipped,omitempty"`
	First   string `json:"first,omitempty"`
	Why     string `json:"why,omitempty"`
	// Changed counts files that became shorter while they were read: zeros stand for what was missing.
	Changed int64 `json:"changed,omitempty"`
}

// ErrLimit is wrapped by errors about limits.
var ErrLimit = errors.New("a limit is exceeded")

const copyBytes = 128 << 10

// Progress hears how far a stream is, at most ten times a second.
type Progress func(Summary)

type pace struct {
	tell Progress
	last time.Time
}

func (p *pace) show(s Summary) {
	if now := time.Now(); p.tell != nil && now.Sub(p.last) > 100*time.Millisecond {
		p.last = now
		p.tell(s)
	}
}

// Pack writes what d has under name, with everything below it, to w as a tar stream, in which it is called as;
// "" is its name, "." has what is below without a directory above. A link is a link, and each name of a file with
// several names a file. What changes meanwhile is packed as it is found.
func Pack(ctx context.Context, w io.Writer, d *Dir, name, as string, l Limits, tell Progress) (Summary, error) {
	out := bufio.NewWriterSize(w, copyBytes)
	p := &packer{ctx: ctx, out: out, tar: tar.NewWriter(out), limits: l, pace: pace{tell: tell}, buf: make([]byte, copyBytes)}
	if as == "" {
		as = name
	}
	i, err := d.Stat(name)
	if err == nil {
		err = p.entry(d, i, as, 0)
	}
	if err == nil {
		err = p.tar.Close()
	}
	if err == nil {
		err = out.Flush()
	}
	return p.sum, err
}

type packer struct {
	pace

	ctx context.Context
	// out gathers the blocks of heads and small files, each of which would be a write of its own.
	out    *bufio.Writer
	tar    *tar.Writer
	limits Limits
	sum    Summary
	buf    []byte
}

func (s *Summary) skip(name, why string) {
	if s.Skipped++; s.Skipped == 1 {
		s.First, s.Why = name, why
	}
}

func (p *packer) entry(d *Dir, i Info, as string, depth int) error {
	if err := p.ctx.Err(); err != nil {
		return context.Cause(p.ctx)
	}
	if p.sum.Entries++; p.sum.Entries > p.limits.Entries {
		return fmt.Errorf("more than %d entries: %w", p.limits.Entries, ErrLimit)
	}
	if depth > p.limits.Depth {
		return fmt.Errorf("directories are nested more than %d deep: %w", p.limits.Depth, ErrLimit)
	}
	p.show(p.sum)
	switch {
	case i.Mode.IsDir():
		return p.directory(d, i, as, depth)
	case i.Mode.IsRegular():
		return p.file(d, i, as)
	case i.Mode.Type() == fs.ModeSymlink:
		return p.head(i, as, tar.TypeSymlink)
	}
	p.sum.skip(as, "it is no file, directory or link")
	return nil
}

func (p *packer) head(i Info, as string, kind byte) error {
	h := &tar.Header{Typeflag: kind, Name: as, Linkname: i.Target, Mode: int64(i.Mode.Perm()), ModTime: i.MTime, Format: tar.FormatPAX}
	if kind == tar.TypeReg {
		h.Size = i.Size
	}
	if kind == tar.TypeDir {
		h.Name += "/"
	}
	if err := p.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("cannot pack %q: %w", as, err)
	}
	return nil
}

// unreadable reports whether an error is about one entry only, which others may have removed or closed.
func unreadable(err error) bool {
	return slices.ContainsFunc([]error{unix.EACCES, unix.EPERM, unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ESTALE, unix.EIO, ErrIrregular},
		func(e error) bool { return errors.Is(err, e) })
}

func (p *packer) directory(d *Dir, i Info, as string, depth int) error {
	sub, err := d.Sub(i.Name)
	if err != nil {
		if depth > 0 && unreadable(err) {
			p.sum.skip(as, err.Error())
			return nil
		}
		return err
	}
	defer sub.Close()
	if is, err := sub.MadeUp(); err != nil || is {
		p.sum.skip(as, "the kernel makes up what is in it")
		return nil
	}
	if real, err := sub.Self(i.Name); err == nil {
		i = real // it may be another one now
	}
	if as != "." {
		if err := p.head(i, as, tar.TypeDir); err != nil {
			return err
		}
	}
	names, cut, err := sub.Names(maxNames)
	if err != nil {
		p.sum.skip(as, err.Error())
		return nil
	}
	if cut {
		return fmt.Errorf("%q has more than %d entries: %w", as, maxNames, ErrLimit)
	}
	slices.Sort(names)
	for _, name := range names {
		in := as + "/" + name
		if as == "." {
			in = name
		}
		i, err := sub.Stat(name)
		if err != nil {
			p.sum.skip(in, err.Error())
			continue
		}
		if err := p.entry(sub, i, in, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) file(d *Dir, i Info, as string) error {
	f, i, err := d.Open(i.Name)
	if err != nil {
		if unreadable(err) {
			p.sum.skip(as, err.Error())
			return nil
		}
		return err
	}
	defer f.Close()
	if p.sum.Bytes+i.Size > p.limits.Bytes {
		return fmt.Errorf("more than %d bytes: %w", p.limits.Bytes, ErrLimit)
	}
	if err := p.head(i, as, tar.TypeReg); err != nil {
		return err
	}
	if i.Size >= copyBytes { // its pieces go past what is gathered
		if err := p.out.Flush(); err != nil {
			return err
		}
	}
	// One that grows is packed as long as it was.
	for left := i.Size; left > 0; {
		if err := p.ctx.Err(); err != nil {
			return context.Cause(p.ctx)
		}
		n, err := f.Read(p.buf[:min(int64(len(p.buf)), left)])
		if n == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("cannot read %q: %w", as, err)
			}
			p.sum.Changed++ // its header is written
			return p.zeros(left)
		}
		if _, err := p.tar.Write(p.buf[:n]); err != nil {
			return err
		}
		left -= int64(n)
		p.sum.Bytes += int64(n)
		p.show(p.sum)
	}
	return nil
}

func (p *packer) zeros(n int64) error {
	clear(p.buf)
	for ; n > 0; n -= int64(len(p.buf)) {
		if _, err := p.tar.Write(p.buf[:min(int64(len(p.buf)), n)]); err != nil {
			return err
		}
	}
	return nil
}
