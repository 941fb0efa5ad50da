package staged

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// resolve keeps a path below the directory that it begins at, follows no link and enters no mount.
const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// folder is an open directory. Paths are relative to it; "" is the directory itself.
type folder struct{ fd int }

// hold returns a folder for an open directory, which stays the caller's.
func hold(f *os.File) (folder, error) {
	if f == nil {
		return folder{-1}, bad("cannot use a directory: it is not given")
	}
	rc, err := f.SyscallConn()
	if err != nil {
		return folder{-1}, err
	}
	d := folder{-1}
	cerr := rc.Control(func(fd uintptr) { d, err = folder{int(fd)}.sub("") })
	if err := errors.Join(cerr, err); err != nil {
		return folder{-1}, fmt.Errorf("cannot use the directory %q: %w", f.Name(), err)
	}
	return d, nil
}

func (d folder) close() {
	if d.fd >= 0 {
		_ = unix.Close(d.fd)
	}
}

// proc is the path of a name in d for calls that take no descriptor. The name itself must not be followed by the call.
func (d folder) proc(name string) string { return d.link() + "/" + name }

// link is the path of d itself.
func (d folder) link() string { return "/proc/self/fd/" + strconv.Itoa(d.fd) }

// open opens a path.
func (d folder) open(path string, flags int, mode uint32) (int, error) {
	if path == "" {
		path = "."
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW), Mode: uint64(mode), Resolve: resolve}
	for range 100 {
		fd, err := unix.Openat2(d.fd, path, &how)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, explain(err)
		}
	}
	return -1, fmt.Errorf("it is renamed all the time: %w", errdefs.ErrUnavailable)
}

// explain says what an error of openat2 means.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("a file system is mounted there, which is not entered; umount it: %w: %w", err, errdefs.ErrFailedPrecondition)
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("a part of its path is a symbolic link, which is not followed: %w: %w", err, errdefs.ErrFailedPrecondition)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("the kernel has no openat2, which Linux 5.6 has: %w: %w", err, errdefs.ErrNotImplemented)
	}
	return err
}

// sub opens a directory to list it.
func (d folder) sub(path string) (folder, error) {
	fd, err := d.open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	return folder{fd}, err
}

// via opens a directory to reach what is in it, which takes no right to list it.
func (d folder) via(path string) (folder, error) {
	fd, err := d.open(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	return folder{fd}, err
}

// stat says what a name in d stands for. Nothing there is no error.
func (d folder) stat(name string) (s stamp, there bool, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return s, false, nil
	}
	return stampOf(&st), err == nil, err
}

// self says what d is.
func (d folder) self() (stamp, error) {
	var st unix.Stat_t
	err := unix.Fstat(d.fd, &st)
	return stampOf(&st), err
}

// target is where a symbolic link in d leads.
func (d folder) target(name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(d.fd, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// entry is what a name in d stands for.
func (d folder) entry(name string) (e Entry, err error) {
	s, there, err := d.stat(name)
	if err != nil || !there {
		return e, err
	}
	e = entryOf(s)
	if e.Type == Symlink {
		e.Target, err = d.target(name)
	}
	return e, err
}

var errIrregular = fmt.Errorf("it is no regular file: %w", errdefs.ErrFailedPrecondition)

// file opens a regular file for reading. It is looked at before it is opened, by a descriptor that opens nothing: to open a
// device can have effects.
func (d folder) file(path string) (*os.File, error) {
	fd, err := d.open(path, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	at := folder{fd}
	defer at.close()
	s, err := at.self()
	if err == nil && s.kind() != unix.S_IFREG {
		err = errIrregular
	}
	if err != nil {
		return nil, err
	}
	real, err := unix.Open(at.link(), unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(real), path), nil
}

// each calls a function for the names in d, in no order, until it fails.
func (d folder) each(f func(name string) error) error {
	fd, err := unix.Openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // with a position of its own
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), ".")
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(512)
		for _, name := range names {
			if err := f(name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
