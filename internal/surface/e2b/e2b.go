// Package e2b serves the workspaces of a daemon to programs that were written for E2B: the control plane of its public
// SDKs (/sandboxes …), the services process.Process and filesystem.Filesystem, and /files. A sandbox is a workspace, its
// id the workspace's name. docs/compatibility.md says what works, what differs and what is not there.
//
//	SDK ──► address: headers, host ──► who: API key or access token ──► Door.Admit ──► Gate
//
// It translates, and must not decide, record or carry out anything itself.
package e2b

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/gen/e2b/filesystem/filesystemconnect"
	"github.com/carrel-dev/carrel/gen/e2b/process/processconnect"
	"github.com/carrel-dev/carrel/internal/base/keylock"
	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// EnvdVersion is the version of the in-sandbox daemon of E2B whose behaviour this is. The SDKs choose by it what they ask for.
const EnvdVersion = "0.5.7"

// envdPort is the port under which SDKs address the services of a sandbox.
const envdPort = 49983

// Door admits requests with the bounds of the daemon's API: *api.Server.
type Door interface {
	Admit(w http.ResponseWriter, r *http.Request, e api.Entry)
	// Taken is for a connection that a handler has taken over, when it has ended.
	Taken(c net.Conn)
	// Descriptors takes n of the daemon's descriptors for an owner until give is called.
	Descriptors(owner string, n int) (give func(), err error)
}

// Tokens are who may come in: *authn.Tokens.
type Tokens interface {
	Enter(ctx context.Context, headers []string) (entered context.Context, leave func(), err error)
	// EnterAs is Enter for who has shown that it was given access by the holder of a token.
	EnterAs(ctx context.Context, ref token.ID) (entered context.Context, leave func(), err error)
	Missing(ctx context.Context) error
}

// Options are what a Server needs. All are required but Domain and Slow.
type Options struct {
	Gate   api.Gate
	Door   Door
	Tokens Tokens
	// Book keeps what a workspace has as a sandbox.
	Book Book
	// History tells what was done in a workspace.
	History History
	// Key signs access tokens. Whoever has it may use any sandbox as the holder of any token.
	Key []byte
	// Domain is under which sandboxes have hosts, {port}-{id}.{domain}; "" is none, then headers say which is meant.
	Domain string
	// Slow is how long a client may take for the next piece of output, and a command to read what it is sent; 0 is 30 seconds.
	Slow time.Duration
}

// Server is an http.Handler. Close it when it is no longer used.
type Server struct {
	Options

	control  http.Handler
	data     http.Handler
	running  running
	watchers watchers
	// lives has one request at a time change whether a sandbox runs: that and what is kept of it belong together.
	lives   keylock.Turns
	waiting atomic.Uint32
	// seen are the tokens that sandboxes were given out to, by workspace, for signed URLs.
	seen struct {
		mu sync.Mutex
		of map[string][]token.ID
	}
}

// New returns a Server.
func New(o Options) *Server {
	if o.Slow == 0 {
		o.Slow = defaultSlow
	}
	s := &Server{Options: o}
	s.control = s.sandboxRoutes()
	data := http.NewServeMux()
	// What an SDK newer than this sends besides is passed over, as its own servers do.
	bound := connect.WithReadMaxBytes(maxMessage)
	plain := connect.WithCompression("gzip", nil, nil)
	data.Handle(processconnect.NewProcessHandler(processes{s}, bound, plain))
	data.Handle(filesystemconnect.NewFilesystemHandler(filesystem{s}, bound, plain))
	data.HandleFunc("GET /files", s.download)
	data.HandleFunc("POST /files", s.upload)
	data.HandleFunc("GET /health", s.health)
	data.HandleFunc("GET /changes", s.changes)
	data.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fail(w, notFound("there is nothing at %s", r.URL.Path)) })
	s.data = data
	return s
}

// Close hangs up the commands that clients have started, and ends watchers.
func (s *Server) Close() {
	s.running.close()
	s.watchers.close()
}

