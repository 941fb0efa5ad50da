package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/proxy"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// proxied serves a connection to the proxy. Its first byte tells SOCKS5 from HTTP.
func (s *Server) proxied(ctx context.Context, x *session) {
	_ = x.client.SetDeadline(time.Now().Add(s.cfg.Limits.Handshake))
	had := make([]byte, 1, 512)
	if _, err := io.ReadFull(x.client, had); err != nil {
		x.refuse(early(err))
		return
	}
	if had[0] == proxy.SOCKSVersion {
		x.c.Way = WaySOCKS
		s.socks(ctx, x, had)
		return
	}
	h, read, err := proxy.ReadHead(had, &heads{x: x})
	switch {
	case errdefs.IsInvalidArgument(err), errors.Is(err, full):
		x.refuse(err)
		x.say(x.refusalText("", err))
		return
	case err != nil:
		x.refuse(early(err))
		return
	}
	x.c.Way = WayHTTP
	if h.Form == proxy.Authority {
		x.c.Way = WayConnect
	}
	err = x.requested(ctx, h)
	if err != nil {
		x.refuse(err)
		x.say(x.refusalText(h.Accept, err))
		return
	}
	_ = x.client.SetDeadline(time.Time{})
	if h.Form == proxy.Absolute {
		s.relay(x, h, read)
		return
	}
	if _, err := io.WriteString(x.client, "HTTP/1.1 200 Connection established\r\n\r\n"); err == nil {
		x.tunnel(ctx, read[h.Size:])
	}
}

// early returns the error for a client that closed the connection, or ran out of time, before its request was
// complete.
func early(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return refusal{"the request was not complete in time", errdefs.ErrInvalidArgument}
	}
	return refusal{"the client ended before its request was complete", errdefs.ErrInvalidArgument}
}

// requested connects a session to the host that a request is for.
func (x *session) requested(ctx context.Context, h proxy.Head) error {
	port := ""
	switch h.Form {
	case proxy.Origin:
		return fmt.Errorf("this is a proxy, and the request has no URL; write CONNECT or the whole URL: %w", errdefs.ErrInvalidArgument)
	case proxy.Absolute:
		port = "80"
	case proxy.Authority:
	}
	t, err := target(h.Authority, port)
	if err != nil {
		return err
	}
	if h.Host != "" {
		if named, err := target(h.Host, strconv.Itoa(int(t.Port))); err != nil || named != t {
			return refusal{"the request for " + t.String() + " has another host in its field Host", errdefs.ErrInvalidArgument}
		}
	}
	return x.reach(ctx, x.s.real(t))
}

// target reads a host and a port; the port may be left out if there is a usual one.
func target(authority, port string) (netrule.Target, error) {
	if port != "" && (!strings.Contains(authority, ":") || strings.HasSuffix(authority, "]")) {
		authority += ":" + port
	}
	t, err := netrule.ParseTarget(authority)
	if err != nil {
		return t, unreadable{err}
	}
	return t, nil
}

// unreadable is the error of a host that cannot be read. A program is told what is wrong with it, but its text is
// not recorded.
type unreadable struct{ error }

func (u unreadable) Unwrap() error { return u.error }

// real replaces an address that stands for a name: a client of SOCKS or CONNECT may have resolved the name first.
func (s *Server) real(t netrule.Target) netrule.Target {
	if a, ok := t.Host.Addr(); ok {
		if h, known := s.standsFor(a); known {
			t.Host = h
		}
	}
	return t
}

// socks serves a client of SOCKS5.
func (s *Server) socks(ctx context.Context, x *session, had []byte) {
	host, port, err := proxy.ReadSOCKS(&prefixed{x.client, had})
	switch {
	case errdefs.IsInvalidArgument(err) || errdefs.IsNotImplemented(err):
		x.refuse(err)
		return
	case err != nil:
		x.refuse(early(err))
		return
	}
	t, err := target(net.JoinHostPort(host, strconv.Itoa(int(port))), "")
	if err == nil {
		err = x.reach(ctx, s.real(t))
	}
	_ = x.client.SetDeadline(time.Now().Add(s.cfg.Limits.Handshake))
	code := proxy.SOCKSGranted
	if err != nil {
		x.refuse(err)
		_, code = answer(err)
	}
	if proxy.WriteSOCKS(x.client, code) == nil && err == nil {
		_ = x.client.SetDeadline(time.Time{})
		x.tunnel(ctx, nil)
	}
}

// prefixed is a connection whose first bytes were read before.
type prefixed struct {
	net.Conn
	had []byte
}

func (c *prefixed) Read(p []byte) (int, error) {
	if len(c.had) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.had)
	c.had = c.had[n:]
	return n, nil
}

// CloseWrite ends the direction to the client.
func (c *prefixed) CloseWrite() error {
	closeWrite(c.Conn)
	return nil
}
