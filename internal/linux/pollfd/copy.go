package pollfd

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// pieceSize is the most moved by one system call, and the size that a pipe gets
	// once it proves busy; /proc/sys/fs/pipe-max-size is that by default.
	pieceSize = 1 << 20
	// busy is how many bytes make a pipe worth enlarging.
	busy = 64 << 10
)

// Copy moves everything from the pipe src, which must be under the poller, to dst
// until src ends. If the kernel can, the data does not pass through this process's
// memory. dst may be of any kind and mode. A closed pipe behind dst is EPIPE, a
// deadline on src os.ErrDeadlineExceeded. moved, if not nil, is called after every
// piece.
func Copy(dst, src *os.File, moved func()) (int64, error) {
	in, err := src.SyscallConn()
	if err != nil {
		return 0, err
	}
	out, err := dst.SyscallConn()
	if err != nil {
		return 0, err
	}
	var total int64
	for enlarged := false; ; {
		var n int64
		var errno error
		if total >= busy && !enlarged {
			enlarged = true
			_ = in.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pieceSize) }) // a pipe of the old size works too
		}
		err := in.Read(func(from uintptr) (done bool) {
			e := out.Control(func(to uintptr) { n, done, errno = move(int(to), int(from)) })
			if e != nil {
				errno, done = e, true
			}
			return done
		})
		switch {
		case err != nil:
			return total, err
		case errors.Is(errno, unix.EINVAL) && total == 0:
			// dst cannot be spliced to: a terminal, or open for appending.
			return io.CopyBuffer(counted{dst, moved}, onlyReader{src}, make([]byte, 128<<10))
		case errno != nil:
			return total, os.NewSyscallError("splice", errno)
		case n == 0:
			return total, nil
		}
		total += n
		if moved != nil {
			moved()
		}
	}
}

// move splices one piece. It is not done when there is nothing to read yet.
func move(to, from int) (n int64, done bool, err error) {
	for {
		n, err = unix.Splice(from, nil, to, nil, pieceSize, unix.SPLICE_F_MOVE)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EAGAIN):
			return max(n, 0), true, err
		}
		// Between two pipes the call does not block if one of them is nonblocking:
		// find out which is not ready.
		if !ready(from, unix.POLLIN, 0) {
			return 0, false, nil
		}
		ready(to, unix.POLLOUT, -1)
	}
}

func ready(fd int, events int16, timeout int) bool {
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: events}}
		n, err := unix.Poll(p, timeout)
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// counted and onlyReader keep io.Copy to plain reads and writes.
type counted struct {
	w     io.Writer
	moved func()
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if c.moved != nil {
		c.moved()
	}
	return n, err
}

type onlyReader struct{ io.Reader }
