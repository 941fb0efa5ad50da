package api

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/bucket"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// Over TLS everybody can connect. Who has not shown a good token is a stranger: there are so many of
// them at most, the oldest goes when another comes, each stays for as long as a header may take, and what
// they send is read slowly. Who connects and is gone again without end costs a handshake each time, so an
// address may do that so often.
const (
	maxStrangers  = 256
	acquaintBurst = 128
	acquaintEvery = time.Second / 32
	// Without TLS there is no handshake, and programs that speak HTTP/1.1 and keep no connection need one for each request.
	plainEvery       = time.Second / 1024
	maxAcquaintances = 4096 // addresses that are remembered; the others share one bucket
	// Without a request of somebody known under way, readAtOnce bytes are read as they come, which is a
	// handshake and the largest header, and readRate a second beyond that: a connection can be fed with
	// frames that are no requests, and each is work.
	readAtOnce = 32 << 10
	readRate   = 16 << 10
)

// Strangers returns l, on which TLSServer serves, with connections that are told apart by whether a good
// token came on them.
func Strangers(l net.Listener) net.Listener {
	return &doorstep{l, bucket.NewMany[string](maxAcquaintances), bucket.Bound{Burst: acquaintBurst, Every: acquaintEvery}}
}

// Neighbours is Strangers for a listener on loopback that serves without TLS.
func Neighbours(l net.Listener) net.Listener {
	return &doorstep{l, bucket.NewMany[string](maxAcquaintances), bucket.Bound{Burst: maxLoopConns, Every: plainEvery}}
}

// doorstep is used by one goroutine, that of Serve.
type doorstep struct {
	net.Listener
	came *bucket.Many[string] // by network; "" is those that are not remembered
	rate bucket.Bound
}

// Accept implements net.Listener.
func (d *doorstep) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		networks := authn.Networks(c.RemoteAddr())
		if d.came.Take(networks[len(networks)-1], d.rate, time.Now()) == 0 {
			return newVisitor(c), nil
		}
		_ = c.Close()
	}
}

// visitor is a connection below its encryption.
type visitor struct {
	net.Conn
	woken chan struct{} // gets a value when there is a request: what waits to read goes on

	mu    sync.Mutex
	busy  int       // requests of somebody known that are under way
	known bool      // a good token came
	read  time.Time // when what was read without a request has been paid for
	ends  *time.Timer
}

func newVisitor(c net.Conn) *visitor { return &visitor{Conn: c, woken: make(chan struct{}, 1)} }

// Read implements net.Conn.
func (v *visitor) Read(p []byte) (int, error) {
	for wait := v.wait(time.Now()); wait > 0; wait = v.wait(time.Now()) {
		t := time.NewTimer(min(wait, time.Second)) // and see whether it was closed
		select {
		case <-t.C:
			if wait > time.Second {
				continue
			}
		case <-v.woken:
		}
		t.Stop()
	}
	n, err := v.Conn.Read(p)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.busy == 0 {
		if now := time.Now(); v.read.Before(now) {
			v.read = now
		}
		v.read = v.read.Add(time.Duration(n) * time.Second / readRate)
	}
	return n, err
}

// wait is how long nothing is read.
func (v *visitor) wait(now time.Time) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.busy > 0 || v.read.Before(now) {
		return 0
	}
	return v.read.Sub(now) - readAtOnce*time.Second/readRate
}

// requestOver is for the end of a request of somebody known.
func (v *visitor) requestOver() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.busy--
	v.read = time.Time{}
}

// strangers are the visitors that are not known, the oldest first.
type strangers struct {
	mu  sync.Mutex
	all []*visitor
}

// enter adds a visitor, who has so long to become known.
func (s *strangers) enter(v *visitor, patience time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v.ends = time.AfterFunc(patience, func() { _ = v.Close() })
	if len(s.all) >= maxStrangers {
		_ = s.all[0].Close() // and leaves when the server sees that
		s.all[0].ends.Stop()
		s.all = slices.Delete(s.all, 0, 1)
	}
	s.all = append(s.all, v)
}

// leave takes out one that is known now or has gone.
func (s *strangers) leave(v *visitor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.all, v); i >= 0 {
		v.ends.Stop()
		s.all = slices.Delete(s.all, i, i+1)
	}
}

// far is a connection of TLSServer or RemoteServer, in the context of its requests.
type far struct {
	conn    net.Conn
	visitor *visitor
}

type farKey struct{}

// receive counts a connection of such a server in, and reports whether it may stay.
func (s *Server) receive(ctx context.Context, c net.Conn) (context.Context, bool) {
	below := c
	if encrypted, is := c.(*tls.Conn); is {
		below = encrypted.NetConn()
	}
	v, ok := below.(*visitor)
	if !ok { // it is not served as TLSServer says
		return ctx, false
	}
	if !s.conns.addFrom(c, authn.Networks(c.RemoteAddr())) {
		return ctx, false
	}
	s.strangers.enter(v, s.opts.HeaderTimeout)
	return context.WithValue(ctx, farKey{}, far{c, v}), true
}

// acquaint makes such a connection known by its first good token, and has all of it read until over is
// called.
func (s *Server) acquaint(f far, p principal.Principal) (over func(), err error) {
	if f.visitor == nil {
		return nil, fmt.Errorf("cannot serve a connection that was not counted: %w", errdefs.ErrInternal)
	}
	f.visitor.mu.Lock()
	defer f.visitor.mu.Unlock()
	if !f.visitor.known {
		if !s.conns.known(f.conn, p) {
			return nil, fmt.Errorf("cannot serve another connection: %s has as many open as may be, or all over TLS are in use; "+
				"close some, or use one for several requests: %w", p.Owner(), errdefs.ErrResourceExhausted)
		}
		f.visitor.known = true
		s.strangers.leave(f.visitor)
	}
	f.visitor.busy++
	select {
	case f.visitor.woken <- struct{}{}:
	default:
	}
	return f.visitor.requestOver, nil
}
