// Package begin starts carrel-egress so that it serves a workspace and reaches nothing. Who gets its control
// socket speaks package egressapi on it.
//
// It must not import anything of carrel: the broker links it, and only this much of egress.
package begin

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// controlFD is where carrel-egress inherits the control socket, before the others: egressapi.ControlFD.
const controlFD = 3

// setup is a line with which it serves and reaches nothing, and ready the line that it answers.
const (
	setup = `{"version":1,"rules":[]}` + "\n"
	ready = `{"ready":true}` + "\n"
)

// Config is what Start needs. All files stay the caller's.
type Config struct {
	// Program is carrel-egress, open for reading. Required.
	Program *os.File
	// Workspace is its name, for who lists processes.
	Workspace string
	// Sockets are those of package netns, in their order. Required.
	Sockets []*os.File
	// Log receives what it writes to stderr; nil discards it.
	Log *os.File
	// Attr says as whom and where it is started.
	Attr syscall.SysProcAttr
	// On calls start on the thread on which it is to be born; nil is any.
	On func(start func() error) error
}

// Process is a carrel-egress that serves.
type Process struct {
	// Control is its control socket. It ends when that is closed.
	Control *os.File
	PID     int
	cmd     *exec.Cmd
	ended   chan struct{}
}

// Kill ends it and waits until it has ended.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// Start returns once it serves. After an error nothing is left of it.
func Start(ctx context.Context, c Config) (p *Process, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot make its control socket: %w", err)
	}
	far := os.NewFile(uintptr(pair[1]), "control")
	defer far.Close()
	if err := unix.SetNonblock(pair[0], true); err != nil {
		unix.Close(pair[0])
		return nil, err
	}
	control := os.NewFile(uintptr(pair[0]), "control")
	defer func() {
		if err != nil {
			control.Close()
		}
	}()
	p = &Process{Control: control, ended: make(chan struct{})}
	files := append(append([]*os.File{far}, c.Sockets...), c.Program)
	attr := c.Attr
	attr.Setsid = true // keys at a terminal are for others
	p.cmd = &exec.Cmd{
		// Go places ExtraFiles from 3 on.
		Path: fmt.Sprintf("/proc/self/fd/%d", controlFD+len(files)-1), Args: []string{"carrel-egress", c.Workspace},
		Env: environ(), Dir: "/", ExtraFiles: files, SysProcAttr: &attr,
	}
	if c.Log != nil {
		p.cmd.Stderr = c.Log
	}
	if c.On == nil {
		err = p.cmd.Start()
	} else {
		err = c.On(p.cmd.Start)
	}
	if err != nil {
		return nil, err
	}
	p.PID = p.cmd.Process.Pid
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	far.Close() // its end is to be seen
	if err := p.greet(ctx); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

// environ is where the host's certificate authorities are, if this process was told (crypto/x509). Nothing else of its
// environment is handed on.
func environ() []string {
	env := []string{"GODEBUG=disablethp=1"}
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// greet has it serve without a rule. What its control socket carries then is for who gets it.
func (p *Process) greet(ctx context.Context) error {
	end, _ := ctx.Deadline()
	if err := p.Control.SetDeadline(end); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.Control.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := p.Control.WriteString(setup); err != nil {
		return err
	}
	line := make([]byte, len(ready)) // and no byte more
	if _, err := io.ReadFull(p.Control, line); err != nil {
		return fmt.Errorf("it ended before it served: %w", err)
	}
	if string(line) != ready {
		return fmt.Errorf("it says %q…, and does not serve: %w", line, os.ErrInvalid)
	}
	return p.Control.SetDeadline(time.Time{})
}
