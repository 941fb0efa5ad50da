package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// session is one accepted connection.
type session struct {
	s      *Server
	client net.Conn
	id     uint64
	// c belongs to the session's goroutine. Target and Address do not change after establish, so that SetRules may
	// read them.
	c              Connection
	sent, received atomic.Int64
	recorded       bool   // there is nothing more to record
	begun          bool   // Config.Begun was told
	over           bool   // and of the end
	largeHead      bool   // see giveHead
	had            []byte // what first has read
	// model serves the session, nil if its target is a host. Both are set once, under the server's mutex.
	model     http.Handler
	modelHost netrule.Host

	// Under the server's mutex.
	up     net.Conn
	inner  inner // what else there is of an intercepted one
	spoken spoken
	why    string // why it was cut
	silent bool   // it is not recorded
	// approved: a person let it through, or has just let another to the same target.
	approved bool
	idle     *time.Timer

	told struct{ sent, received int64 } // by Config.Moved, whose calls follow each other
}

// accept starts the loop that accepts connections of one way. serve is called in a goroutine of each; the
// connection is closed when it returns.
func (s *Server) accept(start func(func(context.Context) error), l net.Listener, way string, serve func(context.Context, *session)) {
	if l == nil {
		return
	}
	start(func(ctx context.Context) error {
		for {
			conn, err := l.Accept()
			switch {
			case err == nil:
			case ctx.Err() != nil:
				return nil
			case passing(err):
				pause(ctx)
				continue
			default:
				return fmt.Errorf("cannot accept %s connections: %w: %w", way, err, errdefs.ErrUnavailable)
			}
			if x := s.begin(conn, way); x != nil {
				go func() {
					defer s.wg.Done()
					defer x.end()
					serve(ctx, x)
				}()
			}
		}
	})
}

// passing reports whether accepting can continue after an error: the client has gone, or the system has no
// descriptors or memory left for the moment.
func passing(err error) bool {
	for _, e := range []syscall.Errno{
		unix.ECONNABORTED, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EINTR, unix.EPROTO, unix.EPERM,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// pause waits a moment, so that a loop does not spin on such an error.
func pause(ctx context.Context) {
	wait := time.NewTimer(50 * time.Millisecond)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-ctx.Done():
	}
}

// begin registers a connection, or closes it and returns nil if there are too many.
func (s *Server) begin(conn net.Conn, way string) *session {
	x := &session{s: s, client: conn, c: Connection{Began: time.Now(), Way: way}}
	s.mu.Lock()
	full := len(s.sessions) >= s.cfg.Limits.Connections
	stopped := s.stopped
	if !full && !stopped {
		s.sessions[x] = struct{}{}
		s.lastID++
		x.id = s.lastID
		s.wg.Add(1)
	}
	s.mu.Unlock()
	if full || stopped {
		abort(conn)
		if full {
			x.c.Refused = fmt.Sprintf("there are %d connections already", s.cfg.Limits.Connections)
			s.refused.add(x.c)
		}
		return nil
	}
	return x
}

// establish sets the session's connection to a host, unless the rules that hold now do not allow it.
func (x *session) establish(up net.Conn) error {
	s := x.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return fmt.Errorf("the workspace's egress has ended: %w", errdefs.ErrUnavailable)
	}
	if err := x.may(s.rules, x.c.Target, x.c.Address.Addr()); err != nil {
		return err
	}
	x.up = up
	x.idle = time.AfterFunc(s.cfg.Limits.Idle, x.checkIdle)
	return nil
}

// cut ends a session for a reason. No byte moves after it returns: closing a connection waits for the calls in
// progress, and a reset discards what the kernel has queued.
func (x *session) cut(why string) {
	x.s.mu.Lock()
	if x.why == "" {
		x.why = why
	}
	up, more := x.up, x.inner.conns()
	x.s.mu.Unlock()
	// Both are set to reset before either is closed. Otherwise the goroutine that copies could close the other one
	// in order, as if everything had been sent.
	all := append([]net.Conn{x.client}, more...)
	if up != nil {
		all = append(all, up)
	}
	for _, c := range all {
		reset(c)
	}
	for _, c := range all {
		abort(c)
	}
}

