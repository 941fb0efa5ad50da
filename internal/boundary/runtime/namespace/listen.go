package namespace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Listen implements runtime.Runtime.
func (r *Runtime) Listen(ctx context.Context, p permit.Permit, task id.Command) (*net.UnixListener, error) {
	name, err := p.Workspace()
	if err != nil {
		return nil, err
	}
	files, err := r.ask(ctx, name, execapi.MethodListen, execapi.ListenParams{Task: task}, nil)
	if errdefs.IsNotImplemented(err) {
		return nil, older(fmt.Sprintf("open a socket for task %s", task), name)
	}
	if err != nil {
		return nil, err
	}
	l, err := listener(files, execapi.Listening(task))
	if err != nil {
		return nil, fmt.Errorf("cannot use the socket of task %s in workspace %s: %w: %w", task, name, err, errdefs.ErrInternal)
	}
	return l, nil
}

// listener takes what an executor sent for a listening socket: one Unix stream socket that listens, at that name.
func listener(files []*os.File, name string) (*net.UnixListener, error) {
	f, err := only(files)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	listens := 0
	cerr := conn.Control(func(fd uintptr) { listens, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN) })
	if err = errors.Join(cerr, err); err != nil || listens != 1 {
		return nil, errors.New("it is no socket that listens")
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok || u.Addr().Network() != "unix" || u.Addr().String() != name {
		l.Close()
		return nil, errors.New("it is no Unix stream socket of that name")
	}
	u.SetUnlinkOnClose(false) // there is no file
	return u, nil
}
