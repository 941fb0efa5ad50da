package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// The files of a new root are made with plain system calls: there are a hundred of them,
// every start makes them anew, and package os asks the kernel about each whether it could
// be polled.

// retry repeats a call that a signal interrupted. The runtime sends itself some.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func openFile(path string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// makeDirs makes a directory and those above it that are missing.
func makeDirs(path string) error {
	err := unix.Mkdir(path, 0o755)
	if errors.Is(err, unix.ENOENT) {
		if err := makeDirs(filepath.Dir(path)); err != nil {
			return err
		}
		err = unix.Mkdir(path, 0o755)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return &os.PathError{Op: "mkdir", Path: path, Err: err}
	}
	return nil
}

// makeLink makes a symbolic link.
func makeLink(target, path string) error {
	if err := unix.Symlink(target, path); err != nil {
		return &os.PathError{Op: "symlink", Path: path, Err: err}
	}
	return nil
}

// makeFile writes a file, less what the umask takes from mode.
func makeFile(path string, content []byte, mode uint32) error {
	fd, err := openFile(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, mode)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return writeAll(fd, path, content)
}

func writeAll(fd int, path string, b []byte) error {
	for len(b) > 0 {
		var n int
		err := retry(func() (err error) {
			n, err = unix.Write(fd, b)
			return err
		})
		if err != nil {
			return &os.PathError{Op: "write", Path: path, Err: err}
		}
		b = b[n:]
	}
	return nil
}

// copier copies files through one buffer.
type copier struct{ buffer [32 << 10]byte }

// errUnreadable says that a file may not be opened.
var errUnreadable = errors.New("it may not be read")

// copy copies the file at from to a new one. After errUnreadable nothing was made.
func (c *copier) copy(from, to string, mode uint32) error {
	in, err := openFile(from, unix.O_RDONLY, 0)
	if errors.Is(err, os.ErrPermission) {
		return errUnreadable
	}
	if err != nil {
		return err
	}
	defer unix.Close(in)
	out, err := openFile(to, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, mode)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	for {
		var n int
		err := retry(func() (err error) {
			n, err = unix.Read(in, c.buffer[:])
			return err
		})
		if err != nil {
			return &os.PathError{Op: "read", Path: from, Err: err}
		}
		if n == 0 {
			return nil
		}
		if err := writeAll(out, to, c.buffer[:n]); err != nil {
			return err
		}
	}
}

func exists(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil
}

// descriptors lists what this process has open beside its first three.
func descriptors() ([]int, error) {
	dir, err := openFile("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	var open []int
	var b [4 << 10]byte
	for {
		var n int
		err := retry(func() (err error) {
			n, err = unix.ReadDirent(dir, b[:])
			return err
		})
		if err != nil {
			return nil, &os.PathError{Op: "readdirent", Path: "/proc/self/fd", Err: err}
		}
		if n == 0 {
			return open, nil
		}
		_, _, names := unix.ParseDirent(b[:n], -1, nil)
		for _, name := range names {
			if fd, err := strconv.Atoi(name); err == nil && fd > 2 && fd != dir {
				open = append(open, fd)
			}
		}
	}
}
