// Package netns prepares a workspace's network namespace for egress: it routes every IPv4 address to
// loopback, redirects connections to those but loopback's own to one listener, and opens the sockets
// that carrel-egress serves from outside.
//
// It must run inside the namespace, before anything untrusted, with CAP_NET_ADMIN and
// CAP_NET_BIND_SERVICE there. It must not decide which hosts may be reached.
package netns

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Names are the addresses that stand for host names inside. They are reserved for benchmarks between
// networks (RFC 2544, RFC 6890), so that no public host has one.
var Names = netip.MustParsePrefix("198.18.0.0/15")

// Probe is the one address of Names that stands for no host. carrel-egress answers connections to
// any port of it with its own greeting: the proof that the way out works.
var Probe = netip.MustParseAddr("198.18.0.1")

// Refused is an address of no host, whatever the rules say: it is reserved (RFC 1112, 4). carrel-egress resets connections to
// it: the proof that an address which no rule names is not reached.
var Refused = netip.MustParseAddr("240.0.0.1")

// Greeting is what a connection to Probe receives before it is closed.
const Greeting = "carrel-egress\n"

// Loopback is the workspace's own, whose connections stay inside.
var Loopback = netip.MustParsePrefix("127.0.0.0/8")

// The addresses of the listeners inside.
var (
	// DNS is where the stub answers, over UDP and TCP; it is not 127.0.0.1, where a
	// workspace's own server may listen.
	DNS = netip.MustParseAddrPort("127.0.0.53:53")
	// Proxy speaks HTTP, CONNECT and SOCKS5.
	Proxy = netip.MustParseAddrPort("127.0.0.53:3128")
	// transparent gets every TCP connection that leaves Loopback. Nothing connects to it by its own address.
	transparent = netip.MustParseAddrPort("127.0.0.53:1")
)

// Socket says which of the sockets one is.
type Socket int

// The sockets, in the order in which Open returns them.
const (
	Transparent Socket = iota
	DNSOverUDP
	DNSOverTCP
	HTTPAndSOCKS
	// Count is how many there are.
	Count
)

// backlog is the number of connections that wait in each listener. They survive a restart of carrel-egress.
const backlog = 128

// Open prepares the namespace and returns the sockets, close-on-exec and not blocking. They are the
// caller's to close.
func Open() (fds [Count]int, err error) {
	for _, prepare := range []func() error{route, redirect} {
		if err := prepare(); err != nil {
			return fds, err
		}
	}
	return Reopen()
}

// Reopen returns the sockets of a namespace that Open has prepared, anew: those before must be closed.
func Reopen() (fds [Count]int, err error) {
	for i := range fds {
		fds[i] = -1
	}
	for i := range fds {
		if err == nil {
			fds[i], err = Socket(i).open()
		}
	}
	if err != nil {
		for _, fd := range fds {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
		return fds, err
	}
	return fds, nil
}

// sockets is the table of sockets.
var sockets = [Count]struct {
	kind        int
	at          netip.AddrPort
	transparent bool
}{
	Transparent:  {unix.SOCK_STREAM, transparent, true},
	DNSOverUDP:   {unix.SOCK_DGRAM, DNS, false},
	DNSOverTCP:   {unix.SOCK_STREAM, DNS, false},
	HTTPAndSOCKS: {unix.SOCK_STREAM, Proxy, false},
}

func (s Socket) open() (fd int, err error) {
	o := sockets[s]
	fd, err = unix.Socket(unix.AF_INET, o.kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot open the socket for %v: %w", o.at, err)
	}
	if o.kind == unix.SOCK_STREAM { // connections of an earlier one may still be ending
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil && o.transparent {
		err = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(o.at.Port()), Addr: o.at.Addr().As4()})
	}
	if err == nil && o.kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("cannot open the socket for %v: %w", o.at, err)
	}
	return fd, nil
}

// loopback is the index of lo in every network namespace (LOOPBACK_IFINDEX in net/net_namespace.h).
const loopback = 1

// everything is all addresses of IPv4.
var everything = netip.MustParsePrefix("0.0.0.0/0")

// route makes every address of IPv4 one of the namespace's own: what is sent to it stays inside. So a connection to an
// address arrives at redirect's listener as one to a name does, and is refused with a reason.
func route() error {
	m := newMessage(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	m.bytes(unix.AF_INET, byte(everything.Bits()), 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_STATIC, unix.RT_SCOPE_HOST, unix.RTN_LOCAL)
	m.host32(0) // rtm_flags
	m.attr(unix.RTA_OIF, host32(loopback))
	if err := exchange(unix.NETLINK_ROUTE, m.done()); err != nil {
		return fmt.Errorf("cannot route %v to loopback: %w", everything, err)
	}
	return nil
}

// redirect has the listener for transparent accept every TCP connection but those to Loopback, under the address
// that was connected to. It is a rule of the hook that packets pass when they come in, also
// over loopback; the kernel calls the action tproxy.
func redirect() error {
	err := exchange(unix.NETLINK_NETFILTER, ruleset())
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("cannot redirect connections: the kernel lacks nftables or its tproxy action; "+
			"run \"modprobe nft_tproxy\" as root, or use a kernel with CONFIG_NFT_TPROXY: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return fmt.Errorf("cannot redirect connections: %w", err)
	}
	return nil
}
