package executor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openTerminal makes a terminal in the workspace's own devpts. It runs with the command's file
// system ids, and so the terminal belongs to the command.
func (ch *child) openTerminal(rows, cols uint16) error {
	fail := func(what string, err error) error { return fmt.Errorf("cannot make a terminal: %s: %w", what, err) }
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fail("open /dev/ptmx", err)
	}
	ch.master = os.NewFile(uintptr(master), "terminal") // kept here for resizing
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return fail("unlock", err)
	}
	// Through the master: a path could lead elsewhere.
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return fail("open its other side", errno)
	}
	ch.close = append(ch.close, int(slave))
	ch.stdio = [3]int{int(slave), int(slave), int(slave)}
	if rows > 0 && cols > 0 {
		if err := unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
			return fail("set its size", err)
		}
	}
	if ch.attached {
		far, err := unix.FcntlInt(uintptr(master), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return fail("duplicate it", err)
		}
		ch.far = append(ch.far, os.NewFile(uintptr(far), "terminal"))
	}
	return nil
}

func setSize(master *os.File, rows, cols uint16) error {
	rc, err := master.SyscallConn()
	if err != nil {
		return err
	}
	cerr := rc.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
	if cerr != nil {
		return cerr
	}
	if err != nil {
		return fmt.Errorf("cannot set the terminal's size: %w", err)
	}
	return nil
}
