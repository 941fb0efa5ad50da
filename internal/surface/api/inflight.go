package api

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/shares"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
)

// The daemon may have so many files open, and as many more of its user's may be in sockets whose readers have not taken
// them (unix(7), ETOOMANYREFS): beyond, nothing can be opened or handed over for anybody. What is held for an owner and
// what was sent to one and not taken are counted together. An owner may have an eighth of the limit and at most
// maxDescriptors, as much again in requests, so that commands can still be ended, and all together a half; the rest is for
// connections, which are bounded apart, and for the daemon.
const (
	maxDescriptors = 4096
	// forRequest is what a request may hold while it is served: the program that works on files, and its two pipes.
	forRequest = 3
)

// requestsOf is under which name what is held for an owner's requests is counted.
func requestsOf(owner string) string { return "requests of " + owner }

// newDescriptors is for a process with this limit.
func newDescriptors(limit int64) *shares.Book {
	return shares.New(min(limit/8, maxDescriptors), limit/2, forRequest)
}

// openFiles is how many files this process may have open.
func openFiles() int64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 1024
	}
	return int64(min(l.Cur, 1<<20))
}

// Descriptors takes n of the daemon's descriptors for an owner until give is called.
func (s *Server) Descriptors(owner string, n int) (give func(), err error) {
	if err := s.open(owner, n); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { s.opened.Give(owner, int64(n)) }), nil
}

// open counts n descriptors for an owner. What clients have read meanwhile counts no more.
func (s *Server) open(owner string, n int) error {
	if s.opened.Take(owner, int64(n)) {
		return nil
	}
	s.inFlight.sweep()
	if s.opened.Take(owner, int64(n)) {
		return nil
	}
	most, all := s.opened.Bounds()
	return fmt.Errorf("cannot open %d more files for %s: carreld holds %d for them in commands, streams, requests and answers that were "+
		"not read, of at most %d, and %d for all; end some commands, or read the answers: %w", n, owner, s.opened.Held(owner), most, all,
		errdefs.ErrResourceExhausted)
}

// hands is how many descriptors the reply to a call may carry.
var hands = map[string]int{fdapi.Spawn: fdapi.MaxFDs, fdapi.Attach: 1}

// inFlight are the connections to which descriptors were sent.
type inFlight struct {
	mu  sync.Mutex
	all map[*flight]struct{}
}

// flight is what one connection has of the daemon's descriptors. Its fields are guarded by inFlight.mu.
type flight struct {
	server *Server
	conn   *net.UnixConn
	owner  string
	unread int64 // in replies that were sent, and perhaps not read
	ended  bool
	keep   int // a descriptor of its own, once the connection has ended and not all was read
}

// landed is for a reply that was sent with n of those that were reserved, or not sent.
func (f *flight) landed(reserved, n int) {
	s := f.server
	s.opened.Give(f.owner, int64(reserved-n))
	s.inFlight.mu.Lock()
	defer s.inFlight.mu.Unlock()
	if f.ended || n == 0 {
		s.opened.Give(f.owner, int64(n))
		return
	}
	if f.unread == 0 {
		s.inFlight.all[f] = struct{}{}
	}
	f.unread += int64(n)
}

// sweep looks at all connections. One that a client reads costs one system call for many replies.
func (x *inFlight) sweep() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for f := range x.all {
		f.read()
	}
}

// end is for a connection that is about to be closed. If its client has not read everything, the descriptors stay in flight
// until it does or closes its end. So long they count, and so does the connection: gone is called then.
func (f *flight) end(gone func()) {
	s := f.server
	s.inFlight.mu.Lock()
	defer s.inFlight.mu.Unlock()
	f.ended = true
	if f.read() {
		gone()
		return
	}
	keep := -1
	if raw, err := f.conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { keep, _ = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3) })
	}
	if keep < 0 { // nothing tells any more when they are read
		f.forget()
		gone()
		return
	}
	f.keep = keep
	_ = unix.Shutdown(keep, unix.SHUT_RDWR) // what was sent can still be read
	go func() {
		defer gone()
		defer func() {
			s.inFlight.mu.Lock()
			defer s.inFlight.mu.Unlock()
			f.forget()
			_ = unix.Close(keep)
		}()
		for pause := time.Millisecond; !f.over(); pause = min(2*pause, time.Second) {
			select {
			case <-time.After(pause):
			case <-s.closing.Done():
				return
			}
		}
	}()
}

// over reports whether all was read.
func (f *flight) over() bool {
	f.server.inFlight.mu.Lock()
	defer f.server.inFlight.mu.Unlock()
	return f.read()
}

// forget counts the descriptors of a connection no more. inFlight.mu is held.
func (f *flight) forget() {
	f.server.opened.Give(f.owner, f.unread)
	f.unread = 0
	delete(f.server.inFlight.all, f)
}

// read does so if nothing that was sent is still to be read. inFlight.mu is held.
func (f *flight) read() bool {
	waits := false
	switch {
	case f.unread == 0:
	case f.keep > 0:
		waits = unread(f.keep)
	default:
		if raw, err := f.conn.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { waits = unread(int(fd)) })
		}
	}
	if !waits {
		f.forget()
	}
	return !waits
}

// unread reports whether the other end of a socket has not read all that was sent to it (SIOCOUTQ, unix(7)).
func unread(fd int) bool {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	return err == nil && n > 0
}
