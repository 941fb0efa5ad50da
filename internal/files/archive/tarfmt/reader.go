package tarfmt

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Reader reads headers from blocks. next returns one block, which is valid until its next
// call, and io.EOF at the end of the stream.
type Reader struct {
	next    func() ([]byte, error)
	limits  Limits
	entries int64
	headers int64 // bytes of extended headers and maps so far
	buf     []byte
}

// NewReader returns a Reader of the blocks that next returns.
func NewReader(next func() ([]byte, error), l Limits) *Reader { return &Reader{next: next, limits: l} }

// overrides hold what extended headers say about the entry that follows.
type overrides struct {
	name, target       string
	hasName, hasTarget bool
	pax                bool
	size               int64
	hasSize            bool
	sec, nsec          int64
	hasTime            bool
	major, minor       string
	sparseName         string
	realSize           int64
	hasRealSize        bool
	xattrs             []Xattr
	uid, gid           int64
	hasUID, hasGID     bool
}

// Next reads the next entry's headers into h. The caller takes h.Size bytes of data and
// their padding before the next call. It returns io.EOF after the two empty blocks that
// end an archive. h.Name is set as soon as it is known, also with an error.
func (r *Reader) Next(h *Header) error {
	*h = Header{}
	var o overrides
	for {
		b, err := r.block()
		if err != nil {
			return err
		}
		if empty(b) {
			if o.pax || o.hasName || o.hasTarget {
				return damaged("an extended header has no entry")
			}
			if b, err = r.block(); err != nil {
				return err
			}
			if !empty(b) {
				return damaged("an empty block stands between entries")
			}
			return io.EOF
		}
		if err := checkSum(b); err != nil {
			return err
		}
		switch kind := b[atKind]; kind {
		case paxKind, globalKind, longName, longTarget:
			if err := r.extended(kind, b, &o); err != nil {
				return err
			}
		default:
			r.entries++
			return r.entry(h, b, &o)
		}
	}
}

func (r *Reader) block() ([]byte, error) {
	b, err := r.next()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the archive ends before its end mark: it was cut short, take another copy: %w", errdefs.ErrDataLoss)
	}
	return b, err
}

// extended reads a header that describes the next entry. An entry has at most one of each
// kind. A global header may hold comments only.
func (r *Reader) extended(kind byte, b []byte, o *overrides) error {
	size, err := number(b[atSize : atSize+lenSize])
	if err != nil {
		return err
	}
	most := r.limits.Path + 1
	if kind == paxKind || kind == globalKind {
		most = 2*r.limits.Path + 3*r.limits.Xattr + paxBeside
	}
	if size < 0 || size > int64(most) {
		return over("bytes of an extended header", int64(most))
	}
	if err := r.spend(size + BlockSize); err != nil {
		return err
	}
	data, err := r.take(int(size))
	if err != nil {
		return err
	}
	switch {
	case kind == globalKind:
		return eachRecord(data, func(key string, _ []byte) error {
			if key != "comment" {
				return damaged("a global header says %.40q for all entries, which no entry takes", key)
			}
			return nil
		})
	case kind == longName && !o.hasName && !o.pax:
		o.name, o.hasName = cString(data), true
		return nil
	case kind == longTarget && !o.hasTarget && !o.pax:
		o.target, o.hasTarget = cString(data), true
		return nil
	case kind == paxKind && !o.pax && !o.hasName && !o.hasTarget:
		o.pax = true
		return eachRecord(data, func(key string, value []byte) error { return r.record(o, key, value) })
	default:
		return damaged("an entry has several extended headers")
	}
}

// spend counts n bytes of extended headers against their limit.
func (r *Reader) spend(n int64) error {
	r.headers += n
	if most := MaxHeaders(r.entries); r.headers > most {
		return fmt.Errorf("%d entries have more than %d bytes of extended headers: the archive is made to harm, take another copy: %w",
			r.entries, most, errdefs.ErrResourceExhausted)
	}
	return nil
}

// take reads n bytes and their padding. The result is valid until the next call.
func (r *Reader) take(n int) ([]byte, error) {
	r.buf = r.buf[:0]
	for len(r.buf) < n {
		b, err := r.block()
		if err != nil {
			return nil, err
		}
		r.buf = append(r.buf, b[:min(BlockSize, n-len(r.buf))]...)
	}
	return r.buf, nil
}

