// Package carrel is the Go client of carrel, which gives every AI agent, chat and
// user an isolated workspace on a Linux host.
//
// [New] makes a [Client]. Its methods Workspaces, Commands, Archives, Approvals, Audit, Tokens, Secrets, Models, Tasks
// and System return the generated clients of the whole API. [Client.Exec] runs one command and
// returns its output. [Client.Start] starts a command and passes its pipes or terminal to this
// process, so that its bytes do not pass through the daemon.
//
// Errors have the kinds of github.com/containerd/errdefs; use errdefs.IsNotFound(err) and the
// like. [IsCommandError] reports errors about the command itself.
//
// The package must not depend on a server package: it needs only the protocols.
package carrel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
	"github.com/carrel-dev/carrel/internal/wire/fdapi/client"
)

// HostEnv is the environment variable that names the daemon, and DefaultHost the daemon if it is
// unset.
const (
	HostEnv     = "CARREL_HOST"
	DefaultHost = "unix:///run/carrel/carrel.sock"
)

// Options configure a Client. The zero value is usable.
type Options struct {
	// Host is the daemon, as unix:///ABSOLUTE/PATH or https://HOST:PORT. "" is $CARREL_HOST, or
	// DefaultHost if that is unset. Only with a Host of "" are a token and a fingerprint that are
	// not given here read from the environment.
	Host string
	// Token authenticates requests. A daemon elsewhere requires one; on a Unix socket its rights
	// replace those of this user. TokenFile is a file with a token that only its owner may read.
	Token, TokenFile string
	// Fingerprint is the fingerprint of the daemon's key, as "carrel token create" prints it. Without
	// one the certificate authorities in CAFile, a file in PEM, are trusted; without that file those of
	// the system.
	Fingerprint, CAFile string
	// Dial, if set, connects to a daemon that speaks HTTP/2 without TLS over what it returns, and Host is not used. Who calls is known
	// there, or by a token. It is for a daemon that this program has inside it, or reaches by a channel of its own.
	Dial func(ctx context.Context) (net.Conn, error)
	// Patience is how long a daemon on a Unix socket may answer nothing at all, because it was stopped or its host hangs, before a
	// call fails as unavailable. 0 is 2 minutes. A call that only takes long does not fail, and a command that runs is waited for.
	Patience time.Duration
}

// Client is a client of one daemon. Its methods may be called from any goroutine. It connects
// when it first needs to, and keeps idle connections until Close.
type Client struct {
	host     host
	patience time.Duration

	once      sync.Once
	transport *transport
	opts      []connect.ClientOption

	mu      sync.Mutex
	idle    []*session // upgraded connections for Exec
	sockets knows
	closed  bool
}

// New returns a client of the daemon that opts name. It does not connect; a host
// that cannot be used is an invalid_argument error.
func New(opts Options) (*Client, error) {
	h, err := hostFrom(opts)
	if err != nil {
		return nil, err
	}
	return &Client{host: h, patience: cmp.Or(opts.Patience, client.Patience)}, nil
}

