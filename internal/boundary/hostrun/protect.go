package hostrun

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/spec/hostfiles"
)

// placedMode is the mode of a directory that keeps a name which was absent. Nobody else makes an empty one of it, so
// that one which an ended carrel left is known.
const placedMode = 0o550

// Tries to lock the directory while another is about to leave it, and the time between.
const (
	lockTries = 200
	lockPause = 5 * time.Millisecond
)

// protect has names stay read-only in each directory that the command may change. remove, which is never nil, undoes what was
// done for that.
func (p *plan) protect() (remove func() error, err error) {
	var all []func() error
	remove = func() (err error) {
		for _, r := range all {
			err = errors.Join(err, r())
		}
		return err
	}
	for i := range p.spec.Writes {
		r, err := p.spec.Writes[i].protect()
		all = append(all, r)
		if err != nil {
			return remove, err
		}
	}
	return remove, nil
}

// protect finds the names in a directory that stay read-only: entries that programs of the user run, or
// that tell them to run something (docs/hostfiles.md says why each). The kernel can hold only a name that is there, so
// an empty directory is placed where one is absent. remove, which is never nil, removes those again.
func (w *place) protect() (remove func() error, err error) {
	remove = func() error { return nil }
	dir, err := unix.Open(w.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return remove, fmt.Errorf("cannot open %s: %w: %w", w.Dir, err, errdefs.ErrFailedPrecondition)
	}
	// All that run in it share it, and the last of them removes what was placed. Before that, the name would be held
	// for another no more.
	if err := lockDir(dir, unix.LOCK_SH); err != nil {
		unix.Close(dir)
		return remove, fmt.Errorf("cannot share %s with others that run commands in it: %w; try again: %w",
			w.Dir, err, errdefs.ErrUnavailable)
	}
	remove = func() error {
		defer unix.Close(dir)
		if err := errors.Join(unix.Flock(dir, unix.LOCK_UN), unix.Flock(dir, unix.LOCK_EX|unix.LOCK_NB)); err != nil {
			return nil //nolint:nilerr // another runs in it, and removes them
		}
		return unplace(dir, w.Dir)
	}
	present, absent, err := sandbox.ProtectedIn(dir, false)
	if err != nil {
		return remove, fmt.Errorf("cannot let a command change %s: %w", w.Dir, err)
	}
	for _, name := range absent {
		err := unix.Mkdirat(dir, name, placedMode)
		if err == nil {
			err = unix.Fchmodat(dir, name, placedMode, 0) // past the umask
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return remove, fmt.Errorf("cannot keep the name %s in %s: %w; name a directory that you may write: %w",
				name, w.Dir, err, errdefs.ErrFailedPrecondition)
		}
	}
	w.Locked = append(present, absent...)
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
	for _, p := range hostfiles.Protected() {
		var st unix.Stat_t
		if p.Absent == hostfiles.Never || unix.Fstatat(dir, p.Name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil ||
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
