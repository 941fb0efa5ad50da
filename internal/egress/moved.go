package egress

import (
	"net"
	"time"
)

// movedEvery is how often Config.Moved is told.
const movedEvery = 2 * time.Second

// tellBegun tells of a session that has got through.
func (x *session) tellBegun() {
	s := x.s
	if s.cfg.Begun == nil || x.begun {
		return
	}
	x.begun = true
	s.cfg.Begun(Connection{ID: x.id, Began: x.c.Began, Way: x.c.Way, Target: x.c.Target, Address: x.c.Address, Rule: x.c.Rule, Count: 1})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cfg.Moved != nil && s.moving == nil && !s.stopped {
		s.moving = time.AfterFunc(movedEvery, s.tellMoved)
	}
}

// tellMoved tells what has passed on sessions since the last time.
func (s *Server) tellMoved() {
	type one struct {
		x    *session
		up   net.Conn
		more []net.Conn
	}
	var open []one
	s.mu.Lock()
	for x := range s.sessions {
		if x.up != nil || x.model != nil {
			open = append(open, one{x, x.up, x.inner.conns()})
		}
	}
	s.mu.Unlock()
	var moved []Connection
	for _, o := range open {
		sent, received := o.x.moved(o.up, o.more)
		if last := &o.x.told; sent > last.sent || received > last.received {
			last.sent, last.received = max(sent, last.sent), max(received, last.received)
			moved = append(moved, Connection{ID: o.x.id, Sent: last.sent, Received: last.received})
		}
	}
	if len(moved) > 0 {
		s.cfg.Moved(moved)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopped:
	case len(open) == 0:
		s.moving = nil
	default:
		s.moving.Reset(movedEvery)
	}
}

// moved is what has passed on a session, with its connections to the host; up is nil for a model.
func (x *session) moved(up net.Conn, more []net.Conn) (sent, received int64) {
	sent, received = x.sent.Load(), x.received.Load()
	if up != nil {
		s, r := passed(up)
		sent, received = max(sent, s), max(received, r)
	}
	for _, c := range more {
		s, r := passed(c)
		sent, received = max(sent, s), max(received, r)
	}
	return sent, received
}
