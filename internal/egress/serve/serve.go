// Package serve is the process carrel-egress: it takes its sockets and rules from who started it, confines
// itself, and serves one workspace until that closes the control socket.
//
// It must not start anything, open a file to write, or decide: package netrule decides.
package serve

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/netns"
	"github.com/carrel-dev/carrel/internal/egress"
	"github.com/carrel-dev/carrel/internal/egress/room"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// reportWithin bounds a write to who started it, which reads all the time. A report that it does not take is lost.
const reportWithin = 2 * time.Second

// gcPercent has memory collected when it has grown by a quarter: there is a process for each workspace, and what a
// handshake leaves behind is much beside what a connection needs.
const gcPercent = 25

// Run serves until the control socket is closed.
func Run() error {
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(room.MemoryLimit)
	control, err := takeControl()
	if err != nil {
		return err
	}
	defer control.Close()
	p := &process{control: control, room: room.New(), out: json.NewEncoder(control)}
	if err := p.run(); err != nil {
		p.report(egressapi.Report{Error: err.Error()})
		return err
	}
	return nil
}

type process struct {
	control net.Conn
	room    *room.Room
	setup   atomic.Pointer[egressapi.Setup] // in force
	hop     atomic.Pointer[hop]             // its proxy
	names   atomic.Pointer[answers]         // of its resolver
	roots   *x509.CertPool                  // by which hosts are checked; nil until there is a secret

	mu  sync.Mutex // of out
	out *json.Encoder
}

func takeControl() (net.Conn, error) {
	f := os.NewFile(egressapi.ControlFD, "control")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("cannot serve: %w; carrel starts carrel-egress itself: %w", err, errdefs.ErrFailedPrecondition)
	}
	return c, nil
}

func (p *process) run() error {
	listeners, err := takeSockets()
	if err != nil {
		return err
	}
	in := bufio.NewScanner(p.control)
	in.Buffer(make([]byte, 0, 4<<10), egressapi.MaxSetup)
	questions, asked := newAsks(p.report), newLeases(p.report)
	var s *egress.Server
	others := func(x *egressapi.Line) {
		switch {
		case x.List != nil:
			p.list(x.List, s)
		case s != nil:
			s.Slow(time.Duration(x.Slow.MS) * time.Millisecond)
		}
	}
	setup, err := next(in, questions, asked, others)
	if err != nil {
		return err
	}
	rules, err := rulesOf(setup)
	if err != nil {
		return err
	}
	inside, err := p.interceptorOf(setup)
	if err != nil {
		return err
	}
	if err := confine(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := p.adopt(setup); err != nil {
		return err
	}
	s, err = egress.New(egress.Config{
		Rules: rules, Listeners: listeners, Intercept: inside, Resolve: p.resolve,
		Services: p.services, Text: p.text, Dial: p.dial, Record: p.record, Ask: questions.ask,
		Room: p.room, Begun: p.begun, Over: func(id uint64) { p.report(egressapi.Report{Over: id}) }, Moved: p.moved,
		Limits:   egress.Limits{AskWithin: egressapi.AskWithin},
		Upstream: upstream{p},
		// Of an intercepted connection that only waits, a good part is what its handshake left behind. For others a collection takes
		// more than it finds.
		Settled: debug.FreeOSMemory,
		Remedy:  func(what string) string { return strings.ReplaceAll(p.setup.Load().Remedy, "%s", what) },
	})
	if err != nil {
		return err
	}
	inProcess := newModels(p, s, asked)
	if err := inProcess.set(setup); err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() {
		served <- s.Serve(ctx)
		_ = p.control.SetReadDeadline(time.Unix(1, 0))
	}()
	p.report(egressapi.Report{Ready: true})
	for {
		setup, err := next(in, questions, asked, others)
		if errors.Is(err, io.EOF) {
			cancel()
			return <-served
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return <-served
		}
		if err == nil {
			rules, err = rulesOf(setup)
		}
		same := err == nil && sameSecrets(setup, p.setup.Load())
		if err == nil && !same {
			inside, err = p.interceptorOf(setup)
		}
		if err != nil {
			return err // nothing is served by rules that are not the ones in force
		}
		if err := p.adopt(setup); err != nil {
			return err
		}
		if !same {
			s.SetIntercept(inside)
		}
		s.SetRules(rules)
		if err := inProcess.set(setup); err != nil {
			return err
		}
		p.report(egressapi.Report{Ready: true})
	}
}

// adopt puts a Setup in force, but for its rules and secrets.
func (p *process) adopt(s *egressapi.Setup) error {
	h, err := p.hopOf(s)
	if err != nil {
		return err
	}
	p.hop.Store(h)
	if before := p.setup.Swap(s); before == nil || before.Resolver != s.Resolver {
		p.names.Store(resolver(s.Resolver))
	}
	return nil
}

// next reads a Setup, and hands on what comes before it. io.EOF is the end.
func next(in *bufio.Scanner, questions *asks, asked *leases, others func(*egressapi.Line)) (*egressapi.Setup, error) {
	for in.Scan() {
		var line egressapi.Line
		if err := json.Unmarshal(in.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("cannot read the rules: %w", err)
		}
		switch {
		case line.Answer != nil:
			questions.answer(line.Answer)
		case line.Granted != nil:
			asked.granted(line.Granted)
		case line.List != nil, line.Slow != nil:
			others(&line)
		default:
			return &line.Setup, line.Check()
		}
	}
	if in.Err() != nil {
		return nil, fmt.Errorf("cannot read the rules: %w", in.Err())
	}
	return nil, io.EOF
}

// resolve asks the resolver of the Setup in force.
func (p *process) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	return p.names.Load().resolve(ctx, name)
}

