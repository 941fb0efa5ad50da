package apitest

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/wire/portconn"
)

// PublishPort implements api.Gate: it stays until it is released.
func (g *Gate) PublishPort(ctx context.Context, p principal.Principal, _ string, _ int) (context.Context, func(), error) {
	if err := g.permit(p, operation.OpenPort); err != nil {
		return nil, nil, err
	}
	held, end := context.WithCancel(ctx)
	return held, end, nil
}

// DialPort implements api.Gate: it connects to g.Port on this host's loopback, which stands for that of a workspace.
func (g *Gate) DialPort(_ context.Context, p principal.Principal, ref string, port int) (*portconn.Conn, error) {
	if err := g.permit(p, operation.ConnectPort); err != nil {
		return nil, err
	}
	if g.Port == 0 {
		return nil, fmt.Errorf("cannot connect to port %d of %s: nothing listens there: %w", port, ref, errdefs.ErrUnavailable)
	}
	return Loopback(g.Port)
}

// Loopback is a connection to a port of this host.
func Loopback(port int) (*portconn.Conn, error) {
	c, err := net.DialTCP("tcp", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return nil, err
	}
	return portconn.New(c, time.Hour, nil), nil
}

// PublishPort implements api.Gate.
func (r *Recorder) PublishPort(_ context.Context, _ principal.Principal, ref string, port int) (context.Context, func(), error) {
	return nil, nil, r.note("PublishPort", ref, port)
}

// DialPort implements api.Gate.
func (r *Recorder) DialPort(_ context.Context, _ principal.Principal, ref string, port int) (*portconn.Conn, error) {
	return nil, r.note("DialPort", ref, port)
}
