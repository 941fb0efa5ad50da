// Package terminal runs a command on a terminal as a person's would, types, and waits for what the screen is sent. It must not
// know what runs. Package ptytest is the same for tests.
package terminal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Terminal is the master side of a terminal, and the command that leads its session. Its methods may be called from any
// goroutine.
type Terminal struct {
	Command *exec.Cmd

	master  *os.File
	answers bool
	done    chan struct{} // closed when Command has ended and was waited for

	mu      sync.Mutex
	all     bytes.Buffer  // everything that was sent to the screen
	changed chan struct{} // closed when all has grown or ended
	ended   bool
}

// Patience bounds every wait.
const Patience = 60 * time.Second

// Start runs c with a new terminal of that size as its stdin, stdout, stderr and controlling terminal.
// With answers, the terminal says where its cursor is when it is asked to, as real ones do. The caller must call End.
func Start(c *exec.Cmd, rows, cols uint16, answers bool) (x *Terminal, err error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = master.Close()
		}
	}()
	x = &Terminal{Command: c, master: master, answers: answers, changed: make(chan struct{}), done: make(chan struct{})}
	var n int
	if err := x.control(func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		n, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return err
	}); err != nil {
		return nil, err
	}
	if err := x.Resize(rows, cols); err != nil {
		return nil, err
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer slave.Close()
	if c.SysProcAttr == nil {
		c.SysProcAttr = new(unix.SysProcAttr)
	}
	if who := c.SysProcAttr.Credential; who != nil { // as login does
		if err := slave.Chown(int(who.Uid), int(who.Gid)); err != nil {
			return nil, err
		}
	}
	c.Stdin, c.Stdout, c.Stderr = slave, slave, slave
	c.SysProcAttr.Setsid, c.SysProcAttr.Setctty = true, true
	if err := c.Start(); err != nil {
		return nil, err
	}
	go func() { _ = c.Wait(); close(x.done) }()
	go x.read()
	return x, nil
}

// End kills the command if it has not ended, and closes the terminal.
func (x *Terminal) End() {
	_ = x.Command.Process.Kill()
	<-x.done
	_ = x.master.Close()
}

func (x *Terminal) control(f func(fd int) error) error {
	rc, err := x.master.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	return errors.Join(rc.Control(func(fd uintptr) { inner = f(int(fd)) }), inner)
}

// cursorRequest asks where the cursor is (DSR 6 of ECMA-48), cursorReport answers.
const cursorRequest, cursorReport = "\x1b[6n", "\x1b[1;1R"

func (x *Terminal) read() {
	b := make([]byte, 4096)
	for {
		n, err := x.master.Read(b)
		x.mu.Lock()
		x.all.Write(b[:n])
		x.ended = err != nil
		close(x.changed)
		x.changed = make(chan struct{})
		x.mu.Unlock()
		if err != nil {
			return // the last that had the terminal open has closed it
		}
		if x.answers && bytes.Contains(b[:n], []byte(cursorRequest)) {
			_, _ = x.master.WriteString(cursorReport)
		}
	}
}

// Screen is everything that was sent to the screen so far.
func (x *Terminal) Screen() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.all.String()
}

// ExpectAfter waits until the screen was sent text after what came first.
func (x *Terminal) ExpectAfter(first, text string) error {
	return x.Until(fmt.Sprintf("%q", text), func(all string) bool {
		_, rest, found := strings.Cut(all, first)
		return found && strings.Contains(rest, text)
	})
}

// Until waits until f says so of everything that was sent to the screen. what names it for the error.
func (x *Terminal) Until(what string, f func(all string) bool) error {
	late := time.After(Patience)
	for {
		x.mu.Lock()
		all, changed, ended := x.all.String(), x.changed, x.ended
		x.mu.Unlock()
		if f(all) {
			return nil
		}
		if ended {
			return fmt.Errorf("the terminal ended without %s: %q", what, all)
		}
		select {
		case <-changed:
		case <-late:
			return fmt.Errorf("no %s on the terminal: %q", what, all)
		}
	}
}

// Type sends keys.
func (x *Terminal) Type(keys string) error {
	_, err := x.master.WriteString(keys)
	return err
}

// Resize changes the size of the window.
func (x *Terminal) Resize(rows, cols uint16) error {
	return x.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

// HangUp closes the window.
func (x *Terminal) HangUp() { _ = x.master.Close() }

// heldOpen is how long a terminal is read whose command has ended, and which somebody else has open.
const heldOpen = 2 * time.Second

// drained waits for the end of what the terminal was sent: its reader may be behind the end of the command.
func (x *Terminal) drained() {
	for late := time.After(heldOpen); ; {
		x.mu.Lock()
		changed, ended := x.changed, x.ended
		x.mu.Unlock()
		if ended {
			return
		}
		select {
		case <-changed:
		case <-late:
			return
		}
	}
}

// Wait returns the command's exit code, or 128 and the number of the signal that ended it. The screen has been sent by then what
// the command wrote, unless something else keeps the terminal open.
func (x *Terminal) Wait() (code int, err error) {
	select {
	case <-x.done:
	case <-time.After(Patience):
		return 0, fmt.Errorf("it does not end: %q", x.Screen())
	}
	x.drained()
	ws, ok := x.Command.ProcessState.Sys().(unix.WaitStatus)
	if ok && ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return x.Command.ProcessState.ExitCode(), nil
}
