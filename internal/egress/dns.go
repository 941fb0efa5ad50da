package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
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
	if reverse(h) { // a rule for it would change nothing
		s.refuseDNS(began, netrule.Target{}, "the names of addresses are not looked up")
		return netip.Addr{}, false
	}
	t := netrule.Target{Host: h}
	if base, err := baseOf(name, mostLabels); err == nil { // a rule for it takes no other
		t.Host = base
	}
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
		s.refuseDNS(began, t, t.Host.String()+" is not allowed: no rule allows any port of it")
	case !room:
		s.refuseDNS(began, netrule.Target{}, fmt.Sprintf("%d names have been asked for already", s.cfg.Limits.Names))
	}
	return a, room
}

func (s *Server) refuseDNS(began time.Time, t netrule.Target, why string) {
	s.refused.add(Connection{Began: began, Duration: time.Since(began), Way: WayDNS, Target: t, Refused: why})
}

const (
	// mostLookups is how many lookups of records go on at once for queries over UDP.
	mostLookups = 16
	// mostLabels is how many labels of a service a name may have before that of a host.
	mostLabels = 2
)

// reverse reports whether a name stands for an address (RFC 1035, 3.5; RFC 3596, 2.5).
func reverse(h netrule.Host) bool {
	return strings.HasSuffix(h.Name(), ".in-addr.arpa") || strings.HasSuffix(h.Name(), ".ip6.arpa")
}

// baseOf returns the host of a name without its first labels that name a service, as _xmpp._tcp; at most so many.
func baseOf(name string, most int) (netrule.Host, error) {
	for range most {
		if label, rest, ok := strings.Cut(name, "."); ok && strings.HasPrefix(label, "_") {
			name = rest
		}
	}
	h, err := netrule.ParseHost(name)
	if err == nil && (h.Name() == "" || strings.HasPrefix(name, "_")) {
		err = fmt.Errorf("it is no name of a host: %w", errdefs.ErrInvalidArgument)
	}
	return h, err
}

// records looks up the records of a name, some port of whose host may be reached.
func (s *Server) records(ctx context.Context, name string, services bool) (r proxy.Records) {
	began := time.Now()
	h, err := baseOf(name, mostLabels)
	if err != nil || invalid(h) || modelName(h) || reverse(h) {
		return proxy.Records{Missing: true}
	}
	s.mu.Lock()
	reaches := s.rules.Reaches(h)
	s.mu.Unlock()
	if !reaches {
		s.refuseDNS(began, netrule.Target{Host: h}, h.String()+" is not allowed: no rule allows any port of it")
		return proxy.Records{Missing: true}
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Limits.Dial)
	defer cancel()
	switch {
	case services && s.cfg.Services != nil:
		var found []*net.SRV
		found, err = s.cfg.Services(ctx, name)
		for _, x := range found {
			r.Services = append(r.Services, proxy.Service{Target: x.Target, Port: x.Port, Priority: x.Priority, Weight: x.Weight})
		}
	case !services && s.cfg.Text != nil:
		r.Text, err = s.cfg.Text(ctx, name)
	}
	if e := (*net.DNSError)(nil); errors.As(err, &e) && e.IsNotFound {
		return proxy.Records{}
	}
	if err != nil {
		return proxy.Records{Failed: true}
	}
	return r
}

// answer returns the reply to a query in at most so many bytes, and false if none is to be sent. later is what has to be looked up
// first; then there is no reply yet.
func (s *Server) answer(query []byte, most int) (reply []byte, later func(context.Context) ([]byte, bool), ok bool) {
	if now := time.Now(); !s.takeDNS(now) {
		s.refuseDNS(now, netrule.Target{}, "there are too many queries")
		return nil, nil, false
	}
	if name, services, is := proxy.RecordsAsked(query); is {
		return nil, func(ctx context.Context) ([]byte, bool) {
			return proxy.AnswerRecords(query, s.records(ctx, name, services), most)
		}, true
	}
	reply, ok = proxy.Answer(query, s.lookup)
	return reply, nil, ok
}

// lookUp answers a query for records that came over UDP, beside the others. With too many at once it says that it failed.
func (s *Server) lookUp(ctx context.Context, query []byte, send func([]byte)) {
	name, services, _ := proxy.RecordsAsked(query)
	select {
	case s.lookups <- struct{}{}:
		s.wg.Go(func() {
			defer func() { <-s.lookups }()
			if reply, ok := proxy.AnswerRecords(query, s.records(ctx, name, services), proxy.MaxDNS); ok {
				send(reply)
			}
		})
	default:
		if reply, ok := proxy.AnswerRecords(query, proxy.Records{Failed: true}, proxy.MaxDNS); ok {
			send(reply)
		}
	}
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
		reply, later, ok := s.answer(buf[:n], proxy.MaxDNS)
		switch {
		case !ok:
		case later == nil:
			_, _ = conn.WriteTo(reply, from)
		default:
			s.lookUp(ctx, slices.Clone(buf[:n]), func(reply []byte) { _, _ = conn.WriteTo(reply, from) })
		}
	}
}

// dnsStream answers queries over TCP until the client closes the connection or is too slow.
func (s *Server) dnsStream(ctx context.Context, x *session) {
	for {
		_ = x.client.SetDeadline(time.Now().Add(s.cfg.Limits.Handshake))
		query, err := proxy.ReadDNS(x.client)
		if err != nil {
			return
		}
		reply, later, ok := s.answer(query, proxy.MaxDNSTCP)
		if later != nil {
			reply, ok = later(ctx)
			_ = x.client.SetDeadline(time.Now().Add(s.cfg.Limits.Handshake))
		}
		if !ok || proxy.WriteDNS(x.client, reply) != nil {
			return
		}
	}
}
