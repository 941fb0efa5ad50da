package archive

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/archive/tarfmt"
)

func (u *unpacker) symlink(h *tarfmt.Header, name string) error {
	if err := unix.Symlinkat(h.Target, u.at.fd, name); err != nil {
		return os.NewSyscallError("symlink", err)
	}
	return utimesAt(u.at.fd, name, h.Sec, h.Nsec)
}

// fifo makes a FIFO. It does not open it, which would block.
func (u *unpacker) fifo(h *tarfmt.Header, name string, mode uint32) error {
	if err := unix.Mknodat(u.at.fd, name, unix.S_IFIFO|0o600, 0); err != nil {
		return os.NewSyscallError("mkfifo", err)
	}
	// Only here is a mode set by name. That is safe: the name was made just now, in a
	// directory of this process.
	if mode != 0o600 {
		if err := unix.Fchmodat(u.at.fd, name, mode, 0); err != nil {
			return os.NewSyscallError("chmod", err)
		}
	}
	return utimesAt(u.at.fd, name, h.Sec, h.Nsec)
}

// link makes another name for a file that was unpacked before.
func (u *unpacker) link(h *tarfmt.Header, name string, target []string) error {
	u.pending.Wait() // a creator may be writing the target
	if err := u.ctx.Err(); err != nil {
		return err
	}
	// From the root by single names, without following links, as everywhere.
	at, opened := u.root().fd, -1
	defer func() { closeFD(opened) }()
	for _, step := range target[:len(target)-1] {
		fd, err := openDir(at, step)
		if err != nil {
			return missing(h.Target, err)
		}
		closeFD(opened)
		at, opened = fd, fd
	}
	base := target[len(target)-1]
	var st unix.Statx_t
	if err := statx(at, base, &st); err != nil {
		return missing(h.Target, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return noFile(h.Target)
	}
	if err := unix.Linkat(at, base, u.at.fd, name, 0); err != nil {
		return os.NewSyscallError("link", err)
	}
	return nil
}

// missing explains that a target cannot be found.
func missing(target string, err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return noTarget(target)
	}
	return err
}

func closeFD(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}
