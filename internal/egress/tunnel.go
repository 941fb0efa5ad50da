package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/proxy"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// goodbye bounds how long a connection is kept open after it was refused, for the client to read why.
const goodbye = 2 * time.Second

// tunnel copies in both directions until both have ended. had is what the client has sent already. What the host
// says first goes to the client at once, unless the rules depend on what is spoken; what the client says first is checked
// before it goes to the host. If it is TLS to a host that a secret is bound to, or rules are about requests, then it is read.
func (x *session) tunnel(ctx context.Context, had []byte) {
	if x.model != nil {
		x.serveModel(had)
		return
	}
	back := make(chan struct{})
	var refused atomic.Bool
	over := false // the host has ended
	backward := func() {
		defer close(back)
		n, err := io.Copy(x.client, x.up)
		x.received.Add(n)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return // intercept takes the host
		}
		over = true
		switch {
		case refused.Load(): // the client is told why
		case err != nil:
			abort(x.client)
		default:
			closeWrite(x.client)
		}
	}
	held := x.held()
	if held {
		close(back)
	} else {
		go backward()
	}
	first, had, err := x.inspect(had)
	if held && len(had) == 0 && err == nil {
		return // the client has ended, and said nothing
	}
	if len(had) == 0 && err == nil && programFirst(x.c.Target) {
		abort(x.up) // in order, it would keep a port of this host
		<-back
		return
	}
	var r reader
	if err == nil {
		r, err = x.carry(first)
	}
	if err != nil {
		refused.Store(true)
		abort(x.up)
		<-back
		if errdefs.IsUnavailable(err) {
			return
		}
		x.refuse(err)
		if x.received.Load() == 0 {
			x.farewell(first, proxy.AlertUnrecognizedName, err)
		}
		return
	}
	if r.by != nil {
		_ = x.up.SetReadDeadline(time.Unix(1, 0))
		<-back
		if !over {
			x.intercept(ctx, r, had)
		}
		return
	}
	if held {
		back = make(chan struct{})
		go backward()
	}
	if err := x.forward(had); err != nil {
		abort(x.up)
		abort(x.client)
	}
	<-back
}

// forward copies from the client to the host.
func (x *session) forward(had []byte) error {
	n, err := x.up.Write(had)
	x.giveHead()
	x.sent.Add(int64(n))
	if err != nil {
		return err
	}
	more, err := io.Copy(x.up, x.client)
	x.sent.Add(more)
	if err == nil {
		closeWrite(x.up)
	}
	return err
}

// inspect reads the first bytes of the client and checks that they are for the session's target. It waits for the
// first of them as long as the connection lasts, because in some protocols the host speaks first.
func (x *session) inspect(had []byte) (first proxy.First, read []byte, err error) {
	if len(had) == 0 {
		had = make([]byte, 1, 512)
		if _, err := io.ReadFull(x.client, had); err != nil {
			return first, nil, nothing(err)
		}
	}
	_ = x.client.SetReadDeadline(time.Now().Add(x.s.cfg.Limits.Handshake))
	defer x.client.SetReadDeadline(time.Time{}) //nolint:errcheck // the next read tells
	first, read, err = proxy.ReadFirst(had, &heads{x: x})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return first, nil, refusal{
			"the first bytes for " + x.c.Target.String() + " did not say in time whom they are for", errdefs.ErrInvalidArgument,
		}
	case errors.Is(err, io.ErrUnexpectedEOF) && first.Protocol == proxy.Undecided:
		return first, read, nil // no server answers a line without an end
	case errors.Is(err, full):
		return first, nil, err
	case errdefs.IsInvalidArgument(err):
		return first, nil, fmt.Errorf("cannot read the first bytes for %s: %w", x.c.Target, err)
	case err != nil:
		return first, nil, fmt.Errorf("the client has gone: %w", errdefs.ErrUnavailable)
	}
	return first, read, meant(first, x.c.Target)
}

// nothing returns the error for a client that sent no byte: nil if it closed its direction in order.
func nothing(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("the client has gone: %w", errdefs.ErrUnavailable)
}

// meant checks that the first bytes name the host of a target. TLS without a name and HTTP/1.0 without a field
// Host pass, because the host then serves its default. If the target is an address then every name passes: the
// rule allows all that is served there.
func meant(f proxy.First, t netrule.Target) error {
	if t.Host.Name() == "" {
		return nil
	}
	for _, named := range []struct{ what, text string }{
		{"TLS server name", f.Hello.Name}, {"URL", f.Head.Authority}, {"field Host", f.Head.Host},
	} {
		if named.text == "" {
			continue
		}
		h, err := hostOf(named.text)
		if err == nil && h == t.Host {
			continue
		}
		other := "another host"
		if err == nil {
			other = h.String()
		}
		return refusal{
			fmt.Sprintf("%s is not allowed: its %s is that of %s", t, named.what, other), errdefs.ErrPermissionDenied,
		}
	}
	return nil
}

// hostOf reads a host with or without a port.
func hostOf(s string) (netrule.Host, error) {
	if t, err := netrule.ParseTarget(s); err == nil {
		return t.Host, nil
	}
	return netrule.ParseHost(s)
}

// farewell tells a client, in the protocol that it speaks, why it is refused. It reads a little more, because
// closing a connection that has unread bytes would reset it, and the client might never read the reason.
func (x *session) farewell(f proxy.First, alert proxy.Alert, why error) {
	var text []byte
	switch f.Protocol {
	case proxy.TLS:
		text = alert.Record()
	case proxy.HTTP:
		text = x.refusalText(f.Head.Accept, why)
	case proxy.Undecided, proxy.Opaque:
		abort(x.client)
		return
	}
	x.say(text)
}

func (x *session) refusalText(accept string, why error) []byte {
	status, _ := answer(why)
	return proxy.Refusal(status, accept, reason(why), x.remedy(status, why))
}

// remedy returns the sentence that says what allows a refused target, "" if no rule that allows it changes the answer: what
// is allowed already, denied by a rule, asked about, or a model.
func (x *session) remedy(status int, why error) string {
	t := x.c.Target
	if status != http.StatusForbidden || t == (netrule.Target{}) || errors.As(why, new(unapproved)) || modelName(t.Host) {
		return ""
	}
	if e := (*netrule.NotPublicError)(nil); errors.As(why, &e) {
		return x.s.cfg.Remedy(e.Rule())
	}
	x.s.mu.Lock()
	rules := x.s.rules
	x.s.mu.Unlock()
	if !rules.Judge(t).Unnamed() {
		return ""
	}
	return x.s.cfg.Remedy(t.String())
}

// say writes the last bytes to a client.
func (x *session) say(text []byte) {
	_ = x.client.SetDeadline(time.Now().Add(goodbye))
	if _, err := x.client.Write(text); err != nil {
		return
	}
	closeWrite(x.client)
	_, _ = io.Copy(io.Discard, io.LimitReader(x.client, 4*proxy.MaxHead))
}