// entry decodes the entry's own header b into h and applies the overrides.
func (r *Reader) entry(h *Header, b []byte, o *overrides) (err error) {
	fields := []struct {
		to      *int64
		at, len int
	}{
		{&h.UID, atUID, lenID},
		{&h.GID, atGID, lenID},
		{&h.Size, atSize, lenSize},
		{&h.Sec, atTime, lenTime},
	}
	h.Name = r.name(b, o)
	for _, f := range fields {
		if *f.to, err = number(b[f.at : f.at+f.len]); err != nil {
			return err
		}
	}
	mode, err := number(b[atMode : atMode+lenMode])
	if err != nil {
		return err
	}
	h.Mode = uint32(mode & 0o7777)
	h.Kind = Kind(b[atKind])
	h.Target = cString(b[atTarget : atTarget+lenTarget])
	if o.hasTarget {
		h.Target = o.target
	}
	if o.hasSize {
		h.Size = o.size
	}
	if o.hasTime {
		h.Sec, h.Nsec = o.sec, o.nsec
	}
	if o.hasUID {
		h.UID = o.uid
	}
	if o.hasGID {
		h.GID = o.gid
	}
	h.Xattrs = o.xattrs
	old := h.Kind == oldSparse
	switch h.Kind {
	case 0, contiguous, oldSparse:
		h.Kind = Regular
		// Archives older than POSIX know directories by the slash.
		if b[atKind] == 0 && strings.HasSuffix(h.Name, "/") {
			h.Kind = Directory
		}
	case Regular, Link, Symlink, Char, Block, Directory, FIFO:
	default:
		return damaged("an entry is of the unknown kind %q", b[atKind])
	}
	if h.Kind == Directory {
		h.Name = trimSlashes(h.Name)
	}
	switch {
	case len(h.Name) > r.limits.Path:
		return over("bytes of a path", int64(r.limits.Path))
	case len(h.Target) > r.limits.Path:
		return over("bytes of a link's target", int64(r.limits.Path))
	case h.Name == "":
		return damaged("an entry has no name")
	case strings.IndexByte(h.Name, 0) >= 0 || strings.IndexByte(h.Target, 0) >= 0:
		return damaged("a name has a NUL in it")
	case h.Size < 0:
		return damaged("an entry's size is below zero")
	case h.Kind != Regular && h.Size != 0:
		return damaged("an entry that is no file has %d bytes of data", h.Size)
	case (h.Kind == Link || h.Kind == Symlink) && h.Target == "":
		return damaged("a link has no target")
	}
	switch {
	case old:
		return r.oldMap(h, slices.Clone(b))
	case o.major == "" && o.minor == "" && !o.hasRealSize && o.sparseName == "":
		return nil
	case h.Kind == Regular && o.major == "1" && o.minor == "0" && o.hasRealSize:
		h.RealSize = o.realSize
		return r.dataMap(h)
	default:
		return damaged("a sparse file is not in GNU's form 1.0")
	}
}

// name is the entry's path. Of a sparse file the others name what a reader makes of it
// that knows none.
func (r *Reader) name(b []byte, o *overrides) string {
	switch {
	case o.sparseName != "":
		return o.sparseName
	case o.hasName:
		return o.name
	}
	name := cString(b[:lenName])
	// Readers ignore the version behind the magic.
	if string(b[atMagic:atMagic+6]) == magicPosix[:6] {
		field := b[atPrefix : atPrefix+lenPrefix]
		if string(b[508:]) == "tar\x00" {
			field = field[:131] // star keeps times in the rest
		}
		if prefix := cString(field); prefix != "" {
			name = prefix + "/" + name
		}
	}
	return name
}

// checkSum checks the checksum of header b. Some old programs summed signed bytes.
func checkSum(b []byte) error {
	want, err := number(b[atSum : atSum+lenSum])
	if err != nil {
		return err
	}
	got := sum(b)
	if got == want {
		return nil
	}
	for i, c := range b {
		if c >= 0x80 && (i < atSum || i >= atSum+lenSum) {
			got -= 256
		}
	}
	if got != want {
		return damaged("a header's checksum is wrong")
	}
	return nil
}

// number reads an octal field, or one in GNU's base 256.
func number(f []byte) (int64, error) {
	if f[0]&0x80 != 0 {
		negative := f[0]&0x40 != 0
		var n uint64
		for i, c := range f {
			if negative {
				c = ^c
			}
			if i == 0 {
				c &= 0x3f
			}
			if n>>55 != 0 {
				return 0, damaged("a number in a header is too large")
			}
			n = n<<8 | uint64(c)
		}
		if negative {
			return ^int64(n), nil
		}
		return int64(n), nil
	}
	f = bytes.Trim(f, " \x00")
	var n int64
	for _, c := range f {
		if c < '0' || c > '7' {
			return 0, damaged("a number in a header is not octal")
		}
		n = n<<3 | int64(c-'0')
	}
	return n, nil
}

func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// trimSlashes removes trailing slashes, but not the only character.
func trimSlashes(s string) string {
	for len(s) > 1 && s[len(s)-1] == '/' {
		s = s[:len(s)-1]
	}
	return s
}
