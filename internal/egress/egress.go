// Package egress connects a workspace, whose network has loopback only, to the hosts that its rules allow. It
// accepts on sockets that trusted code opened inside the workspace, reads where a program wants to go, and does
// for each connection, in this order: judge the name, wait for a person's answer if a rule says so, resolve it once, judge
// the addresses, dial one of those, check that the first bytes are for the same name, copy.
//
//	program in the workspace                          Server                          host
//	  │  DNS query: example.org? ────────────────────► │  198.18.7.9 if a rule reaches it │
//	  │  TCP to 198.18.7.9:443 (transparent) ────────► │                                  │
//	  │  CONNECT, GET http://, SOCKS5 (proxy) ───────► │  Judge(example.org:443)          │
//	  │                                                │  resolve, Address(each)          │
//	  │                                                │  dial ─────────────────────────► │
//	  │  ClientHello or HTTP head ───────────────────► │  same name? ───────────────────► │
//	  │ ◄──────────────────────────── bytes ─────────────────────────────────────────────►│
//
// Everything that a program sends is hostile. Where no rule is about a protocol or requests, what is inside TLS, an
// encrypted ClientHello included, what follows the first request of a tunnel with plain HTTP, and HTTP/2 without TLS are
// not looked at: a host that serves several names can be asked for another one there. Only the address that was judged
// can be reached. Where a rule is, see requests.go.
//
// Names of models are not connected to a host: package model serves their requests in this process.
//
// The package must not know where rules come from, keep them, or terminate TLS: package intercept does, for hosts that
// secrets are bound to or whose requests are judged.
package egress

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/bucket"
	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/egress/room"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// Listeners are the sockets inside the workspace. A nil one is not served. The server closes them when it ends.
type Listeners struct {
	// Transparent has IP_TRANSPARENT: the local address of a connection is the one the program dialled.
	Transparent net.Listener
	// Proxy serves HTTP, CONNECT and SOCKS5.
	Proxy net.Listener
	// DNS and DNSTCP answer queries over UDP and TCP.
	DNS    net.PacketConn
	DNSTCP net.Listener
}

// Limits bound what a workspace can make the server hold. Those that are 0 have their defaults.
type Limits struct {
	Connections int           // at once, refused ones included until they are closed; 512
	Handshake   time.Duration // from accepting a connection to a complete request, and for the first bytes of a tunnel; 10 s
	// Idle ends a connection on which no bytes have come from either side for so long; 30 min. A model may think
	// for minutes before it answers, and SSH says nothing while nobody types.
	Idle time.Duration
	Dial time.Duration // for resolving a name, and again for all attempts to connect; 10 s
	// DialBurst is how many connections to hosts are made at once, DialEvery how often another is in the long run; 2,000 and 10 ms.
	// Each that this side closes first keeps a port of the host for a minute, of those that all have for one destination. More
	// wait, up to Dial.
	DialBurst int
	DialEvery time.Duration
	// First is how long the first byte of a program is waited for on ports of TLS and HTTP before its host is connected; 2 s.
	First    time.Duration
	DNSBurst int           // queries at once; 1,000. A program that keeps no answers asks two for each connection
	DNSEvery time.Duration // how often another is answered in the long run; 1 ms
	Names    int           // names with an address, those in rules included; 8192
	// Parked is how many connections wait for a person's answer at once; 32. They count as Connections too.
	Parked int
	// AskWithin is how long one waits for it; 5 min. AnswerHolds is for how long further connections to the same target
	// get the same answer, because a program often opens several or tries again; 60 s.
	AskWithin, AnswerHolds time.Duration
	// Settle is how long nothing that is intercepted begins or ends before Config.Settled is called; 2 s.
	Settle time.Duration
}

