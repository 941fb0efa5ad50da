// Package removal removes trees that somebody else has filled with anything, and may still be filling:
// homes of workspaces, and what the daemon's user can write. It holds a fixed number of descriptors
// and little memory, however deep and wide the tree is. Each step is relative to a descriptor that is
// held, follows no link and enters no mount.
//
// It can be killed at any point: the tree is then smaller, and removing it again does the rest.
package removal

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
)

const (
	// levels is how deep the walk goes. A directory further down is first renamed into the tree's top.
	levels = 32
	// batch is how many names are read at once, and after how many it is seen whether ctx has ended.
	batch = 64
)

// Path is Remove for a path whose parent directory only the caller can change.
func Path(ctx context.Context, path string) error {
	dir, err := os.OpenFile(filepath.Dir(path), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return Remove(ctx, dir, filepath.Base(path))
}

// Remove removes what dir has under name. Nothing there is no error. What cannot be removed stays,
// with the directories above it, and the first such thing is the error; all the rest is removed. When
// ctx ends first, the error is of kind unavailable.
func Remove(ctx context.Context, dir *os.File, name string) error {
	rc, err := dir.SyscallConn()
	if err != nil {
		return err
	}
	t := &tree{ctx: ctx, top: -1}
	if err := rc.Control(func(fd uintptr) { t.remove(int(fd), name, 0) }); err != nil {
		return err
	}
	return t.err
}

// tree is one removal.
type tree struct {
	ctx context.Context
	top int   // the descriptor of the tree's top
	err error // about the first thing that could not be removed
}

// remove removes what the directory at, which is that many levels below the top's parent, has under
// name. It reports whether the tree has become smaller or flatter.
func (t *tree) remove(at int, name string, level int) bool {
	err := unix.Unlinkat(at, name, 0)
	if errors.Is(err, unix.EISDIR) {
		return t.removeDir(at, name, level)
	}
	return t.done(at, name, mounted(err))
}

func (t *tree) removeDir(at int, name string, level int) (smaller bool) {
	d, fd, err := enter(at, name)
	if err != nil {
		return t.done(at, name, mounted(err))
	}
	defer d.Close()
	if level == levels {
		err := unix.Renameat2(at, name, t.top, rand.Text(), unix.RENAME_NOREPLACE)
		crashpoint.Here("broker.removal.lifted")
		return t.done(at, name, err)
	}
	if level == 0 {
		t.top = fd
	}
	// A directory that is changed while it is read may skip names, and what is lifted is added at the
	// top, so there is another pass as long as one has an effect.
	for again := true; again; {
		again = t.pass(d, fd, level+1)
		smaller = again || smaller
		if err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR); !errors.Is(err, unix.ENOTEMPTY) {
			return t.done(at, name, mounted(err)) || smaller
		}
	}
	t.done(at, name, err) // unless the reason is known
	return smaller
}

// pass removes what d has, once.
func (t *tree) pass(d *os.File, fd, level int) (smaller bool) {
	_, err := d.Seek(0, io.SeekStart)
	for err == nil {
		if t.ctx.Err() != nil {
			err = fmt.Errorf("there was no time for all of it: %w; what is left goes when it is tried again: %w",
				context.Cause(t.ctx), errdefs.ErrUnavailable)
			break
		}
		var names []string
		names, err = d.Readdirnames(batch)
		for _, n := range names {
			smaller = t.remove(fd, n, level) || smaller
		}
	}
	if !errors.Is(err, io.EOF) {
		t.done(fd, ".", err)
		return false
	}
	return smaller
}

// done notes why something could not be removed, if it is the first. Something that is gone is fine.
func (t *tree) done(at int, name string, err error) bool {
	if err != nil && !errors.Is(err, unix.ENOENT) && t.err == nil {
		path, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(at))
		t.err = fmt.Errorf("%s: %w", filepath.Join(path, name), err)
	}
	return err == nil
}

// mounted says so if something could not be entered or removed because it is a mount point.
func mounted(err error) error {
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("a file system is mounted there and stays as it is; umount it and try again: %w: %w",
			err, errdefs.ErrFailedPrecondition)
	}
	return err
}

// enter opens a directory, which its owner may have closed. If what is there is no directory of the
// same mount, it is not opened.
func enter(at int, name string) (d *os.File, fd int, err error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	fd, err = open(at, name, &how)
	if errors.Is(err, unix.EACCES) { // without root a user's own directory can be closed to it
		if err = unlock(at, name, how); err == nil {
			fd, err = open(at, name, &how)
		}
	}
	if err != nil {
		return nil, -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err == nil && st.Mode&0o700 != 0o700 {
		_ = unix.Fchmod(fd, 0o700) // root does not need it, and others learn what is wrong at the next step
	}
	return os.NewFile(uintptr(fd), name), fd, nil
}

// openat2 is openat2(2). The filter of a workspace without root does not have it.
var openat2 = unix.Openat2

// open opens one name as how says, where openat2 cannot be had too: a name that is no link leads nowhere else, and the
// mount of what was opened tells whether another begins there.
func open(at int, name string, how *unix.OpenHow) (int, error) {
	fd, err := openat2(at, name, how)
	if !errors.Is(err, unix.ENOSYS) {
		return fd, err
	}
	if name == ".." || strings.Contains(name, "/") {
		return -1, unix.EXDEV
	}
	fd, err = unix.Openat(at, name, int(how.Flags), 0)
	if err != nil {
		return -1, err
	}
	above, err := mountOf(at)
	if err == nil {
		var below uint64
		if below, err = mountOf(fd); err == nil && below != above {
			err = unix.EXDEV
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// mountOf is the id of the mount that an open directory is in.
func mountOf(fd int) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, err
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, unix.ENOSYS // before Linux 5.8
	}
	return st.Mnt_id, nil
}

// unlock lets the owner of a directory in.
func unlock(at int, name string, how unix.OpenHow) error {
	how.Flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := open(at, name, &how)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), 0o700)
}
