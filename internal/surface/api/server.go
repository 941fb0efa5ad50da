package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/base/bucket"
	"github.com/carrel-dev/carrel/internal/base/shares"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
)

// Time limits of a connection.
const (
	defaultHeaderTimeout = 10 * time.Second
	defaultBodyTimeout   = 30 * time.Second
	defaultStallTimeout  = time.Minute
	idleTimeout          = 3 * time.Minute
	// Over TLS: how long a silent client is waited for before it is asked whether it is there,
	// and for the answer.
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
	// endGrace is how long a client is told why its request was ended.
	endGrace = time.Second
)

// Options tune a Server. The zero value is usable.
type Options struct {
	// Version and Commit are what SystemService.Version answers.
	Version, Commit string
	// Tokens authenticates who brings a token; nil refuses them.
	Tokens *authn.Tokens
	// Address and Fingerprint are where and with which key the API is served over TLS, for
	// those who ask; "" if it is not.
	Address, Fingerprint string
	// E2BURL is where workspaces are served to programs of E2B, and E2BDomain below which sandboxes have hosts there; "" if
	// they are not.
	E2BURL, E2BDomain string
	// DiskLimit is that of a workspace that asks for none, in bytes; 0 is none.
	DiskLimit int64
	// Full says why only what makes room is done, nil if there is room; nil always is.
	Full func() error
	// Hosts reports whether a name is one of this host's that a request over TLS may be for;
	// nil is none. Addresses always may: a name that was rebound is what is refused.
	Hosts func(name string) bool
	// Metrics serves the counters; nil is none. Those who may read the record may read them.
	Metrics http.Handler
	// HeaderTimeout is how long the header of a request, and a handshake, may take; 0 is 10
	// seconds.
	HeaderTimeout time.Duration
	// BodyTimeout is how long the body of a request may take to arrive, streams
	// excepted; 0 is 30 seconds.
	BodyTimeout time.Duration
	// StallTimeout is how long a client may take to read, or to send, the next piece of an archive;
	// 0 is a minute.
	StallTimeout time.Duration
	// StreamsPerOwner bounds the streams and waits that one owner may have open; 0 is 256.
	StreamsPerOwner int
	// Descriptors is how many files this process may have open; 0 is its limit.
	Descriptors int64
	// Memory bounds what messages of one owner take, in bytes, both ways; 0 is 64 MiB. All owners together may take four times as much.
	Memory int64
	// TerminalOrigins are origins, as https://panel.example, whose pages may open terminals over TLS, beside those of the host
	// that a request is for.
	TerminalOrigins []string
	// Log gets what cannot be answered to a client; nil is slog.Default().
	Log *slog.Logger
}

// Server is the API as an http.Handler. It finds the caller in the request's
// context, where authn.Peers.ConnContext put it, or by the token that it brings.
type Server struct {
	gate     Gate
	opts     Options
	handlers map[string]http.Handler
	// calls are those that a connection with descriptors takes, by service and procedure.
	calls  map[string]call
	errors *connect.ErrorWriter

	// closing ends follows and, after a drain, attached commands.
	closing context.Context
	close   context.CancelFunc
	// follows ends only what would never end by itself.
	follows     context.Context
	stopFollows context.CancelFunc
	conns       connections
	strangers   strangers
	streams     streams
	places      *places
	opened      *shares.Book
	// memory is what messages take, and overdraft what answers that wait for room take.
	memory, overdraft *shares.Book
	inFlight          inFlight
	terminals         terminalPace
	attached          attachedCommands
}

// attachedCommands counts what a drain waits for.
type attachedCommands struct {
	mu   sync.Mutex
	n    int
	zero chan struct{} // closed at n == 0, if anyone waits
}

func (a *attachedCommands) add(d int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n += d
	if a.n == 0 && a.zero != nil {
		close(a.zero)
		a.zero = nil
	}
}

func (a *attachedCommands) wait(ctx context.Context) {
	a.mu.Lock()
	if a.n == 0 {
		a.mu.Unlock()
		return
	}
	if a.zero == nil {
		a.zero = make(chan struct{})
	}
	zero := a.zero
	a.mu.Unlock()
	select {
	case <-zero:
	case <-ctx.Done():
	}
}

