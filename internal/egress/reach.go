package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/egress/proxy"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// mostAddresses is how many addresses of a name are tried.
const mostAddresses = 8

// refusal is a reason that is told to a program and recorded, with its kind of errdefs.
type refusal struct {
	text string
	kind error
}

func (r refusal) Error() string { return r.text }
func (r refusal) Unwrap() error { return r.kind }

// reason returns the text of an error without the name of its kind.
func reason(err error) string {
	text := err.Error()
	for _, kind := range []error{
		errdefs.ErrPermissionDenied, errdefs.ErrInvalidArgument, errdefs.ErrUnavailable, errdefs.ErrNotImplemented, errdefs.ErrNotFound,
	} {
		text = strings.TrimSuffix(text, ": "+kind.Error())
	}
	return text
}

// answers maps errors to answers in each protocol. The first row that matches counts.
var answers = []struct {
	is     func(error) bool
	status int
	socks  proxy.SOCKSCode
}{
	{errdefs.IsPermissionDenied, http.StatusForbidden, proxy.SOCKSNotAllowed},
	{errdefs.IsInvalidArgument, http.StatusBadRequest, proxy.SOCKSFailure},
	{errdefs.IsResourceExhausted, http.StatusServiceUnavailable, proxy.SOCKSFailure},
	{errdefs.IsNotImplemented, http.StatusNotImplemented, proxy.SOCKSCommand},
	{func(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }, http.StatusBadGateway, proxy.SOCKSRefused},
	{func(error) bool { return true }, http.StatusBadGateway, proxy.SOCKSUnreachable},
}

func answer(err error) (status int, socks proxy.SOCKSCode) {
	for _, a := range answers {
		if a.is(err) {
			return a.status, a.socks
		}
	}
	return http.StatusBadGateway, proxy.SOCKSFailure
}

// reach connects a session to a target: judge, have a person asked if the rules say so, resolve once, judge each address,
// dial one of those. The error is of kind permission denied if the rules or the person refuse it, not found if the name
// has no address, and unavailable if no address answers.
func (x *session) reach(ctx context.Context, t netrule.Target) error {
	s := x.s
	x.c.Target = t
	if is, err := x.toModel(t); is {
		if err == nil {
			x.tellBegun()
		}
		return err
	}
	rules, err := x.decide(ctx, t)
	if err == nil {
		err = x.first(t)
	}
	if err != nil {
		return err
	}
	up, to, err := s.connect(ctx, rules, t)
	if err != nil {
		return err
	}
	x.c.Address = to
	if err := x.establish(up); err != nil {
		x.c.Address = netip.AddrPort{}
		abort(up)
		return err
	}
	x.tellBegun()
	return nil
}

// connect connects to a target that the rules allow. The address is zero if a proxy did.
func (s *Server) connect(ctx context.Context, rules *netrule.Rules, t netrule.Target) (net.Conn, netip.AddrPort, error) {
	if err := s.pace(ctx, t); err != nil {
		return nil, netip.AddrPort{}, err
	}
	if s.cfg.Upstream == nil || !s.cfg.Upstream.Serves(t) {
		addresses, err := s.resolve(ctx, rules, t)
		if err != nil {
			return nil, netip.AddrPort{}, err
		}
		return s.dialFirst(ctx, t, addresses)
	}
	// The proxy resolves the name. What this host knows of it is judged all the same.
	known, done := context.WithTimeout(ctx, resolveBeside)
	_, err := s.resolve(known, rules, t)
	done()
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, netip.AddrPort{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*s.cfg.Limits.Dial) // the proxy resolves and dials
	defer cancel()
	up, err := s.cfg.Upstream.Connect(ctx, t)
	if err != nil {
		return nil, netip.AddrPort{}, fmt.Errorf("cannot connect to %s: %w: %w", t, err, errdefs.ErrUnavailable)
	}
	return up, netip.AddrPort{}, nil
}

// resolveBeside is how long a name is looked up that a proxy resolves: many hosts behind one know no names of outside.
const resolveBeside = time.Second

// resolve returns the addresses of a target that the rules do not refuse.
func (s *Server) resolve(ctx context.Context, rules *netrule.Rules, t netrule.Target) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Limits.Dial)
	defer cancel()
	all := []netip.Addr{}
	if a, ok := t.Host.Addr(); ok {
		all = append(all, a)
	} else {
		found, err := s.cfg.Resolve(ctx, t.Host.Name())
		if err != nil {
			return nil, fmt.Errorf("cannot resolve %s: %w: %w", t.Host, plain(err), errdefs.ErrNotFound)
		}
		all = found
	}
	var fine []netip.Addr
	var refused error
	for _, a := range all {
		a = a.Unmap()
		switch err := rules.Address(t, a); {
		case err == nil:
			fine = append(fine, a)
		case refused == nil:
			refused = err
		}
	}
	switch {
	case len(fine) > 0:
		return fine[:min(len(fine), mostAddresses)], nil
	case refused != nil:
		return nil, refused
	}
	return nil, fmt.Errorf("cannot resolve %s: it has no address: %w", t.Host, errdefs.ErrNotFound)
}

// dialFirst connects to the first address that answers. Each gets its share of the time that is left, and two
// seconds at least.
func (s *Server) dialFirst(ctx context.Context, t netrule.Target, all []netip.Addr) (net.Conn, netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Limits.Dial)
	defer cancel()
	end, _ := ctx.Deadline()
	var why error
	for i, a := range all {
		to := netip.AddrPortFrom(a, t.Port)
		share := max(time.Until(end)/time.Duration(len(all)-i), 2*time.Second)
		attempt, done := context.WithTimeout(ctx, share)
		up, err := s.cfg.Dial(attempt, to)
		done()
		if err == nil {
			return up, to, nil
		}
		// That there is no IPv6 here says less than what another address did.
		if why == nil || errors.Is(why, unix.ENETUNREACH) {
			why = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	if e := (*netrule.NotPublicError)(nil); errors.As(why, &e) { // the host's own, which is known when it is dialled
		named := *e
		named.Target = t
		return nil, netip.AddrPort{}, &named
	}
	return nil, netip.AddrPort{}, fmt.Errorf("cannot connect to %s: %w: %w", t, plain(why), errdefs.ErrUnavailable)
}

// plain strips what the standard library adds to an error: the message names the host already.
func plain(err error) error {
	if e := (*net.DNSError)(nil); errors.As(err, &e) {
		switch {
		case e.IsNotFound:
			return errNoHost
		case e.IsTimeout:
			return errSlowDNS
		}
		return errDNS
	}
	if e := (*net.OpError)(nil); errors.As(err, &e) {
		err = e.Err
	}
	if errno := unix.Errno(0); errors.As(err, &errno) {
		return errno
	}
	if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
		return errSlow
	}
	return err
}

var (
	errNoHost  = errors.New("no such host")
	errSlowDNS = errors.New("the name server did not answer in time")
	errDNS     = errors.New("the name server failed")
	errSlow    = errors.New("no answer in time")
)

// Lookup returns a Config.Resolve that asks r. The dot that it adds keeps the host's search domains out. A name of one
// label, such as localhost, has no meaning but the host's own, and with a dot it would not be found in /etc/hosts.
func Lookup(r *net.Resolver) func(ctx context.Context, name string) ([]netip.Addr, error) {
	return func(ctx context.Context, name string) ([]netip.Addr, error) {
		if strings.Contains(name, ".") {
			name += "."
		}
		return r.LookupNetIP(ctx, "ip", name)
	}
}

func dial(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", a.String())
}
