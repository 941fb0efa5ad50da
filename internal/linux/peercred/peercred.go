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
	"strconv"
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

// UID returns the user of c's peer, with one system call.
func UID(c *net.UnixConn) (uid uint32, err error) {
	err = control(c, func(fd int) error {
		u, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			uid = u.Uid
		}
		return err
	})
	return uid, err
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

// SameUserNamespace returns nil if c's peer is in the user namespace of this process, as it is now. If
// that cannot be told, for example because the peer has ended, it is an error too.
func SameUserNamespace(c *net.UnixConn) error {
	cred, err := Of(c)
	if err != nil {
		return err
	}
	if cred.PID <= 0 {
		return fmt.Errorf("the peer is in a pid namespace that cannot be seen from here: %w", errdefs.ErrPermissionDenied)
	}
	// While this descriptor is open and its process lives, the number is that process's.
	pidfd, err := PidFD(c)
	if errdefs.IsNotImplemented(err) {
		fd, err := unix.PidfdOpen(cred.PID, 0)
		if err != nil {
			return fmt.Errorf("cannot find process %d: %w", cred.PID, err)
		}
		pidfd = os.NewFile(uintptr(fd), "pidfd")
	} else if err != nil {
		return err
	}
	defer pidfd.Close()
	own, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		return fmt.Errorf("cannot tell which user namespace this is: %w", err)
	}
	its, err := os.Readlink("/proc/" + strconv.Itoa(cred.PID) + "/ns/user")
	if err == nil {
		err = lives(pidfd)
	}
	if err != nil {
		return fmt.Errorf("cannot tell in which user namespace process %d is: %w", cred.PID, err)
	}
	if its != own {
		return fmt.Errorf("process %d is in another user namespace (%s): %w", cred.PID, its, errdefs.ErrPermissionDenied)
	}
	return nil
}

// lives returns an error if the process of pidfd has ended.
func lives(pidfd *os.File) error {
	rc, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	cerr := rc.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), 0, nil, 0) })
	return errors.Join(cerr, err)
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
