// Package intercept serves connections to the hosts that secrets are bound to, or whose requests rules are about: it
// terminates the program's TLS with a certificate of the workspace's CA, has each request judged, and puts secrets in the
// place of their placeholders in the headers of requests. Connections without TLS are served in the same way, without secrets.
//
//	program in the workspace                    Interceptor                          host
//	  │  ClientHello, h2 or http/1.1 ────────────► │  TLS with the host's own name ─────► │
//	  │ ◄──── certificate of the workspace's CA ── │ ◄──────── its certificate, checked ─ │
//	  │  Authorization: Bearer PLACEHOLDER ──────► │  Authorization: Bearer SECRET ─────► │
//	  │ ◄──── PLACEHOLDER, if the host echoes it ─ │ ◄─────────────────────────────────── │
//
// Both sides speak the same version of HTTP, the one that the host prefers among those that the program offers. Every
// request is for the host that the connection is to; any other is answered with 421. Requests and responses are parsed
// and written anew by net/http, so there is no second request that another reading of the first could hide.
//
// A secret is never written to a URL, a body, a trailer or the name of a header, and never without TLS. A placeholder in
// one of those, or to a host without a binding, passes as it is.
//
// In responses the secret is replaced by its placeholder: in headers, trailers, and bodies of type text/*, JSON or
// without a type. That is for programs that log what they receive, and not a boundary: a body that is compressed, of
// another type, or that encodes the secret is not changed, nor is what follows an upgrade, such as WebSocket. A
// host that a secret is bound to can always hand it to the program.
//
// The package must not decide what may be reached, resolve or dial: the connections to the host are handed to it.
package intercept

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/ca"
	"github.com/carrel-dev/carrel/internal/egress/room"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// Config holds the dependencies of New.
type Config struct {
	// CA is the workspace's. Without one, which takes that there are no secrets, only connections without TLS are served.
	CA *ca.CA
	// Secrets are at most MaxSecrets.
	Secrets []Secret
	// Roots are those by which hosts are checked. nil is the system's.
	Roots *x509.CertPool
	// Handshake bounds TLS with the host, and with the program; 10 s if it is 0.
	Handshake time.Duration
}

// Interceptor serves the connections of one workspace. It does not change. Its methods may be called from any
// goroutine. A nil Interceptor has no bindings.
type Interceptor struct {
	secrets   []*secret
	leaves    *ca.Leaves
	roots     *x509.CertPool
	handshake time.Duration
	sessions  tls.ClientSessionCache
}

// Result is what there is to record of a connection.
type Result struct {
	// Secrets are the names of those that were sent to the host, in order.
	Secrets []string
	// Requests is how many there were, refused ones included.
	Requests int64
	// Refused is the first reason for which a request or the connection was refused, but by Way.Admit; "" if none was.
	Refused string
}

// New returns an Interceptor. The error is of kind invalid argument and shows neither a secret nor a placeholder.
func New(c Config) (*Interceptor, error) {
	if c.CA == nil && len(c.Secrets) > 0 {
		return nil, fmt.Errorf("cannot intercept without a CA: %w", errdefs.ErrInvalidArgument)
	}
	secrets, err := check(c.Secrets)
	if err != nil {
		return nil, err
	}
	i := &Interceptor{secrets: secrets, roots: c.Roots, handshake: c.Handshake, sessions: tls.NewLRUClientSessionCache(64)}
	if i.handshake == 0 {
		i.handshake = 10 * time.Second
	}
	if c.CA != nil {
		i.leaves = c.CA.Leaves(func(netrule.Host) bool { return true }) // Serve refuses targets that are not to be intercepted
	}
	return i, nil
}

// ReadsTLS reports whether it has a CA.
func (i *Interceptor) ReadsTLS() bool { return i != nil && i.leaves != nil }

// Bound reports whether a secret is bound to t.
func (i *Interceptor) Bound(t netrule.Target) bool {
	return i != nil && slices.ContainsFunc(i.secrets, func(s *secret) bool { return s.bound(t) })
}

// Way says how a connection of a program is served.
type Way struct {
	// Dial returns a new connection to the target, or an error of kind permission denied if it may no longer be reached.
	Dial func(context.Context) (net.Conn, error)
	// Plain: it has no TLS, and gets no secret.
	Plain bool
	// Admit judges each request before anything of it goes to the host. done is called when the request and its response have
	// ended. nil admits all.
	Admit func(*netrule.Request) (done func(), no *Refusal)
	// Room is what it takes memory of; nil is one of its own.
	Room *room.Room
	// Judged: it is served although no secret is bound to the target. Takes Admit.
	Judged bool
}

// Refusal is what a program is told of a request that is not admitted.
type Refusal struct {
	// Why is the reason, and Remedy what to do about it; "" if nothing.
	Why, Remedy string
}

// Serve serves a connection of a program, which begins with a ClientHello unless it is plain, until both sides have ended
// or ctx ends. t is what the connection is to. Serve closes client and what Way.Dial returned.
func (i *Interceptor) Serve(ctx context.Context, client net.Conn, t netrule.Target, w Way) Result {
	defer client.Close()
	switch {
	case !w.Plain && !i.Bound(t) && (!w.Judged || w.Admit == nil):
		return Result{Refused: t.String() + " is not intercepted: no secret is bound to it"}
	case !w.Plain && !i.ReadsTLS():
		return Result{Refused: t.String() + " is not intercepted: the workspace has no authority"}
	}
	if w.Room == nil {
		w.Room = room.New()
	}
	if !w.Room.Take(room.Read) {
		return Result{Refused: full}
	}
	defer w.Room.Give(room.Read)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	x := newExchange(i, t, w)
	defer x.leaveHTTP2()
	defer x.up.close()
	inside := client
	if w.Plain {
		x.proto = protoHTTP1
	} else {
		c, err := x.accept(ctx, client)
		if err != nil {
			x.refuse(err.Error())
			return x.result()
		}
		inside = c
	}
	x.serve(ctx, inside)
	return x.result()
}

// full is why what would take more memory than there is gets none.
const full = "too much is under way on this workspace's connections; try again when some of them have ended"

// Format implements fmt.Formatter. It shows the names of the secrets.
func (i *Interceptor) Format(f fmt.State, _ rune) {
	names := []string{}
	if i != nil {
		for _, s := range i.secrets {
			names = append(names, s.name)
		}
	}
	_, _ = io.WriteString(f, "Interceptor("+strings.Join(names, ", ")+")")
}
