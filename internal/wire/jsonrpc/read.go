package jsonrpc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	firstBuffer = 4 << 10
	keepBuffer  = 64 << 10 // a larger buffer is dropped when it is empty
)

// reader splits the stream into frames and starts the handling of each message. It
// runs in one goroutine, or inside Step.
type reader struct {
	c    *Conn
	buf  []byte // read and not yet taken: buf[from:to]
	from int
	to   int
	seen int // no newline in buf[from:seen]
	oob  []byte

	// fds belong to the frame that starts at from; next belong to the last frame
	// that starts in the newest read, at nextAt.
	fds    []int
	next   []int
	nextAt int
	// short: the kernel could not hand over all descriptors of fds, or of next.
	short, nextShort bool

	counted int // of buf, with Config.Room

	timed bool        // the read deadline is set
	late  *time.Timer // the same for a stepped Conn, which has no read deadline
	n     int
	oobn  int
	flags int
	err   error
	recv  func(fd uintptr) bool
}

func (r *reader) init(c *Conn) {
	r.c = c
	r.buf = make([]byte, firstBuffer)
	// CmsgLen and not CmsgSpace: padding would make room for one fd more, and
	// the kernel would fill it. Without room any fd gives MSG_CTRUNC.
	if c.cfg.MaxFDs > 0 {
		r.oob = make([]byte, unix.CmsgLen(4*c.cfg.MaxFDs))
	}
	r.recv = func(fd uintptr) bool {
		for {
			r.n, r.oobn, r.flags, r.err = recvmsg(int(fd), r.buf[r.to:], r.oob)
			switch {
			case errors.Is(r.err, unix.EINTR):
			case errors.Is(r.err, unix.EAGAIN):
				return false
			default:
				return true
			}
		}
	}
}

func (r *reader) run() {
	err := r.loop()
	r.stop()
	if errors.Is(err, io.EOF) {
		err = r.c.drain(err)
	}
	r.c.end(err)
}

// stop closes descriptors that no handler has.
func (r *reader) stop() {
	closeFDs(r.fds)
	closeFDs(r.next)
	r.fds, r.next = nil, nil
	_ = r.count(0) // less than before
	if r.late != nil {
		r.late.Stop()
	}
}

// loop returns io.EOF if the peer stopped between two frames.
func (r *reader) loop() error {
	for {
		if err := r.fill(r.recv); err != nil {
			return err
		}
		if err := r.take(); err != nil {
			return err
		}
	}
}

// step reads and handles messages until there is nothing more to read at the moment.
func (r *reader) step() error {
	for {
		err := r.fill(func(fd uintptr) bool { r.recv(fd); return true })
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.take(); err != nil {
			return err
		}
		if r.to < len(r.buf) {
			if r.from < r.to {
				return r.begun() // no read follows that would call it
			}
			return nil // the buffer had room: a level-triggered poll announces more
		}
	}
}

// take handles the complete frames that were read.
func (r *reader) take() error {
	for {
		// Bytes are searched once only, or a frame sent byte by byte would take
		// quadratic time.
		i := bytes.IndexByte(r.buf[r.seen:r.to], '\n')
		if i < 0 {
			r.seen = r.to
			break
		}
		i += r.seen - r.from
		if err := r.inTime(); err != nil {
			return err
		}
		if r.next != nil && r.nextAt == r.from {
			r.due()
		}
		frame := r.buf[r.from : r.from+i]
		r.from += i + 1
		r.seen = r.from
		if i+1 > r.c.cfg.MaxFrame {
			return r.refuse(nil, r.tooLong())
		}
		if err := r.message(frame); err != nil {
			return err
		}
	}
	if r.next != nil && r.nextAt == r.from {
		r.due()
	}
	if r.to-r.from >= r.c.cfg.MaxFrame {
		return r.refuse(nil, r.tooLong())
	}
	return nil
}

// due makes the descriptors of the next frame those of the one that is read.
func (r *reader) due() {
	r.fds, r.short = r.next, r.nextShort
	r.next, r.nextShort = nil, false
}

// begun starts the time-out of a frame of which only a part has arrived; inTime stops it.
func (r *reader) begun() error {
	if r.timed {
		return nil
	}
	r.timed = true
	if r.c.cfg.Stepped {
		r.late = time.AfterFunc(r.c.cfg.FrameTimeout, func() { r.c.end(r.refuse(nil, r.tooSlow())) })
		return nil
	}
	return r.c.sock.SetReadDeadline(time.Now().Add(r.c.cfg.FrameTimeout))
}