// Dial is New and a first call, which fails if the daemon does not answer. host is as in Options.
func Dial(ctx context.Context, host string) (*Client, error) {
	c, err := New(Options{Host: host})
	if err != nil {
		return nil, err
	}
	if _, err := c.System().Version(ctx, connect.NewRequest(&carrelv1.VersionRequest{})); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Host is the daemon of the client.
func (c *Client) Host() string { return c.host.String() }

// Close closes idle connections. Running calls, and commands that Start returned, continue.
func (c *Client) Close() error {
	c.mu.Lock()
	idle := c.idle
	c.idle, c.closed = nil, true
	c.mu.Unlock()
	for _, x := range idle {
		x.Close()
	}
	c.once.Do(func() {})
	if c.transport != nil {
		c.transport.unary.CloseIdleConnections()
		c.transport.streams.CloseIdleConnections()
	}
	return nil
}

// Workspaces returns the client of carrel.v1.WorkspaceService.
func (c *Client) Workspaces() carrelv1connect.WorkspaceServiceClient {
	return carrelv1connect.NewWorkspaceServiceClient(c.http(), c.host.baseURL(), c.opts...)
}

// Commands returns the client of carrel.v1.CommandService. Its Stream goes through
// the daemon; Start does not.
func (c *Client) Commands() carrelv1connect.CommandServiceClient {
	return carrelv1connect.NewCommandServiceClient(c.http(), c.host.baseURL(), c.opts...)
}

// Archives returns the client of carrel.v1.ArchiveService.
func (c *Client) Archives() carrelv1connect.ArchiveServiceClient {
	return carrelv1connect.NewArchiveServiceClient(c.http(), c.host.baseURL(), c.opts...)
}

// Files returns the client of carrel.v1.FileService.
func (c *Client) Files() carrelv1connect.FileServiceClient {
	return carrelv1connect.NewFileServiceClient(c.http(), c.host.baseURL(), c.opts...)
}

// Ports returns the client of carrel.v1.PortService. DialPort and PublishPort are easier to use.
func (c *Client) Ports() carrelv1connect.PortServiceClient {
	return carrelv1connect.NewPortServiceClient(c.http(), c.host.baseURL(), c.opts...)
}

// Audit returns the client of carrel.v1.AuditService.
func (c *Client) Audit() carrelv1connect.AuditServiceClient {
	return carrelv1connect.NewAuditServiceClient(c.http(), c.host.baseURL(), c.opts...)
}

// Tokens returns the client of carrel.v1.TokenService.
func (c *Client) Tokens() carrelv1connect.TokenServiceClient {
	return carrelv1connect.NewTokenServiceClient(c.http(), c.host.baseURL(), c.opts...)
}

// Secrets returns the client of carrel.v1.SecretService.
func (c *Client) Secrets() carrelv1connect.SecretServiceClient {
	return carrelv1connect.NewSecretServiceClient(c.http(), c.host.baseURL(), c.opts...)
}

// Models returns the client of carrel.v1.ModelService.
func (c *Client) Models() carrelv1connect.ModelServiceClient {
	return carrelv1connect.NewModelServiceClient(c.http(), c.host.baseURL(), c.opts...)
}

// Tasks returns the client of carrel.v1.TaskService.
func (c *Client) Tasks() carrelv1connect.TaskServiceClient {
	return carrelv1connect.NewTaskServiceClient(c.http(), c.host.baseURL(), c.opts...)
}

// Agents returns the client of carrel.v1.AgentService.
func (c *Client) Agents() carrelv1connect.AgentServiceClient {
	return carrelv1connect.NewAgentServiceClient(c.http(), c.host.baseURL(), c.opts...)
}

// Approvals returns the client of carrel.v1.ApprovalService.
func (c *Client) Approvals() carrelv1connect.ApprovalServiceClient {
	return carrelv1connect.NewApprovalServiceClient(c.http(), c.host.baseURL(), c.opts...)
}

// System returns the client of carrel.v1.SystemService.
func (c *Client) System() carrelv1connect.SystemServiceClient {
	return carrelv1connect.NewSystemServiceClient(c.http(), c.host.baseURL(), c.opts...)
}

// maxAnswer bounds one message of the daemon, in bytes. The longest is a list of all workspaces.
const maxAnswer = 16 << 20

func (c *Client) http() *http.Client {
	c.once.Do(func() {
		switch {
		case c.host.dial != nil:
			c.transport = newInnerTransport(c.host.dial)
		case c.host.socket != "":
			c.transport = newTransport(c.dial)
		default:
			c.transport = newTLSTransport(c.host.dialTLS)
		}
		c.opts = []connect.ClientOption{
			// Compression costs more than the local socket does.
			connect.WithAcceptCompression("gzip", nil, nil),
			connect.WithReadMaxBytes(maxAnswer),
			connect.WithInterceptors(kinds{}),
		}
	})
	var t http.RoundTripper = c.transport
	if c.host.socket != "" {
		t = guarded{t, c.host.socket, c.patience}
	}
	if c.host.secret != (token.Secret{}) {
		t = bearer{t, c.host.secret}
	}
	return &http.Client{Transport: bounded{t}, CheckRedirect: noRedirect}
}

// noRedirect refuses redirects: the API sends none, and they must not receive a token.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// newTLSTransport sends everything over HTTP/2, which daemons support over TLS.
func newTLSTransport(dial func(context.Context) (net.Conn, error)) *transport {
	var p http.Protocols
	p.SetHTTP2(true)
	t := &http.Transport{
		Protocols:          &p,
		DialTLSContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableCompression: true,
		IdleConnTimeout:    time.Minute,
		// Detects a daemon that has disappeared.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
	return &transport{t, t}
}

// newInnerTransport sends everything over one connection, because those that it makes may be counted.
func newInnerTransport(dial func(context.Context) (net.Conn, error)) *transport {
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	t := &http.Transport{
		Protocols:          &p,
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableCompression: true,
	}
	return &transport{t, t}
}

// dial connects to the socket. Its errors say what to do.
func (c *Client) dial(ctx context.Context) (*net.UnixConn, error) {
	conn, err := client.Dial(ctx, c.host.socket)
	if err == nil {
		return conn, nil
	}
	var why string
	var kind error = errdefs.ErrUnavailable
	switch {
	case errors.Is(err, syscall.ENOENT):
		why = "there is no such socket; start carrel with \"sudo carrel up\", or name another daemon with --host or " + HostEnv
	case errors.Is(err, syscall.ECONNREFUSED):
		why = "nothing listens on it, so the daemon has ended; start it with \"sudo carrel up\""
	case errors.Is(err, syscall.EACCES):
		why = "this user may not use it; use sudo, or ask an administrator for a token, or to let all users in (socket_mode: 0666): " +
			"the members of its group administer carrel"
		kind = errdefs.ErrPermissionDenied
	case ctx.Err() != nil:
		return nil, fmt.Errorf("cannot reach carrel at %s: %w", c.host.socket, ctx.Err())
	default:
		why = err.Error()
	}
	return nil, &reachError{fmt.Errorf("cannot reach carrel at %s: %s: %w", c.host.socket, why, kind)}
}

// reachError is an error of dial, recognised under the wrapping of net/http.
type reachError struct{ error }

func (e *reachError) Unwrap() error { return e.error }

// transport sends bidirectional streams over HTTP/2, which they require, and streams of requests, so that an answer
// that comes before their end arrives. Everything else goes over HTTP/1.1, which is faster on a local socket.
type transport struct{ unary, streams *http.Transport }

func newTransport(dial func(context.Context) (*net.UnixConn, error)) *transport {
	of := func(http2 bool) *http.Transport {
		var p http.Protocols
		p.SetHTTP1(!http2)
		p.SetUnencryptedHTTP2(http2)
		return &http.Transport{
			Protocols: &p,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				c, err := dial(ctx)
				if err != nil {
					return nil, err
				}
				return c, nil
			},
			DisableCompression:  true,
			MaxIdleConnsPerHost: 16,
			IdleConnTimeout:     time.Minute,
		}
	}
	return &transport{of(false), of(true)}
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	switch r.URL.Path {
	case carrelv1connect.CommandServiceStreamProcedure, carrelv1connect.CommandServiceJoinProcedure,
		carrelv1connect.PortServiceConnectProcedure, carrelv1connect.AgentServiceServeProcedure,
		carrelv1connect.ArchiveServiceRestoreProcedure, carrelv1connect.FileServiceWriteFileProcedure,
		carrelv1connect.FileServiceUnpackFilesProcedure:
		return t.streams.RoundTrip(r)
	}
	return t.unary.RoundTrip(r)
}

// bounded ends an answer of one message a little behind maxAnswer: connect refuses what is longer,
// but reads it to its end first.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := b.RoundTripper.RoundTrip(r)
	if err == nil && !strings.HasPrefix(res.Header.Get("Content-Type"), "application/connect+") {
		res.Body = &boundedBody{res.Body, maxAnswer + 1<<10}
	}
	return res, err
}

