package egress

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// Slow has the next connection to a host wait for so long, because all workspaces of an owner make too many.
func (s *Server) Slow(wait time.Duration) {
	l := s.cfg.Limits
	then := time.Now().Add(time.Duration(l.DialBurst)*l.DialEvery + min(wait, l.Dial))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dialFull.Before(then) {
		s.dialFull = then
	}
}

// pace waits until another connection to a host may be made. Those that wait go on in the order in which they came.
func (s *Server) pace(ctx context.Context, t netrule.Target) error {
	l, now := s.cfg.Limits, time.Now()
	s.mu.Lock()
	full := s.dialFull
	if full.Before(now) {
		full = now
	}
	full = full.Add(l.DialEvery)
	wait := full.Sub(now) - time.Duration(l.DialBurst)*l.DialEvery
	if wait <= l.Dial {
		s.dialFull = full
	}
	s.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	no := refusal{
		"cannot connect to " + t.String() + ": too many connections are made in this workspace, or by its owner", errdefs.ErrUnavailable,
	}
	if wait > l.Dial {
		return no
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return no
	}
}

// errSilent ends a session whose program has closed its direction and said nothing.
var errSilent = errors.New("the program said nothing")

// programFirst reports whether a target has the usual port of a protocol in which the program speaks first.
func programFirst(t netrule.Target) bool { return t.Port == 80 || t.Port == 443 }

// first waits for the first byte of a program on ports where the program speaks first, because a connection that says nothing
// would take a port of the host. What else may be spoken there goes on after a while. CONNECT and SOCKS want an answer before.
func (x *session) first(t netrule.Target) error {
	if x.c.Way != WayTransparent || !programFirst(t) {
		return nil
	}
	had := make([]byte, 1, 512)
	_ = x.client.SetReadDeadline(time.Now().Add(x.s.cfg.Limits.First))
	_, err := io.ReadFull(x.client, had)
	_ = x.client.SetReadDeadline(time.Time{})
	switch {
	case err == nil:
		x.had = had
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	}
	return errSilent
}