func (r *reader) inTime() error {
	if !r.timed {
		return nil
	}
	r.timed = false
	if r.c.cfg.Stepped {
		r.late.Stop()
		return nil
	}
	return r.c.sock.SetReadDeadline(time.Time{})
}

func (r *reader) tooSlow() *violation {
	return invalid(fmt.Sprintf("the frame did not end within %v", r.c.cfg.FrameTimeout))
}

func (r *reader) tooLong() *violation {
	return invalid(fmt.Sprintf("the frame is longer than %d bytes", r.c.cfg.MaxFrame))
}

// fill reads once more and finds the frame to which the descriptors belong.
func (r *reader) fill(recv func(fd uintptr) bool) error {
	if err := r.makeRoom(); err != nil {
		return err
	}
	if r.from < r.to {
		if err := r.begun(); err != nil {
			return err
		}
	}
	if err := r.c.sock.Read(recv); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return r.refuse(nil, r.tooSlow())
		}
		return err
	}
	if r.err != nil {
		if errors.Is(r.err, unix.ECONNRESET) { // the peer closed before it read all our data
			return io.EOF
		}
		return fmt.Errorf("cannot read: %w", r.err)
	}
	start := r.to
	r.to += r.n
	fds, err := parseRights(r.oob[:r.oobn])
	// The kernel cuts what comes where more came than there is room for, which breaks a rule, and where this process may
	// open no more, which is no fault of the peer's. What the message declares tells which.
	short := r.flags&unix.MSG_CTRUNC != 0
	if err != nil || short && r.c.cfg.MaxFDs == 0 {
		closeFDs(fds)
		return r.refuse(nil, invalid(fmt.Sprintf("more fds came with a message than the %d that are accepted", r.c.cfg.MaxFDs)))
	}
	if r.n == 0 {
		closeFDs(fds)
		if r.from < r.to {
			return errors.New("the peer closed in the middle of a frame")
		}
		return io.EOF
	}
	if len(fds) == 0 && !short {
		return nil
	}
	// The last frame that starts in this read: after the last newline that is not the
	// last byte, or at the beginning if a frame starts there.
	if i := bytes.LastIndexByte(r.buf[start:r.to-1], '\n'); i >= 0 {
		r.nextAt = start + i + 1
	} else if r.from == start {
		r.nextAt = start
	} else {
		closeFDs(fds)
		return r.refuse(nil, invalid("fds came in the middle of a frame"))
	}
	if r.next, r.nextShort = fds, short; fds == nil {
		r.next = []int{}
	}
	return nil
}

// makeRoom moves unread bytes to the front when the buffer is full, and grows it up
// to one frame.
func (r *reader) makeRoom() error {
	if r.from == r.to {
		r.from, r.to, r.seen = 0, 0, 0
		if len(r.buf) > keepBuffer {
			r.buf = make([]byte, firstBuffer)
			_ = r.count(0) // less than before
		}
		return nil
	}
	if r.to < len(r.buf) {
		return nil
	}
	b := r.buf
	if r.from < len(b)/2 {
		n := min(2*len(b), max(r.c.cfg.MaxFrame, len(b)))
		if n > keepBuffer {
			if err := r.count(n); err != nil {
				_ = r.c.answerError([]byte("null"), err) // it ends either way
				return err
			}
		}
		b = make([]byte, n)
	}
	n := copy(b, r.buf[r.from:r.to])
	r.buf, r.seen, r.from, r.to = b, r.seen-r.from, 0, n
	return nil
}

// count tells Config.Room how large the buffer is to be.
func (r *reader) count(n int) error {
	if r.c.cfg.Room == nil || n == r.counted {
		return nil
	}
	if err := r.c.cfg.Room(n - r.counted); err != nil {
		return err
	}
	r.counted = n
	return nil
}

