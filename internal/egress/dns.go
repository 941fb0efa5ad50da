package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/proxy"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// lookup returns the address that stands for a name, if any port of it may be reached.
func (s *Server) lookup(name string) (netip.Addr, bool) {
	began := time.Now()
	h, err := netrule.ParseHost(name)
	if err == nil && h.Name() == "" {
		err = fmt.Errorf("an address was asked for as a name: %w", errdefs.ErrInvalidArgument)
	}
	if err != nil {
		// The text of the error quotes the query, so that no two refusals would be equal.
		s.refuseDNS(began, netrule.Target{}, "the query is not for the name of a host")
		return netip.Addr{}, false
	}
	if invalid(h) {
		return netip.Addr{}, false
	}
	t := netrule.Target{Host: h}
	s.mu.Lock()
	reaches := s.rules.Reaches(h)
	if modelName(h) {
		reaches = s.models[h] != nil
	}
	var a netip.Addr
	room := false
	if reaches {
		a, room = s.names.assign(h)
	}
	s.mu.Unlock()
	switch {
	case !reaches && modelName(h):
		s.refuseDNS(began, t, h.String()+" is not allowed: there is no such model")
	case !reaches:
		s.refuseDNS(began, t, h.String()+" is not allowed: no rule allows any port of it")
	case !room:
		s.refuseDNS(began, netrule.Target{}, fmt.Sprintf("%d names have been asked for already", s.cfg.Limits.Names))
	}
	return a, room
}

func (s *Server) refuseDNS(began time.Time, t netrule.Target, why string) {
	s.refused.add(Connection{Began: began, Duration: time.Since(began), Way: WayDNS, Target: t, Refused: why})
}

// answer returns the reply to a query, and false if none is to be sent.
func (s *Server) answer(query []byte) ([]byte, bool) {
	if now := time.Now(); !s.takeDNS(now) {
		s.refuseDNS(now, netrule.Target{}, "there are too many queries")
		return nil, false
	}
	return proxy.Answer(query, s.lookup)
}

// dnsPackets answers queries over UDP.
func (s *Server) dnsPackets(ctx context.Context) error {
	conn := s.cfg.Listeners.DNS
	buf := make([]byte, 2*proxy.MaxDNS) // a longer query is cut, and refused for its length anyway
	for {
		n, from, err := conn.ReadFrom(buf)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed), !passing(err):
			return fmt.Errorf("cannot receive DNS queries: %w: %w", err, errdefs.ErrUnavailable)
		default:
			pause(ctx)
			continue
		}
		if reply, ok := s.answer(buf[:n]); ok {
			_, _ = conn.WriteTo(reply, from)
		}
	}
}

// dnsStream answers queries over TCP until the client closes the connection or is too slow.
func (s *Server) dnsStream(_ context.Context, x *session) {
	for {
		_ = x.client.SetDeadline(time.Now().Add(s.cfg.Limits.Handshake))
		query, err := proxy.ReadDNS(x.client)
		if err != nil {
			return
		}
		reply, ok := s.answer(query)
		if !ok || proxy.WriteDNS(x.client, reply) != nil {
			return
		}
	}
}
