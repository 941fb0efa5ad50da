package api

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"

	"github.com/carrel-dev/carrel/internal/authn"
	"github.com/carrel-dev/carrel/internal/principal"
)

// How many connections one user may hold at once, and an administrator: a service of the
// host's may serve many people by one user. One too many is closed without an answer.
// Those of whom nothing is known, who are refused each request, share a few.
//
// The same for one address over TLS, where nobody is known before a token comes, and for all
// addresses together: those on the Unix socket have room left.
const (
	maxUserConns    = 64
	maxAdminConns   = 1024
	maxUnknownConns = 16
	maxAddressConns = 64
	maxRemoteConns  = 512
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

// add counts c in, unless p, or the address from which it comes, has as many as may be.
func (s *connections) add(c net.Conn, p principal.Principal, from string) bool {
	limit, who := maxUserConns, []string{p.String()}
	_, encrypted := c.(*tls.Conn)
	switch {
	case encrypted:
		limit, who = maxAddressConns, []string{"from " + from, remote}
	case p.Kind != principal.User && p.Kind != principal.System:
		limit = maxUnknownConns
	case p.Kind == principal.System || p.Admin || p.UID == 0:
		limit = maxAdminConns
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[who[0]] >= limit || s.held[remote] >= maxRemoteConns && encrypted {
		return false
	}
	if s.open == nil {
		s.open, s.held = map[net.Conn][]string{}, map[string]int{}
	}
	s.open[c] = who
	for _, w := range who {
		s.held[w]++
	}
	return true
}

// count is how many are open.
func (s *connections) count() int {
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
		if p := authn.FromContext(ctx); !s.conns.add(c, p, authn.From(ctx)) {
			s.opts.Log.Warn("a connection was refused: its user, or its address, has as many as may be", "principal", p, "from", authn.From(ctx))
			c.Close()
		}
		return ctx
	}
}

// connState counts a connection out when it has closed. One that was turned over to
// another protocol counts itself out.
func (s *Server) connState(c net.Conn, state http.ConnState) {
	if state == http.StateClosed {
		s.conns.remove(c)
	}
}

// Connections is how many connections are open.
func (s *Server) Connections() int { return s.conns.count() }
