package namespace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Dial implements runtime.Runtime.
func (r *Runtime) Dial(ctx context.Context, p permit.Permit, port int) (*net.TCPConn, error) {
	name, err := p.Workspace()
	if err != nil {
		return nil, err
	}
	l, err := r.link(ctx, name)
	if err != nil {
		return nil, err
	}
	// What listens may take its time, so this says nothing of whether the executor answers: a ping does.
	ctx, cancel := context.WithTimeoutCause(ctx, execapi.DialTimeout+patience, l.unanswered(execapi.MethodDial))
	defer cancel()
	files, err := l.conn.Call(ctx, execapi.MethodDial, execapi.DialParams{Port: port}, nil)
	switch {
	case errors.Is(err, runtime.ErrSilent):
		r.background(func() { _ = l.ping() })
		return nil, err
	case errdefs.IsNotImplemented(err):
		return nil, older(fmt.Sprintf("connect to port %d", port), name)
	case err != nil:
		return nil, l.explain(ctx, err)
	}
	c, err := connection(files, port)
	if err != nil {
		return nil, fmt.Errorf("cannot use the connection to port %d of workspace %s: %w: %w", port, name, err, errdefs.ErrInternal)
	}
	return c, nil
}

// older is the error of an executor that does not know a method.
func older(what string, name id.Workspace) error {
	return fmt.Errorf("cannot %s: the executor of workspace %s is of an older release; stop and start the workspace: %w", what, name,
		errdefs.ErrFailedPrecondition)
}

// only is the one descriptor that an executor was to send. Others are closed.
func only(files []*os.File) (*os.File, error) {
	if len(files) == 1 {
		return files[0], nil
	}
	for _, f := range files {
		f.Close()
	}
	return nil, fmt.Errorf("%d descriptors came instead of one", len(files))
}

// connection takes what an executor sent for a connection: one TCP socket, connected to that port of a loopback address.
func connection(files []*os.File, port int) (*net.TCPConn, error) {
	f, err := only(files)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	t, ok := c.(*net.TCPConn)
	if ok {
		to, is := t.RemoteAddr().(*net.TCPAddr)
		ok = is && to.IP.IsLoopback() && to.Port == port
	}
	if !ok {
		c.Close()
		return nil, errors.New("it is no TCP connection to that port of a loopback address")
	}
	return t, nil
}

// Gone implements runtime.Runtime.
func (r *Runtime) Gone(ctx context.Context, name id.Workspace) (<-chan struct{}, error) {
	l, err := r.link(ctx, name)
	if err != nil {
		return nil, err
	}
	return l.past, nil
}
