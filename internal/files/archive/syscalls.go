package archive

import (
	"encoding/binary"
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// withFD calls f with dir's descriptor, which stays open during the call.
func withFD(dir *os.File, f func(fd int) error) error {
	c, err := dir.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := c.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

func again[T any](f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}

// openat opens one name, which must not have a slash in it, in the directory at.
func openat(at int, name string, flags int, mode uint32) (int, error) {
	fd, err := again(func() (int, error) {
		return unix.Openat(at, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	})
	return fd, os.NewSyscallError("open", err)
}

// openDir opens the directory name in at. Anything but a directory is an error.
func openDir(at int, name string) (int, error) {
	return openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

func statx(at int, name string, st *unix.Statx_t) error {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	_, err := again(func() (struct{}, error) {
		return struct{}{}, unix.Statx(at, name, flags, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, st)
	})
	return os.NewSyscallError("statx", err)
}

// utimes sets the time of modification of the open file fd. Like futimens, which x/sys does not
// have, it calls utimensat with a path of NULL.
func utimes(fd int, sec, nsec int64) error {
	ts := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: sec, Nsec: nsec}}
	_, _, e := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&ts[0])), 0, 0, 0)
	if e != 0 {
		return os.NewSyscallError("utimensat", e)
	}
	return nil
}

// utimesAt is utimes for a file that is not opened.
func utimesAt(at int, name string, sec, nsec int64) error {
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: sec, Nsec: nsec}}
	return os.NewSyscallError("utimensat", unix.UtimesNanoAt(at, name, ts, unix.AT_SYMLINK_NOFOLLOW))
}

// dirent is an entry of a directory. Its kind is one of unix.DT_*.
type dirent struct {
	name string
	kind byte
}

// readDir appends some entries of the directory fd to to. None are the end of the directory.
func readDir(fd int, buf []byte, to []dirent) ([]dirent, error) {
	const head = 19 // inode, offset, length of the record, kind: getdents64(2)
	for len(to) == 0 {
		n, err := again(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil || n == 0 {
			return to, os.NewSyscallError("getdents64", err)
		}
		for b := buf[:n]; len(b) > head; {
			length := int(binary.NativeEndian.Uint16(b[16:]))
			name := b[head:length]
			for i, c := range name {
				if c == 0 {
					name = name[:i]
					break
				}
			}
			if s := string(name); s != "." && s != ".." {
				to = append(to, dirent{s, b[18]})
			}
			b = b[length:]
		}
	}
	return to, nil
}