// end closes a session, and records it unless refuse has.
func (x *session) end() {
	s := x.s
	s.mu.Lock()
	delete(s.sessions, x)
	up, why, silent := x.up, x.why, x.silent
	if x.idle != nil {
		x.idle.Stop()
	}
	s.mu.Unlock()
	switch {
	case up == nil:
	case x.sent.Load() == 0 && x.received.Load() == 0: // in order, it would keep a port of this host
		abort(up)
	default:
		_ = up.Close()
	}
	_ = x.client.Close()
	x.giveHead()
	if why != "" {
		x.c.Refused = why
	}
	if !x.recorded && !silent {
		x.record()
	}
	if x.begun && !x.over {
		s.cfg.Over(x.id)
	}
}

// record records a session as it is now.
func (x *session) record() {
	c := x.c
	c.Duration = time.Since(c.Began)
	c.Sent, c.Received, c.Count = x.sent.Load(), x.received.Load(), 1
	switch {
	case c.Refused != "" && c.Sent == 0 && c.Received == 0:
		x.recorded = true
		x.s.refused.add(c)
	case c.Refused == "" && c.Way == WayDNS: // its queries are recorded instead
	default:
		if x.begun {
			c.ID, x.over = x.id, true
		}
		x.s.cfg.Record(c)
	}
}

// refuse sets why a session is refused; the first reason stays. It is recorded at once if no byte has moved, because
// telling the client may take a while.
func (x *session) refuse(err error) {
	text := reason(err)
	if errors.As(err, new(unreadable)) {
		text = "the request names no valid host and port"
	}
	if x.c.Refused != "" {
		return
	}
	x.c.Refused = text
	if x.sent.Load() == 0 && x.received.Load() == 0 {
		x.record()
	}
}

// checkIdle cuts a session on which nothing has arrived for Limits.Idle, or schedules the next check.
func (x *session) checkIdle() {
	x.s.mu.Lock()
	up, more := x.up, x.inner.conns()
	x.s.mu.Unlock()
	limit := x.s.cfg.Limits.Idle
	quiet := min(silence(up), silence(x.client))
	for _, c := range more {
		quiet = min(quiet, silence(c))
	}
	if quiet >= limit {
		x.cut(fmt.Sprintf("nothing came from either side for %s", limit))
		return
	}
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	if _, open := x.s.sessions[x]; open {
		x.idle.Reset(limit - quiet)
	}
}

// silence returns how long nothing has arrived on a connection. It asks the kernel, because spliced bytes do not
// pass through this process. For a connection that is closed or not TCP it is forever.
func silence(c net.Conn) time.Duration {
	const forever = 1<<63 - 1
	sc, ok := c.(syscall.Conn)
	if !ok {
		return forever
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return forever
	}
	quiet := time.Duration(forever)
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			quiet = time.Duration(info.Last_data_recv) * time.Millisecond
		}
	})
	return quiet
}

// abort closes a connection with a reset, which discards what is queued.
func abort(c net.Conn) {
	reset(c)
	_ = c.Close()
}

// reset makes closing a connection reset it.
func reset(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(int) error }); ok {
		_ = l.SetLinger(0)
	}
}

// closeWrite ends one direction of a connection, or both if it has no directions.
func closeWrite(c net.Conn) {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
		return
	}
	_ = c.Close()
}

// may judges a target and an address of it. The server's mutex is held.
func (x *session) may(r *netrule.Rules, t netrule.Target, a netip.Addr) error {
	if err := x.judged(t, r.Judge(t)); err != nil {
		return err
	}
	if !a.IsValid() { // a proxy has connected
		return nil
	}
	return r.Address(t, a)
}
