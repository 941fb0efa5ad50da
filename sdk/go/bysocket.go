package carrel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// On the daemon's host the bytes of files go between this process and the workspace's program for files, over a socket.

// knows is whether the daemon moves files over sockets, which an earlier release does not.
type knows struct{ asked, yes atomic.Bool }

// bySocket reports whether files can be moved over sockets.
func (c *Client) bySocket(ctx context.Context, x *session) bool {
	if !c.sockets.asked.Load() {
		_, err := x.call(ctx, fdapi.Read, &carrelv1.ReadBySocketRequest{}, new(carrelv1.ReadBySocketResponse), 0)
		if ctx.Err() != nil {
			return true // which then says so
		}
		c.sockets.yes.Store(!errdefs.IsNotImplemented(err))
		c.sockets.asked.Store(true)
	}
	return c.sockets.yes.Load()
}

// move makes a call with one end of a socket, and has data go over the other meanwhile. known is false if the daemon has no
// such call, and nothing was done. The data's own error comes first; if that is one of the socket, the daemon says why. A call
// that the daemon has ended is not held up by a Read of what is written, which may never return.
func (c *Client) move(ctx context.Context, procedure string, req, res proto.Message, reads bool, data func(*os.File) error) (
	known bool, err error,
) {
	x, err := c.take(ctx)
	if err != nil {
		return true, err
	}
	defer c.give(x)
	if !c.bySocket(ctx, x) {
		return false, nil
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return true, fmt.Errorf("cannot make a socket for the file: %w", err)
	}
	far := os.NewFile(uintptr(pair[1]), "socket")
	if err := unix.SetNonblock(pair[0], true); err != nil { // so that a close ends what waits
		unix.Close(pair[0])
		far.Close()
		return true, fmt.Errorf("cannot use the socket for the file: %w", err)
	}
	near := os.NewFile(uintptr(pair[0]), "socket")
	moved := make(chan error, 1)
	go func() {
		err := data(near)
		moved <- err // before the daemon can know of it, so that its own error is not taken for the cause
		if err != nil {
			near.Close() // what is not whole is given up
		}
	}()
	_, err = x.call(ctx, procedure, req, res, 0, far)
	far.Close()
	if ctx.Err() != nil {
		x.Close() // the daemon then ends the call
	}
	if err != nil {
		near.Close()
	}
	lost := ended(moved, err != nil && reads)
	near.Close()
	switch {
	case ctx.Err() != nil:
		return true, ctx.Err()
	case lost != nil && !errors.Is(lost, errSocket):
		return true, lost
	case err != nil:
		return true, err
	}
	return true, lost
}

// readGrace is how long a Read that waits is waited for once the daemon has ended the call: one of memory or of a file ends by itself.
const readGrace = 100 * time.Millisecond

// ended waits for the end of the data. If it may wait for what never comes, that is not waited for, and errSocket stands for its end.
func ended(moved <-chan error, mayWait bool) error {
	if !mayWait {
		return <-moved
	}
	select {
	case lost := <-moved:
		return lost
	case <-time.After(readGrace):
		return errSocket
	}
}

// errSocket is an error of the socket, which the other end has closed.
var errSocket = fmt.Errorf("cannot move all of it: the daemon broke off before its end; try again: %w", errdefs.ErrUnavailable)

func (c *Client) readBySocket(ctx context.Context, req *carrelv1.ReadBySocketRequest, res *carrelv1.ReadBySocketResponse, w io.Writer) (
	known bool, err error,
) {
	return c.move(ctx, fdapi.Read, req, res, false, func(s *os.File) error {
		body := &fileapi.Body{Frames: &fileapi.Reader{R: s}}
		_, err := io.CopyBuffer(&checked{w: w}, struct{ io.Reader }{body}, make([]byte, fileapi.Piece))
		return unlessSocket(err)
	})
}

func (c *Client) writeBySocket(ctx context.Context, req *carrelv1.WriteBySocketRequest, res *carrelv1.WriteBySocketResponse, r io.Reader) (
	known bool, err error,
) {
	return c.move(ctx, fdapi.Write, req, res, true, func(s *os.File) error {
		to := &fileapi.Writer{W: s}
		_, err := io.CopyBuffer(struct{ io.Writer }{to}, &checked{r: r}, make([]byte, fileapi.Piece))
		if err == nil {
			err = to.Send(fileapi.End, nil)
		}
		return unlessSocket(err)
	})
}

// checked marks the errors of what the caller gave, which all others are those of the socket.
type checked struct {
	w io.Writer
	r io.Reader
}

type ownError struct{ err error }

func (e *ownError) Error() string { return e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

func (c *checked) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if err != nil {
		err = &ownError{err}
	}
	return n, err
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &ownError{fmt.Errorf("cannot read what is to be written: %w", err)}
	}
	return n, err
}

func unlessSocket(err error) error {
	if own, ok := errors.AsType[*ownError](err); ok {
		return own.err
	}
	if err != nil {
		return errSocket
	}
	return nil
}
