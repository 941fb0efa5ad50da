package egress

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/egress/proxy"
	"github.com/carrel-dev/carrel/internal/egress/room"
)

// A request with a whole URL is served by net/http, which reads it again, writes it anew to the connection that
// the session has established, and passes on interim responses, trailers and upgrades. A client's connection
// carries one request, and so does the connection to the host. Every request is judged, and no second one can be
// hidden in the first.

// handover is a listener of connections that were accepted and judged before.
type handover struct {
	conns chan net.Conn
	ended chan struct{}
	once  sync.Once
}

func newHandover() *handover {
	return &handover{conns: make(chan net.Conn), ended: make(chan struct{})}
}

func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.ended:
		return nil, net.ErrClosed
	}
}

func (h *handover) Close() error {
	h.once.Do(func() { close(h.ended) })
	return nil
}

func (*handover) Addr() net.Addr { return &net.UnixAddr{Name: "handover", Net: "unix"} }

// webConn is a client's connection on which a request is served.
type webConn struct {
	prefixed
	x      *session
	served atomic.Bool
	ended  chan struct{} // closed with the connection
	once   sync.Once
	done   chan struct{} // closed when the handler returns, if served
}

func (c *webConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.ended) })
	return err
}

type connKey struct{}

func (s *Server) httpServer() *http.Server {
	w := &http.Server{
		Handler:           http.HandlerFunc(serveWeb),
		ReadHeaderTimeout: s.cfg.Limits.Handshake,
		MaxHeaderBytes:    proxy.MaxHead,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	w.SetKeepAlivesEnabled(false)
	return w
}

// relay serves a request whose first bytes are read. It returns when the client's connection is closed.
func (s *Server) relay(x *session, h proxy.Head, read []byte) {
	if x.model != nil {
		x.serveModel(read)
		return
	}
	if !s.cfg.Room.Take(room.Web) {
		x.refuse(full)
		x.say(x.refusalText(h.Accept, full))
		return
	}
	defer s.cfg.Room.Give(room.Web)
	x.giveHead() // its part is in that
	x.carryWeb()
	c := &webConn{prefixed: prefixed{x.client, read}, x: x, ended: make(chan struct{}), done: make(chan struct{})}
	select {
	case s.web.conns <- c:
		<-c.ended
	case <-s.web.ended:
	}
	abort(x.up) // ends what the handler may still wait for
	if c.served.Swap(true) {
		<-c.done
	}
	x.firstRule()
}

// serveWeb serves one request with the connection that its session has.
func serveWeb(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(*webConn)
	if !ok || c.served.Swap(true) {
		panic(http.ErrAbortHandler)
	}
	defer close(c.done)
	// The two readings of the head must agree.
	t := c.x.c.Target
	named, err := target(r.URL.Host, "80")
	if err == nil {
		named = c.x.s.real(named)
	}
	if err != nil || named != t || r.URL.Scheme != "http" || r.URL.User != nil || r.Method == http.MethodConnect {
		panic(http.ErrAbortHandler)
	}
	if c.x.limited() {
		intercept.WithoutH2C(r)
	}
	done, no := c.x.admit(intercept.Asked(r))
	if no != nil {
		c.x.recorded = true // as a request that was refused
		intercept.Refuse(w, r, no)
		return
	}
	defer done()
	host := t.String()
	if t.Port == 80 {
		host = strings.TrimSuffix(host, ":"+strconv.Itoa(80))
	}
	var dialled atomic.Bool
	transport := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if dialled.Swap(true) {
				return nil, errors.New("the connection has been used")
			}
			return &countedConn{c.x.up, c.x}, nil
		},
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 2 * proxy.MaxHead,
		ExpectContinueTimeout:  time.Second,
	}
	defer transport.CloseIdleConnections()
	(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = &url.URL{
				Scheme: "http", Host: host, Path: p.In.URL.Path, RawPath: p.In.URL.RawPath, RawQuery: p.In.URL.RawQuery,
				ForceQuery: p.In.URL.ForceQuery,
			}
			p.Out.Host = host
			p.Out.Trailer = p.In.Trailer // is filled when the body has been read
			intercept.Late(p.Out)
		},
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = w.Write([]byte("egress: " + t.String() + " closed the connection or sent what is no HTTP response\n"))
		},
	}).ServeHTTP(w, r)
}

// countedConn counts the bytes of a session's connection to a host.
type countedConn struct {
	net.Conn
	x *session
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.x.received.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.x.sent.Add(int64(len(p))) // before, because the host may answer before Write returns
	n, err := c.Conn.Write(p)
	c.x.sent.Add(int64(n - len(p)))
	return n, err
}

// CloseWrite ends the direction to the host.
func (c *countedConn) CloseWrite() error {
	closeWrite(c.Conn)
	return nil
}