// NewServer returns the API over g.
func NewServer(g Gate, opts Options) *Server {
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	if opts.HeaderTimeout == 0 {
		opts.HeaderTimeout = defaultHeaderTimeout
	}
	if opts.BodyTimeout == 0 {
		opts.BodyTimeout = defaultBodyTimeout
	}
	if opts.StallTimeout == 0 {
		opts.StallTimeout = defaultStallTimeout
	}
	if opts.Memory == 0 {
		opts.Memory = ownersMemory
	}
	if opts.Descriptors == 0 {
		opts.Descriptors = openFiles()
	}
	if opts.StreamsPerOwner == 0 {
		opts.StreamsPerOwner = defaultStreams
	}
	s := &Server{
		gate: g, opts: opts, handlers: map[string]http.Handler{}, streams: streams{most: opts.StreamsPerOwner, held: map[string]int{}},
		places:    newPlaces(),
		opened:    newDescriptors(opts.Descriptors),
		memory:    shares.New(opts.Memory, allMemory/ownersMemory*opts.Memory, firstMemory),
		overdraft: shares.New(opts.Memory, allMemory/ownersMemory*opts.Memory, firstMemory),
		inFlight:  inFlight{all: map[*flight]struct{}{}},
		terminals: terminalPace{came: bucket.NewMany[string](maxTerminalOwners)},
	}
	s.closing, s.close = context.WithCancel(context.Background())
	s.follows, s.stopFollows = context.WithCancel(s.closing)

	limits := connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
		return []connect.HandlerOption{connect.WithReadMaxBytes(routes[spec.Procedure].maxRequest)}
	})
	// Compression costs more than the local socket does.
	plain := connect.WithCompression("gzip", nil, nil)
	s.errors = connect.NewErrorWriter()
	mount := func(prefix string, h http.Handler) {
		for path := range routes {
			if strings.HasPrefix(path, prefix) {
				s.handlers[path] = s.duplex(h)
			}
		}
	}
	mount(carrelv1connect.NewWorkspaceServiceHandler(workspaces{s}, limits, plain, strictJSON))
	mount(carrelv1connect.NewCommandServiceHandler(commands{s}, limits, plain, strictJSON))
	mount(carrelv1connect.NewTaskServiceHandler(tasks{s}, limits, plain, strictJSON))
	mount(carrelv1connect.NewAgentServiceHandler(agents{s}, limits, plain, strictJSON))
	mount(carrelv1connect.NewArchiveServiceHandler(archives{s}, limits, plain, strictJSON))
	mount(carrelv1connect.NewFileServiceHandler(filesAPI{s}, limits, plain, strictJSON))
	mount(carrelv1connect.NewPortServiceHandler(portsAPI{s}, limits, plain, strictJSON))
	mount(carrelv1connect.NewApprovalServiceHandler(approvals{s}, limits, plain, strictJSON))
	mount(carrelv1connect.NewAuditServiceHandler(audits{s}, limits, plain, strictJSON))
	mount(carrelv1connect.NewSystemServiceHandler(system{s}, limits, plain, strictJSON))
	mount(carrelv1connect.NewTokenServiceHandler(tokens{s}, limits, plain, strictJSON))
	mount(carrelv1connect.NewSecretServiceHandler(secrets{s}, limits, plain, strictJSON))
	mount(carrelv1connect.NewModelServiceHandler(models{s}, limits, plain, strictJSON))
	s.handlers[fdapi.Path] = http.HandlerFunc(s.descriptors)
	s.calls = map[string]call{
		fdapi.Create: unary(workspaces{s}.Create),
		fdapi.Exec:   unary(commands{s}.Exec),
		fdapi.Spawn:  unary(commands{s}.Spawn),
		fdapi.Attach: unary(commands{s}.Attach),
		fdapi.Signal: unary(commands{s}.Signal),
		fdapi.Resize: unary(commands{s}.Resize),
		fdapi.Read:   unary(filesAPI{s}.ReadBySocket),
		fdapi.Write:  unary(filesAPI{s}.WriteBySocket),
	}
	s.handlers[terminalsPath] = http.HandlerFunc(s.terminal)
	s.handlers[metricsPath] = http.NotFoundHandler()
	if opts.Metrics != nil {
		s.handlers[metricsPath] = http.HandlerFunc(s.metrics)
	}
	return s
}

// HTTPServer returns an http.Server for s on Unix sockets, with the time and size
// limits that belong to it. Run its Serve, and at the end its Shutdown together
// with s.Drain.
//
// who puts the caller into a connection's context, as authn.Peers.ConnContext does.
func (s *Server) HTTPServer(who func(context.Context, net.Conn) context.Context) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           s,
		ConnContext:       s.connContext(who),
		ConnState:         s.connState,
		Protocols:         &protocols,
		ReadHeaderTimeout: s.opts.HeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    16 << 10,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 100},
		ErrorLog:          slog.NewLogLogger(httpLog{s.opts.Log.Handler()}, slog.LevelDebug),
	}
}

