package keeper

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/containerd/errdefs"
)

// Remote starts carrel-egress through another process, which holds the workspace's sockets. The function ends the
// earlier carrel-egress of the workspace, starts one, and returns the near end of its control socket, a Unix stream
// socket. It must return by the end of its context.
//
// Only the socket is seen here: the process has ended when the socket has, and closing the socket is all that ends it.
// One that hangs is ended by the next call of the function.
type Remote func(ctx context.Context) (*os.File, error)

var _ Starter = Remote(nil)

// Start implements Starter.
func (r Remote) Start(ctx context.Context) (*Process, error) {
	f, err := r(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot start carrel-egress: %w", err)
	}
	control, err := connOf(f)
	if err != nil {
		return nil, fmt.Errorf("cannot speak with carrel-egress: %w", err)
	}
	var killed atomic.Bool
	return &Process{
		Control: control,
		Kill: func() {
			killed.Store(true)
			control.Close()
		},
		Wait: func() error {
			if killed.Load() {
				return fmt.Errorf("it did not answer in time: %w", errdefs.ErrUnavailable)
			}
			return nil
		},
	}, nil
}

// Close implements Starter.
func (Remote) Close() {}
