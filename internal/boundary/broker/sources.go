package broker

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// openSource opens the source of m with its caller's rights and sees that it is the
// directory that was granted. home says that it is one of a user of this host.
func (h *Host) openSource(m Mount) (dir *os.File, home bool, err error) {
	caller, err := h.credOf(m.CallerUID, m.CallerGID)
	if err != nil {
		return nil, false, err
	}
	err = caller.as(func() (err error) {
		dir, err = h.openGranted(m)
		return err
	})
	return dir, slices.Contains(caller.homes, m.Source), err
}

// openStage opens the stage of a staged copy likewise.
func (h *Host) openStage(m Mount) (dir *os.File, err error) {
	caller, err := h.credOf(m.CallerUID, m.CallerGID)
	if err != nil {
		return nil, err
	}
	if m.StageIdentity == nil {
		return nil, fmt.Errorf("cannot make a staged copy of %s: none was granted: %w", m.Source, errdefs.ErrFailedPrecondition)
	}
	m.Source, m.Identity = m.Stage, *m.StageIdentity
	err = caller.as(func() (err error) {
		dir, err = h.openGranted(m)
		return err
	})
	return dir, err
}

// openGranted opens the source on a thread that has its caller's rights.
func (h *Host) openGranted(m Mount) (*os.File, error) {
	wrap := func(why string, err error) (*os.File, error) {
		return nil, fmt.Errorf("cannot mount %s: %s; put the directory back, or destroy the workspace and create it anew: %w", m.Source, why, err)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, m.Source, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case errors.Is(err, unix.EACCES):
		return wrap(fmt.Sprintf("uid %d may not open it", m.CallerUID), errdefs.ErrPermissionDenied)
	case errors.Is(err, unix.ELOOP):
		return wrap("a symbolic link is on the way to it", errdefs.ErrFailedPrecondition)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return wrap("there is no such directory", errdefs.ErrFailedPrecondition)
	case err != nil:
		return wrap(err.Error(), errdefs.ErrFailedPrecondition)
	}
	dir := os.NewFile(uintptr(fd), m.Source)
	if now, err := Identify(dir, h.bootID); err != nil || !now.Is(m.Identity) {
		_ = dir.Close()
		return wrap("another directory is there than the one that was granted", errdefs.ErrFailedPrecondition)
	}
	return dir, nil
}