// message handles one frame. An error ends the connection.
func (r *reader) message(frame []byte) error {
	raw, short := r.fds, r.short
	r.fds, r.short = nil, false
	e, bad := parseEnvelope(frame, r.c.cfg.MaxFDs)
	var lost error
	switch {
	case bad != nil && bad.fatal:
	case short && e.fds > len(raw):
		lost = untaken(e.fds, len(raw))
	case short:
		bad = invalid(fmt.Sprintf("more fds came with a message than the %d that are accepted", r.c.cfg.MaxFDs))
	case e.fds != len(raw):
		bad = invalid(fmt.Sprintf("the message declares %d fds and came with %d", e.fds, len(raw)))
	}
	if bad != nil {
		closeFDs(raw)
		if bad.fatal || e.id == nil {
			return r.refuse(e.id, bad)
		}
		return r.c.answer(e.id, bad)
	}
	files := wrap(raw)
	if lost != nil && e.method != nil {
		closeAll(files)
		if e.id == nil {
			return nil // a notification has no answer
		}
		return r.c.answerError(e.id, lost)
	}
	if e.method == nil {
		if string(e.id) == "null" {
			err, bad := fromWire(e.errObj)
			if bad != nil {
				return r.refuse(nil, invalid("the error does not have the form of an error object"))
			}
			return fmt.Errorf("the peer ended the connection: %w", err)
		}
		if bad := r.c.deliver(&e, files, lost); bad != nil {
			return r.refuse(nil, bad)
		}
		return nil
	}
	// This is the back-pressure: nothing is read until a slot is free. The frame's
	// time-out does not run meanwhile, because it is set only before a read.
	if r.c.cfg.Stepped && len(r.c.slots) == cap(r.c.slots) {
		closeAll(files) // a stepped reader must not wait
		return r.c.answerError(e.id, fmt.Errorf("cannot take the request: %d are being handled: %w",
			cap(r.c.slots), errdefs.ErrResourceExhausted))
	}
	select {
	case r.c.slots <- struct{}{}:
	case <-r.c.done:
		closeAll(files)
		return r.c.Err()
	}
	return r.accept(&e, files)
}

// accept starts the handling of a request. The frame is copied, because the
// handler may keep what it was given.
func (r *reader) accept(e *envelope, files []*os.File) error {
	in := &incoming{}
	if len(e.params) > firstBuffer { // a handler that drops its params frees them, id or not
		in.id, in.Params = bytes.Clone(e.id), bytes.Clone(e.params)
	} else {
		b := make([]byte, 0, len(e.id)+len(e.params))
		b = append(append(b, e.id...), e.params...)
		in.id, in.Params = b[:len(e.id):len(e.id)], b[len(e.id):]
	}
	in.Method = string(e.method)
	in.FDs = files
	in.Notification = e.id == nil
	in.c, in.in = r.c, in

	c := r.c
	c.mu.Lock()
	twice := false
	if !in.Notification {
		for _, o := range c.inFlight {
			twice = twice || !o.answered && bytes.Equal(o.id, in.id)
		}
	}
	if !twice {
		c.inFlight = append(c.inFlight, in)
	}
	c.mu.Unlock()
	if twice {
		closeAll(files)
		<-c.slots
		// Not with that id: the peer would take it for the answer to the first.
		return r.refuse(nil, invalid("a request with the same id is still being handled"))
	}
	if c.cfg.Stepped || c.cfg.Inline != nil && c.cfg.Inline(in.Method) {
		c.serve(in)
	} else {
		go c.serve(in)
	}
	return nil
}

// refuse tries to answer a violation, and returns the error with which the
// connection ends. The answer to an unreadable message has the id null, as JSON-RPC
// requires.
func (r *reader) refuse(id []byte, bad *violation) error {
	if id == nil {
		id = []byte("null")
	}
	err := bad.err()
	_ = r.c.answerError(id, err) // it ends either way
	return err
}

func (v *violation) err() *Error {
	return &Error{Code: v.code, Message: "cannot accept the message: " + v.text, kind: errdefs.ErrInvalidArgument}
}

// drain is called when the peer will send no more. If the peer only shut down its
// writing side, its requests are still answered. If it closed the connection, the
// connection ends here too, and with it the ctx of the handlers.
func (c *Conn) drain(reason error) error {
	c.mu.Lock()
	c.peerGone, c.draining = reason, true
	calls := c.calls
	c.calls = map[uint64]*call{}
	idle := len(c.inFlight) == 0
	c.mu.Unlock()
	for _, k := range calls {
		k.reply <- reply{err: unreachable(reason)}
	}
	if idle {
		return reason
	}
	_ = c.sock.SetReadDeadline(time.Time{})
	// This waits until either side closes the connection.
	_ = c.sock.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(p, 0)
		return err == nil && p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return reason
}

// wrap makes files of received descriptors.
func wrap(fds []int) []*os.File {
	if len(fds) == 0 {
		return nil
	}
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "received")
	}
	return files
}

// parseRights returns the descriptors in control messages. The socket requests no
// other kind of control message.
func parseRights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var fds []int
	for i := range msgs {
		got, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return fds, err
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

func recvmsg(fd int, p, oob []byte) (n, oobn, flags int, err error) {
	n, oobn, flags, _, err = unix.Recvmsg(fd, p, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	return n, oobn, flags, err
}
