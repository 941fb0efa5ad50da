package api

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"

	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// How many connections one user may hold at once, and an administrator: a service of the
// host's may serve many people by one user. One too many is closed without an answer.
// Those of whom nothing is known, who are refused each request, share a few.
//
// Over TLS nobody is known before a token comes: an address may have so many, and of IPv6 the network that
// a customer has. Those on which a good token came are counted by its owner too, and together: those on the
// Unix socket have room left. The others are strangers, who are bounded apart.
const (
	maxUserConns    = 64
	maxAdminConns   = 1024
	maxUnknownConns = 16
	maxAddressConns = 64
	maxNetworkConns = 128
	maxRemoteConns  = 512
	// maxLoopConns is how many a loopback address, and an owner on it, may have without TLS: all users of the host share that, and programs
	// that speak HTTP/1.1 need one for each request at a time.
	maxLoopConns = 256
)

// remote is under which name connections over TLS are counted together.
const remote = "remote"

// connections counts the open connections of each user, so that none of them can keep
// the others out by taking all descriptors that the daemon may have.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn][]string // whose it is
	held map[string]int
}

// bound is how many connections somebody may have.
type bound struct {
	who  string
	most int
}

// add counts c in, unless p has as many as may be.
func (s *connections) add(c net.Conn, p principal.Principal) bool {
	limit := maxUserConns
	switch {
	case p.Kind != principal.User && p.Kind != principal.System:
		limit = maxUnknownConns
	case p.Kind == principal.System || p.Admin || p.UID == 0:
		limit = maxAdminConns
	}
	return s.count(c, bound{p.String(), limit})
}

// addFrom counts c in, unless the address from which it comes, or a network of it, has as many as may be.
func (s *connections) addFrom(c net.Conn, networks []string) bool {
	if loops(c) {
		return s.count(c, bound{"from " + networks[0], maxLoopConns})
	}
	bounds := []bound{{"from " + networks[0], maxAddressConns}}
	for _, n := range networks[1:] {
		bounds = append(bounds, bound{"from " + n, maxNetworkConns})
	}
	return s.count(c, bounds...)
}

// known counts c, which has been counted in, for p too.
func (s *connections) known(c net.Conn, p principal.Principal) bool {
	limit := maxUserConns
	switch {
	case p.RolesOf()&principal.Roles(principal.Admin) != 0:
		limit = maxAdminConns
	case loops(c):
		limit = maxLoopConns
	}
	return s.count(c, bound{"tokens of " + p.Owner(), limit}, bound{remote, maxRemoteConns})
}

// loops reports whether a connection comes from this host, without TLS.
func loops(c net.Conn) bool {
	_, encrypted := c.(*tls.Conn)
	a, ok := c.RemoteAddr().(*net.TCPAddr)
	return !encrypted && ok && a.IP.IsLoopback()
}

func (s *connections) count(c net.Conn, bounds ...bound) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range bounds {
		if s.held[b.who] >= b.most {
			return false
		}
	}
	if s.open == nil {
		s.open, s.held = map[net.Conn][]string{}, map[string]int{}
	}
	for _, b := range bounds {
		s.open[c] = append(s.open[c], b.who)
		s.held[b.who]++
	}
	return true
}

// number is how many are open.
func (s *connections) number() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// remove counts c out. One that was not counted in is no error.
func (s *connections) remove(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	who, ok := s.open[c]
	if !ok {
		return
	}
	delete(s.open, c)
	for _, w := range who {
		if s.held[w]--; s.held[w] == 0 {
			delete(s.held, w)
		}
	}
}

// connContext authenticates a connection and counts it in. A refused one is closed: what
// is read from it then is an error.
func (s *Server) connContext(who func(context.Context, net.Conn) context.Context) func(context.Context, net.Conn) context.Context {
	return func(ctx context.Context, c net.Conn) context.Context {
		ctx = who(ctx, c)
		p, ok := authn.FromContext(ctx), false
		if _, local := c.(*net.UnixConn); local {
			ok = s.conns.add(c, p)
		} else {
			ctx, ok = s.receive(ctx, c)
		}
		if !ok {
			s.opts.Log.Warn("a connection was refused: its user, or its address, has as many as may be", "principal", p, "from", authn.From(ctx))
			c.Close()
		}
		return ctx
	}
}

// connState counts a connection out when it has closed. One that was turned over to
// another protocol counts itself out.
func (s *Server) connState(c net.Conn, state http.ConnState) {
	if state != http.StateClosed {
		return
	}
	s.conns.remove(c)
	if encrypted, ok := c.(*tls.Conn); ok {
		if v, ok := encrypted.NetConn().(*visitor); ok {
			s.strangers.leave(v)
		}
	}
}

// Connections is how many connections are open.
func (s *Server) Connections() int { return s.conns.number() }