const (
	// maxMessage bounds a message of the services, and a body of the control plane, in bytes.
	maxMessage = 4 << 20
	// maxBody bounds a body of the control plane, in bytes.
	maxBody = 1 << 20
)

// streams are the paths whose exchanges may last.
var streams = map[string]bool{
	processconnect.ProcessStartProcedure: true, processconnect.ProcessConnectProcedure: true, processconnect.ProcessStreamInputProcedure: true,
	filesystemconnect.FilesystemWatchDirProcedure: true, "/files": true,
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, port, ok := s.addressed(r)
	signed := ok && r.URL.Path == "/files" && r.URL.Query().Has("signature")
	switch {
	case ok && port != envdPort:
		s.Door.Admit(w, r.WithContext(context.WithValue(r.Context(), sandboxKey{}, name)), api.Entry{
			Enter:  func(ctx context.Context) (context.Context, func(), error) { return s.enterPort(ctx, name, r) },
			Refuse: refuse, Stream: true, Counted: true, Handler: s.served(http.HandlerFunc(s.port)),
		})
		return
	case (r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "") && !signed:
		fail(w, forbidden("this endpoint is not for browsers, but for signed URLs of files; use an SDK"))
		return
	case !ok && r.URL.Path == "/health":
		w.WriteHeader(http.StatusNoContent)
		return
	}
	e := api.Entry{Refuse: refuse, Handler: s.control, MaxRequest: maxMessage}
	if ok {
		lasts := streams[r.URL.Path]
		e.Stream, e.Counted, e.Handler = lasts, lasts, s.served(s.data)
		r = r.WithContext(context.WithValue(r.Context(), sandboxKey{}, name))
		e.Enter = func(ctx context.Context) (context.Context, func(), error) { return s.enterSandbox(ctx, name, r) }
	} else {
		e.Enter = func(ctx context.Context) (context.Context, func(), error) { return s.enterControl(ctx, r) }
	}
	s.Door.Admit(w, r, e)
}

// served hands on what is for a sandbox that runs or can be started. SDKs tell by 502 and these words that there is none.
func (s *Server) served(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := s.Gate.Get(r.Context(), authn.FromContext(r.Context()), sandboxOf(r.Context()))
		switch {
		case errdefs.IsNotFound(err), errdefs.IsPermissionDenied(err), err == nil && string(ws.Name) != sandboxOf(r.Context()),
			err == nil && ws.State == workspace.StateDestroying:
			failAs(w, http.StatusBadGateway, "The sandbox was not found")
		case err != nil:
			answerWith(w, r, err)
		case ws.State != workspace.StateRunning:
			ok, err := s.awake(r, ws)
			switch {
			case err != nil:
				answerWith(w, r, err)
			case !ok:
				failAs(w, http.StatusBadGateway, "The sandbox was not found: it is paused; connect to it to have it go on")
			default:
				next.ServeHTTP(w, r)
			}
		default:
			next.ServeHTTP(w, r)
		}
	})
}

type sandboxKey struct{}

// sandboxOf is the name of the workspace that a request is about.
func sandboxOf(ctx context.Context) string {
	name, _ := ctx.Value(sandboxKey{}).(string)
	return name
}

// addressed is which sandbox a request names, and which port of it: by headers, or by its host.
func (s *Server) addressed(r *http.Request) (name string, port int, ok bool) {
	if name = r.Header.Get("E2b-Sandbox-Id"); name != "" {
		port = envdPort
		if v := r.Header.Get("E2b-Sandbox-Port"); v != "" {
			port, _ = strconv.Atoi(v)
		}
		return name, port, true
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	label, domain, found := strings.Cut(host, ".")
	number, name, dash := strings.Cut(label, "-")
	if !found || !dash || name == "" || s.Domain == "" || !strings.EqualFold(domain, s.Domain) {
		return "", 0, false
	}
	port, err := strconv.Atoi(number)
	return strings.ToLower(name), port, err == nil
}
