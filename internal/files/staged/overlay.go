package staged

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// How an upper directory says what the run did: Documentation/filesystems/overlayfs.rst of Linux. A whiteout, which stands
// for a name that was deleted, is a character device 0/0. In a directory that is opaque "x" it may be an empty file with the
// attribute whiteout. A directory that is opaque "y" hides everything that the lower one has in it, at every depth.
const (
	trustedMarks = "trusted.overlay."
	userMarks    = "user.overlay."
	opaqueAll    = 'y'
	opaqueFiles  = 'x'
	// maxAttrs is the longest list of attribute names that Linux makes, in bytes.
	maxAttrs = 64 << 10
)

// ignored are the marks that say nothing about what the run did.
var ignored = map[string]bool{"origin": true, "impure": true, "nlink": true, "uuid": true}

// marks are what the overlay noted about one name.
type marks struct {
	whiteout bool
	opaque   byte // 0, opaqueAll or opaqueFiles
}

// format reads the marks of an upper directory. The names of the one form are not taken for those of the other: a run can
// write user.* attributes where the overlay's own are trusted.*.
type format struct {
	prefix string
	buf    []byte
}

func newFormat(user bool) *format {
	f := &format{prefix: trustedMarks, buf: make([]byte, maxAttrs)}
	if user {
		f.prefix = userMarks
	}
	return f
}

// marks reads what is noted about a name in d, "." for d itself.
func (f *format) marks(d folder, name string) (m marks, err error) {
	path := d.proc(name)
	n, err := unix.Llistxattr(path, f.buf)
	if errors.Is(err, unix.ENOTSUP) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("its attributes cannot be listed: %w", err)
	}
	for attr := range strings.SplitSeq(strings.TrimSuffix(string(f.buf[:n]), "\x00"), "\x00") {
		if err := f.mark(&m, path, attr); err != nil {
			return m, err
		}
	}
	return m, nil
}

// mark reads one attribute.
func (f *format) mark(m *marks, path, attr string) error {
	is, ours := strings.CutPrefix(attr, f.prefix)
	if !ours {
		if strings.HasPrefix(attr, trustedMarks) || strings.HasPrefix(attr, userMarks) {
			return fmt.Errorf("it has the attribute %q, of an overlay of the other form than %s*; discard the copy: %w", attr, f.prefix,
				errdefs.ErrFailedPrecondition)
		}
		return nil
	}
	switch {
	case ignored[is]:
		return nil
	case is == "whiteout":
		m.whiteout = true
		return nil
	case is == "opaque":
		return f.opaque(m, path, attr)
	}
	return fmt.Errorf("it has the attribute %q, which this version cannot read; mount the overlay with redirect_dir=nofollow "+
		"and metacopy=off, and discard the copy: %w", attr, errdefs.ErrFailedPrecondition)
}

func (f *format) opaque(m *marks, path, attr string) error {
	var value [8]byte
	n, err := unix.Lgetxattr(path, attr, value[:])
	if err != nil && !errors.Is(err, unix.ERANGE) {
		return fmt.Errorf("its attribute %q cannot be read: %w", attr, err)
	}
	if err != nil || n != 1 || value[0] != opaqueAll && value[0] != opaqueFiles {
		return fmt.Errorf("its attribute %q has a value that is not known; discard the copy: %w", attr, errdefs.ErrFailedPrecondition)
	}
	m.opaque = value[0]
	return nil
}

// whiteout reports whether an entry of a directory stands for a deleted name. What is marked as no overlay would mark it is
// an error.
func (m marks) isWhiteout(s stamp, rdev uint64, in marks) (bool, error) {
	switch {
	case m.opaque != 0 && !s.isDir():
		return false, stale("it is marked as an opaque directory and is none; discard the copy")
	case s.kind() == unix.S_IFCHR && rdev == 0:
		return true, nil
	case !m.whiteout:
		return false, nil
	case s.kind() == unix.S_IFREG && s.Size == 0 && in.opaque == opaqueFiles:
		return true, nil
	}
	return false, stale("it is marked as deleted where no overlay marks it; discard the copy")
}
