// Package untrustedfile opens files that another user may have made, for programs with more rights than that user:
// what root reads in the daemon's directories goes through it.
//
// It must not write, make or remove anything, and it must not decide what is read.
package untrustedfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Open opens a file for reading. It never waits, not for the writer of a pipe either.
//
// Refused, as failed_precondition, is what is no regular file, a symbolic link, or one on the way that neither
// root nor this process's user made; and in a directory that others can change, a file of a third user, or
// one of root's or this user's with more than one name.
func Open(path string) (*os.File, error) {
	dir, err := openDir(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", path, err)
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, filepath.Base(path), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, refused(path, "it is a symbolic link")
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var in, st unix.Stat_t
	if err = unix.Fstat(dir, &in); err == nil {
		err = unix.Fstat(fd, &st)
	}
	switch {
	case err != nil:
		err = &os.PathError{Op: "stat", Path: path, Err: err}
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = refused(path, "it is not a regular file")
	case closed(&in), st.Uid == in.Uid && !trusted(in.Uid):
	case !trusted(st.Uid):
		err = refused(path, fmt.Sprintf("it belongs to uid %d, and its directory to uid %d", st.Uid, in.Uid))
	case st.Nlink != 1:
		err = refused(path, fmt.Sprintf("it has another name, and uid %d could have given it this one", in.Uid))
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Read returns the content of a file that Open opens and that has most bytes at most.
func Read(path string, most int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// Before it is read: a long file need not take space on the disk.
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var b []byte
	if fi.Size() <= most {
		b, err = io.ReadAll(io.LimitReader(f, most+1))
	}
	if err == nil && max(fi.Size(), int64(len(b))) > most {
		err = refused(path, fmt.Sprintf("it has more than %d bytes", most))
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

func refused(path, why string) error {
	return fmt.Errorf("cannot use %s: %s; see who put it there, and move it away: %w", path, why, errdefs.ErrFailedPrecondition)
}

// trusted users can do to this process what they like in any case.
func trusted(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }

// closed reports whether only trusted users can change what is in a directory.
func closed(dir *unix.Stat_t) bool { return trusted(dir.Uid) && dir.Mode&0o022 == 0 }

// openDir opens a directory by a path in which only root and this process's user made symbolic links.
func openDir(path string) (int, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return 0, err
	}
	// The part of the path that nobody else can change may have links. Behind it there may be none, which
	// the kernel sees to, so it does not matter what is changed meanwhile.
	real, rest := "/", strings.Split(strings.Trim(path, "/"), "/")
	for len(rest) > 0 {
		next := filepath.Join(real, rest[0])
		var st unix.Stat_t
		if unix.Lstat(next, &st) != nil || !trusted(st.Uid) || st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&unix.S_ISVTX == 0 && !closed(&st) {
			break
		}
		if next, err = filepath.EvalSymlinks(next); err != nil {
			return 0, err
		}
		real, rest = next, rest[1:]
	}
	whole := filepath.Join(append([]string{real}, rest...)...)
	fd, err := unix.Openat2(unix.AT_FDCWD, whole, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ELOOP) {
		return 0, fmt.Errorf("another user made a symbolic link on the way to it: %w", errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: whole, Err: err}
	}
	return fd, nil
}
