package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/netns"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// ways is the near end of the socket over which the first stage sends the sockets for carrel-egress. It is nil
// for a workspace without egress.
type ways struct{ from *os.File }

// openWays makes the socket if c has a use for it.
func (in *inheritance) openWays(c *Config) (*ways, error) {
	c.Spec.Net.Egress = c.Ways != nil
	if c.Ways == nil {
		return nil, nil
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot make the socket for the ways out: %w", err)
	}
	if err := unix.SetNonblock(pair[0], true); err != nil {
		unix.Close(pair[0])
		unix.Close(pair[1])
		return nil, err
	}
	in.ways = pair[1]
	return &ways{os.NewFile(uintptr(pair[0]), "ways")}, nil
}

func (w *ways) close() {
	if w != nil {
		w.from.Close()
	}
}

// serve runs start, and concurrently passes the sockets to use. If one fails, the other is cancelled.
func (w *ways) serve(
	ctx context.Context, use func(context.Context, []*os.File) error, start func(context.Context) (workspace.Report, error),
) (workspace.Report, error) {
	if w == nil {
		return start(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _ = w.from.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	done := make(chan error, 1)
	go func() {
		sockets, err := w.receive()
		if err == nil {
			err = use(ctx, sockets)
		}
		if err != nil && !errors.Is(err, errEnded) { // start knows better why that ended
			cancel(err)
		}
		done <- err
	}()
	report, err := start(ctx)
	if err != nil {
		// A start without its way out says that a check failed; use says why.
		stop := time.AfterFunc(reasonWithin, func() { cancel(err) })
		defer stop.Stop()
	}
	uerr := <-done
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err == nil {
		err = uerr
	}
	return report, err
}

// reasonWithin is how long a failed start waits for what use has to say.
const reasonWithin = time.Second

var errEnded = fmt.Errorf("cannot receive the sockets for the ways out: the executor ended before: %w", errdefs.ErrUnavailable)

// receive waits for the sockets.
func (w *ways) receive() ([]*os.File, error) {
	conn, err := w.from.SyscallConn()
	if err != nil {
		return nil, err
	}
	data, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4*int(netns.Count)))
	var n, oobn, flags int
	var rerr error
	err = conn.Read(func(fd uintptr) bool {
		n, oobn, flags, _, rerr = unix.Recvmsg(int(fd), data, rights, unix.MSG_CMSG_CLOEXEC)
		return rerr != unix.EAGAIN
	})
	if err == nil {
		err = rerr
	}
	if err != nil {
		return nil, fmt.Errorf("cannot receive the sockets for the ways out: %w", err)
	}
	if n == 0 {
		return nil, errEnded
	}
	var sockets []*os.File
	all, err := unix.ParseSocketControlMessage(rights[:oobn])
	for _, m := range all {
		fds, _ := unix.ParseUnixRights(&m)
		for _, fd := range fds {
			sockets = append(sockets, os.NewFile(uintptr(fd), "way"))
		}
	}
	if err != nil || flags&unix.MSG_CTRUNC != 0 || len(sockets) != int(netns.Count) {
		closeAll(sockets)
		return nil, fmt.Errorf("cannot receive the sockets for the ways out: %d came, not %d: %w", len(sockets), netns.Count, errdefs.ErrInternal)
	}
	return sockets, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
