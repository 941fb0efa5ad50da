// Package staged takes what a run changed in a staged copy of a directory into the directory. During the run the directory,
// the lower one, is shown through an overlay file system, and what the run writes goes to another directory, the upper one.
// Afterwards Changes lists what the upper one changes, Diff shows it to a person, and Apply makes the changes: all that were
// chosen or none, also when the process is killed. Undo takes them back.
//
// A hostile command has written the upper directory, and other processes write the lower one at any time. So each step is
// relative to an open directory and follows no symbolic link, no FIFO or device is opened, and every loop is bounded.
//
// The package must not mount anything, know what a workspace is, or decide whether a change is wanted.
package staged

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Bounds.
const (
	MaxChanges = 200_000
	MaxDepth   = 1024 // of directories inside each other
	// maxSeen bounds the names that are looked at, of which most may be unchanged.
	maxSeen = 1_000_000
	// maxText bounds the paths and the targets of symbolic links of all changes, in bytes.
	maxText = 128 << 20
	// maxPath is the longest path that Linux takes, in bytes.
	maxPath = unix.PathMax - 1
	// maxApply bounds the contents that one Apply writes, in bytes.
	maxApply = 64 << 30
)

// Copy is a staged copy while nobody writes the upper directory: after its run, or while that is paused.
type Copy struct {
	// Lower is the directory that the overlay showed, and Upper the one with what the run wrote. Required: open directories.
	Lower, Upper *os.File
	// UserXattr says that the overlay was mounted with userxattr: its marks are user.overlay.*, else trusted.overlay.*.
	UserXattr bool
	// Made are what Apply made while the overlay was mounted, from the function of that name: what of it is gone is a change.
	Made []string
}

// Type is what a name stands for.
type Type string

// The types. FIFOs, sockets and devices are reported, and never made or removed.
const (
	Absent  Type = ""
	File    Type = "file"
	Dir     Type = "directory"
	Symlink Type = "symlink"
	FIFO    Type = "fifo"
	Socket  Type = "socket"
	Device  Type = "device"
)

// Entry is what a name stands for in one of the two directories.
type Entry struct {
	Type Type
	// Mode has the permission bits, and those for set-user-id, set-group-id and sticky, as the kernel has them.
	Mode uint32
	Size int64
	// Target is where a symbolic link leads, as it is written.
	Target string

	stamp stamp
}

// Kind says what a run did to a name.
type Kind string

// The kinds.
const (
	Create Kind = "create"
	Modify Kind = "modify" // the content of a file, and perhaps the mode
	Delete Kind = "delete"
	Mode   Kind = "mode"   // nothing but the mode
	Retype Kind = "type"   // it is of another type now
	Relink Kind = "link"   // a symbolic link leads elsewhere
	Other  Kind = "device" // a device is another one now
)

// Change is what a run did to one name.
type Change struct {
	// Path is relative to the directories. Its names may have any byte but NUL and "/".
	Path string
	Kind Kind
	// Old is what the name stands for in the lower directory now, and New what it stands for in the staged copy.
	Old, New Entry
	// LeadsOut: the new symbolic link leads out of the directory, or may, or into a directory of Git's. It is made only if its
	// own path is chosen.
	LeadsOut bool
	// Refused says why Apply never makes the change, "" if it may.
	Refused string
}

// Clock is the time by which file systems stamp changes, for Options.Since. A change that was made before the call has an older
// stamp, and one that is made after it this one or a newer one. The clock moves on some hundred times a second, and a stamp may
// be ahead of it; so Clock waits until it has passed the moment of the call, mostly for some milliseconds.
func Clock(ctx context.Context) (time.Time, error) {
	called := time.Now()
	for {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts); err != nil {
			return time.Time{}, fmt.Errorf("cannot read the clock of file systems: %w", err)
		}
		if now := time.Unix(ts.Unix()); now.After(called) {
			return now, nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("cannot wait for the clock of file systems: %w", context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}

// ComparePaths orders paths so that what is in a directory follows the directory at once: "/" comes before every other byte.
func ComparePaths(a, b string) int {
	for i := range min(len(a), len(b)) {
		switch {
		case a[i] == b[i]:
		case a[i] == '/':
			return -1
		case b[i] == '/':
			return 1
		default:
			return int(a[i]) - int(b[i])
		}
	}
	return len(a) - len(b)
}

// isBelow reports whether a path is in a directory.
func isBelow(path, dir string) bool {
	return len(path) > len(dir) && path[len(dir)] == '/' && strings.HasPrefix(path, dir)
}

// split returns the directory of a path, "" for the top, and the last name.
func split(path string) (dir, base string) {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 0)], path[i+1:]
}

// join is the path of a name in a directory.
func join(dir, name string) string {
	if dir == "" || name == "" {
		return dir + name
	}
	return dir + "/" + name
}

func bad(why string, args ...any) error {
	return fmt.Errorf(why+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

func stale(why string, args ...any) error {
	return fmt.Errorf(why+": %w", append(args, errdefs.ErrFailedPrecondition)...)
}
