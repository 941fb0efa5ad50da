package egress

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/proxy"
	"github.com/carrel-dev/carrel/internal/egress/room"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// ModelDomain is what the names of models end with. No name below it is resolved or connected to, whatever the rules say.
const ModelDomain = ".carrel.internal"

// modelPort is the only port of a model: programs speak plain HTTP with it, inside the workspace.
const modelPort = 80

// Model is an API that is served in this process: http://NAME.carrel.internal inside the workspace.
type Model struct {
	// Name is a label of a name: letters, digits and "-".
	Name string
	// Handler serves its requests. It must end when the context of the request does. Models are the same if their
	// handlers are, so it has to be comparable: a pointer.
	Handler http.Handler
}

// models are the APIs of a workspace by host.
type models map[netrule.Host]http.Handler

func modelsOf(all []Model) (models, error) {
	m := models{}
	for _, one := range all {
		h, err := netrule.ParseHost(one.Name + ModelDomain)
		if err != nil || strings.Contains(one.Name, ".") || one.Handler == nil || m[h] != nil {
			return nil, refusal{
				"cannot serve the model " + one.Name + ": use names of letters, digits and \"-\", each once",
				errdefs.ErrInvalidArgument,
			}
		}
		m[h] = one.Handler
	}
	return m, nil
}

// hosts are the names of models, sorted, so that the first addresses stay the same.
func (m models) hosts() (all []string) {
	for h := range m {
		all = append(all, h.Name())
	}
	slices.Sort(all)
	return all
}

// modelName reports whether a name is a model's, whether or not there is that model.
func modelName(h netrule.Host) bool {
	return strings.HasSuffix(h.Name(), ModelDomain) || h.Name() == strings.TrimPrefix(ModelDomain, ".")
}

// SetModels replaces what Config has as Models. Connections to models that are no longer the same are cut. When SetModels
// returns, no byte of them moves any more.
func (s *Server) SetModels(all []Model) error {
	m, err := modelsOf(all)
	if err != nil {
		return err
	}
	var victims []*session
	s.mu.Lock()
	s.models = m
	s.names.add(m.hosts())
	for x := range s.sessions {
		if x.model != nil && m[x.modelHost] != x.model {
			victims = append(victims, x)
		}
	}
	s.mu.Unlock()
	for _, x := range victims {
		x.cut("the models have changed")
	}
	return nil
}

// toModel reports whether a target is a model's, and has the session served by it. The error says why it cannot be.
func (x *session) toModel(t netrule.Target) (is bool, err error) {
	if !modelName(t.Host) {
		return false, nil
	}
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	handler := x.s.models[t.Host]
	switch {
	case handler == nil:
		return true, refusal{t.Host.String() + " is not allowed: there is no such model", errdefs.ErrPermissionDenied}
	case t.Port != modelPort:
		return true, refusal{
			t.String() + " is not allowed: a model is reached by plain HTTP inside; use http://" + t.Host.String(), errdefs.ErrPermissionDenied,
		}
	case x.s.stopped:
		return true, refusal{"the workspace's egress has ended", errdefs.ErrUnavailable}
	}
	x.model, x.modelHost = handler, t.Host
	return true, nil
}

// Connect connects to a target by rules of the caller's, for what serves a model: judge, resolve once, judge each address,
// dial one of those. The errors are those of any other connection.
func (s *Server) Connect(ctx context.Context, rules *netrule.Rules, t netrule.Target) (net.Conn, netip.AddrPort, error) {
	if v := rules.Judge(t); v.Action != netrule.Allow {
		return nil, netip.AddrPort{}, refusal{v.Reason(t), errdefs.ErrPermissionDenied}
	}
	return s.connect(ctx, rules, t)
}

// modelConn is a client's connection on which requests to a model are served.
type modelConn struct {
	programConn
	requests atomic.Int64
	once     sync.Once
	ended    chan struct{} // closed when it is closed and no handler runs
}

func (s *Server) modelServer() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(serveModel),
		ReadHeaderTimeout: s.cfg.Limits.Handshake,
		IdleTimeout:       s.cfg.Limits.Idle,
		MaxHeaderBytes:    proxy.MaxHead / 2,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ConnState: func(c net.Conn, state http.ConnState) {
			if m, ok := c.(*modelConn); ok && state == http.StateClosed {
				m.once.Do(func() { close(m.ended) })
			}
		},
		DisableGeneralOptionsHandler: true,
	}
}

// serveModel serves the requests of a session whose target is a model. had is what the client has sent already. It returns
// when the client's connection is closed and nothing of it is under way.
func (x *session) serveModel(had []byte) {
	if !x.s.cfg.Room.Take(room.Model) {
		x.refuse(full)
		abort(x.client)
		return
	}
	defer x.s.cfg.Room.Give(room.Model)
	x.giveHead() // its part is in that
	c := &modelConn{programConn: programConn{Conn: x.client, had: had, x: x}, ended: make(chan struct{})}
	select {
	case x.s.modelConns.conns <- c:
		<-c.ended
	case <-x.s.modelConns.ended:
	}
	x.c.Requests = c.requests.Load()
}

// serveModel serves one request.
func serveModel(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(*modelConn)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	c.requests.Add(1)
	if c.x.c.Way == WayHTTP { // the next request on it may be for another host
		w.Header().Set("Connection", "close")
	}
	for _, named := range []string{r.Host, r.URL.Host} {
		if t, err := target(named, "80"); named != "" && (err != nil || c.x.s.real(t) != c.x.c.Target) {
			w.Header().Set("Connection", "close")
			http.Error(w, "egress: a request for another host than "+c.x.c.Target.Host.String()+" is not allowed on its connection",
				http.StatusMisdirectedRequest)
			return
		}
	}
	if r.URL.User != nil || r.URL.Scheme != "" && r.URL.Scheme != "http" || r.Method == http.MethodConnect {
		http.Error(w, "egress: the URL is not one of http", http.StatusBadRequest)
		return
	}
	r.URL.Scheme, r.URL.Host = "", ""
	c.x.model.ServeHTTP(w, r)
}