type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, io.EOF
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// kinds is the interceptor that restores the kinds of errors.
type kinds struct{}

func (kinds) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		return res, fromWire(err)
	}
}

func (kinds) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		return kindConn{next(ctx, spec)}
	}
}

func (kinds) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

type kindConn struct{ connect.StreamingClientConn }

func (c kindConn) Receive(m any) error {
	err := c.StreamingClientConn.Receive(m)
	if errors.Is(err, io.ErrUnexpectedEOF) && !connect.IsWireError(err) { // it ended between two messages, or in one
		err = connect.NewError(connect.CodeUnavailable, errors.New("the connection was lost; the daemon may have ended: unavailable"))
	}
	return fromWire(err)
}

func fromWire(err error) error {
	if reach, ok := errors.AsType[*reachError](err); ok {
		return reach
	}
	return errcode.FromWire(err)
}

// IsCommandError reports whether err is about the command itself and not about the workspace: the
// program was not found there (a not_found error) or may not be executed (permission_denied).
func IsCommandError(err error) bool { return client.IsCommandError(err) }

// ApprovalOf returns the id of the approval that an error of a command is about: the command was
// requested with DoNotWait, and a person must approve it first. The same request again uses their
// answer.
func ApprovalOf(err error) (approval string, ok bool) {
	if err == nil || !errdefs.IsFailedPrecondition(err) && !errdefs.IsUnavailable(err) {
		return "", false
	}
	_, rest, found := strings.Cut(err.Error(), "a person has to approve it: approval ")
	if name, _, _ := strings.Cut(rest, ","); found && strings.HasPrefix(name, "ap-") {
		return name, true
	}
	return "", false
}