// httpLog takes what the HTTP server has to say about connections, panics included. Lines have one
// message, so that the log can tell that they are alike.
type httpLog struct{ slog.Handler }

// Handle implements slog.Handler.
func (l httpLog) Handle(ctx context.Context, rec slog.Record) error {
	const most = 2 << 10 // of a stack
	out := slog.NewRecord(rec.Time, rec.Level, "the HTTP server says", rec.PC)
	out.AddAttrs(slog.String("text", rec.Message[:min(most, len(rec.Message))]))
	return l.Handler.Handle(ctx, out)
}

// TLSServer is HTTPServer for connections from elsewhere: TLS 1.3 and nothing else, with
// HTTP/2. Run its ServeTLS with no files, and on a listener of Strangers: others are refused.
func (s *Server) TLSServer(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *http.Server {
	h := s.HTTPServer(authn.Remote)
	h.Protocols = new(http.Protocols)
	h.Protocols.SetHTTP1(true)
	h.Protocols.SetHTTP2(true)
	h.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: certificate}
	// A client that is gone without a word has its commands hung up.
	h.HTTP2.SendPingTimeout, h.HTTP2.PingTimeout = pingAfter, pingTimeout
	return h
}

// RemoteServer serves another surface, which has its requests admitted by Admit, to connections that bring tokens. Run its
// Serve or ServeTLS, with no files, on a listener of Strangers: others are refused. certificate may be nil without TLS.
func (s *Server) RemoteServer(h http.Handler, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *http.Server {
	server := s.HTTPServer(authn.Remote)
	if certificate != nil {
		server = s.TLSServer(certificate)
	}
	server.Handler = h
	return server
}

// Drain ends the exchanges that follow something at once, waits for attached
// commands to end until ctx does, and hangs up those that are left.
func (s *Server) Drain(ctx context.Context) {
	s.stopFollows()
	s.attached.wait(ctx)
	s.close()
}

// ServeHTTP implements http.Handler: it admits a request by the table of routes
// and hands it on.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rt, err := s.find(r)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	s.Admit(w, r, Entry{
		Enter:  func(context.Context) (context.Context, func(), error) { return s.enter(r) },
		Refuse: s.refuse, Handler: s.handlers[served(r.URL.Path)], Stream: rt.stream, Counted: rt.counted,
		MaxRequest: rt.maxRequest,
	})
}

type streamKey struct{}

// exchanged is what a stream has of its request.
type exchanged struct {
	rc    *http.ResponseController // nil: nothing more is read
	place *place
}

// stopReading ends the Receive of a stream that waits, and any later one.
func stopReading(ctx context.Context) {
	if x, ok := ctx.Value(streamKey{}).(*exchanged); ok && x.rc != nil {
		_ = x.rc.SetReadDeadline(time.Unix(1, 0)) // a connection that is gone has nothing to read
	}
}

// proceed waits until a stream may work on its next message; see places. Its error is why the daemon has ended the
// request, or that the client is gone.
func proceed(ctx context.Context) error {
	var err error
	if x, ok := ctx.Value(streamKey{}).(*exchanged); ok {
		err = x.place.again(ctx)
	}
	if gone := ended(ctx); gone != nil {
		return gone
	}
	return err
}

// metrics serves the counters to those who may read the audit log.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	if err := s.gate.MayRead(r.Context(), authn.FromContext(r.Context())); err != nil {
		s.refuse(w, r, err)
		return
	}
	s.opts.Metrics.ServeHTTP(w, r)
}

// A request comes in by two steps, the cheaper one first: origin and route, then caller. What
// the caller may do is the gate's decision.

// find returns the route of a request that no browser was made to send.
func (s *Server) find(r *http.Request) (route, error) {
	if err := s.sameOrigin(r); err != nil {
		return route{}, err
	}
	rt, ok := routes[served(r.URL.Path)]
	if !ok {
		return route{}, fmt.Errorf("cannot find %q: carrel.v1 has no such procedure; see docs/protocols/api.md: %w", r.URL.Path,
			errdefs.ErrNotFound)
	}
	return rt, nil
}

