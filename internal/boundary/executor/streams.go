package executor

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// pipe makes stream i a pipe and returns our end of it. A program that works for carrel gets a
// socket: nobody can open one anew, as a pipe by /proc/PID/fd.
func (ch *child) pipe(i int) (ours int, err error) {
	var p [2]int
	if ch.trusted != nil {
		p, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	} else {
		err = unix.Pipe2(p[:], unix.O_CLOEXEC)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot make a pipe: %w", err)
	}
	theirs, ours := p[1], p[0]
	if i == 0 {
		theirs, ours = p[0], p[1]
	}
	ch.stdio[i] = theirs
	ch.close = append(ch.close, theirs)
	return ours, nil
}

// openSocket makes the socket of a command, of which the client gets one end.
func (ch *child) openSocket() error {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot make a socket: %w", err)
	}
	ch.socket = p[0]
	ch.close = append(ch.close, p[0])
	ch.far = append(ch.far, os.NewFile(uintptr(p[1]), "socket"))
	return nil
}

// capture makes stream i a pipe that is read or written here.
func (ch *child) capture(i int) error {
	ours, err := ch.pipe(i)
	if err == nil {
		unix.SetNonblock(ours, true) // ours alone: the child's end has its own mode
		ch.near[i] = os.NewFile(uintptr(ours), "capture")
	}
	return err
}

// passed makes stream i the next descriptor that came with the request, if a command may hold
// such a one.
func (ch *child) passed(i int, given []*os.File) error {
	next := slices.IndexFunc(given, func(f *os.File) bool { return f != nil }) // check counted them
	mode, device, err := ch.adopt(given, next, &ch.stdio[i])
	if err != nil {
		return err
	}
	kind := "a directory"
	switch mode {
	case unix.S_IFIFO, unix.S_IFREG, unix.S_IFSOCK:
		return nil
	case unix.S_IFCHR:
		if device == unix.Mkdev(1, 3) { // /dev/null
			return nil
		}
		// A terminal of the host would let the command read what is typed there.
		kind = "a device"
	case unix.S_IFBLK:
		kind = "a block device"
	}
	return fmt.Errorf("cannot use a passed descriptor: it is %s; pass a pipe, a file or a socket: %w", kind, errdefs.ErrInvalidArgument)
}

// adopt takes a descriptor that came with the request, stores it in to, and returns the kind of
// file that it is, and its device number.
func (ch *child) adopt(given []*os.File, i int, to *int) (mode uint32, device uint64, err error) {
	f := given[i]
	given[i] = nil
	defer f.Close()
	rc, err := f.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var st unix.Stat_t
	cerr := rc.Control(func(fd uintptr) {
		if err = unix.Fstat(int(fd), &st); err == nil {
			*to, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3)
		}
	})
	if err = errors.Join(cerr, err); err != nil {
		return 0, 0, fmt.Errorf("cannot use a passed descriptor: %w", err)
	}
	ch.close = append(ch.close, *to)
	return st.Mode & unix.S_IFMT, st.Rdev, nil
}
