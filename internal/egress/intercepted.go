package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// inner is what a session has while it is intercepted. It is under the server's mutex.
type inner struct {
	by    *intercept.Interceptor
	later map[*laterConn]netip.Addr // connections to the host after the first
}

func (i *inner) conns() (all []net.Conn) {
	for c := range i.later {
		all = append(all, c.Conn)
	}
	return all
}

// SetIntercept replaces what Config has as Intercept. Connections that another intercepted are cut: their secrets may
// have been taken back. When SetIntercept returns, no byte of them moves any more.
func (s *Server) SetIntercept(i *intercept.Interceptor) {
	var victims []*session
	s.mu.Lock()
	s.inside = i
	for x := range s.sessions {
		if x.inner.by != nil && x.inner.by != i {
			victims = append(victims, x)
		}
	}
	s.mu.Unlock()
	for _, x := range victims {
		x.cut("the secrets have changed")
	}
}

// intercept reads a session, inside TLS unless it is plain. Its connection to the host has not been used.
func (x *session) intercept(ctx context.Context, r reader, had []byte) {
	if x.received.Load() > 0 {
		x.refuse(refusal{
			x.c.Target.String() + " spoke before the program began TLS, so no secret is sent to it", errdefs.ErrPermissionDenied,
		})
		return
	}
	x.giveHead()
	_ = x.up.SetReadDeadline(time.Time{})
	x.s.stir()
	defer x.s.stir()
	var begun atomic.Bool
	dial := func(ctx context.Context) (net.Conn, error) {
		if !begun.Swap(true) {
			return x.up, nil
		}
		return x.again(ctx)
	}
	// The end of the server cuts the session, which ends Serve: so the record says why.
	got := r.by.Serve(context.WithoutCancel(ctx), &programConn{Conn: x.client, had: had, x: x}, x.c.Target,
		intercept.Way{Dial: dial, Plain: r.plain, Judged: r.judged, Admit: x.admit, Room: x.s.cfg.Room})
	x.c.Secrets, x.c.Requests = got.Secrets, got.Requests
	x.firstRule()
	if got.Refused != "" {
		x.refuse(errors.New(got.Refused))
	}
}

// again connects once more to a session's host, by the rules and addresses of now.
func (x *session) again(ctx context.Context) (net.Conn, error) {
	s, t := x.s, x.c.Target
	s.mu.Lock()
	rules := s.rules
	err := x.judged(t, rules.Judge(t))
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	up, to, err := s.connect(ctx, rules, t)
	if err != nil {
		return nil, err
	}
	c := &laterConn{up, x}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || x.why != "" {
		err = fmt.Errorf("the connection has been cut: %w", errdefs.ErrUnavailable)
	} else {
		err = x.may(s.rules, t, to.Addr())
	}
	if err != nil {
		abort(up)
		return nil, err
	}
	if x.inner.later == nil {
		x.inner.later = map[*laterConn]netip.Addr{}
	}
	x.inner.later[c] = to.Addr()
	return c, nil
}

// allowed judges a session's target, every address that it is connected to, and what it carries. The server's mutex is held.
func (x *session) allowed(r *netrule.Rules) error {
	err := x.may(r, x.c.Target, x.c.Address.Addr())
	for _, a := range x.inner.later {
		if err == nil {
			err = x.may(r, x.c.Target, a)
		}
	}
	if err == nil {
		err = x.still(r)
	}
	return err
}

// laterConn is a connection to the host after the first.
type laterConn struct {
	net.Conn
	x *session
}

func (c *laterConn) Close() error {
	c.x.s.mu.Lock()
	delete(c.x.inner.later, c)
	c.x.s.mu.Unlock()
	return c.Conn.Close()
}

// programConn is a client's connection, of which some bytes were read before. It counts those of both directions.
type programConn struct {
	net.Conn
	had []byte
	x   *session
}

func (c *programConn) Read(p []byte) (n int, err error) {
	if len(c.had) > 0 {
		n = copy(p, c.had)
		c.had = c.had[n:]
	} else {
		n, err = c.Conn.Read(p)
	}
	c.x.sent.Add(int64(n))
	return n, err
}

func (c *programConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.x.received.Add(int64(n))
	return n, err
}

// CloseWrite ends the direction to the client.
func (c *programConn) CloseWrite() error {
	closeWrite(c.Conn)
	return nil
}
