package sandbox

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/netns"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/selfcheck"
)

// openWays prepares the namespace for egress and sends its sockets out, once.
func (s *stage) openWays() error {
	fds, err := netns.Open()
	if err != nil {
		return err
	}
	if err := sendWays(s.spec.FDs.Ways, fds); err != nil {
		return err
	}
	return unix.Close(s.spec.FDs.Ways)
}

// sendWays sends the sockets for egress and closes them.
func sendWays(to int, fds [netns.Count]int) error {
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	if err := unix.Sendmsg(to, []byte{0}, unix.UnixRights(fds[:]...), nil, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("cannot send the sockets for egress out: %w", err)
	}
	return nil
}

// ReopenWays as its one argument has the executor's program do the same for a workspace that runs, and end: the
// sockets belong to the control groups in which it is started. It finds the workspace's executor, as a pidfd, at
// ReopenFD, and the socket to send to behind that.
const (
	ReopenWays = "/reopen-ways" // no workspace has that name
	ReopenFD   = 3
)

// Reopen is what ReopenWays asks for. It must be called on a thread that does nothing else.
func Reopen() error {
	if err := unix.Setns(ReopenFD, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("cannot enter the network of the workspace: %w", err)
	}
	fds, err := netns.Reopen()
	if err != nil {
		return err
	}
	return sendWays(ReopenFD+1, fds)
}

// nameserver is who answers for names inside. Without egress nobody does.
func (s *Spec) nameserver() netip.Addr {
	if s.Net.Egress {
		return netns.DNS.Addr()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// The requests of netdevice(7) and arp(7) that change interfaces and routes.
const (
	siocSIFFlags = 0x8914
	siocAddRT    = 0x890b
)

// checkEgress uses the way out, and tries to change it.
func checkEgress(m *selfcheck.Memory) []check {
	const flags = unix.SOCK_CLOEXEC
	list := []check{
		converse(m, "a connection to "+netns.Probe.String(), netip.AddrPortFrom(netns.Probe, 443), nil, func(b []byte) (bool, string) {
			return string(b) == netns.Greeting, fmt.Sprintf("%q", b)
		}),
		// Nothing is allowed to reach a name below "invalid" (RFC 6761), and no name has its address.
		converse(m, "a name that no rule allows", netns.DNS, []byte(refusedQuery), func(b []byte) (bool, string) {
			if len(b) < 2+12 {
				return false, fmt.Sprintf("%d bytes", len(b))
			}
			code, answers := b[2+3]&0xf, binary.BigEndian.Uint16(b[2+6:])
			return code != 0 && answers == 0, fmt.Sprintf("response code %d, %d addresses", code, answers)
		}),
		converse(m, "an address without a name", netip.MustParseAddrPort("198.18.0.2:443"), []byte("x"), func(b []byte) (bool, string) {
			return len(b) == 0, fmt.Sprintf("%d bytes", len(b))
		}),
		// No byte of HTTP or TLS, so that no reason is waited for.
		converse(m, "an address that no rule names", netip.AddrPortFrom(netns.Refused, 443), []byte{0}, func(b []byte) (bool, string) {
			return len(b) == 0, fmt.Sprintf("%d bytes", len(b))
		}),
		try(egress, "a transparent socket", byKernel, unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM|flags, 0).
			then(unix.SYS_SETSOCKOPT, selfcheck.Last, unix.SOL_IP, unix.IP_TRANSPARENT, m.Bytes([]byte{1, 0, 0, 0}), 4),
	}
	for _, change := range []struct {
		of      string
		request uintptr
	}{{"interface", siocSIFFlags}, {"route", siocAddRT}} {
		b := make([]byte, 128) // longer than struct ifreq and struct rtentry
		copy(b, "lo")
		list = append(list, try(egress, "a change of the "+change.of, byKernel, unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM|flags, 0).
			then(unix.SYS_IOCTL, selfcheck.Last, change.request, m.Bytes(b)))
	}
	return list
}

// refusedQuery asks for the address of "carrel.invalid", over TCP (RFC 1035, 4.2.2).
const refusedQuery = "\x00\x20" + "\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + "\x06carrel\x07invalid\x00" + "\x00\x01\x00\x01"

// own is the descriptor number of a check's socket: an attempt can refer to the result of the previous one only. The
// child process has its own descriptor table.
const own = 63

// patience bounds each call of a check that waits.
const patience = 3 // seconds

// datagram is a check that what is sent over UDP stays inside, where nothing takes it.
func datagram(m *selfcheck.Memory, to netip.AddrPort) check {
	return try(egress, "a datagram", []unix.Errno{unix.ECONNREFUSED}, unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0).
		then(unix.SYS_DUP3, selfcheck.Last, own, unix.O_CLOEXEC).
		then(unix.SYS_SETSOCKOPT, own, unix.SOL_SOCKET, unix.SO_RCVTIMEO, waits(m), 16).
		then(unix.SYS_CONNECT, own, m.Bytes(sockaddr(to)), 16).
		then(unix.SYS_SENDTO, own, m.Bytes([]byte{0}), 1, unix.MSG_NOSIGNAL, 0, 0).
		then(unix.SYS_READ, own, m.Bytes(make([]byte, 1)), 1)
}

// sockaddr is to as struct sockaddr_in.
func sockaddr(to netip.AddrPort) []byte {
	sa := binary.NativeEndian.AppendUint16(nil, unix.AF_INET)
	sa = binary.BigEndian.AppendUint16(sa, to.Port())
	return append(append(sa, to.Addr().AsSlice()...), make([]byte, 8)...)
}

// waits is patience as struct timeval.
func waits(m *selfcheck.Memory) uintptr {
	return m.Bytes(append(binary.NativeEndian.AppendUint64(nil, patience), make([]byte, 8)...))
}

// converse is a check that connects, sends, and reads what comes back until judge is told.
func converse(m *selfcheck.Memory, name string, to netip.AddrPort, send []byte, judge func([]byte) (bool, string)) check {
	b, p := m.Buffer(64)
	c := try(egress, name, nil, unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0).
		then(unix.SYS_DUP3, selfcheck.Last, own, unix.O_CLOEXEC).
		then(unix.SYS_SETSOCKOPT, own, unix.SOL_SOCKET, unix.SO_RCVTIMEO, waits(m), 16).
		then(unix.SYS_CONNECT, own, m.Bytes(sockaddr(to)), 16)
	if len(send) > 0 {
		c = c.then(unix.SYS_SENDTO, own, m.Bytes(send), uintptr(len(send)), unix.MSG_NOSIGNAL, 0, 0)
	}
	c = c.then(unix.SYS_READ, own, p, uintptr(len(b)))
	c.judge = func(r selfcheck.Result) (bool, string) {
		if r.Errno != 0 && r.Errno != unix.ECONNRESET || !r.Ran {
			return false, r.Name()
		}
		if r.Errno != 0 {
			return judge(nil)
		}
		return judge(b[:min(int(r.R1), len(b))])
	}
	return c
}
