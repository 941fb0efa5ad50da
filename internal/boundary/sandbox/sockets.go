package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/seccomp"
)

// What some sockets hold in the kernel no control group counts: answers of netlink that nobody reads, up
// to the size of the receive buffer, and a datagram that is put together in parts, up to its 64 KiB. What
// TCP and UDP sockets receive, and Unix sockets hold, is counted. So those two kinds are few.
//
// Commands are born from a thread with a filter that leaves the making of these to the executor. It makes
// a netlink socket itself and gives it away, so that it knows how many there are. A datagram socket must
// be the command's own, because what it receives is charged to the group of who made it: the executor looks how
// many there are and lets the kernel go on. Calls that are let go on at once are not seen by one another, so
// there may be as many more as there are threads.
const (
	// mostNetlink suffices: a program has one or two, and most for an instant.
	mostNetlink, leastNetlink = 64, 16
	// netlinkBytes is what these may hold together, as far as leastNetlink lets it. The kernel's own
	// default of net.core.rmem_max gives mostNetlink.
	netlinkBytes = 32 << 20
	mostDatagram = 512
	// Fewer are tried at the start.
	triedNetlink, triedDatagram = 2, 8
)

// socketGuard bounds them.
type socketGuard struct {
	listener          *seccomp.Listener
	used, protocols   int // /proc/net/sockstat and protocols, of the workspace's network
	netlink, datagram atomic.Int64
	buffer            [16 << 10]byte
}

// watchSockets starts the guard, with bounds that are for the self-check. It is needed on a thread without
// the filter of commands.
func (s *stage) watchSockets() error {
	g := &socketGuard{}
	g.netlink.Store(triedNetlink)
	g.datagram.Store(triedDatagram)
	err := s.onSpawner(func() (err error) {
		g.listener, err = seccomp.LoadWatched(seccomp.Watched())
		return err
	})
	if err == nil {
		g.used, err = unix.Open("/proc/net/sockstat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err == nil {
		g.protocols, err = unix.Open("/proc/net/protocols", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if g.listener == nil {
		return nil // the self-check says that nothing is bounded, and whether that is required
	}
	if err != nil {
		return fmt.Errorf("cannot count sockets: %w", err)
	}
	s.sockets = g
	go g.serve()
	return nil
}

// proved puts the bounds in force that commands have.
func (g *socketGuard) proved() {
	if g == nil {
		return
	}
	g.netlink.Store(netlinkBound(receiveBuffer()))
	g.datagram.Store(mostDatagram)
}

// netlinkBound is how many netlink sockets there may be if each holds as much.
func netlinkBound(each int64) int64 {
	return min(max(netlinkBytes/max(each, 1), leastNetlink), mostNetlink)
}

// receiveBuffer is the largest receive buffer that a socket can ask for here.
func receiveBuffer() int64 {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return netlinkBytes
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<30); err != nil {
		return netlinkBytes
	}
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return netlinkBytes
	}
	return int64(n)
}

// serve answers for the life of the process, on a thread of its own, which waits in the kernel.
func (g *socketGuard) serve() {
	runtime.LockOSThread()
	var all unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	// What Go's runtime sends to its threads must not interrupt an answer. It needs nothing of this thread, which
	// waits in the kernel or is about to.
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, nil); err != nil {
		panic(fmt.Sprintf("cannot hold signals off: %v", err))
	}
	for {
		c, err := g.listener.Receive()
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			panic(fmt.Sprintf("cannot receive system calls: %v", err)) // commands would wait for ever
		}
		_ = g.answer(c) // an error means that nobody waits for it any more
	}
}

func (g *socketGuard) answer(c seccomp.Call) error {
	family, kind, protocol := int(int32(c.Args[0])), int(int32(c.Args[1])), int(int32(c.Args[2]))
	netlink := family == unix.AF_NETLINK
	if ok, err := g.within(netlink); err != nil || !ok {
		return g.listener.Refuse(c, unix.ENOBUFS)
	}
	if !netlink {
		return g.listener.Continue(c)
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if e, ok := errors.AsType[unix.Errno](err); ok {
		return g.listener.Refuse(c, e)
	}
	defer unix.Close(fd)
	return g.listener.Give(c, fd, kind&unix.SOCK_CLOEXEC != 0)
}

// within reports whether the workspace's network may have one more netlink or datagram socket. The kernel has no
// number of the latter: one counts for its protocol only once it is bound. So all others are subtracted from the
// sum, and TCP sockets that are not connected remain in it.
func (g *socketGuard) within(netlink bool) (bool, error) {
	most := g.datagram.Load()
	if netlink {
		most = g.netlink.Load()
	}
	n, err := unix.Pread(g.used, g.buffer[:], 0)
	if err != nil {
		return false, err
	}
	sum, err := socketsUsed(g.buffer[:n])
	if err != nil || sum < most {
		return err == nil, err // the second number takes longer to read, and is not larger
	}
	if n, err = unix.Pread(g.protocols, g.buffer[:], 0); err != nil {
		return false, err
	}
	ofNetlink, others := socketsOf(g.buffer[:n])
	if netlink {
		return ofNetlink < most, nil
	}
	return sum-ofNetlink-others < most, nil
}

// socketsUsed reads the first line of /proc/net/sockstat: "sockets: used 5".
func socketsUsed(text []byte) (int64, error) {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	rest, ok := bytes.CutPrefix(line, []byte("sockets: used "))
	if !ok {
		return 0, fmt.Errorf("cannot understand %q in /proc/net/sockstat", line)
	}
	return strconv.ParseInt(string(rest), 10, 64)
}

// socketsOf reads /proc/net/protocols, whose lines begin with a name, a size and a number of sockets.
func socketsOf(text []byte) (netlink, others int64) {
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) < 3 {
			continue
		}
		n, err := strconv.ParseInt(string(f[2]), 10, 64)
		if err != nil || n < 0 {
			continue // the head
		}
		switch string(f[0]) {
		case "NETLINK":
			netlink += n
		case "TCP", "TCPv6", "UNIX", "UNIX-STREAM":
			others += n
		}
	}
	return netlink, others
}

const socketCount = "socket-count"

// checkSockets tries to get more than the guard gives during the self-check. The child has some TCP sockets by then.
func checkSockets() []check {
	const flags = unix.SOCK_CLOEXEC
	tooMany := []unix.Errno{unix.ENOBUFS}
	more := func(name string, n int, args ...uintptr) check {
		c := try(socketCount, name, tooMany, unix.SYS_SOCKET, args...)
		for range n {
			c = c.then(unix.SYS_SOCKET, args...)
		}
		return c.only(without(userNS))
	}
	one := func(name string, args ...uintptr) check {
		c := try(socketCount, name, nil, unix.SYS_SOCKET, args...)
		c.judge = succeeds
		return c
	}
	netlink := []uintptr{unix.AF_NETLINK, unix.SOCK_RAW | flags, unix.NETLINK_ROUTE}
	udp := []uintptr{unix.AF_INET, unix.SOCK_DGRAM | flags, 0}
	return []check{
		one("a netlink socket", netlink...), one("a datagram socket", udp...),
		more("netlink sockets without end", triedNetlink, netlink...), more("datagram sockets without end", triedDatagram, udp...),
	}
}
