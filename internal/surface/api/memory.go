package api

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// What clients send and what they are answered is in the daemon's memory until it has been carried out, or read. An owner
// has one budget for both, over all routes and connections, and there is one for all. What comes is counted before it is
// read and waits for room; what goes is counted when it is there, waits too, and gives way where even what waits is too
// much. A message is counted twice: there are its bytes, and what they say.
const (
	ownersMemory = 64 << 20
	// allMemory is for all owners, and firstMemory what one who holds nothing always may.
	allMemory   = 4 * ownersMemory
	firstMemory = 2 * (operation.Large + 1<<10)
	// uncounted is what is not worth it. The bounds of requests bound it.
	uncounted = 1 << 10
	// roomPatience is how long somebody waits for room.
	roomPatience = 10 * time.Second
	// writePiece is what a client has Options.StallTimeout for.
	writePiece = 256 << 10
)

// weigh is what a message of n bytes counts.
func weigh(n int64) int64 {
	if n <= uncounted {
		return 0
	}
	return 2 * n
}

// noRoom is the error for what there is no memory for.
func (s *Server) noRoom(owner, what string, n int64) error {
	most, _ := s.memory.Bounds()
	return fmt.Errorf("cannot hold %s of %d bytes: requests and unread answers of %s have %d bytes of carreld's memory, of at most %d; read "+
		"the answers, or send less at once: %w", what, n, owner, s.memory.Held(owner), most, errdefs.ErrResourceExhausted)
}

// room waits until there is memory for a request of n bytes. give gives it back.
func (s *Server) room(ctx context.Context, owner string, n int64) (give func(), err error) {
	weight := weigh(n)
	if weight == 0 {
		return func() {}, nil
	}
	timed, cancel := context.WithTimeoutCause(ctx, roomPatience, errNoRoom)
	defer cancel()
	ok, err := s.memory.Wait(timed, owner, weight)
	if !ok {
		if err == nil || errors.Is(err, errNoRoom) {
			err = s.noRoom(owner, "a request", n)
		}
		return nil, err
	}
	return func() { s.memory.Give(owner, weight) }, nil
}

// roomFor is jsonrpc.Config.Room for a connection of an owner's.
func (s *Server) roomFor(owner string) func(more int) error {
	return func(more int) error {
		if more <= 0 {
			s.memory.Give(owner, int64(-more))
			return nil
		}
		if !s.memory.Take(owner, int64(more)) {
			return s.noRoom(owner, "a message", int64(more))
		}
		return nil
	}
}

var errNoRoom = errors.New("no room")

// hold is room for what is in memory already. What waits is bounded as well.
func (s *Server) hold(ctx context.Context, owner, what string, n int64) (give func(), err error) {
	weight := weigh(n)
	if s.memory.Take(owner, weight) {
		return func() { s.memory.Give(owner, weight) }, nil
	}
	if !s.overdraft.Take(owner, weight) {
		return nil, s.noRoom(owner, what, n)
	}
	defer s.overdraft.Give(owner, weight)
	timed, cancel := context.WithTimeoutCause(ctx, roomPatience, errNoRoom)
	defer cancel()
	ok, err := s.memory.Wait(timed, owner, weight)
	if !ok {
		if err == nil || errors.Is(err, errNoRoom) {
			err = s.noRoom(owner, what, n)
		}
		return nil, err
	}
	return func() { s.memory.Give(owner, weight) }, nil
}

// bodyOf is how much memory a request may take, at most so much.
func bodyOf(r *http.Request, most int) int64 {
	switch {
	case r.Body == http.NoBody:
		return 0
	case most <= 0:
		most = operation.Large
	}
	if r.ContentLength >= 0 {
		return min(r.ContentLength, int64(most))
	}
	return int64(most)
}

// answering is the writer of an exchange that is answered once. Its client has a time to read, and the answer counts in
// the memory of its owner.
type answering struct {
	http.ResponseWriter
	s      *Server
	r      *http.Request
	owner  string
	refuse func(http.ResponseWriter, *http.Request, error)

	status  int // to be sent before the first byte
	begun   bool
	refused bool
}

// WriteHeader implements http.ResponseWriter.
func (a *answering) WriteHeader(status int) {
	if status < http.StatusOK {
		a.ResponseWriter.WriteHeader(status)
	} else if a.status == 0 {
		a.status = status
	}
}

// Write implements http.ResponseWriter.
func (a *answering) Write(p []byte) (int, error) {
	if a.refused {
		return len(p), nil
	}
	if n := int64(len(p)); weigh(n) > 0 {
		give, err := a.s.hold(a.r.Context(), a.owner, "an answer", n)
		if err != nil {
			if a.refused = true; a.begun {
				panic(http.ErrAbortHandler) // the client sees that it is not whole
			}
			clear(a.Header())
			a.refuse(a.ResponseWriter, a.r, err)
			return 0, err
		}
		defer give()
	}
	a.begin()
	done := 0
	for {
		_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Now().Add(a.s.opts.StallTimeout)) // the write tells
		n, err := a.ResponseWriter.Write(p[done:min(done+writePiece, len(p))])
		if done += n; err != nil || done == len(p) {
			return done, err
		}
	}
}

// begin sends the head.
func (a *answering) begin() {
	if a.begun || a.refused {
		return
	}
	if a.begun = true; a.status != 0 {
		a.ResponseWriter.WriteHeader(a.status)
	}
}

// end is for what has no body.
func (a *answering) end() {
	if !a.begun && !a.refused {
		_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Now().Add(a.s.opts.StallTimeout)) // as in Write
		a.begin()
	}
}

// Flush implements http.Flusher.
func (a *answering) Flush() {
	a.begin()
	_ = http.NewResponseController(a.ResponseWriter).Flush() // the next write tells
}

// Unwrap is for http.ResponseController.
func (a *answering) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// messages is the body of a stream. It counts each message when its length has come: there are five bytes before it, the last
// four of which are that, with Connect and with gRPC.
type messages struct {
	io.ReadCloser
	s     *Server
	ctx   context.Context //nolint:containedctx // that of the request
	owner string
	most  int64

	head []byte
	left int64 // of the message that is read
	give atomic.Pointer[func()]
}

// framed reports whether the body of a request is a stream of messages.
func framed(r *http.Request) bool {
	t := r.Header.Get("Content-Type")
	return strings.HasPrefix(t, "application/connect+") || strings.HasPrefix(t, "application/grpc")
}

// Read implements io.Reader.
func (m *messages) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		if m.left > 0 {
			over := min(m.left, int64(len(rest)))
			m.left, rest = m.left-over, rest[over:]
			continue
		}
		missing := min(5-len(m.head), len(rest))
		m.head, rest = append(m.head, rest[:missing]...), rest[missing:]
		if len(m.head) < 5 {
			break
		}
		m.left, m.head = int64(binary.BigEndian.Uint32(m.head[1:])), m.head[:0]
		m.letGo()
		give, bad := m.s.room(m.ctx, m.owner, min(m.left, m.most))
		if bad != nil {
			return n, bad
		}
		m.give.Store(&give)
	}
	return n, err
}

func (m *messages) letGo() {
	if give := m.give.Swap(nil); give != nil {
		(*give)()
	}
}

// ownerOf is who is charged for a request.
func ownerOf(ctx context.Context) string { return authn.FromContext(ctx).Owner() }
