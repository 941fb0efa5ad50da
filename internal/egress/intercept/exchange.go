package intercept

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/proxy"
	"github.com/carrel-dev/carrel/internal/egress/room"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// headWithin bounds how long the head of a request may take, and the wait for the first. Programs connect before they
// have something to ask, so it is long.
const headWithin = time.Minute

// exchange is one connection of a program.
type exchange struct {
	i       *Interceptor
	t       netrule.Target
	way     Way
	scheme  string
	host    string // as in the field Host
	secrets []*secret
	mask    *replacer
	up      *upstream
	proto   string
	trouble error // why the host cannot be spoken with
	rt      http.RoundTripper
	// roomHTTP2: there is room for HTTP/2.
	roomHTTP2 bool

	mu       sync.Mutex
	requests int64
	used     map[string]bool
	refused  string
	active   int
	ended    bool
	idle     chan struct{} // closed when ended and none is active
}

func newExchange(i *Interceptor, t netrule.Target, w Way) *exchange {
	x := &exchange{i: i, t: t, way: w, scheme: "https", mask: &replacer{}, used: map[string]bool{}, idle: make(chan struct{})}
	usual := 443
	if w.Plain {
		x.scheme, usual = "http", 80
	}
	x.host = strings.TrimSuffix(t.String(), ":"+strconv.Itoa(usual))
	for _, s := range i.secrets {
		if !w.Plain && s.bound(t) {
			x.secrets = append(x.secrets, s)
			x.hide(s)
		}
	}
	x.up = &upstream{t: t, room: w.Room, dial: w.Dial, plain: w.Plain, wait: i.handshake, open: map[net.Conn]struct{}{}, cfg: &tls.Config{
		ServerName: t.Host.String(), RootCAs: i.roots, MinVersion: tls.VersionTLS12, ClientSessionCache: i.sessions,
	}}
	return x
}

// hide has a secret masked in responses. In the place of one that is injected are stars, as many as it is long.
func (x *exchange) hide(s *secret) {
	if s.sent.Inject == nil {
		x.mask.add(s.name, s.value.Reveal(), s.placeholder)
		if e := escaped(s.value.Reveal()); e != s.value.Reveal() {
			x.mask.add(s.name, e, s.placeholder)
		}
		return
	}
	for _, text := range s.hidden() {
		x.mask.add(s.name, text, strings.Repeat("*", len(text)))
	}
}

func (x *exchange) refuse(why string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.refused == "" {
		x.refused = why
	}
}

func (x *exchange) result() Result {
	x.mu.Lock()
	defer x.mu.Unlock()
	return Result{Secrets: slices.Sorted(maps.Keys(x.used)), Requests: x.requests, Refused: x.refused}
}

// accept speaks TLS with the program, and before it answers also with the host: so the program gets the protocol that
// the host speaks. If the host cannot be spoken with then every request is answered with the reason.
func (x *exchange) accept(ctx context.Context, client net.Conn) (*tls.Conn, error) {
	c := tls.Server(client, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		if named, err := netrule.ParseHost(h.ServerName); h.ServerName != "" && (err != nil || named != x.t.Host) {
			return nil, fmt.Errorf("the TLS server name is not that of %s: %w", x.t, errdefs.ErrPermissionDenied)
		}
		leaf, err := x.i.leaves.Leaf(x.t.Host)
		if err != nil {
			return nil, err
		}
		offer := []string{protoHTTP1}
		if slices.Contains(h.SupportedProtos, protoHTTP2) {
			// Without room for what HTTP/2 may take, most programs speak the other version too.
			if x.roomHTTP2 = x.way.Room.Take(room.ReadHTTP2 + room.HostHTTP2); x.roomHTTP2 {
				offer = []string{protoHTTP2, protoHTTP1}
			} else if !slices.Contains(h.SupportedProtos, protoHTTP1) {
				return nil, fmt.Errorf("%s: %w", full, errdefs.ErrFailedPrecondition)
			}
		}
		x.proto, x.trouble = x.up.begin(h.Context(), offer)
		if x.proto != protoHTTP2 && x.trouble == nil {
			x.leaveHTTP2()
		}
		if x.trouble != nil {
			x.proto = protoHTTP1
			if len(offer) > 1 && !slices.Contains(h.SupportedProtos, protoHTTP1) {
				x.proto = protoHTTP2
			}
			x.refuse(text(x.trouble))
		}
		return &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*leaf}, NextProtos: []string{x.proto}, SessionTicketsDisabled: true,
		}, nil
	}})
	ctx, cancel := context.WithTimeout(ctx, 3*x.i.handshake) // a dial, TLS with the host, and with the program
	defer cancel()
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, x.refusal(err)
	}
	return c, nil
}

