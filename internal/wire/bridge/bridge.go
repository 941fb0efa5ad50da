// Package bridge joins the stdin and stdout of a program to a Unix socket: an agent that starts servers of tools as its
// children starts it, and carrel serves at the socket.
//
// It must not look at what it copies. It runs with the rights of whoever starts it.
package bridge

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long the other side may take to let it in.
const patience = 30 * time.Second

// Run copies in to the socket at address, as package net writes it, and what comes from there to out, until the other
// side ends. Nothing waits for a Read of in that has not returned.
func Run(address string, in io.Reader, out io.Writer) error {
	f, err := connect(address)
	if err != nil {
		return fmt.Errorf("cannot reach carrel: %w; the task that this is for may have ended", err)
	}
	defer f.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(f, in)
		if err == nil {
			err = halfClose(f)
		}
		sent <- err
	}()
	n, err := io.Copy(out, f)
	var written *os.PathError
	switch {
	case errors.As(err, &written) && written.Op == "write":
		return fmt.Errorf("cannot pass on what carrel says: %w", err)
	case err != nil && !errors.Is(err, unix.ECONNRESET):
		return fmt.Errorf("cannot read from carrel: %w", err)
	}
	select {
	case err := <-sent:
		if err == nil {
			return nil // all was sent before the end
		}
	default:
	}
	if n == 0 {
		return errors.New("carrel has closed the connection without an answer: the task has ended, or has as many connections open as it may")
	}
	return errors.New("carrel has ended the session: the task has ended or was stopped, its owner may not use the workspace any more, or " +
		"what was sent is no message; \"carrel task show\" tells")
}

// connect returns a socket under the poller, so that its reads and writes do not hold a thread.
func connect(address string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err == nil {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: address})
		}
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), address), nil
}

// halfClose says that nothing more is sent.
func halfClose(f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := c.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_WR) })
	return errors.Join(cerr, err)
}
