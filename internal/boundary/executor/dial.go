package executor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// loopback are the addresses at which a port is looked for, in this order. No other is connected to: what a workspace reaches
// beyond them is a question for its network rules, and nobody who is outside asks it.
var loopback = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// dial connects to a port of the workspace's loopback and hands the socket over. What listens there belongs to the workspace,
// so that it may take its time: the request does not wait on the loop's thread, and not for ever.
func (p *peer) dial(r *jsonrpc.Request, in *execapi.DialParams) (any, []*os.File, error) {
	if in.Port < 1 || in.Port > 65535 {
		return nil, nil, fmt.Errorf("cannot connect to port %d: a port is from 1 to 65535: %w", in.Port, errdefs.ErrInvalidArgument)
	}
	e := p.e
	if n := e.dials.Add(1); n > execapi.MaxDials {
		e.dials.Add(-1)
		return nil, nil, fmt.Errorf("cannot connect to port %d: %d connections are being opened, the most at once; try again: %w", in.Port,
			execapi.MaxDials, errdefs.ErrResourceExhausted)
	}
	go func() {
		defer e.dials.Add(-1)
		f, err := connect(e.ctx, in.Port, execapi.DialTimeout)
		if err != nil {
			r.Reply(nil, nil, err)
			return
		}
		r.Reply(struct{}{}, []*os.File{f}, nil)
	}()
	return jsonrpc.Later, nil, nil
}

// connect returns a socket that is connected to a port of the loopback.
func connect(ctx context.Context, port int, limit time.Duration) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var err error
	for _, a := range loopback {
		var c net.Conn
		// Not a bare connect: a socket may be given the very port that it connects to, and then is connected to itself. Go sees that.
		c, err = (&net.Dialer{KeepAlive: -1}).DialContext(ctx, "tcp", net.JoinHostPort(a.String(), strconv.Itoa(port)))
		if err == nil {
			defer c.Close()
			return c.(*net.TCPConn).File()
		}
		if ctx.Err() != nil || !absent(err) {
			break
		}
	}
	slow, _ := errors.AsType[net.Error](err)
	switch {
	case slow != nil && slow.Timeout():
		return nil, fmt.Errorf("cannot connect to port %d: what listens there has accepted no connection for %v: %w", port, limit,
			context.DeadlineExceeded)
	case absent(err):
		return nil, fmt.Errorf("cannot connect to port %d: nothing listens there, on 127.0.0.1 or ::1 of the workspace; start what is to "+
			"listen first: %w", port, errdefs.ErrUnavailable)
	}
	return nil, fmt.Errorf("cannot connect to port %d: %w", port, err)
}

// absent reports whether nothing listens at an address, or the workspace has no such address.
func absent(err error) bool {
	for _, e := range []unix.Errno{unix.ECONNREFUSED, unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT, unix.ENETUNREACH} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
