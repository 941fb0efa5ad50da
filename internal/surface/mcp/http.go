package mcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds of HTTP.
const (
	// MaxSessions is how many clients there are at once.
	MaxSessions = 64
	// maxRequests is how many requests are served at once. A session has one stream open beside its calls.
	maxRequests = 4 * MaxSessions
	// sessionIdle is how long a session lives without a request.
	sessionIdle = 30 * time.Minute
	// readWithin is how long the body of a request may take to come.
	readWithin = 30 * time.Second
)

// writeWithin is how long a client may take to read what is written to it.
var writeWithin = 30 * time.Second

// sessionHeader names the session of a request; callHeader is this server's own, and no client's.
const (
	sessionHeader = "Mcp-Session-Id"
	callHeader    = "X-Carrel-Call"
)

// HTTPOptions configure Server.Handler.
type HTTPOptions struct {
	// Token is what clients send as "Authorization: Bearer TOKEN". Empty asks for none, which only a socket that others
	// cannot reach may do.
	Token string
	// Remote: clients come by other addresses than loopback, so that any name in Host is taken.
	Remote bool
}

// Handler serves the protocol as streamable HTTP. Each request needs the token. A request from a web page of another origin,
// or with a name in Host that is not loopback's, is refused: by DNS rebinding any page could send it. A call ends, with the
// command that it had started, when its request is closed before it was answered, when the session is ended and when ctx
// ends.
func (s *Server) Handler(ctx context.Context, o HTTPOptions) http.Handler {
	return &handlerHTTP{
		Server: s, o: o, ctx: ctx, requests: make(chan struct{}, maxRequests),
		mcp: sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s.mcp }, &sdk.StreamableHTTPOptions{
			SessionTimeout: sessionIdle, MaxRequestBodyBytes: MaxLine,
			// The check is made here, for sockets without a port too.
			DisableLocalhostProtection: true,
		}),
	}
}

type handlerHTTP struct {
	*Server
	o        HTTPOptions
	ctx      context.Context //nolint:containedctx // the life of the server
	mcp      http.Handler
	requests chan struct{}

	opening sync.Mutex // one session is opened at a time, so that they are counted
}

