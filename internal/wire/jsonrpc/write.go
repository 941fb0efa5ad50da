package jsonrpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// encoder is a buffer in which one frame is built: the envelope by hand, the
// value inside by encoding/json.
type encoder struct{ bytes.Buffer }

func (e *encoder) int(v int64) {
	e.Write(strconv.AppendInt(e.AvailableBuffer(), v, 10))
}

// value appends v. encoding/json writes no raw newline inside a value; the one
// that it writes behind it would end the frame.
func (e *encoder) value(v any) error {
	j := json.NewEncoder(&e.Buffer)
	j.SetEscapeHTML(false)
	if err := j.Encode(v); err != nil {
		return err
	}
	e.Truncate(e.Len() - 1)
	return nil
}

func (e *encoder) call(id uint64, method string, params any, fds int) error {
	if !validMethod(method) {
		return fmt.Errorf("cannot call %q: it is not a method name: %w", method, errdefs.ErrInvalidArgument)
	}
	e.WriteString(`{"jsonrpc":"2.0",`)
	if id > 0 {
		e.WriteString(`"id":`)
		e.int(int64(id))
		e.WriteByte(',')
	}
	e.WriteString(`"method":"`)
	e.WriteString(method)
	e.WriteByte('"')
	e.fds(fds)
	if params != nil {
		e.WriteString(`,"params":`)
		if err := e.value(params); err != nil {
			return fmt.Errorf("cannot write the params of %s: %w", method, err)
		}
	}
	e.WriteString("}\n")
	return nil
}

func (e *encoder) reply(id []byte, member string, v any, fds int) error {
	e.WriteString(`{"jsonrpc":"2.0","id":`)
	e.Write(id)
	e.fds(fds)
	e.WriteString(`,"`)
	e.WriteString(member)
	e.WriteString(`":`)
	if err := e.value(v); err != nil {
		return err
	}
	e.WriteString("}\n")
	return nil
}

func (e *encoder) fds(n int) {
	if n > 0 {
		e.WriteString(`,"fds":`)
		e.int(int64(n))
	}
}

// writer writes frames to the socket, one at a time, in the goroutine that sends: no
// switch between goroutines, one system call a frame.
type writer struct {
	c    *Conn
	lock chan struct{} // held for one frame

	// Only the holder of lock uses the rest.
	buf []byte
	oob []byte
	n   int
	err error
	// unsent is why nothing of the frame could be sent, where that is no fault of the connection's.
	unsent error
	try    func(fd uintptr) bool // made once, not for each frame
	wait   func(fd uintptr) bool
}

func (w *writer) init(c *Conn) {
	w.c = c
	w.lock = make(chan struct{}, 1)
	w.try = func(fd uintptr) bool {
		w.push(int(fd))
		return true
	}
	w.wait = func(fd uintptr) bool { return w.push(int(fd)) }
}

// push writes as much as the socket takes. It reports whether everything is written
// or w.err is set.
func (w *writer) push(fd int) bool {
	for w.n < len(w.buf) {
		n, err := unix.SendmsgN(fd, w.buf[w.n:], w.oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case err == nil:
			w.n += n
			w.oob = nil // the descriptors went with the first byte
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return false
		case w.n == 0 && scarce(err): // nothing of the frame went: the connection is as it was
			w.unsent = err
			return true
		default:
			w.err = err
			return true
		}
	}
	return true
}

// send writes one frame with its descriptors. It returns when the frame is
// written, when the connection has ended, or when ctx ends; in that last case
// a frame that was begun is still finished by itself.
func (w *writer) send(ctx context.Context, e *encoder, files []*os.File) error {
	if e.Len() > w.c.cfg.MaxSend || len(files) > maxSendFDs {
		return fmt.Errorf("cannot send a message of %d bytes and %d fds: at most %d bytes and %d fds are allowed: %w",
			e.Len(), len(files), w.c.cfg.MaxSend, maxSendFDs, errdefs.ErrResourceExhausted)
	}
	select {
	case w.lock <- struct{}{}:
	case <-w.c.done:
		return unreachable(w.c.Err())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	w.buf, w.n, w.oob, w.err, w.unsent = e.Bytes(), 0, nil, nil, nil
	var err error
	if len(files) == 0 {
		err = w.c.sock.Write(w.try)
	} else if bad := borrow(files, make([]int, 0, len(files)), func(fds []int) error {
		w.oob = unix.UnixRights(fds...)
		err = w.c.sock.Write(w.try)
		return nil
	}); bad != nil { // a file of the caller's: nothing was written
		w.unlock()
		return fmt.Errorf("cannot send the fds of a message: %w", bad)
	}
	if err == nil {
		err = w.err
	}
	unsent := w.unsent
	if err == nil && unsent == nil && w.n < len(w.buf) {
		return w.finish(ctx, files)
	}
	w.unlock()
	if err == nil && unsent != nil {
		return notSent(unsent, len(files))
	}
	return w.ended(err)
}

// finish waits for a slow reader. The caller may return when its ctx ends and then
// close its descriptors, so those not sent yet are duplicated.
func (w *writer) finish(ctx context.Context, files []*os.File) error {
	var own []int
	if w.oob != nil {
		err := borrow(files, make([]int, 0, len(files)), func(fds []int) error {
			for _, fd := range fds {
				d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
				if err != nil {
					return err
				}
				own = append(own, d)
			}
			return nil
		})
		if err != nil { // nothing was written yet: the connection is as it was
			closeFDs(own)
			w.unlock()
			return notSent(err, len(files))
		}
		w.oob = unix.UnixRights(own...)
	}
	result := make(chan error, 1)
	go func() {
		err := w.c.sock.SetWriteDeadline(time.Now().Add(w.c.cfg.WriteTimeout))
		if err == nil {
			err = w.c.sock.Write(w.wait)
		}
		if err == nil {
			err = w.err
		}
		if err == nil {
			err = w.c.sock.SetWriteDeadline(time.Time{})
		}
		closeFDs(own)
		unsent := w.unsent
		w.unlock()
		if err == nil && unsent != nil {
			result <- notSent(unsent, len(files))
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("the peer did not read for %v: %w", w.c.cfg.WriteTimeout, err)
		}
		result <- w.ended(err)
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// scarce reports whether a message could not be sent for want of descriptors or memory, of this process or of its user.
func scarce(err error) bool {
	for _, e := range []unix.Errno{unix.ETOOMANYREFS, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// notSent is the error of a message of which nothing was sent. The connection goes on.
func notSent(err error, fds int) error {
	why := "this process has no more of them, or no memory"
	if errors.Is(err, unix.ETOOMANYREFS) {
		why = "as many of this user's as may be are in sockets whose readers have not taken them; try again"
	}
	return fmt.Errorf("cannot send a message with %d fds: %w: %s: %w", fds, err, why, errdefs.ErrResourceExhausted)
}

func (w *writer) unlock() {
	w.buf, w.oob = nil, nil
	<-w.lock
}

// ended ends the connection if a frame could not be written, because the peer may have
// a part of it.
func (w *writer) ended(err error) error {
	if err == nil {
		return nil
	}
	w.c.end(fmt.Errorf("cannot write: %w", err))
	return unreachable(w.c.Err())
}

// borrow calls f with the descriptors of files, which stay open during the call.
// Unlike File.Fd, Control does not switch a file to blocking mode.
func borrow(files []*os.File, fds []int, f func([]int) error) error {
	if len(files) == 0 {
		return f(fds)
	}
	rc, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = rc.Control(func(fd uintptr) { inner = borrow(files[1:], append(fds, int(fd)), f) })
	if err != nil {
		return err
	}
	return inner
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
