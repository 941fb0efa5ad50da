package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// folder is a directory, held by a descriptor, so that it stays the same whatever its name leads to. No name in it is
// followed if it is a symbolic link.
type folder struct {
	fd   int
	path string // for people
}

func (d folder) close() { _ = unix.Close(d.fd) }

func (d folder) wrong(name string, err error) error {
	return &fs.PathError{Op: "use", Path: filepath.Join(d.path, name), Err: err}
}

// openRegistry opens a directory of the caller's alone, which is made if there is none.
func openRegistry(path string) (folder, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return folder{}, err
	}
	return folder{unix.AT_FDCWD, ""}.sub(path)
}

// sub opens a directory that nobody but the caller can enter.
func (d folder) sub(name string) (folder, error) {
	fd, err := unix.Openat(d.fd, name, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			err = fmt.Errorf("it is no directory, or a symbolic link; remove it: %w", errdefs.ErrFailedPrecondition)
		}
		return folder{}, d.wrong(name, err)
	}
	out := folder{fd, filepath.Join(d.path, name)}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		out.close()
		return folder{}, d.wrong(name, err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		out.close()
		return folder{}, d.wrong(name, fmt.Errorf("others than you can enter it, or own it (uid %d, mode %04o); remove it, or chmod 700 it: %w",
			st.Uid, st.Mode&0o7777, errdefs.ErrFailedPrecondition))
	}
	return out, nil
}

// open opens a file, and waits for nobody at its other end.
func (d folder) open(name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(d.fd, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, d.wrong(name, err)
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.path, name)), nil
}

// regular opens a regular file for reading.
func (d folder) regular(name string) (*os.File, error) {
	f, err := d.open(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		_ = f.Close()
		return nil, d.wrong(name, fmt.Errorf("it is no regular file; remove it: %w", errdefs.ErrFailedPrecondition))
	}
	return f, nil
}

// maxState bounds job.json and end.json, in bytes: the longest arguments, each byte escaped.
const maxState = 1 << 20

// load reads a file of state.
func (d folder) load(name string, v any) error {
	f, err := d.regular(name)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxState))
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		return d.wrong(name, err)
	}
	return nil
}

// store writes a file of state that is there as a whole or not at all, and durable when it returns.
func (d folder) store(name string, v any) error {
	f, err := d.open(name+".new", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return err
	}
	return d.finish(f, name, v)
}

// finish writes a file in place of what it holds, and gives it its name.
func (d folder) finish(f *os.File, name string, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		_, err = f.WriteAt(b, 0)
	}
	if err == nil {
		err = f.Truncate(int64(len(b)))
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = unix.Renameat(d.fd, name+".new", d.fd, name)
	}
	if err == nil {
		err = unix.Fsync(d.fd)
	}
	if err != nil {
		return d.wrong(name, err)
	}
	return nil
}

// names are the names in the directory.
func (d folder) names() ([]string, error) {
	fd, err := unix.Openat(d.fd, ".", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, d.wrong("", err)
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	return f.Readdirnames(-1)
}

// remove removes a directory of the registry and the files in it. What is not there any more was removed by another.
func (d folder) remove(name string) error {
	gone := ".gone-" + name
	if err := unix.Renameat2(d.fd, name, d.fd, gone, unix.RENAME_NOREPLACE); err != nil {
		return d.wrong(name, err)
	}
	return d.clear(gone)
}

// clear removes a directory that nobody uses.
func (d folder) clear(name string) error {
	in, err := d.sub(name)
	if err != nil { // no directory of the registry's own: the name alone
		return unix.Unlinkat(d.fd, name, 0)
	}
	defer in.close()
	names, err := in.names()
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := unix.Unlinkat(in.fd, n, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return in.wrong(n, err)
		}
	}
	if err := unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return d.wrong(name, err)
	}
	return nil
}

// lockTime is how long another process may hold the registry, which it does for a moment.
const lockTime = 10 * time.Second

// lock has the registry for this process alone until the function that it returns is called.
func (d folder) lock(ctx context.Context) (unlock func(), err error) {
	fd, err := unix.Openat(d.fd, ".lock", unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, d.wrong(".lock", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lockTime,
		fmt.Errorf("cannot use the background jobs: another process has held %s for %v; end that one: %w", d.path, lockTime,
			errdefs.ErrUnavailable))
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		if err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return func() { _ = unix.Close(fd) }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		select {
		case <-again.C:
			continue
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		break
	}
	_ = unix.Close(fd)
	return nil, err
}
