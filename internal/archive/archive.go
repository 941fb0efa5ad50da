// Package archive packs the tree below a directory into one zstd-compressed tar
// stream and unpacks such a stream below an empty directory. docs/protocols/archive.md
// is the format.
//
// A tree belongs to one id, so owners are not kept: an entry is the owner's own, as 0,
// and what is unpacked belongs to the process that unpacks. It is meant to run as the
// workspace's own id inside the workspace's boundary; as root over somebody else's
// tree it would still not leave the directory, but make files that belong to root.
//
// It must not follow a symbolic link, step out of its directory or into another mount,
// wait on a FIFO, or change owners. It knows nothing of workspaces.
package archive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/archive/tarfmt"
)

// Limits bound what is packed or unpacked. A field that is 0 takes the value of
// DefaultLimits. What was packed within limits can be unpacked within the same.
type Limits struct {
	Bytes      int64 // data of all files; the holes of sparse ones do not count
	FileBytes  int64 // length of one file, with its holes
	Entries    int64
	Depth      int   // names in a path
	PathBytes  int   // of a path, and of a link's target
	XattrBytes int   // of an entry's extended attributes, names and values
	Ratio      int64 // unpacked bytes for each compressed one, of more than RatioFloor; 0 is no limit; unpacking only
}

// RatioFloor is how many bytes may be unpacked before their ratio is looked at.
const RatioFloor = 64 << 20

// DefaultLimits are wide enough for a developer's home. Whoever knows an archive's
// Summary, or how much room there is, says less.
func DefaultLimits() Limits {
	return Limits{
		Bytes: 64 << 30, FileBytes: 64 << 30, Entries: 4 << 20,
		Depth: 256, PathBytes: 4095, XattrBytes: 256 << 10,
	}
}

func (l Limits) withDefaults() (Limits, error) {
	d := DefaultLimits()
	if l.Bytes < 0 || l.FileBytes < 0 || l.Entries < 0 || l.Depth < 0 || l.PathBytes < 0 || l.XattrBytes < 0 || l.Ratio < 0 {
		return l, fmt.Errorf("cannot use limits below zero: 0 stands for the default: %w", errdefs.ErrInvalidArgument)
	}
	fill(&l.Bytes, d.Bytes)
	fill(&l.FileBytes, d.FileBytes)
	fill(&l.Entries, d.Entries)
	fill(&l.Depth, d.Depth)
	fill(&l.PathBytes, d.PathBytes)
	fill(&l.XattrBytes, d.XattrBytes)
	// A descriptor is open for each level, and the system takes no longer path.
	if l.Depth > 512 || l.PathBytes > 4095 || l.XattrBytes > 16<<20 {
		return l, fmt.Errorf("cannot use limits beyond 512 levels, 4095 bytes of a path and 16 MiB of attributes: lower them: %w", errdefs.ErrInvalidArgument)
	}
	return l, nil
}

func fill[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (l Limits) headers() tarfmt.Limits {
	return tarfmt.Limits{Path: l.PathBytes + 1, Xattr: l.XattrBytes}
}

// Options are how to pack or unpack; the zero value will do.
type Options struct {
	// Progress, if not nil, is told the entries and bytes so far, at most every 100 ms,
	// from the goroutine that called Write or Read.
	Progress func(entries, bytes int64)
	// SkipUnreadable has Write count what its id may not read, instead of failing.
	SkipUnreadable bool
	// SHA256, if not "", is what Read must find the compressed stream's sum to be.
	// It knows at the end only.
	SHA256 string
	// Sync has Read return once what it unpacked would survive a loss of power.
	Sync bool
}

// Summary is what was packed or unpacked, and what of the tree could not be kept.
// It also stands beside an error, as far as things went.
type Summary struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`   // data of files, without holes
	Stream  int64 `json:"stream"`  // of the tar stream
	Archive int64 `json:"archive"` // of the compressed stream
	// SHA256 is that of the compressed stream, in lower-case hexadecimal.
	SHA256 string `json:"sha256,omitempty"`

	Sockets    int64 `json:"sockets,omitempty"`    // left out: a socket means nothing without its process
	Devices    int64 `json:"devices,omitempty"`    // left out
	Mounts     int64 `json:"mounts,omitempty"`     // left out: other file systems; of directories the empty one is kept
	Unreadable int64 `json:"unreadable,omitempty"` // left out, with SkipUnreadable
	Foreign    int64 `json:"foreign,omitempty"`    // packed as the tree's own, of another owner or group
	Changed    int64 `json:"changed,omitempty"`    // changed or vanished while they were read
	Xattrs     int64 `json:"xattrs,omitempty"`     // attributes outside user.*, not kept
	SetID      int64 `json:"set_id,omitempty"`     // entries whose set-id bits were dropped
}

// progress tells at most every 100 ms.
type progress struct {
	tell func(entries, bytes int64)
	last time.Time
}

func (p *progress) step(s *Summary) {
	if p.tell == nil {
		return
	}
	if now := time.Now(); now.Sub(p.last) >= 100*time.Millisecond {
		p.last = now
		p.tell(s.Entries, s.Bytes)
	}
}

// about wraps what went wrong with one entry.
func about(verb, name string, err error) error {
	switch {
	case name == "":
		name = "."
	case len(name) > 512: // also a hostile one has to be shown
		name = name[:512] + "…"
	}
	if why, kind := remedy(err); why != "" {
		return fmt.Errorf("cannot %s %q: %w: %s: %w", verb, name, err, why, kind)
	}
	return fmt.Errorf("cannot %s %q: %w", verb, name, err)
}

// remedy is what to do about an error of the system.
func remedy(err error) (string, error) {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return "", nil
	}
	switch errno {
	case unix.ENOSPC, unix.EDQUOT:
		return "make room or raise the quota", errdefs.ErrResourceExhausted
	case unix.EFBIG:
		return "the file system or a limit of the process takes no file of that length", errdefs.ErrResourceExhausted
	case unix.EMFILE, unix.ENFILE:
		return "raise the number of open files", errdefs.ErrResourceExhausted
	case unix.EACCES, unix.EPERM:
		return "give the id that this runs with the right to it", errdefs.ErrPermissionDenied
	case unix.EEXIST:
		return "the archive has the name twice, take another copy", errdefs.ErrInvalidArgument
	case unix.ENOTSUP:
		return "use a file system that can keep it", errdefs.ErrFailedPrecondition
	case unix.EROFS:
		return "mount the file system for writing", errdefs.ErrFailedPrecondition
	case unix.EIO:
		return "look after the disk", errdefs.ErrDataLoss
	default:
		return "see whether the directory still is there and in order", errdefs.ErrUnknown
	}
}

func tooMany(what string, limit int64) error {
	return fmt.Errorf("%s are more than the limit of %d: raise it if this is meant: %w", what, limit, errdefs.ErrResourceExhausted)
}

// cause prefers why a context was ended over that it was.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}