// leaveHTTP2 gives back the room for HTTP/2.
func (x *exchange) leaveHTTP2() {
	if x.roomHTTP2 {
		x.way.Room.Give(room.ReadHTTP2 + room.HostHTTP2)
		x.roomHTTP2 = false
	}
}

// refusal is the error of TLS with the program.
func (x *exchange) refusal(err error) error {
	var kind error = errdefs.ErrUnavailable
	why := "the program ended it, or sent what is no TLS"
	switch {
	case errdefs.IsPermissionDenied(err), errdefs.IsFailedPrecondition(err):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		why = "the program did not answer in time"
	case alert(err) != "":
		why = "the program refused the certificate of the workspace's CA (" + alert(err) + "); let it trust that CA"
		kind = errdefs.ErrFailedPrecondition
	}
	return fmt.Errorf("cannot intercept TLS to %s: %s: %w", x.t, why, kind)
}

// kinds are those whose text a person has no use for.
var kinds = []error{errdefs.ErrPermissionDenied, errdefs.ErrUnavailable, errdefs.ErrNotFound, errdefs.ErrFailedPrecondition}

// text is the text of an error without that of its kind.
func text(err error) string {
	s := err.Error()
	for _, kind := range kinds {
		s = strings.TrimSuffix(s, ": "+kind.Error())
	}
	return s
}

// serve serves the program's requests until its connection is closed and nothing of it is under way.
func (x *exchange) serve(ctx context.Context, client net.Conn) {
	transport := x.up.transport(x.proto)
	defer transport.CloseIdleConnections()
	x.rt = transport
	ended := make(chan struct{})
	var once sync.Once
	server := &http.Server{
		Handler: x, Protocols: protocols(x.proto), DisableGeneralOptionsHandler: true,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: mostStreams, MaxReceiveBufferPerStream: clientBuffer,
			MaxReceiveBufferPerConnection: clientBuffer,
		},
		ReadHeaderTimeout: headWithin, MaxHeaderBytes: proxy.MaxHead,
		ErrorLog:    silent,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed || s == http.StateHijacked {
				once.Do(func() { close(ended) })
			}
		},
	}
	l := &single{conn: make(chan net.Conn, 1), ended: ended}
	l.conn <- client
	_ = server.Serve(l) // until ended
	x.mu.Lock()
	x.ended = true
	idle := x.active == 0
	x.mu.Unlock()
	if !idle {
		<-x.idle
	}
	_ = server.Close()
}

// enter begins a request, and leave ends it. enter returns false if the connection has ended.
func (x *exchange) enter() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return false
	}
	x.active++
	x.requests++
	return true
}

func (x *exchange) leave() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.active--; x.active == 0 && x.ended {
		close(x.idle)
	}
}

// silent is a log that nobody reads: its lines have what programs and hosts sent.
var silent = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)

// single is a listener with one connection. It ends with that.
type single struct {
	conn  chan net.Conn
	ended chan struct{}
}

func (s *single) Accept() (net.Conn, error) {
	select {
	case c := <-s.conn:
		return c, nil
	case <-s.ended:
		return nil, net.ErrClosed
	}
}

func (*single) Close() error   { return nil }
func (*single) Addr() net.Addr { return &net.UnixAddr{Name: "intercept", Net: "unix"} }

// buffers are those in which bodies are copied.
var buffers = &bufferPool{sync.Pool{New: func() any { return new([32 << 10]byte) }}}

type bufferPool struct{ pool sync.Pool }

func (p *bufferPool) Get() []byte {
	b, ok := p.pool.Get().(*[32 << 10]byte)
	if !ok {
		b = new([32 << 10]byte)
	}
	return b[:]
}

func (p *bufferPool) Put(b []byte) { p.pool.Put((*[32 << 10]byte)(b)) }

var _ httputil.BufferPool = buffers
