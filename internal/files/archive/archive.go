// Package archive packs the tree below a directory into one zstd-compressed tar
// stream, unpacks such a stream below an empty directory, and verifies that one could be. docs/protocols/archive.md
// specifies the format.
//
// A tree belongs to one id, so owners are not kept: an entry has uid and gid 0, and
// unpacked files belong to the process that unpacks. The package is meant to run with
// the workspace's id inside the workspace's boundary. As root it would not leave the
// directory either, but it would make files that belong to root.
//
// It must not follow a symbolic link, leave its directory, enter another mount, wait on
// a FIFO, or change owners. It knows nothing of workspaces.
package archive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/archive/tarfmt"
)

// Limits bound what is packed or unpacked. 0 means the value of DefaultLimits. What was
// packed within limits can be unpacked within the same.
type Limits struct {
	Bytes      int64 // data of all files, without the holes of sparse ones
	FileBytes  int64 // length of one file, with its holes
	Entries    int64
	Depth      int // names in a path
	PathBytes  int // of a path, and of a link's target
	XattrBytes int // of an entry's extended attributes, names and values
	// Ratio is the most unpacked bytes for each compressed byte, past RatioFloor; 0 means no
	// limit. For unpacking only.
	Ratio int64
}

// maxTime bounds times of modification, in seconds before and after 1970.
const maxTime = 1 << 40

// RatioFloor is how many bytes may be unpacked before Limits.Ratio applies.
const RatioFloor = 64 << 20

// DefaultLimits returns limits for a developer's home. A caller that knows an archive's
// Summary or the free disk space sets lower ones.
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
	// A descriptor is open for each level, and 4095 bytes is the system's longest path.
	if l.Depth > 512 || l.PathBytes > 4095 || l.XattrBytes > 16<<20 {
		return l, fmt.Errorf("cannot use limits beyond 512 levels, 4095 bytes of a path and 16 MiB of attributes: lower them: %w",
			errdefs.ErrInvalidArgument)
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

// Options control packing and unpacking. All are optional.
type Options struct {
	// Progress, if not nil, is called with the entries and bytes so far, at most every
	// 100 ms, from the goroutine that called Write or Read.
	Progress func(entries, bytes int64)
	// SkipUnreadable makes Write count what its id may not read, instead of failing.
	SkipUnreadable bool
	// SHA256, if not "", must be the hash of the compressed stream. Read checks it at
	// the end of the stream.
	SHA256 string
	// Sync makes Read return only when everything that it unpacked is on disk.
	Sync bool
}

// Summary counts what was packed or unpacked, and what of the tree could not be kept.
// It is also returned with an error and then counts what was done before.
type Summary struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`   // data of files, without holes
	Stream  int64 `json:"stream"`  // length of the tar stream
	Archive int64 `json:"archive"` // length of the compressed stream
	// SHA256 is the hash of the compressed stream, in lower-case hexadecimal.
	SHA256 string `json:"sha256,omitempty"`

	Sockets    int64 `json:"sockets,omitempty"`    // left out: a socket is useless without its process
	Devices    int64 `json:"devices,omitempty"`    // left out
	Mounts     int64 `json:"mounts,omitempty"`     // left out; a directory is kept empty
	Unreadable int64 `json:"unreadable,omitempty"` // left out, with SkipUnreadable
	Foreign    int64 `json:"foreign,omitempty"`    // of another owner or group, packed as the tree's own
	Changed    int64 `json:"changed,omitempty"`    // changed or removed while they were read
	Xattrs     int64 `json:"xattrs,omitempty"`     // attributes outside user.*, not kept
	SetID      int64 `json:"set_id,omitempty"`     // entries that lost a set-id bit
}

// progress calls tell at most every 100 ms.
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

// about adds the entry, and what to do if that is known, to an error.
func about(verb, name string, err error) error {
	switch {
	case name == "":
		name = "."
	case len(name) > 512: // a hostile name may be long
		name = name[:512] + "…"
	}
	if why, kind := remedy(err); why != "" {
		return fmt.Errorf("cannot %s %q: %w: %s: %w", verb, name, err, why, kind)
	}
	return fmt.Errorf("cannot %s %q: %w", verb, name, err)
}

// remedy returns what to do about a system error, and its kind.
func remedy(err error) (string, error) {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return "", nil
	}
	switch errno {
	case unix.ENOSPC, unix.EDQUOT:
		return "make room or raise the quota", errdefs.ErrResourceExhausted
	case unix.EFBIG:
		return "the file system or a limit of the process does not allow a file of that length", errdefs.ErrResourceExhausted
	case unix.EMFILE, unix.ENFILE:
		return "raise the number of open files", errdefs.ErrResourceExhausted
	case unix.EACCES, unix.EPERM:
		return "give the id that this runs with access to it", errdefs.ErrPermissionDenied
	case unix.EEXIST:
		return "the archive has the name twice, take another copy", errdefs.ErrInvalidArgument
	case unix.ENOTSUP:
		return "use a file system that supports it", errdefs.ErrFailedPrecondition
	case unix.EROFS:
		return "mount the file system for writing", errdefs.ErrFailedPrecondition
	case unix.EIO:
		return "check the disk", errdefs.ErrDataLoss
	default:
		return "see whether the directory still exists and is intact", errdefs.ErrUnknown
	}
}

func tooMany(what string, limit int64) error {
	return fmt.Errorf("%s are more than the limit of %d: raise it if this is meant: %w", what, limit, errdefs.ErrResourceExhausted)
}

// cause returns the cause of ctx's end, or err.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}
