package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/netns"
	"github.com/carrel-dev/carrel/internal/egress/proxy"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// transparent serves a connection whose local address is the one that the program dialled.
func (s *Server) transparent(ctx context.Context, x *session) {
	if x.probe() {
		return
	}
	err := x.dialled(ctx)
	if err == nil {
		x.tunnel(ctx, x.had)
		return
	}
	if errors.Is(err, errSilent) {
		return
	}
	x.refuse(err)
	// A reset would say nothing, so the reason is told where the protocol has a way to.
	_ = x.client.SetReadDeadline(time.Now().Add(min(goodbye, s.cfg.Limits.Handshake)))
	first, _, unread := proxy.ReadFirst(x.had, &heads{x: x})
	if unread != nil {
		first.Protocol = proxy.Opaque
	}
	x.farewell(first, proxy.AlertAccessDenied, err)
}

// dialled connects a session to the host that its local address stands for, or else to that address.
func (x *session) dialled(ctx context.Context) error {
	local, ok := x.client.LocalAddr().(*net.TCPAddr)
	if !ok {
		return fmt.Errorf("the connection has no address of TCP: %w", errdefs.ErrInvalidArgument)
	}
	to := netip.AddrPortFrom(local.AddrPort().Addr().Unmap(), local.AddrPort().Port())
	if h, known := x.s.standsFor(to.Addr()); known {
		return x.reach(ctx, netrule.Target{Host: h, Port: to.Port()})
	}
	t, err := netrule.ParseTarget(to.String())
	if err != nil {
		return unreadable{err}
	}
	if netns.Names.Contains(to.Addr()) { // one of an earlier process, or made up
		x.c.Target = t
		return refusal{to.String() + " is not allowed: no name has this address", errdefs.ErrPermissionDenied}
	}
	return x.reach(ctx, t)
}

// standsFor returns the name that an address stands for.
func (s *Server) standsFor(a netip.Addr) (netrule.Host, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.names.host[a.Unmap()]
	return h, ok
}
