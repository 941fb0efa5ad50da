// Package treefile opens and writes files that a caller names in the directory that the caller works in. A command of a run could
// write there too, so that a name may be a link to another file, a FIFO that nobody writes to, or a device.
//
// No link below the current directory is followed, nor one in a relative path. It must not be used for files of other
// users: see package untrustedfile.
package treefile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Open opens a regular file for reading. A path below /dev or /proc, such as /dev/stdin, is opened as it is: it names what the
// caller has open already.
func Open(path string) (*os.File, error) {
	if opened(path) {
		return os.Open(path)
	}
	f, err := open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("cannot open %s: it is no regular file: %w", path, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Put writes a file of mode 0600 and puts it in the place of path, whatever was there. After an error, or a crash before the end,
// that stays. A path below /dev or /proc is written to as it is.
func Put(path string, b []byte) error {
	if opened(path) {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(b)
		return errors.Join(err, f.Close())
	}
	dir, err := open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	rc, err := dir.SyscallConn()
	if err != nil {
		return err
	}
	cerr := rc.Control(func(fd uintptr) { err = putAt(int(fd), filepath.Base(path), b) })
	if err = errors.Join(cerr, err); err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

func putAt(dir int, name string, b []byte) error {
	made := ".new-" + rand.Text()
	fd, err := unix.Openat(dir, made, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), made)
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = unix.Renameat(dir, made, dir, name)
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(dir, made, 0))
	}
	return nil
}

// opened reports whether a path names what a process has open, by its number or as a device.
func opened(path string) bool {
	path = filepath.Clean(path)
	return strings.HasPrefix(path, "/dev/") || strings.HasPrefix(path, "/proc/")
}

func open(path string, flags uint64) (*os.File, error) {
	flags |= unix.O_CLOEXEC
	inside, below := belowHere(path)
	if !below {
		f, err := os.OpenFile(path, int(flags), 0)
		return f, err
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, inside, &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("cannot open %s: a symbolic link leads elsewhere, and a command may have made it; name what it leads to: %w",
			path, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// belowHere is a path from the current directory, if it is written so or leads below it.
func belowHere(path string) (inside string, below bool) {
	if !filepath.IsAbs(path) {
		return path, true
	}
	here, err := os.Getwd()
	if err != nil {
		return path, false
	}
	for _, dir := range []string{here, real(here)} {
		if rel, err := filepath.Rel(dir, path); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return rel, true
		}
	}
	return path, false
}

func real(dir string) string {
	to, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return dir
	}
	return to
}

// Read reads a file that Open opens, of at most so many bytes.
func Read(path string, most int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s is longer than %d bytes: %w", path, most, errdefs.ErrInvalidArgument)
	}
	return b, err
}