// services and text ask it too.
func (p *process) services(ctx context.Context, name string) ([]*net.SRV, error) {
	return p.names.Load().services(ctx, name)
}

func (p *process) text(ctx context.Context, name string) ([]string, error) {
	return p.names.Load().text(ctx, name)
}

func rulesOf(s *egressapi.Setup) (*netrule.Rules, error) {
	return netrule.New(s.Rules, netrule.Options{Public: s.Public})
}

// takeSockets makes listeners of the inherited sockets.
func takeSockets() (l egress.Listeners, err error) {
	listener := func(s netns.Socket) net.Listener {
		f := os.NewFile(egressapi.SocketsFD+uintptr(s), "socket")
		defer f.Close()
		out, lerr := net.FileListener(f)
		err = errors.Join(err, lerr)
		return out
	}
	l.Transparent, l.DNSTCP, l.Proxy = listener(netns.Transparent), listener(netns.DNSOverTCP), listener(netns.HTTPAndSOCKS)
	f := os.NewFile(egressapi.SocketsFD+uintptr(netns.DNSOverUDP), "socket")
	defer f.Close()
	packets, perr := net.FilePacketConn(f)
	l.DNS = packets
	if err = errors.Join(err, perr); err != nil {
		return l, fmt.Errorf("cannot use the sockets of the workspace: %w", err)
	}
	return l, nil
}

func (p *process) report(r egressapi.Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.control.SetWriteDeadline(time.Now().Add(reportWithin))
	_ = p.out.Encode(r) // who does not read it has ended, and then this process ends
}

// record reports a connection.
func (p *process) record(c egress.Connection) {
	told := connection(c)
	p.report(egressapi.Report{Connection: &told})
}

// begun reports a connection that has got through.
func (p *process) begun(c egress.Connection) {
	told := connection(c)
	p.report(egressapi.Report{Begun: &told})
}

// moved reports what has passed.
func (p *process) moved(all []egress.Connection) {
	for part := range slices.Chunk(all, egressapi.MovedEach) {
		var r egressapi.Report
		for _, c := range part {
			r.Moved = append(r.Moved, egressapi.Moved{ID: c.ID, Sent: c.Sent, Received: c.Received})
		}
		p.report(r)
	}
}

// list answers a List. There is no server before the first Setup.
func (p *process) list(x *egressapi.List, s *egress.Server) {
	var open []egress.Connection
	if s != nil {
		open = s.Open()
	}
	open = open[:min(len(open), egressapi.MostOpen)]
	for {
		part := egressapi.Open{ID: x.ID, Last: len(open) <= egressapi.OpenEach}
		n := min(len(open), egressapi.OpenEach)
		for _, c := range open[:n] {
			part.List = append(part.List, connection(c))
		}
		open = open[n:]
		p.report(egressapi.Report{Open: &part})
		if part.Last {
			return
		}
	}
}

func connection(c egress.Connection) egressapi.Connection {
	r := egressapi.Connection{
		ID: c.ID, Began: c.Began, DurationMS: c.Duration.Milliseconds(), Way: c.Way, Host: c.Target.Host.String(), Port: c.Target.Port,
		Rule: c.Rule, Refused: c.Refused, SentBytes: c.Sent, ReceivedBytes: c.Received, Count: max(c.Count, 1),
		Secrets: c.Secrets, Requests: c.Requests,
	}
	if c.Address.IsValid() {
		r.Address = c.Address.String()
	}
	return r
}

// dialWithin bounds one attempt to connect.
const dialWithin = 10 * time.Second

// dial connects to an address that was judged. One of the host's own is judged again as such: which those are changes
// while the process lives.
func (p *process) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	own, err := ownAddress(to.Addr())
	if err == nil && own {
		err = p.judgeOwn(to)
	}
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: dialWithin}
	return d.DialContext(ctx, "tcp", to.String())
}

// judgeOwn judges a connection to an address of this host: only a rule with that address allows it.
func (p *process) judgeOwn(to netip.AddrPort) error {
	host, err := netrule.ParseHost(to.Addr().String())
	if err != nil {
		return err
	}
	s := p.setup.Load()
	rules, err := netrule.New(s.Rules, netrule.Options{Public: s.Public, Own: []netip.Addr{to.Addr()}})
	if err != nil {
		return err
	}
	return rules.Address(netrule.Target{Host: host, Port: to.Port()}, to.Addr())
}

// ownAddress reports whether addr is one of the host's: from those, packets come from the address itself.
func ownAddress(addr netip.Addr) (bool, error) {
	family, sa := unix.AF_INET, unix.Sockaddr(nil)
	if addr.Is4() {
		sa = &unix.SockaddrInet4{Port: 9, Addr: addr.As4()}
	} else {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: 9, Addr: addr.As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, sa); err != nil { // sends nothing
		return false, fmt.Errorf("cannot connect to %v: %w", addr, err)
	}
	from, err := unix.Getsockname(fd)
	if err != nil {
		return false, err
	}
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(from.Addr) == addr, nil
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(from.Addr) == addr, nil
	}
	return true, nil
}
