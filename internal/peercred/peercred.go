// Package peercred reads the credentials of a Unix socket's peer, which the kernel
// stored when the connection was made.
//
// It must not decide what the peer may do. Another process may have the pid by now:
// use PidFD if the process itself matters.
package peercred

import (
	"errors"
	"fmt"
	"net"
	"os"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Cred is what the kernel reports of a peer, seen from the user namespace of this
// process: an id that is not mapped there reads as 65534.
type Cred struct {
	// PID is 0 if the peer is in a pid namespace that cannot be seen from here.
	PID      int
	UID, GID uint32
	// Groups are the supplementary groups; GID need not be among them.
	Groups []uint32
}

// maxGroups is NGROUPS_MAX of include/uapi/linux/limits.h.
const maxGroups = 65536

// Of returns the credentials of c's peer (SO_PEERCRED and SO_PEERGROUPS).
func Of(c *net.UnixConn) (Cred, error) {
	var cred Cred
	err := control(c, func(fd int) error {
		u, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			return err
		}
		cred = Cred{PID: int(u.Pid), UID: u.Uid, GID: u.Gid}
		cred.Groups, err = groups(fd)
		return err
	})
	if err != nil {
		return Cred{}, fmt.Errorf("cannot read the credentials of the peer: %w", err)
	}
	return cred, nil
}

// groups reads SO_PEERGROUPS, which returns ERANGE and the size if the buffer is too
// small. The list does not change after the connection is made.
func groups(fd int) ([]uint32, error) {
	buf := make([]uint32, 32)
	for {
		size := uint32(4 * len(buf))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return buf[: size/4 : size/4], nil
		case errno == unix.ERANGE && int(size/4) > len(buf) && size/4 <= maxGroups:
			buf = make([]uint32, size/4)
		default:
			return nil, errno
		}
	}
}

// PidFD returns a pidfd of c's peer, which never refers to another process. With a
// kernel before 6.5 the error is of kind not_implemented.
func PidFD(c *net.UnixConn) (*os.File, error) {
	var f *os.File
	err := control(c, func(fd int) error {
		pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err == nil {
			f = os.NewFile(uintptr(pidfd), "pidfd")
		}
		return err
	})
	if errors.Is(err, unix.ENOPROTOOPT) {
		return nil, fmt.Errorf("cannot get a pidfd of the peer: SO_PEERPIDFD needs Linux 6.5: %w", errdefs.ErrNotImplemented)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot get a pidfd of the peer: %w", err)
	}
	return f, nil
}

func control(c *net.UnixConn, f func(fd int) error) error {
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := rc.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}