// Config holds the dependencies of New. Rules is required.
type Config struct {
	Rules     *netrule.Rules
	Listeners Listeners
	// Intercept serves TLS to the hosts that secrets are bound to, or whose requests rules are about. nil intercepts nothing: the
	// latter are refused.
	Intercept *intercept.Interceptor
	// Models are served in this process. Rules need not allow their names.
	Models []Model
	// Resolve returns the addresses of a name, in the order in which they are tried. nil is the host's resolver.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	// Services and Text return the records SRV and TXT of a name, without a final dot in them. nil is none. They are asked for names
	// of which some port may be reached.
	Services func(ctx context.Context, name string) ([]*net.SRV, error)
	Text     func(ctx context.Context, name string) ([]string, error)
	// Dial connects to exactly this address over TCP; Limits.Idle needs the counters of the kernel. nil is net.Dialer.
	Dial func(ctx context.Context, a netip.AddrPort) (net.Conn, error)
	// Upstream is a proxy outside by which targets are reached. nil is none.
	Upstream Upstream
	// Record is told of each connection when it has ended or was refused. Equal refusals are told at once and
	// then counted. It may be called concurrently and must not block for long. nil records nothing.
	Record func(Connection)
	// Begun is told of each connection that has got through, before a byte of it passes. It ends with the Record that has its
	// ID, or else with Over. Moved is told from time to time what has passed on those that are open; only ID, Sent and
	// Received are set. So what was open is known if the process is killed. They may be called as Record may. nil is not told.
	Begun func(Connection)
	Over  func(id uint64)
	Moved func([]Connection)
	// Room bounds what connections take in memory beyond a little for each. nil is a room of its own.
	Room   *room.Room
	Limits Limits
	// Ask has a person asked whether a target may be reached, because of a rule with Ask. nil is yes, an error says why
	// not. It is called once for all connections that wait for the same target, and returns when ctx ends: then nobody
	// waits any more. nil refuses all.
	Ask func(ctx context.Context, t netrule.Target, rule string) error
	// Settled is called when no connection that is intercepted has begun or ended for Limits.Settle: in a goroutine of its own,
	// and once until the next one does. Optional.
	Settled func()
	// Remedy returns the sentence that says how something can be allowed: HOST:PORT, or a request as a rule names it, quoted
	// for a shell. nil says nothing.
	Remedy func(what string) string
}

// Upstream is a proxy outside. It resolves names, so that the addresses of those are not judged, but for what this host
// knows of them.
type Upstream interface {
	// Serves reports whether a target is reached by it.
	Serves(t netrule.Target) bool
	// Connect returns a TCP connection that the proxy has joined to the target.
	Connect(ctx context.Context, t netrule.Target) (net.Conn, error)
}

// The ways by which a connection comes.
const (
	WayTransparent = "transparent"
	WayProxy       = "proxy" // refused before it was clear which of the next three it is
	WayConnect     = "connect"
	WayHTTP        = "http"
	WaySOCKS       = "socks"
	WayDNS         = "dns"
)

// Connection is the record of a connection or a query. Its text is canonical or the server's own, and never copied
// from what a program sent.
type Connection struct {
	ID       uint64 // of Config.Begun, or 0
	Began    time.Time
	Duration time.Duration
	Way      string
	Target   netrule.Target // zero if no valid one was named; its port is 0 for DNS
	Address  netip.AddrPort // the address that was dialled; zero if none was connected
	Rule     string         // the rule that allowed it
	// Refused is why it was refused or cut; "" if it ended by itself.
	Refused string
	// Sent went from the program to the host, Received from the host to the program, in bytes.
	Sent, Received int64
	// Secrets are the names of those that were sent to the host, known of connections that were intercepted. Requests is
	// how many there were, known of those and of connections to models.
	Secrets  []string
	Requests int64
	// Count is 1, or the number of equal refusals since the last record of them.
	Count int64
}

// Server serves one workspace. SetRules may be called at any time, Serve once.
type Server struct {
	cfg      Config
	refused  *refusals
	web      *handover
	webServe *http.Server
	// modelConns has the connections to models, which modelServe serves.
	modelConns *handover
	modelServe *http.Server
	wg         sync.WaitGroup // sessions

	mu       sync.Mutex
	rules    *netrule.Rules
	inside   *intercept.Interceptor // see Config.Intercept
	plain    *intercept.Interceptor // reads HTTP without TLS
	models   models
	names    *names
	sessions map[*session]struct{}
	asked    asked
	stopped  bool
	dnsFull  time.Time // see bucket.Bound
	dialFull time.Time
	// lookups is held by each lookup of records over UDP.
	lookups chan struct{}
	// settling runs Config.Settled, nil until the first connection.
	settling *time.Timer
	lastID   uint64      // of sessions
	moving   *time.Timer // calls Config.Moved; nil while nothing is open
}

