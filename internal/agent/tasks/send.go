package tasks

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/linerpc"
)

// errPipe is that the program has closed what it is sent by, and errFull that it does not read it.
var (
	errPipe = errors.New("it has closed its input")
	errFull = errors.New("it does not read its input")
)

// send sends a message. A program that does not read it within its time ends the task.
func (c *conversation) send(m linerpc.Message) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.in.SetWriteDeadline(time.Now().Add(c.limit.Read))
	err := linerpc.Write(c.in, m)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errFull
	case err != nil:
		return errPipe
	}
	return nil
}

// call sends a request, or a notification if number is 0.
func (c *conversation) call(number int, method string, params any) error {
	b, err := json.Marshal(params)
	if err != nil {
		return err
	}
	m := linerpc.Message{Method: method, Params: b}
	if number > 0 {
		m.ID = fmt.Appendf(nil, "%d", number)
	}
	return c.send(m)
}

// answer answers a request with a result. What was reported before is stored by then.
func (c *conversation) answer(to linerpc.Message, result any) error {
	if to.ID == nil {
		return nil
	}
	if err := c.flush(); err != nil {
		return err
	}
	b, err := json.Marshal(result)
	if err != nil {
		return err
	}
	return c.send(linerpc.Message{ID: to.ID, Result: b})
}

// refuse answers a request with an error.
func (c *conversation) refuse(to linerpc.Message, code int, format string, args ...any) error {
	if to.ID == nil {
		return nil
	}
	return c.send(linerpc.Message{ID: to.ID, Error: &linerpc.Error{Code: code, Message: fmt.Sprintf(format, args...)}})
}

// closeInput tells the program that nothing more is sent.
func (c *conversation) closeInput() {
	if c.in != c.out {
		_ = c.in.Close()
		return
	}
	if rc, err := c.in.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) }) // it may have closed its end
	}
}
