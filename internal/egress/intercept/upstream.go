package intercept

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/proxy"
	"github.com/carrel-dev/carrel/internal/egress/room"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// The protocols inside TLS.
const (
	protoHTTP1 = "http/1.1"
	protoHTTP2 = "h2"
)

// Bounds of what one connection can make the process hold.
const (
	mostUpstream = 8 // connections to the host at once
	mostStreams  = 100
	// What a host has sent and the program has not taken, of a stream and of all of HTTP/2, and what a program has.
	streamBuffer = room.HostHTTP2 / 2
	connBuffer   = room.HostHTTP2
	clientBuffer = room.ReadHTTP2
	// headBuffer is for reading heads: bodies are read in larger pieces, past it.
	headBuffer = 1 << 10
)

// upstream makes the connections to the host of one exchange.
type upstream struct {
	t     netrule.Target
	room  *room.Room
	plain bool // without TLS
	dial  func(context.Context) (net.Conn, error)
	cfg   *tls.Config
	wait  time.Duration // for TLS

	mu     sync.Mutex
	proto  string                // that the first speaks
	ready  *tls.Conn             // made before the first request
	open   map[net.Conn]struct{} // all of them
	closed bool
}

// begin connects with one of these protocols, the first that the host knows, and returns it.
func (u *upstream) begin(ctx context.Context, protos []string) (string, error) {
	u.cfg.NextProtos = protos
	c, err := u.connect(ctx)
	if err != nil {
		return "", err
	}
	proto := c.ConnectionState().NegotiatedProtocol
	if proto != protoHTTP2 {
		proto = protoHTTP1
	}
	u.cfg.NextProtos = []string{proto} // all others speak it too
	u.mu.Lock()
	u.ready, u.proto = c, proto
	u.mu.Unlock()
	return proto, nil
}

// next returns the connection that is ready, or another.
func (u *upstream) next(ctx context.Context) (net.Conn, error) {
	u.mu.Lock()
	c := u.ready
	u.ready = nil
	u.mu.Unlock()
	if c != nil {
		return c, nil
	}
	return u.connect(ctx)
}

// takes is what the next connection takes of the room. What HTTP/2 takes beside that is there for one.
func (u *upstream) takes() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.open) > 0 && u.proto == protoHTTP2 {
		return room.Host + room.HostHTTP2
	}
	return room.Host
}

// raw dials.
func (u *upstream) raw(ctx context.Context) (net.Conn, error) {
	takes := u.takes()
	if !u.room.Take(takes) {
		return nil, fmt.Errorf("%s: %w", full, errdefs.ErrUnavailable)
	}
	raw, err := u.dial(ctx)
	if err != nil {
		u.room.Give(takes)
		return nil, err
	}
	held := &heldConn{Conn: raw, u: u, takes: takes}
	if !u.hold(held) {
		_ = raw.Close()
		u.room.Give(takes)
		return nil, fmt.Errorf("cannot connect to %s: the program has gone: %w", u.t, errdefs.ErrUnavailable)
	}
	return held, nil
}

// connect dials and speaks TLS. An error says what a person can know of it, and nothing that the host wrote.
func (u *upstream) connect(ctx context.Context) (*tls.Conn, error) {
	held, err := u.raw(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, u.wait)
	defer cancel()
	c := tls.Client(held, u.cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = held.Close()
		return nil, fmt.Errorf("cannot speak TLS with %s: %s: %w", u.t, reason(err), errdefs.ErrUnavailable)
	}
	return c, nil
}

// reason says why TLS failed.
func reason(err error) string {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &authority):
		return "its certificate is from no authority that this host trusts"
	case errors.As(err, &name):
		return "its certificate is for other names"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "its certificate is not valid now"
	case errors.As(err, &invalid):
		return "its certificate is not valid"
	case alert(err) != "":
		return "it refused the connection: " + alert(err)
	case errors.Is(err, context.DeadlineExceeded):
		return "it did not answer in time"
	}
	return "it closed the connection, or does not speak TLS 1.2 or later"
}

// alert is the text of the alert by which the other side ended TLS, "" if it was otherwise.
func alert(err error) string {
	if e := (*net.OpError)(nil); errors.As(err, &e) && e.Op == "remote error" {
		return e.Err.Error() // of the standard library's list
	}
	return ""
}

func (u *upstream) hold(c net.Conn) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.closed {
		u.open[c] = struct{}{}
	}
	return !u.closed
}

// close closes every connection, and has later ones fail.
func (u *upstream) close() {
	u.mu.Lock()
	u.closed = true
	var all []net.Conn
	for c := range u.open {
		all = append(all, c)
	}
	u.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}

// heldConn is a connection that leaves u.open when it is closed.
type heldConn struct {
	net.Conn
	u     *upstream
	takes int64 // of the room
}

func (c *heldConn) Close() error {
	c.u.mu.Lock()
	_, open := c.u.open[c]
	delete(c.u.open, c)
	c.u.mu.Unlock()
	if open {
		c.u.room.Give(c.takes)
	}
	return c.Conn.Close()
}

// transport returns one that speaks proto, and connects by u only.
func (u *upstream) transport(proto string) *http.Transport {
	most := mostUpstream
	if proto == protoHTTP2 { // one has as many requests as the program can make, and another may follow one that ends
		most = 2
	}
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if u.plain {
				return u.raw(ctx)
			}
			return nil, fmt.Errorf("nothing is sent without TLS: %w", errdefs.ErrPermissionDenied)
		},
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if u.plain {
				return nil, fmt.Errorf("nothing is sent with TLS: %w", errdefs.ErrPermissionDenied)
			}
			return u.next(ctx)
		},
		Protocols: protocols(proto),
		HTTP2: &http.HTTP2Config{
			StrictMaxConcurrentRequests: true, MaxReceiveBufferPerStream: streamBuffer, MaxReceiveBufferPerConnection: connBuffer,
		},
		ReadBufferSize:         headBuffer,
		DisableCompression:     true, // the program's fields pass as they are
		MaxConnsPerHost:        most,
		MaxResponseHeaderBytes: 2 * proxy.MaxHead,
		ExpectContinueTimeout:  time.Second,
	}
}

func protocols(proto string) *http.Protocols {
	p := &http.Protocols{}
	p.SetHTTP1(proto == protoHTTP1)
	p.SetHTTP2(proto == protoHTTP2)
	return p
}