func (h *handlerHTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to := http.NewResponseController(w)
	// What is left to be written when this returns has a deadline too.
	defer func() { _ = to.SetWriteDeadline(time.Now().Add(writeWithin)) }()
	if code, why := h.refuse(r); code != 0 {
		if code == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Bearer realm="carrel mcp"`)
		}
		http.Error(w, why, code)
		return
	}
	select {
	case h.requests <- struct{}{}:
		defer func() { <-h.requests }()
	default:
		http.Error(w, fmt.Sprintf("cannot serve more than %d requests at once: try again later", maxRequests), http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	name := rand.Text()
	r = r.Clone(ctx)
	r.Header.Set(callHeader, name)
	id := r.Header.Get(sessionHeader)
	h.lives.begin(name, id, ctx)
	defer h.lives.end(name)
	if !received(w, to, r) {
		return
	}
	w = &timely{ResponseWriter: w, to: to}
	switch {
	case r.Method == http.MethodDelete:
		h.lives.endSession(id) // the SDK waits for the calls to end
	case r.Method == http.MethodPost && id == "":
		h.open(w, r)
		return
	}
	h.mcp.ServeHTTP(w, r)
}

// received reads the body of a request, so that nothing waits for the rest of one. If it cannot be read, that was answered.
func received(w http.ResponseWriter, to *http.ResponseController, r *http.Request) bool {
	if r.Method != http.MethodPost {
		return true
	}
	_ = to.SetReadDeadline(time.Now().Add(readWithin)) // as for writes
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxLine))
	_ = to.SetReadDeadline(time.Time{})
	if long := new(http.MaxBytesError); errors.As(err, &long) {
		http.Error(w, fmt.Sprintf("cannot take the message: it is longer than %d bytes", MaxLine), http.StatusRequestEntityTooLarge)
		return false
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("cannot read the message: it has not come within %v", readWithin), http.StatusRequestTimeout)
		return false
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return true
}

// Serve serves the protocol on a listener until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener, o HTTPOptions) error {
	h := &http.Server{Handler: s.Handler(ctx, o), ReadHeaderTimeout: readWithin, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	defer context.AfterFunc(ctx, func() { h.Close() })()
	err := h.Serve(l)
	for x := range s.mcp.Sessions() { // their calls have ended with their requests
		_ = x.Close()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("cannot go on serving: %w", err)
}

// open serves the first request of a session.
func (h *handlerHTTP) open(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // it is in memory, as received says
	if b := bytes.TrimLeft(body, " \t\r\n"); len(b) > 0 && b[0] == '[' {
		// A call in it would hold up who opens another session for as long as it takes.
		http.Error(w, "cannot open a session by a batch: send initialize alone", http.StatusBadRequest)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	h.opening.Lock()
	defer h.opening.Unlock()
	n := 0
	for range h.Server.mcp.Sessions() {
		n++
	}
	if n >= MaxSessions {
		http.Error(w, fmt.Sprintf("cannot open another session: there are %d, of at most %d; end one (DELETE), or wait: one without "+
			"requests ends after %v", n, MaxSessions, sessionIdle), http.StatusServiceUnavailable)
		return
	}
	h.mcp.ServeHTTP(w, r)
}

// refuse says why a request is not served, and with which code; 0 is that it is.
func (h *handlerHTTP) refuse(r *http.Request) (code int, why string) {
	if !h.o.Remote && !loopbackName(r.Host) {
		return http.StatusForbidden, "cannot serve this name: Host is not localhost, 127.0.0.1 or [::1]"
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return http.StatusForbidden, "cannot serve a web page of another origin"
		}
	}
	if h.o.Token != "" {
		kind, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		want, got := sha256.Sum256([]byte(h.o.Token)), sha256.Sum256([]byte(strings.TrimSpace(given)))
		if !strings.EqualFold(kind, "Bearer") || subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
			return http.StatusUnauthorized, "cannot serve the request: it needs the header Authorization with Bearer and the token of this " +
				"server, which is in the file that --client-token-file names"
		}
	}
	return 0, ""
}

// loopbackName reports whether the Host of a request names this host by loopback.
func loopbackName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// lives are the requests that are served, each with what ends when it ends. The zero value is ready.
type lives struct {
	mu  sync.Mutex
	all map[string]*life
}

type life struct {
	session string
	ctx     context.Context //nolint:containedctx // the life of a request
	cancel  context.CancelFunc
}

func (l *lives) begin(name, session string, ctx context.Context) { //nolint:revive // the context is what is kept
	ctx, cancel := context.WithCancel(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[string]*life{}
	}
	l.all[name] = &life{session, ctx, cancel}
}

func (l *lives) end(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.all[name]; x != nil {
		x.cancel()
		delete(l.all, name)
	}
}

// endSession ends the calls of a session.
func (l *lives) endSession(session string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.all {
		if session != "" && x.session == session {
			x.cancel()
		}
	}
}

// of returns the life of a request; nil if it has ended.
func (l *lives) of(name string) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.all[name]; x != nil {
		return x.ctx
	}
	return nil
}

// lifetime is the context of a call. It ends also with the request that brought the call, or with the session, so that
// what a client that has gone had started ends.
func (s *Server) lifetime(ctx context.Context, x *session, extra *sdk.RequestExtra) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	var life context.Context
	if of := x.life.Load(); of != nil {
		life = *of
	} else if extra != nil && extra.Header.Get(callHeader) != "" {
		if life = s.lives.of(extra.Header.Get(callHeader)); life == nil {
			cancel(errGone)
		}
	}
	stop := func() bool { return true }
	if life != nil {
		stop = context.AfterFunc(life, func() { cancel(errGone) })
	}
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// timely gives each write a deadline: a client that does not read holds nothing up for longer.
type timely struct {
	http.ResponseWriter
	to *http.ResponseController
}

func (t *timely) Write(p []byte) (int, error) {
	_ = t.to.SetWriteDeadline(time.Now().Add(writeWithin)) // a connection without deadlines is not one of net/http's
	return t.ResponseWriter.Write(p)
}

func (t *timely) Flush() {
	_ = t.to.SetWriteDeadline(time.Now().Add(writeWithin))
	_ = t.to.Flush() // the next write tells
}

// Unwrap is for http.ResponseController.
func (t *timely) Unwrap() http.ResponseWriter { return t.ResponseWriter }
