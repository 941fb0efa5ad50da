package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// replaceFile has write fill a new file, and puts that in the place of path: a crash leaves the
// old file or the new one, and a temporary one whose name begins with prefix. Its mode is 0600.
func replaceFile(path, prefix string, write func(io.Writer) error, written func()) error {
	f, err := os.CreateTemp(filepath.Dir(path), prefix+"*")
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	written()
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // it is incomplete
	}
	return err
}

// remove removes a file that may be gone already.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove %s: %w", path, err)
	}
	return nil
}

// tryLock locks a file for this process, or fails with EWOULDBLOCK.
func tryLock(f *os.File) error {
	return withFD(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
}