// New returns a server that does not serve yet. The error is of kind invalid argument.
func New(c Config) (*Server, error) {
	if c.Rules == nil {
		return nil, fmt.Errorf("cannot serve egress without rules: %w", errdefs.ErrInvalidArgument)
	}
	l := &c.Limits
	l.Connections = cmp.Or(l.Connections, 512)
	l.Handshake = cmp.Or(l.Handshake, 10*time.Second)
	l.Idle = cmp.Or(l.Idle, 30*time.Minute)
	l.Dial = cmp.Or(l.Dial, 10*time.Second)
	l.DialBurst = cmp.Or(l.DialBurst, 2000)
	l.DialEvery = cmp.Or(l.DialEvery, 10*time.Millisecond)
	l.First = cmp.Or(l.First, 2*time.Second)
	l.DNSBurst = cmp.Or(l.DNSBurst, 1000)
	l.DNSEvery = cmp.Or(l.DNSEvery, time.Millisecond)
	l.Names = cmp.Or(l.Names, 8192)
	l.Parked = cmp.Or(l.Parked, 32)
	l.AskWithin = cmp.Or(l.AskWithin, 5*time.Minute)
	l.AnswerHolds = cmp.Or(l.AnswerHolds, time.Minute)
	l.Settle = cmp.Or(l.Settle, 2*time.Second)
	if c.Resolve == nil {
		c.Resolve = Lookup(&net.Resolver{})
	}
	if c.Dial == nil {
		c.Dial = dial
	}
	if c.Room == nil {
		c.Room = room.New()
	}
	if c.Record == nil {
		c.Record = func(Connection) {}
	}
	if c.Remedy == nil {
		c.Remedy = func(string) string { return "" }
	}
	s := &Server{
		cfg: c, rules: c.Rules, inside: c.Intercept, refused: newRefusals(c.Record), names: newNames(l.Names), sessions: map[*session]struct{}{},
		lookups: make(chan struct{}, mostLookups),
		asked:   asked{open: map[netrule.Target]*question{}, answers: map[netrule.Target]answered{}},
	}
	var err error
	if s.plain, err = intercept.New(intercept.Config{}); err != nil {
		return nil, err
	}
	if s.models, err = modelsOf(c.Models); err != nil {
		return nil, err
	}
	s.names.add(s.models.hosts())
	s.names.add(c.Rules.Hosts())
	s.web, s.modelConns = newHandover(), newHandover()
	s.webServe, s.modelServe = s.httpServer(), s.modelServer()
	return s, nil
}

// Serve accepts until ctx ends, then cuts every connection and waits for what it started. It returns nil then,
// or the error of a socket that broke.
func (s *Server) Serve(ctx context.Context) error {
	whole := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var loops sync.WaitGroup
	start := func(loop func(context.Context) error) {
		loops.Go(func() {
			if err := loop(ctx); err != nil {
				cancel(err)
			}
		})
	}
	l := s.cfg.Listeners
	s.accept(start, l.Transparent, WayTransparent, s.transparent)
	s.accept(start, l.Proxy, WayProxy, s.proxied)
	s.accept(start, l.DNSTCP, WayDNS, s.dnsStream)
	if l.DNS != nil {
		start(s.dnsPackets)
	}
	start(s.refused.run)
	loops.Go(func() { _ = s.webServe.Serve(s.web) })
	loops.Go(func() { _ = s.modelServe.Serve(s.modelConns) })
	<-ctx.Done()
	s.stop()
	loops.Wait()
	s.wg.Wait()
	s.refused.flush()
	if whole.Err() == nil {
		return context.Cause(ctx)
	}
	return nil
}

// stop closes the sockets and cuts every session.
func (s *Server) stop() {
	s.mu.Lock()
	s.stopped = true
	var all []*session
	for x := range s.sessions {
		all = append(all, x)
	}
	s.mu.Unlock()
	l := s.cfg.Listeners
	for _, l := range []net.Listener{l.Transparent, l.Proxy, l.DNSTCP} {
		if l != nil {
			_ = l.Close()
		}
	}
	if l.DNS != nil {
		_ = l.DNS.Close()
	}
	for _, x := range all {
		x.cut("the workspace's egress has ended")
	}
	s.mu.Lock()
	for _, timer := range []*time.Timer{s.settling, s.moving} {
		if timer != nil {
			timer.Stop()
		}
	}
	s.mu.Unlock()
	_ = s.webServe.Close()
	_ = s.modelServe.Close()
}

// SetRules replaces the rules. A connection that they do not allow, or whose address they refuse, is cut: when
// SetRules returns, no byte of it moves any more. So is one that they have a person asked about, unless one was, and one
// with a request under way that they do not allow. Those that wait for an answer are judged anew.
func (s *Server) SetRules(r *netrule.Rules) {
	type victim struct {
		x   *session
		why string
	}
	var victims []victim
	s.mu.Lock()
	s.rules = r
	s.names.add(r.Hosts())
	s.askAnew(r)
	for x := range s.sessions {
		if x.up == nil {
			continue // it will be judged by the new rules
		}
		if err := x.allowed(r); err != nil {
			victims = append(victims, victim{x, "the rules have changed: " + reason(err)})
		}
	}
	s.mu.Unlock()
	for _, v := range victims {
		v.x.cut(v.why)
	}
}

// stir puts off the call of Config.Settled.
func (s *Server) stir() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cfg.Settled == nil || s.stopped:
	case s.settling == nil:
		s.settling = time.AfterFunc(s.cfg.Limits.Settle, s.cfg.Settled)
	default:
		s.settling.Reset(s.cfg.Limits.Settle)
	}
}

// takeDNS reports whether another query may be answered.
func (s *Server) takeDNS(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	full, wait := bucket.Bound{Burst: s.cfg.Limits.DNSBurst, Every: s.cfg.Limits.DNSEvery}.Take(s.dnsFull, now)
	s.dnsFull = full
	return wait == 0
}
