package cgroup

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// dirFD is an open directory of a cgroup file system. Everything is reached by one
// name from such a descriptor, and no symbolic link is followed.
type dirFD int

const openDir = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

func isNotExist(err error) bool { return errors.Is(err, unix.ENOENT) }

func (d dirFD) close() { _ = unix.Close(int(d)) }

func (d dirFD) open(name string) (dirFD, error) {
	fd, err := openat(int(d), name, openDir)
	return dirFD(fd), err
}

// again opens the same directory once more.
func (d dirFD) again() (dirFD, error) {
	fd, err := openat(int(d), ".", openDir)
	return dirFD(fd), err
}

// make makes a group, or takes the one there is, and opens it.
func (d dirFD) make(name string) (dirFD, error) {
	if err := unix.Mkdirat(int(d), name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	return d.open(name)
}

func (d dirFD) openFile(name string, flags int) (*os.File, error) {
	fd, err := openat(int(d), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func openat(dir int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags, 0)
		if err == nil {
			return fd, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return -1, &os.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// write writes a value in one call, as cgroup files want it.
func (d dirFD) write(name, value string) error {
	fd, err := openat(int(d), name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		if _, err = unix.Write(fd, []byte(value)); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return &os.PathError{Op: "write " + value + " to", Path: name, Err: err}
	}
	return nil
}

func (d dirFD) read(name string) (string, error) {
	fd, err := openat(int(d), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var b strings.Builder
	var chunk [4096]byte
	for {
		n, err := unix.Read(fd, chunk[:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return "", &os.PathError{Op: "read", Path: name, Err: err}
		case n == 0:
			return b.String(), nil
		default:
			b.Write(chunk[:n])
		}
	}
}

// number reads a file with one number, or the number after key in a file of lines.
// It is -1 for "max" and for a file that cannot be read.
func (d dirFD) number(name, key string) int64 {
	text, err := d.read(name)
	if err != nil {
		return -1
	}
	if key != "" {
		rest := ""
		for line := range strings.Lines(text) {
			if v, ok := strings.CutPrefix(line, key+" "); ok {
				rest = v
			}
		}
		text = rest
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// chown gives a file of the group to uid, or the group's directory itself for "".
func (d dirFD) chown(name string, uid uint32) error {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	if err := unix.Fchownat(int(d), name, int(uid), -1, flags); err != nil {
		return &os.PathError{Op: "chown", Path: name, Err: err}
	}
	return nil
}

// groups lists the groups below.
func (d dirFD) groups() ([]string, error) {
	// A descriptor of its own: the position in a directory belongs to the description.
	fd, err := openat(int(d), ".", openDir)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// pids reads cgroup.procs.
func (d dirFD) pids() ([]int, error) {
	text, err := d.read("cgroup.procs")
	if err != nil {
		return nil, err
	}
	var pids []int
	for line := range strings.Lines(text) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
