package hostrun

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/sandbox"
)

// placedMode is the mode of a directory that keeps a name which was absent. Nobody else makes an empty one of it, so
// that one which an ended carrel left is known.
const placedMode = 0o550

// Tries to lock the directory while another is about to leave it, and the time between.
const (
	lockTries = 200
	lockPause = 5 * time.Millisecond
)

// protect finds the names in the command's directory that stay read-only: entries that programs of the user run, or
// that tell them to run something (sandbox.Protected says why each). The kernel can hold only a name that is there, so
// an empty directory is placed where one is absent. remove, which is never nil, removes those again.
func (p *plan) protect() (remove func() error, err error) {
	remove = func() error { return nil }
	dir, err := unix.Open(p.spec.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return remove, fmt.Errorf("cannot open %s: %w: %w", p.spec.Dir, err, errdefs.ErrFailedPrecondition)
	}
	// All that run in it share it, and the last of them removes what was placed. Before that, the name would be held
	// for another no more.
	if err := lockDir(dir, unix.LOCK_SH); err != nil {
		unix.Close(dir)
		return remove, fmt.Errorf("cannot share %s with others that run commands in it: %w; try again: %w",
			p.spec.Dir, err, errdefs.ErrUnavailable)
	}
	remove = func() error {
		defer unix.Close(dir)
		if err := errors.Join(unix.Flock(dir, unix.LOCK_UN), unix.Flock(dir, unix.LOCK_EX|unix.LOCK_NB)); err != nil {
			return nil //nolint:nilerr // another runs in it, and removes them
		}
		return unplace(dir, p.spec.Dir)
	}
	present, absent, err := sandbox.ProtectedIn(dir, false)
	if err != nil {
		return remove, fmt.Errorf("cannot let a command change %s: %w", p.spec.Dir, err)
	}
	for _, name := range absent {
		err := unix.Mkdirat(dir, name, placedMode)
		if err == nil {
			err = unix.Fchmodat(dir, name, placedMode, 0) // past the umask
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return remove, fmt.Errorf("cannot keep the name %s in %s: %w; name a directory that you may write: %w",
				name, p.spec.Dir, err, errdefs.ErrFailedPrecondition)
		}
	}
	p.spec.Locked = append(present, absent...)
	return remove, nil
}

func lockDir(dir, how int) (err error) {
	for range lockTries {
		if err = unix.Flock(dir, how|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		time.Sleep(lockPause)
	}
	return err
}

// unplace removes what was placed in a directory, unless something was put into it.
func unplace(dir int, path string) error {
	for _, p := range sandbox.Protected {
		var st unix.Stat_t
		if p.Placed == sandbox.Never || unix.Fstatat(dir, p.Name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil ||
			st.Mode != unix.S_IFDIR|placedMode || st.Uid != uint32(os.Geteuid()) {
			continue
		}
		err := unix.Unlinkat(dir, p.Name, unix.AT_REMOVEDIR)
		if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("cannot remove %s/%s, which kept a name: %w; remove it", path, p.Name, err)
		}
	}
	return nil
}
