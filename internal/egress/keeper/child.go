package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Child starts carrel-egress as a child of this process, with its uid.
type Child struct {
	// Binary is the path of carrel-egress. Required.
	Binary string
	// Sockets are those of package netns, in their order. They become the Child's.
	Sockets []*os.File
}

var _ Starter = (*Child)(nil)

// Start implements Starter.
func (c *Child) Start(ctx context.Context) (*Process, error) {
	near, far, err := pair()
	if err != nil {
		return nil, fmt.Errorf("cannot start carrel-egress: %w", err)
	}
	stderr := &tail{}
	// It ends with the control socket, and not with the context of its start.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), c.Binary)
	cmd.Args = []string{"carrel-egress"}
	cmd.Env, cmd.Dir, cmd.Stderr = environ(), "/", stderr
	cmd.ExtraFiles = append([]*os.File{far}, c.Sockets...)
	// A session of its own: keys at the terminal are for the command.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	far.Close() // its end is to be seen here
	if err != nil {
		near.Close()
		return nil, fmt.Errorf("cannot start carrel-egress: %w", err)
	}
	wait := func() error {
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("%w%s", err, stderr.text())
		}
		return nil
	}
	return &Process{Control: near, PID: cmd.Process.Pid, Kill: func() { _ = cmd.Process.Kill() }, Wait: wait}, nil
}

// Close closes the sockets, so that who connects inside is refused instead of waiting.
func (c *Child) Close() {
	for _, f := range c.Sockets {
		f.Close()
	}
}

// pair makes a control socket.
func pair() (near *net.UnixConn, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	f, far := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	if near, err = connOf(f); err != nil {
		return nil, nil, errors.Join(err, far.Close())
	}
	return near, far, nil
}

// connOf returns the connection of a socket, and closes f.
func connOf(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s is not a Unix socket: %w", f.Name(), errdefs.ErrInvalidArgument), c.Close())
	}
	return u, nil
}

// environ is where the host's certificate authorities are, if that is set (crypto/x509). Nothing else of the
// environment is handed on.
func environ() []string {
	env := []string{}
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailBytes = 1 << 10

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	t.b = t.b[max(0, len(t.b)-tailBytes):]
	return len(b), nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(bytes.TrimSpace(t.b)) == 0 {
		return ""
	}
	return ": " + strings.TrimSpace(string(t.b))
}
