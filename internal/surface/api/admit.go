package api

import (
	"cmp"
	"context"
	"net"
	"net/http"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// Entry is how a request is admitted.
type Entry struct {
	// Enter returns a context with who calls; leave is for the end of the request.
	Enter func(context.Context) (ctx context.Context, leave func(), err error)
	// Refuse answers what is not admitted.
	Refuse func(http.ResponseWriter, *http.Request, error)
	// Stream: the exchange may last, so that its body has no deadline. Counted: it is counted with those of its caller.
	Stream, Counted bool
	// MaxRequest bounds the body of an exchange that is answered once, and a message of one that lasts, in bytes; 0 is a mebibyte.
	MaxRequest int
	Handler    http.Handler
}

// Admit serves a request, of this API or of another surface on a server of RemoteServer, within the bounds that all have.
func (s *Server) Admit(w http.ResponseWriter, r *http.Request, e Entry) {
	ctx, leave, err := e.Enter(r.Context())
	if err != nil {
		e.Refuse(w, r, err)
		return
	}
	defer leave()
	if f, remote := ctx.Value(farKey{}).(far); remote || r.TLS != nil {
		over, err := s.acquaint(f, authn.FromContext(ctx))
		if err != nil {
			e.Refuse(w, r, err)
			return
		}
		defer over()
	}
	if ctx != r.Context() {
		defer endWith(ctx, http.NewResponseController(w))()
		r = r.WithContext(ctx)
	}
	if e.Counted {
		done, err := s.streams.enter(authn.FromContext(r.Context()))
		if err != nil {
			e.Refuse(w, r, err)
			return
		}
		defer done()
	}
	owner := authn.FromContext(r.Context()).Owner()
	requests := requestsOf(owner)
	if err := s.open(requests, forRequest); err != nil {
		e.Refuse(w, r, err)
		return
	}
	defer s.opened.Give(requests, forRequest)
	if !e.Stream {
		give, err := s.room(r.Context(), owner, bodyOf(r, e.MaxRequest))
		if err != nil {
			e.Refuse(w, r, err)
			return
		}
		defer give()
		out := &answering{ResponseWriter: w, s: s, r: r, owner: owner, refuse: e.Refuse}
		defer out.end()
		w = out
	}
	at, err := s.places.take(r.Context(), owner)
	if err != nil {
		e.Refuse(w, r, err)
		return
	}
	defer at.give()
	if e.Stream {
		// A stream outlives the time limits, so a closing server must end it.
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(s.closing, cancel)()
		rc := http.NewResponseController(w)
		r = r.WithContext(context.WithValue(ctx, streamKey{}, &exchanged{rc, at}))
		if framed(r) && r.Body != http.NoBody {
			body := &messages{ReadCloser: r.Body, s: s, ctx: ctx, owner: owner, most: int64(cmp.Or(e.MaxRequest, operation.Large))}
			defer body.letGo()
			r.Body = body
		}
	} else if r, err = limitBody(w, r, s.opts.BodyTimeout); err != nil {
		e.Refuse(w, r, err)
		return
	}
	e.Handler.ServeHTTP(w, r)
}

// Taken counts out a connection that a handler has taken over from its server, and which has ended.
func (s *Server) Taken(c net.Conn) { s.connState(c, http.StateClosed) }
