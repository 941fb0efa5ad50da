package egress

import (
	"net"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Open returns the connections that are open and have got through to a host, the oldest first. Duration is how long each
// has been open, Sent and Received what has passed. Rule, Secrets and Requests are those of the record at its end, and
// are not set.
func (s *Server) Open() []Connection {
	type one struct {
		c    Connection
		x    *session
		up   net.Conn
		more []net.Conn
	}
	var open []one
	s.mu.Lock()
	for x := range s.sessions {
		if x.up != nil && x.why == "" {
			// Nothing else of c may be read here.
			c := Connection{Began: x.c.Began, Way: x.c.Way, Target: x.c.Target, Address: x.c.Address, Count: 1}
			open = append(open, one{c, x, x.up, x.inner.conns()})
		}
	}
	s.mu.Unlock()
	slices.SortFunc(open, func(a, b one) int { return a.c.Began.Compare(b.c.Began) })
	all := make([]Connection, 0, len(open))
	for _, o := range open {
		o.c.Duration = time.Since(o.c.Began)
		o.c.Sent, o.c.Received = o.x.moved(o.up, o.more)
		all = append(all, o.c)
	}
	return all
}

// passed is how many bytes a connection has sent and received. It asks the kernel, because spliced bytes do not pass
// through this process, and those that do are counted at the end of a copy. It is 0 for one that is closed or not TCP.
func passed(c net.Conn) (sent, received int64) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return 0, 0
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, 0
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			// The kernel counts the SYN and the FIN that were acknowledged as a byte each.
			sent, received = max(int64(info.Bytes_acked)-1, 0), int64(info.Bytes_received)
		}
	})
	return sent, received
}
