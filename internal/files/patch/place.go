package patch

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// resolve keeps a path below the directory that it begins at and follows no symbolic link.
const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// root is a directory in which files may be changed. It is known by its device and inode too, because its path may come
// to mean another one.
type root struct {
	Path string `json:"path"`
	Dev  uint64 `json:"dev"`
	Ino  uint64 `json:"ino"`
}

// open opens the root. Its own path may have symbolic links: the caller named it.
func (r root) open() (fd int, err error) {
	fd, err = unix.Open(r.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot open the directory %q: %w", r.Path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || r.Ino != 0 && (st.Dev != r.Dev || st.Ino != r.Ino) {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("cannot work in %q: it is another directory than before: %w", r.Path, errdefs.ErrFailedPrecondition)
	}
	return fd, nil
}

// newRoot looks at a directory, and returns it under its path without symbolic links.
func newRoot(dir string) (r root, err error) {
	if !path.IsAbs(dir) || path.Clean(dir) != dir {
		return r, bad("cannot use %.80q as a root: it must be an absolute path without empty parts, \".\" and \"..\"", dir)
	}
	fd, err := root{Path: dir}.open()
	if err != nil {
		return r, err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return r, fmt.Errorf("cannot look at the directory %q: %w", dir, err)
	}
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil || !path.IsAbs(real) {
		return r, fmt.Errorf("cannot tell the path of the directory %q: %w", dir, errors.Join(err, errdefs.ErrUnavailable))
	}
	return root{real, st.Dev, st.Ino}, nil
}

// place is a file in a root.
type place struct {
	Root root   `json:"root"`
	Rel  string `json:"rel"`
}

func (p place) String() string { return path.Join(p.Root.Path, p.Rel) }

// parent opens the directory of a file. It is fs.ErrNotExist if it is not there.
func (p place) parent() (fd int, base string, err error) {
	r, err := p.Root.open()
	if err != nil {
		return -1, "", err
	}
	dir, base := path.Split(p.Rel)
	if dir == "" {
		return r, base, nil
	}
	defer func() { _ = unix.Close(r) }()
	fd, err = unix.Openat2(r, dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolve})
	return fd, base, p.explain(err)
}

// explain says what an error of openat2 means.
func (p place) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("cannot open %q: a part of its path is a symbolic link; name the file itself: %w", p, errdefs.ErrPermissionDenied)
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("cannot open %q: its path leaves %q: %w", p, p.Root.Path, errdefs.ErrPermissionDenied)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("cannot open %q: the kernel has no openat2, which keeps paths inside a directory; Linux 5.6 has it: %w", p,
			errdefs.ErrNotImplemented)
	}
	return fmt.Errorf("cannot open %q: %w", p, err)
}

// meta is what a file has beside its content.
type meta struct {
	Dev   uint64            `json:"dev"`
	Ino   uint64            `json:"ino"`
	Mode  uint32            `json:"mode"` // permission bits
	UID   uint32            `json:"uid"`
	GID   uint32            `json:"gid"`
	MTime [2]int64          `json:"mtime"` // seconds and nanoseconds
	Attrs map[string][]byte `json:"attrs,omitempty"`
}

// content is a file as it was read.
type content struct {
	bytes []byte
	meta  meta
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// errAbsent is the error for a file that is not there.
var errAbsent = fmt.Errorf("it is not there: %w", errdefs.ErrNotFound)

// read reads a regular file that has one name, in a directory that is open. A file of any other kind is never opened for
// reading.
func read(dir int, base string) (c content, err error) {
	var st, now unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOENT) {
			err = errAbsent
		}
		return c, err
	}
	if err := usable(&st); err != nil {
		return c, err
	}
	fd, err := unix.Openat2(dir, base, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: resolve,
	})
	if err != nil {
		return c, err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	if err := unix.Fstat(fd, &now); err != nil {
		return c, err
	}
	if now.Dev != st.Dev || now.Ino != st.Ino {
		return c, fmt.Errorf("it was replaced while it was opened: %w", errdefs.ErrAborted)
	}
	if err := usable(&now); err != nil {
		return c, err
	}
	c.bytes, err = io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err == nil && len(c.bytes) > MaxSize {
		err = fmt.Errorf("it has more than %d bytes: %w", MaxSize, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return c, err
	}
	c.meta = metaOf(&now)
	c.meta.Attrs, err = attrs(fd)
	return c, err
}

func metaOf(st *unix.Stat_t) meta {
	return meta{
		Dev: st.Dev, Ino: st.Ino, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid,
		MTime: [2]int64{int64(st.Mtim.Sec), int64(st.Mtim.Nsec)}, //nolint:unconvert // they have 32 bits on some machines
	}
}

// usable says why a file is not one that is changed.
func usable(st *unix.Stat_t) error {
	why := ""
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFLNK:
		why = "it is a symbolic link; name the file itself"
	case kind == unix.S_IFDIR:
		why = "it is a directory"
	case kind != unix.S_IFREG:
		why = "it is a device, a pipe or a socket"
	case st.Nlink > 1:
		why = fmt.Sprintf("it has %d names (hard links), and only one of them would change", st.Nlink)
	case st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0:
		why = "it runs with the rights of its owner or group"
	case st.Size > MaxSize:
		return fmt.Errorf("it has %d bytes, and at most %d are taken: %w", st.Size, MaxSize, errdefs.ErrInvalidArgument)
	}
	if why != "" {
		return fmt.Errorf("%s: %w", why, errdefs.ErrPermissionDenied)
	}
	return nil
}

// absent checks that nothing has a name.
func absent(dir int, base string) error {
	var st unix.Stat_t
	err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err == nil:
		return fmt.Errorf("something is there already: %w", errdefs.ErrAlreadyExists)
	}
	return err
}

// missing lists the directories of a file that are not there, the outermost first.
func (p place) missing() (dirs []string, err error) {
	for dir := path.Dir(p.Rel); dir != "."; dir = path.Dir(dir) {
		fd, _, err := place{p.Root, dir + "/x"}.parent()
		if err == nil {
			_ = unix.Close(fd)
			return dirs, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		dirs = append([]string{dir}, dirs...)
	}
	return dirs, nil
}

// within returns the place of a path in the innermost root that has it.
func within(roots []root, given []string, abs string) (p place, ok bool) {
	for i, r := range roots {
		for _, prefix := range []string{r.Path, given[i]} {
			rel, in := strings.CutPrefix(abs, strings.TrimSuffix(prefix, "/")+"/")
			if in && rel != "" && (!ok || len(r.Path) > len(p.Root.Path)) {
				p, ok = place{r, rel}, true
			}
		}
	}
	return p, ok
}
