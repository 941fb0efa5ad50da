package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// listen opens the API's socket to those who may use it. It is made without any permission and
// gets its group before its mode, so that at no time others may connect. given, if it is above 2,
// is the socket, listening, for a daemon that may not write to its directory.
func listen(path string, given int, mode fs.FileMode, group string) (l *net.UnixListener, err error) {
	gid, err := groupID(group) // before: until it is open to others nobody can use the socket
	if err != nil {
		return nil, fmt.Errorf("cannot set who may use %s: %w", path, err)
	}
	if given > 2 {
		l, err = adopt(given)
	} else {
		l, err = bind(path)
	}
	if err != nil {
		return nil, err
	}
	if err := openTo(path, mode, gid); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot set who may use %s: %w", path, err), l.Close())
	}
	return l, nil
}

// adopt takes a listening socket over. Its entry stays when it is closed.
func adopt(fd int) (*net.UnixListener, error) {
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on descriptor %d: %w", fd, err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("cannot listen on descriptor %d: it is no Unix socket: %w", fd, errdefs.ErrInvalidArgument), l.Close())
	}
	u.SetUnlinkOnClose(false)
	return u, nil
}

// bind makes the socket. A stale one is removed only if nobody answers on it; anything else at
// that path is left alone.
func bind(path string) (*net.UnixListener, error) {
	if err := clearStale(path); err != nil {
		return nil, err
	}
	// Nothing else runs yet, and the umask is of the whole process.
	old := unix.Umask(0o777)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w; the daemon's user must be able to write to that directory, which \"carrel up\" provides",
			path, err)
	}
	return l, nil
}

func clearStale(path string) error {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("cannot look at %s: %w", path, err)
	case fi.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("cannot listen on %s: something that is no socket is there (%v); remove it, or choose another runtime_dir: %w",
			path, fi.Mode(), errdefs.ErrFailedPrecondition)
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("cannot listen on %s: another carreld answers there; end that one with \"carrel down\" first: %w",
			path, errdefs.ErrFailedPrecondition)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("cannot tell whether %s is in use: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("cannot remove the socket that an earlier run left: %w", err)
	}
	return nil
}

// groupID is the number of a group, -1 for "".
func groupID(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return -1, err
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return -1, fmt.Errorf("group %s has no number: %w", name, err)
	}
	return gid, nil
}

func openTo(path string, mode fs.FileMode, gid int) error {
	if gid >= 0 {
		if err := os.Lchown(path, -1, gid); err != nil {
			return fmt.Errorf("%w; the daemon's user must be a member of group %d", err, gid)
		}
	}
	// Through a descriptor of the socket's own entry, so that no link is followed.
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || int(st.Uid) != os.Geteuid() {
		return errors.New("it was exchanged for something else")
	}
	return os.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode)
}
