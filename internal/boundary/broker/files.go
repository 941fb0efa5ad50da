package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/linux/diskreserve"
	"github.com/carrel-dev/carrel/internal/linux/removal"
)

// What is done to files of the host goes by the descriptor of a directory and a validated name,
// and follows no symbolic link.

// removeAt removes a file of dir. One that is gone is no error.
func removeAt(dir *os.File, name string) error {
	err := withFD(dir, func(fd int) error { return unix.Unlinkat(fd, name, 0) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cannot remove %s/%s: %w", dir.Name(), name, err)
	}
	return nil
}

// statAt looks at a file of dir. there is false if it has none of that name.
func statAt(dir *os.File, name string) (st unix.Stat_t, there bool, err error) {
	err = withFD(dir, func(fd int) error { return unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if errors.Is(err, unix.ENOENT) {
		return st, false, nil
	}
	return st, err == nil, err
}

// withFD calls a function with f's descriptor and leaves its mode alone.
func withFD(f *os.File, call func(fd int) error) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := rc.Control(func(fd uintptr) { inner = call(int(fd)) }); err != nil {
		return err
	}
	return inner
}

func fstat(f *os.File, st *unix.Stat_t) error {
	return withFD(f, func(fd int) error { return unix.Fstat(fd, st) })
}

// openAt opens a file in dir without following a link.
func openAt(dir *os.File, name string, flags int, mode uint32) (*os.File, error) {
	var fd int
	err := withFD(dir, func(d int) (err error) {
		fd, err = unix.Openat(d, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir.Name() + "/" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), dir.Name()+"/"+name), nil
}

func syncFile(f *os.File) error { return withFD(f, unix.Fsync) }

// readAt reads a file of dir that is at most limit bytes long.
func readAt(dir *os.File, name string, limit int64) ([]byte, error) {
	f, err := openAt(dir, name, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is longer than %d bytes: %w", f.Name(), limit, errdefs.ErrDataLoss)
	}
	return b, err
}

// unfinished ends the name of a file that is not in its place yet.
const unfinished = ".new"

// replaceAt replaces a file atomically by one for root only, and returns when that is on disk.
func replaceAt(dir *os.File, name string, b []byte) error {
	f, err := openAt(dir, name+unfinished, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := written(f, err); err != nil {
		return err
	}
	if err := withFD(dir, func(fd int) error { return unix.Renameat(fd, name+unfinished, fd, name) }); err != nil {
		return err
	}
	return syncFile(dir)
}

// written brings a file to the disk, unless writing it failed, and closes it.
func written(f *os.File, err error) error {
	if err == nil {
		err = syncFile(f)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		crashpoint.Here("broker.file.written")
	}
	return err
}

// spare ends the name of a file that exchangeAt writes next.
const spare = ".spare"

// spareAt makes the file that exchangeAt writes next, with room for size bytes.
func spareAt(dir *os.File, name string, size int64) {
	if f, err := openAt(dir, name+spare, unix.O_WRONLY|unix.O_CREAT, 0o600); err == nil {
		_ = diskreserve.Of(f)(0, size) // on a full disk there may be none
		_ = f.Close()
	}
}

// exchangeAt is replaceAt for a file that is replaced on a full disk too: the file that it was stays as a
// spare, with its blocks, for the next time.
func exchangeAt(dir *os.File, name string, b []byte) error {
	f, err := openAt(dir, name+spare, unix.O_WRONLY|unix.O_CREAT, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Truncate(int64(len(b)))
	}
	if err := written(f, err); err != nil {
		return err
	}
	err = withFD(dir, func(fd int) error {
		err := unix.Renameat2(fd, name+spare, fd, name, unix.RENAME_EXCHANGE)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) { // the first, or a file system that cannot
			err = unix.Renameat(fd, name+spare, fd, name)
		}
		return err
	})
	if err != nil {
		return err
	}
	return syncFile(dir)
}

// ensureDir makes a directory if it is missing, opens it, and sees that only root can
// change it. The last component must not be a symbolic link.
func ensureDir(path string, mode, uid, gid uint32, shared bool) (*os.File, error) {
	fail := func(why error) (*os.File, error) {
		return nil, fmt.Errorf("cannot use the directory %s: %w", path, why)
	}
	if err := unix.Mkdir(path, mode); err != nil && !errors.Is(err, unix.EEXIST) {
		return fail(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = f.Close()
		return fail(err)
	}
	if st.Uid != 0 && st.Uid != uid {
		_ = f.Close()
		return fail(fmt.Errorf("it belongs to uid %d; chown root it: %w", st.Uid, errdefs.ErrPermissionDenied))
	}
	if shared {
		if st.Mode&0o022 != 0 {
			_ = f.Close()
			return fail(fmt.Errorf("others can write it (mode %04o); chmod go-w it: %w", st.Mode&0o7777, errdefs.ErrPermissionDenied))
		}
		return f, nil
	}
	if err := errors.Join(unix.Fchown(fd, int(uid), int(gid)), unix.Fchmod(fd, mode)); err != nil {
		_ = f.Close()
		return fail(err)
	}
	return f, nil
}

// beneath opens a directory of parent.
func beneath(parent *os.File, name string) (*os.File, error) {
	var fd int
	err := withFD(parent, func(p int) (err error) {
		fd, err = unix.Openat2(p, name, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
		return err
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: parent.Name() + "/" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), parent.Name()+"/"+name), nil
}

// makeOwned makes name in parent for uid. One that is there already must be uid's.
func makeOwned(parent *os.File, name string, mode, uid uint32) error {
	wrap := func(err error) error {
		return fmt.Errorf("cannot make %s/%s: %w", parent.Name(), name, full(err, parent.Name()))
	}
	err := withFD(parent, func(fd int) error { return unix.Mkdirat(fd, name, 0o700) })
	crashpoint.Here("broker.create.dir-made")
	made := err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return wrap(err)
	}
	d, err := beneath(parent, name)
	if err != nil {
		return wrap(err)
	}
	defer d.Close()
	return withFD(d, func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return wrap(err)
		}
		if !made && st.Uid != uid {
			return wrap(fmt.Errorf("it is there and belongs to uid %d; move it away: %w", st.Uid, errdefs.ErrFailedPrecondition))
		}
		// Owner first: chown clears set-id bits, and until then only root can enter.
		if err := unix.Fchown(fd, int(uid), int(uid)); err != nil {
			return wrap(err)
		}
		if err := unix.Fchmod(fd, mode); err != nil {
			return wrap(err)
		}
		return nil
	})
}

// removeAll removes a tree that its user may have filled with anything.
func removeAll(ctx context.Context, parent *os.File, name string) error {
	if err := removal.Remove(ctx, parent, name); err != nil {
		return fmt.Errorf("cannot remove %s/%s: %w", parent.Name(), name, immutable(err, parent.Name()+"/"+name))
	}
	return nil
}

// full adds to an error why nothing can be written in dir, and what to do.
func full(err error, dir string) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w; see with \"df -h %s\" and \"df -i %s\" what is full, free some and try again: %w",
			err, dir, dir, errdefs.ErrResourceExhausted)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w; see with dmesg why, and remount it: mount -o remount,rw $(findmnt -n -o TARGET -T %s): %w",
			err, dir, errdefs.ErrFailedPrecondition)
	}
	return err
}

// immutable explains an EPERM that root gets only for an immutable file.
func immutable(err error, path string) error {
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	return fmt.Errorf("%w; a file there is immutable or append-only, which only root can have set: see which with \"lsattr -aR %s\", "+
		"allow it with \"chattr -R -ia %s\" and destroy the workspace again: %w", err, path, path, errdefs.ErrFailedPrecondition)
}

func closeFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
