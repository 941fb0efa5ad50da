// Package filetree reads and writes files and trees where others may change any name at any time. Each
// step is relative to a directory that is held open, takes one name and follows no link.
//
// It must not decide what may be read or written: the ids of the process do.
package filetree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Info is what a name stands for. Name may be any bytes but NUL and "/".
type Info struct {
	Name  string
	Mode  fs.FileMode // type and permission bits; no set-id bits
	Size  int64
	MTime time.Time
	// Target is where a link leads, as it is written.
	Target string

	dev, ino uint64
}

// Dir is an open directory. It is not for several goroutines at once.
type Dir struct{ fd int }

// Hold returns a Dir for an open directory, which stays the caller's.
func Hold(f *os.File) (*Dir, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	d := &Dir{-1}
	cerr := rc.Control(func(fd uintptr) { d.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3) })
	if err := errors.Join(cerr, err); err != nil {
		return nil, err
	}
	return d, nil
}

// Close lets go of it.
func (d *Dir) Close() { unix.Close(d.fd) }

// File returns the directory as a file of its own, for the caller to close, which stays open when d is closed.
func (d *Dir) File() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(d.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "."), nil
}

// again repeats what a signal has interrupted.
func again[T any](f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}

// Sub opens a directory in d. A link is ENOTDIR.
func (d *Dir) Sub(name string) (*Dir, error) {
	fd, err := again(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, at(name, err)
	}
	return &Dir{fd}, nil
}

// at names what an error is about.
func at(name string, err error) error { return &fs.PathError{Op: "open", Path: name, Err: err} }

// Stat says what a name in d stands for.
func (d *Dir) Stat(name string) (Info, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return Info{}, at(name, err)
	}
	i := infoOf(name, &st)
	if i.Mode.Type() == fs.ModeSymlink {
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(d.fd, name, buf)
		if err != nil {
			return i, at(name, err)
		}
		i.Target = string(buf[:n])
	}
	return i, nil
}

// Self says what the directory itself is, under that name.
func (d *Dir) Self(name string) (Info, error) {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return Info{}, at(name, err)
	}
	return infoOf(name, &st), nil
}

// StatOf says what an open file is.
func StatOf(f *os.File, name string) (i Info, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return i, err
	}
	cerr := rc.Control(func(fd uintptr) {
		var st unix.Stat_t
		if err = unix.Fstat(int(fd), &st); err == nil {
			i = infoOf(name, &st)
		}
	})
	return i, errors.Join(cerr, err)
}

var types = map[uint32]fs.FileMode{
	unix.S_IFREG: 0, unix.S_IFDIR: fs.ModeDir, unix.S_IFLNK: fs.ModeSymlink, unix.S_IFIFO: fs.ModeNamedPipe,
	unix.S_IFSOCK: fs.ModeSocket, unix.S_IFCHR: fs.ModeDevice | fs.ModeCharDevice, unix.S_IFBLK: fs.ModeDevice,
}

// ModeOf is the mode of stat(2) as package fs has it: the type, and permission bits alone.
func ModeOf(mode uint32) fs.FileMode {
	kind, ok := types[mode&unix.S_IFMT]
	if !ok {
		kind = fs.ModeIrregular
	}
	return kind | fs.FileMode(mode&0o777)
}

func infoOf(name string, st *unix.Stat_t) Info {
	return Info{
		Name: name, Mode: ModeOf(st.Mode), Size: st.Size, MTime: time.Unix(st.Mtim.Unix()),
		dev: uint64(st.Dev), ino: st.Ino,
	}
}

// Same reports whether two are of the same file.
func (i Info) Same(other Info) bool { return i.dev == other.dev && i.ino == other.ino }

// ErrIrregular says that a name is no regular file.
var ErrIrregular = errors.New("it is no regular file")

// Open opens a regular file in d for reading. What else has the name is not waited for, and ErrIrregular.
func (d *Dir) Open(name string) (*os.File, Info, error) {
	i, err := d.Stat(name) // so that opening a FIFO or a device has no effect, unless it was put there now
	if err != nil {
		return nil, i, err
	}
	if !i.Mode.IsRegular() {
		return nil, i, at(name, ErrIrregular)
	}
	fd, err := again(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, i, at(name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if i, err = StatOf(f, name); err == nil && !i.Mode.IsRegular() {
		err = at(name, ErrIrregular)
	}
	if err != nil {
		f.Close()
		return nil, i, err
	}
	return f, i, nil
}

// maxNames bounds the names that are read of one directory, so that one with millions does not fill the memory.
const maxNames = 250_000

// Names returns the names in d in no order. More than most, which is at most 250,000, are cut.
func (d *Dir) Names(most int) (names []string, cut bool, err error) {
	fd, err := again(func() (int, error) { // with a position of its own
		return unix.Openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, false, at(".", err)
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	most = min(most, maxNames)
	for len(names) <= most {
		some, err := f.Readdirnames(1024)
		names = append(names, some...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, false, err
		}
	}
	if len(names) > most {
		return names[:most], true, nil
	}
	return names, false, nil
}

// Mkdir makes a directory in d.
func (d *Dir) Mkdir(name string, mode fs.FileMode) error {
	if err := unix.Mkdirat(d.fd, name, uint32(mode.Perm())); err != nil {
		return at(name, err)
	}
	return nil
}

// Rename moves a name to another directory. Without replace what is there is EEXIST.
func (d *Dir) Rename(name string, to *Dir, toName string, replace bool) error {
	flags := uint(unix.RENAME_NOREPLACE)
	if replace {
		flags = 0
	}
	if err := unix.Renameat2(d.fd, name, to.fd, toName, flags); err != nil {
		return at(name, err)
	}
	return nil
}

// Remove removes a name: a directory only if it is empty.
func (d *Dir) Remove(name string) error {
	err := unix.Unlinkat(d.fd, name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR)
	}
	if err != nil {
		return at(name, err)
	}
	return nil
}

// MadeUp reports whether d is in a file system that the kernel makes up: there names mean the process that looks.
func (d *Dir) MadeUp() (bool, error) {
	var st unix.Statfs_t
	_, err := again(func() (int, error) { return 0, unix.Fstatfs(d.fd, &st) })
	return slices.Contains(madeUp, int64(st.Type)), err
}

var madeUp = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.DEVPTS_SUPER_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
	unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC,
}

// Watch adds d to an inotify(7) descriptor.
func (d *Dir) Watch(inotify int, mask uint32) (int32, error) {
	wd, err := unix.InotifyAddWatch(inotify, fmt.Sprintf("/proc/self/fd/%d", d.fd), mask)
	return int32(wd), err
}