// enter returns a context with who calls. A token counts alone, also of a peer who is known
// without: whoever sends one wants its rights and no others. leave is for the end of the
// request.
func (s *Server) enter(r *http.Request) (ctx context.Context, leave func(), err error) {
	headers, remote := tokenOf(r), r.TLS != nil
	if err := authn.Refused(r.Context()); err != nil {
		return nil, nil, err
	}
	switch {
	case len(headers) > 0 && s.opts.Tokens != nil:
		ctx, leave, err := s.opts.Tokens.Enter(r.Context(), headers)
		if err != nil {
			return nil, nil, err
		}
		held, release := s.gate.Hold(ctx)
		return held, func() { release(); leave() }, nil
	case len(headers) > 0:
		return nil, nil, fmt.Errorf("cannot take a token here: this server knows none; use the daemon's Unix socket without one: %w",
			errdefs.ErrUnauthenticated)
	case remote && s.opts.Tokens != nil:
		return nil, nil, s.opts.Tokens.Missing(r.Context())
	case authn.FromContext(r.Context()).Kind == "":
		return nil, nil, fmt.Errorf("cannot tell who is calling: the connection carries no Unix peer credentials; connect to the daemon's "+
			"Unix socket: %w", errdefs.ErrUnauthenticated)
	}
	return r.Context(), func() {}, nil
}

// ended is why the daemon ended a request: its token has ended, or does not reach any more what it
// asked for. It is nil where the client or the server goes.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, authn.ErrEnded) || errdefs.IsPermissionDenied(cause) {
		return cause
	}
	return nil
}

// send sends a message of a stream, unless the daemon has ended the request.
func send[T any](ctx context.Context, stream interface{ Send(*T) error }, m *T) error {
	if err := proceed(ctx); err != nil {
		return err
	}
	return stream.Send(m)
}

// endWith ends a request that the daemon ends, also where it waits for the client: first what is
// read, and a moment later, when the client has been told why, what is written. After stop it touches
// rc no more, which is not there then.
func endWith(ctx context.Context, rc *http.ResponseController) (stop func()) {
	var mu sync.Mutex
	var later *time.Timer
	over := false
	end := func(f func(time.Time) error) bool {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			_ = f(time.Unix(1, 0)) // a connection that is gone has nothing to end
		}
		return !over
	}
	unhook := context.AfterFunc(ctx, func() {
		if ended(ctx) == nil || !end(rc.SetReadDeadline) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if !over {
			later = time.AfterFunc(endGrace, func() { end(rc.SetWriteDeadline) })
		}
	})
	return func() {
		unhook()
		mu.Lock()
		defer mu.Unlock()
		if over = true; later != nil {
			later.Stop()
		}
	}
}

// sameOrigin refuses what a browser sends: over TLS one can be made to, and a relay from a
// TCP port to the Unix socket can be reached by one.
func (s *Server) sameOrigin(r *http.Request) error {
	terminal := served(r.URL.Path) == terminalsPath && s.fromPage(r)
	for _, h := range []string{"Origin", "Sec-Fetch-Site"} {
		if r.Header.Get(h) != "" && !terminal {
			return fmt.Errorf("cannot accept a request with the header %s: the API is not for browsers; use a client: %w", h,
				errdefs.ErrPermissionDenied)
		}
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	switch {
	case host == "carrel" || host == "localhost":
		return nil
	case r.TLS == nil:
		return fmt.Errorf("cannot accept a request for host %q: it must be \"carrel\" or \"localhost\": %w", r.Host, errdefs.ErrPermissionDenied)
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || s.opts.Hosts != nil && s.opts.Hosts(host) {
		return nil
	}
	return fmt.Errorf("cannot accept a request for host %q: it is no address and no name in the daemon's certificate: %w", r.Host,
		errdefs.ErrPermissionDenied)
}

// refuse answers in the protocol that the request speaks, or with JSON.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	// The body was not read; on HTTP/1.1 it would be taken for the next request.
	w.Header().Set("Connection", "close")
	// What comes of it is passed over for a moment, so that the answer is not lost with it.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(endGrace))
	_ = s.errors.Write(w, r, errcode.ToWire(err)) // a client that is gone needs no answer
}

// limitBody gives the body of a request so long to arrive. The limit is lifted at
// its end: a later one would end the request while it is carried out.
func limitBody(w http.ResponseWriter, r *http.Request, limit time.Duration) (*http.Request, error) {
	if r.Body == http.NoBody {
		return r, nil
	}
	rc := http.NewResponseController(w)
	if err := rc.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return r, fmt.Errorf("cannot limit the time of a request: %w", err)
	}
	// A copy, because the server looks at its own request's Body to learn whether
	// all of it was read. If it cannot tell, it takes the rest of a body that was
	// cut off for the next request.
	timed := *r
	timed.Body = &timedBody{r.Body, rc}
	return &timed, nil
}

type timedBody struct {
	io.ReadCloser
	rc *http.ResponseController
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF && b.rc != nil {
		if e := b.rc.SetReadDeadline(time.Time{}); e != nil {
			return n, e
		}
		b.rc = nil
	}
	return n, err
}
