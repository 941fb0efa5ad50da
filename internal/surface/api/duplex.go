package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// connect serves a stream in both directions over HTTP/2 only, because proxies and most clients of HTTP/1.1 send a request
// to its end before they read. The clients in sdk/python and sdk/typescript have a connection of their own and need no
// HTTP/2 for it, which Python's standard library does not have.
//
//	request with Content-Length   it is read first, and the connection is kept for the next request
//	request in chunks             both sides send at the same time, and the connection ends with the exchange

// sendsStream are the procedures whose client sends a stream.
var sendsStream = func() map[string]bool {
	m := map[string]bool{}
	services := carrelv1.File_carrel_v1_carrel_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			if methods.Get(j).IsStreamingClient() {
				m["/"+string(services.Get(i).FullName())+"/"+string(methods.Get(j).Name())] = true
			}
		}
	}
	return m
}()

// maxWhole bounds a request that is read before it is carried out, in bytes: a message with a command, and one with as much
// stdin as Exec takes.
const maxWhole = 2 * operation.Large

// maxLeft is how much of a request is passed over after its answer, in bytes.
const maxLeft = 4 << 20

// duplex serves streams in both directions of Connect over HTTP/1.1 too.
func (s *Server) duplex(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.ProtoMajor != 1 || !sendsStream[r.URL.Path] || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/connect+"):
			h.ServeHTTP(w, r)
		case r.URL.Path == carrelv1connect.CommandServiceStreamProcedure && r.ContentLength > 0 && r.ContentLength <= maxWhole:
			give, err := s.room(r.Context(), ownerOf(r.Context()), r.ContentLength)
			if err != nil {
				s.refuse(w, r, err)
				return
			}
			defer give()
			whole, err := s.wholeBody(w, r)
			if err != nil {
				s.refuse(w, r, err)
				return
			}
			h.ServeHTTP(w, asHTTP2(whole))
		default:
			s.atOnce(h, w, r)
		}
	})
}

// atOnce has both sides send at the same time.
func (s *Server) atOnce(h http.Handler, w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	if err := rc.EnableFullDuplex(); err != nil {
		s.refuse(w, r, err)
		return
	}
	// Bytes that are left behind would be taken for the next request.
	w.Header().Set("Connection", "close")
	in, fed := io.Pipe()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, err := io.Copy(fed, r.Body)
		fed.CloseWithError(err) // nil is its end
	}()
	// Whoever gives the request up ends what it reads, and not the connection: with that the server would end the context.
	stop := stoppable{w, in}
	both := asHTTP2(withController(r, http.NewResponseController(stop)))
	both.Body = in
	h.ServeHTTP(stop, both)

	// What comes of it is passed over for a moment, so that the answer is not lost with it.
	_ = rc.Flush() // a client that is gone needs no answer
	in.CloseWithError(os.ErrDeadlineExceeded)
	_ = rc.SetReadDeadline(time.Now().Add(endGrace))
	<-over
	_, _ = io.CopyN(io.Discard, r.Body, maxLeft)
}

// stoppable is a ResponseWriter whose reading ends at once if its deadline is over.
type stoppable struct {
	http.ResponseWriter
	in *io.PipeReader
}

// Unwrap is for http.ResponseController.
func (s stoppable) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// SetReadDeadline is for http.ResponseController.
func (s stoppable) SetReadDeadline(t time.Time) error {
	if t.Before(time.Now()) && !t.IsZero() {
		return s.in.CloseWithError(os.ErrDeadlineExceeded)
	}
	return http.NewResponseController(s.ResponseWriter).SetReadDeadline(t)
}

// Flush is for connect.
func (s stoppable) Flush() {
	_ = http.NewResponseController(s.ResponseWriter).Flush() // the next write has the error
}

// wholeBody reads the body of a request to its end. The server watches the connection from then on, so that nothing may set
// a deadline for reading: it would end the requests that follow. For that the context has no controller any more.
func (s *Server) wholeBody(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	timed, err := limitBody(w, r, s.opts.BodyTimeout)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(timed.Body)
	if err != nil {
		return nil, invalid("the body", "it did not arrive: "+err.Error(), "send as much as Content-Length says")
	}
	r = withController(r, nil)
	r.Body = io.NopCloser(bytes.NewReader(b))
	return r, nil
}

// withController is a stream's request with another controller, or without one.
func withController(r *http.Request, rc *http.ResponseController) *http.Request {
	x := *r.Context().Value(streamKey{}).(*exchanged) // as Admit says
	x.rc = rc
	return r.WithContext(context.WithValue(r.Context(), streamKey{}, &x))
}

// asHTTP2 is a request of which connect takes a stream in both directions. It is a copy: the server has its own.
func asHTTP2(r *http.Request) *http.Request {
	both := *r
	both.Proto, both.ProtoMajor, both.ProtoMinor = "HTTP/2.0", 2, 0
	return &both
}
