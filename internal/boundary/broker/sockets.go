package broker

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
)

func socketName(name id.Workspace) string { return string(name) + ".sock" }

// bindAt makes a socket in dir for the daemon alone. It replaces an old one: the ledger is locked, so
// no broker serves that. It binds through the directory's descriptor, because the path could be too
// long for an address.
func bindAt(dir *os.File, name string, s Settings) (*os.File, error) {
	if err := removeAt(dir, name); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot make the socket %s: %w", name, err)
	}
	// The mode that the socket's file is made with (unix(7)), less the umask.
	err = unix.Fchmod(fd, 0o600)
	if err == nil {
		err = withFD(dir, func(d int) error {
			if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", d, name)}); err != nil {
				return err
			}
			crashpoint.Here("broker.socket.made")
			return unix.Fchownat(d, name, int(s.DaemonUID), int(s.DaemonGID), unix.AT_SYMLINK_NOFOLLOW)
		})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("cannot make the socket %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
