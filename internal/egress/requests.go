package egress

import (
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/egress/proxy"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// Where rules are about one protocol or some requests, nothing of a connection passes before its first bytes are judged.
// Then its bytes are copied, or its requests are read and each is judged by the rules of that moment. What the rules of
// another moment do not allow any more is cut with its connection.

// spoken is what is known of what a session carries. It is under the server's mutex.
type spoken struct {
	// begun: bytes are copied, or requests are read.
	begun    bool
	protocol netrule.Protocol
	read     bool // its requests are judged one by one
	open     map[*netrule.Request]struct{}
	rule     string // the one that allowed the first request
}

// held reports whether nothing of a session may pass before its first bytes are known.
func (x *session) held() bool {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	l := x.s.rules.Limits(x.c.Target)
	v, requests := l.Connection(netrule.Anything, x.approved)
	x.spoken.begun = l.None() || v.Action == netrule.Allow && !requests
	return !x.spoken.begun
}

// carry decides how a session that begins so is carried on: by reading it if there is a reader, else by copying.
func (x *session) carry(f proxy.First) (by reader, err error) {
	t, p := x.c.Target, netrule.Anything
	switch f.Protocol {
	case proxy.TLS:
		p = netrule.TLS
	case proxy.HTTP:
		p = netrule.HTTP
	case proxy.Opaque, proxy.Undecided:
	}
	named := false // whether TLS names the target
	if h, err := netrule.ParseHost(f.Hello.Name); err == nil {
		named = h == t.Host
	}
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	if err := x.s.byAddress(t, f); err != nil {
		return by, err
	}
	l := x.s.rules.Limits(t)
	var requests bool
	if !l.None() {
		v, each := l.Connection(p, x.approved)
		if v.Action != netrule.Allow {
			return by, refusal{l.Why(p, v), errdefs.ErrPermissionDenied}
		}
		if requests = each; requests && x.spoken.begun {
			return by, refusal{"the rules have changed: only some requests may be made to " + t.String(), errdefs.ErrPermissionDenied}
		}
	}
	// So a secret is never sent in the clear, nor to another host of the same address.
	secrets := p == netrule.TLS && (named || f.Hello.Name == "") && x.s.inside.Bound(t)
	switch {
	case requests && p == netrule.HTTP:
		by = reader{by: x.s.plain, plain: true, judged: true}
	case requests && f.Hello.Name != "" && !named:
		return by, refusal{t.String() + " is not allowed: its TLS server name is another one", errdefs.ErrPermissionDenied}
	case requests && !x.s.inside.ReadsTLS():
		return by, refusal{
			t.String() + " is not allowed: rules are about its requests, and the workspace was started without an authority by which they " +
				"could be read inside TLS; stop the workspace, it gets one when it starts next", errdefs.ErrPermissionDenied,
		}
	case requests || secrets:
		by = reader{by: x.s.inside, judged: requests}
		x.inner.by = by.by
	case p == netrule.TLS && !l.None() && !l.Wholly(x.approved) && !named && t.Host.Name() != "":
		return by, refusal{t.String() + " is not allowed: TLS to it names no server", errdefs.ErrPermissionDenied}
	}
	x.spoken.begun, x.spoken.protocol, x.spoken.read = true, p, by.by != nil
	return by, nil
}

// byAddress refuses a connection to an address that is for a name of which rules deny all, or are about a part: they would
// not hold there. The server's mutex is held.
func (s *Server) byAddress(t netrule.Target, f proxy.First) error {
	if t.Host.Name() != "" {
		return nil
	}
	for _, text := range []string{f.Hello.Name, f.Head.Authority, f.Head.Host} {
		h, err := hostOf(text)
		if text == "" || err != nil || h == t.Host {
			continue
		}
		at := netrule.Target{Host: h, Port: t.Port}
		l := s.rules.Limits(at)
		if v := s.rules.Judge(at); v.Action == netrule.Deny && v.Rule != "" || !l.None() {
			return refusal{
				t.String() + " is not allowed for " + h.String() + ": rules name that host; connect to it by its name", errdefs.ErrPermissionDenied,
			}
		}
	}
	return nil
}

// reader is what reads a session; the zero value is for one that is copied.
type reader struct {
	by            *intercept.Interceptor
	plain, judged bool
}

// carryWeb has a session carry one request by way of serveWeb.
func (x *session) carryWeb() {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	x.spoken.begun, x.spoken.protocol, x.spoken.read = true, netrule.HTTP, true
}

// still is an error if rules do not allow what a session carries any more. The server's mutex is held.
func (x *session) still(r *netrule.Rules) error {
	l := r.Limits(x.c.Target)
	if l.None() && !x.spoken.read || !x.spoken.begun {
		return nil
	}
	if x.spoken.read {
		for q := range x.spoken.open {
			if _, why := l.Request(x.spoken.protocol, q, x.approved); why != "" {
				return refusal{why, errdefs.ErrPermissionDenied}
			}
		}
		return nil
	}
	switch v, requests := l.Connection(x.spoken.protocol, x.approved); {
	case v.Action != netrule.Allow:
		return refusal{l.Why(x.spoken.protocol, v), errdefs.ErrPermissionDenied}
	case requests:
		return refusal{
			"only some requests may be made to " + x.c.Target.String() + ", and this connection is not read",
			errdefs.ErrPermissionDenied,
		}
	}
	return nil
}

// admit judges a request of a session by the rules of now. A refusal is recorded at once, and then counted.
func (x *session) admit(q *netrule.Request) (done func(), no *intercept.Refusal) {
	s, t := x.s, x.c.Target
	s.mu.Lock()
	l := s.rules.Limits(t)
	v, why := l.Request(x.spoken.protocol, q, x.approved)
	if err := x.judged(t, s.rules.Judge(t)); why == "" && err != nil {
		why = reason(err)
	}
	if why == "" && x.why != "" {
		why = "the connection has been cut"
	}
	if why == "" {
		if x.spoken.open == nil {
			x.spoken.open = map[*netrule.Request]struct{}{}
		}
		x.spoken.open[q] = struct{}{}
		if x.spoken.rule == "" {
			x.spoken.rule = v.Rule
		}
	}
	s.mu.Unlock()
	if why == "" {
		return func() {
			s.mu.Lock()
			delete(x.spoken.open, q)
			s.mu.Unlock()
		}, nil
	}
	s.refused.add(Connection{
		Began: time.Now(), Way: x.c.Way, Target: t, Address: x.c.Address, Rule: v.Rule, Refused: why, Requests: 1,
	})
	no = &intercept.Refusal{Why: why}
	if v.Rule == "" { // a rule that denies is not lifted by another
		no.Remedy = s.cfg.Remedy(l.Missing(x.spoken.protocol, q, x.approved))
	}
	return nil, no
}

// limited reports whether rules are about one protocol or some requests to a session's target.
func (x *session) limited() bool {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	l := x.s.rules.Limits(x.c.Target)
	return !l.None()
}

// firstRule notes in the record by which rule the first request was allowed.
func (x *session) firstRule() {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	if x.spoken.rule != "" {
		x.c.Rule = x.spoken.rule
	}
}
