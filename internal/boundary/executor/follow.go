package executor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// followerBuffer is how much a client that does not read has waiting in its pipe or socket.
const followerBuffer = 16 << 10

// follower writes a ring's content to one client, straight from the ring's chunks. It is one
// goroutine, which sleeps until the client reads, the ring grows, or the client has gone. A client
// that is slower than the command misses the oldest output, and never blocks the command.
type follower struct {
	r      *ring
	f      *os.File
	follow bool
	done   chan struct{} // closed at its end

	// The ring's lock guards the rest.
	offset int64
	idle   bool // it has written everything, and waits for more
	gone   bool // nobody reads any more
}

// openOutput returns the read end of a pipe that carries the kept output and, with follow, further
// output, and how many bytes of the oldest output are lost.
func (c *command) openOutput(follow bool) (*os.File, int64, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, 0, err
	}
	far := os.NewFile(uintptr(p[0]), "output")
	_, _ = unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, followerBuffer) // else it has the kernel's default
	w, err := c.newFollower(p[1], follow)
	if err != nil {
		far.Close()
		return nil, 0, err
	}
	lost := w.offset // before it runs
	go w.run()
	return far, lost, nil
}

// openTerminal returns one end of a stream socket. Reading gives the terminal's output, kept and
// new; what is written is typed into the terminal.
func (c *command) openTerminal() (*os.File, int64, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, err
	}
	far := os.NewFile(uintptr(p[0]), "terminal")
	for _, fd := range p {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, followerBuffer) // else it has the kernel's default
	}
	w, err := c.newFollower(p[1], true)
	if err != nil {
		far.Close()
		return nil, 0, err
	}
	lost := w.offset
	go w.run()
	go w.typed(c.master)
	return far, lost, nil
}

// newFollower takes a place, and fd, which it closes if there is none.
func (c *command) newFollower(fd int, follow bool) (*follower, error) {
	r := c.buffer
	r.k.mu.Lock()
	defer r.k.mu.Unlock()
	if r.k.followers >= execapi.MaxFollowers {
		unix.Close(fd)
		return nil, tooMany(c.id)
	}
	unix.SetNonblock(fd, true)
	w := &follower{r: r, f: os.NewFile(uintptr(fd), "follower"), follow: follow, offset: r.start, done: make(chan struct{})}
	r.k.followers++
	r.followers = append(r.followers, w)
	return w, nil
}

func tooMany(of id.Command) error {
	return fmt.Errorf("cannot read the output of %s: %d clients read output in this workspace, the most there may be; end some of them "+
		"(carrel logs -f, carrel attach, carrel shell) and try again: %w", of, execapi.MaxFollowers, errdefs.ErrResourceExhausted)
}

// wake lets the followers write what there is.
func (r *ring) wake() {
	for _, w := range r.followers {
		w.wake()
	}
}

func (w *follower) wake() {
	if w.idle {
		w.idle = false
		_ = w.f.SetWriteDeadline(time.Unix(1, 0)) // run goes on with none
	}
}

func (w *follower) run() {
	defer w.leave()
	rc, err := w.f.SyscallConn()
	if err != nil {
		return
	}
	for {
		err := rc.Write(w.push)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if w.f.SetWriteDeadline(time.Time{}) != nil {
			return
		}
	}
}

// push writes until the pipe is full or there is nothing more to write now, and reports whether
// there never will be. The poller calls it again when the pipe has room or its reader has gone.
func (w *follower) push(fd uintptr) bool {
	for {
		if wait, over := w.piece(int(fd)); wait || over {
			return over
		}
	}
}

func (w *follower) piece(fd int) (wait, over bool) {
	r := w.r
	r.k.mu.Lock()
	defer r.k.mu.Unlock()
	w.offset = max(w.offset, r.start)
	switch {
	case w.gone:
		return false, true
	case w.offset == r.end && (r.ended || !w.follow):
		return false, true
	case w.offset == r.end:
		w.idle = true
		fds := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(fds, 0)
		gone := err == nil && fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0
		return !gone, gone
	}
	n, err := unix.Write(fd, r.at(w.offset))
	w.offset += int64(max(n, 0))
	if errors.Is(err, unix.EINTR) {
		err = nil
	}
	return errors.Is(err, unix.EAGAIN), err != nil && !errors.Is(err, unix.EAGAIN)
}

// leave gives the place back.
func (w *follower) leave() {
	k := w.r.k
	k.mu.Lock()
	k.followers--
	w.idle = false
	w.r.followers = slices.DeleteFunc(w.r.followers, func(o *follower) bool { return o == w })
	k.mu.Unlock()
	close(w.done)
	w.f.Close()
}

// typingPause is how long typed writes nothing to a terminal whose command does not read.
const typingPause = 20 * time.Millisecond

// typed writes what the client sends to the terminal, until the client sends no more or has gone.
func (w *follower) typed(master *os.File) {
	defer func() {
		w.r.k.mu.Lock()
		w.gone = true
		w.wake()
		w.r.k.mu.Unlock()
	}()
	rc, err := master.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 1<<10)
	for {
		n, err := w.f.Read(buf)
		if err != nil {
			return
		}
		for b := buf[:n]; len(b) > 0; {
			n := 0
			if cerr := rc.Control(func(fd uintptr) { n, err = unix.Write(int(fd), b) }); cerr != nil {
				return
			}
			if b = b[max(n, 0):]; err == nil || errors.Is(err, unix.EINTR) {
				continue
			}
			if !errors.Is(err, unix.EAGAIN) {
				return
			}
			select {
			case <-w.done:
				return
			case <-time.After(typingPause):
			}
		}
	}
}
