// Package mountgrant passes directories from a client to the broker through a daemon that neither trusts
// with it: the broker receives what the client sent, and the kernel tells it who that was.
// docs/protocols/broker.md specifies it.
//
// It must not decide what a client may share, and it must not open a path.
package mountgrant

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/strictjson"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

//	client                        daemon                       broker
//	  │ socketpair(SEQPACKET): a, b │                             │
//	  │ a: one packet, {Message}    │                             │
//	  │    + SCM_RIGHTS [dirs]      │                             │
//	  │    + SCM_CREDENTIALS        │                             │
//	  │ create + fd b               │                             │
//	  ├────────────────────────────►│ create + fd b               │
//	  │                             ├────────────────────────────►│ SO_PEERCRED of b: who made
//	  │                             │                             │ the pair; recvmsg: the packet,
//	  │                             │                             │ and who sent it
//	  │ a stays open until the      │                             │
//	  │ answer: a grant is refused  │◄────────────────────────────┤
//	  │ if its maker has ended      │                             │
//	  │◄────────────────────────────┤                             │
//
// The daemon can drop and read a grant. It cannot make one in another user's name, change one, or
// use one twice: packets are written through the client's end only, and read once.

// Version is the version of Message.
const Version = 2

// maxMessage bounds the packet's text in bytes.
const maxMessage = 64 << 10

// Message is the client's request. It names the workspace, so that a grant cannot be used for
// another one.
type Message struct {
	Version int `json:"version"`
	// KeyDigest is the lower-case hex SHA-256 of the workspace's key.
	KeyDigest string `json:"key_digest"`
	// Mounts are in the order of the descriptors. Behind those come the descriptors of the mounts' stages, in the same order.
	Mounts []workspace.Mount `json:"mounts"`
	// Held are, for each mount, paths below it that its user wants read-only: where programs of the host are led by settings that
	// only the user can read. It is nil, or as long as Mounts.
	Held [][]string `json:"held,omitempty"`
}

// stages counts the mounts with a stage.
func (m Message) stages() (n int) {
	for _, x := range m.Mounts {
		if x.Stage != "" {
			n++
		}
	}
	return n
}

// Cred identifies the process that made and sent a grant.
type Cred struct{ UID, GID uint32 }

// Offer makes a grant of dirs. The far end is for the daemon; the near end must stay open until the
// daemon has answered. The caller closes both.
func Offer(m Message, dirs []*os.File) (far, near *os.File, err error) {
	wrap := func(err error) (*os.File, *os.File, error) {
		return nil, nil, fmt.Errorf("cannot offer the directories: %w", err)
	}
	m.Version = Version
	b, err := json.Marshal(m)
	if err != nil {
		return wrap(err)
	}
	if len(b) > maxMessage {
		return wrap(fmt.Errorf("their paths take %d bytes together, at most %d are allowed: %w",
			len(b), maxMessage, errdefs.ErrInvalidArgument))
	}
	var fds []int
	for _, d := range dirs {
		fd, err := number(d)
		if err != nil {
			return wrap(err)
		}
		fds = append(fds, fd)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return wrap(err)
	}
	near, far = os.NewFile(uintptr(pair[0]), "grant"), os.NewFile(uintptr(pair[1]), "grant")
	// The sender states its ids, and the kernel checks them.
	oob := unix.UnixCredentials(&unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())})
	if len(fds) > 0 {
		oob = append(oob, unix.UnixRights(fds...)...)
	}
	if err := unix.Sendmsg(pair[0], b, oob, nil, 0); err != nil {
		return wrap(errors.Join(err, near.Close(), far.Close()))
	}
	return far, near, nil
}

// number returns f's descriptor and does not change its mode. The caller keeps f alive.
func number(f *os.File) (n int, err error) {
	c, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	if cerr := c.Control(func(fd uintptr) { n = int(fd) }); cerr != nil {
		return -1, cerr
	}
	return n, nil
}

// Is reports whether f can be the far end of a grant. It makes no call to a file system, which might
// not answer.
func Is(f *os.File) bool {
	fd, err := number(f)
	if err != nil {
		return false
	}
	for _, want := range []struct{ option, value int }{{unix.SO_DOMAIN, unix.AF_UNIX}, {unix.SO_TYPE, unix.SOCK_SEQPACKET}} {
		if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, want.option); err != nil || got != want.value {
			return false
		}
	}
	return true
}

// Take reads the grant at far, once, and returns its maker. The caller closes the directories. If far
// is anything else the error is of kind invalid_argument.
func Take(far *os.File) (m Message, who Cred, dirs []*os.File, err error) {
	bad := func(format string, a ...any) (Message, Cred, []*os.File, error) {
		for _, d := range dirs {
			_ = d.Close()
		}
		return Message{}, Cred{}, nil, fmt.Errorf("cannot take the directories: "+format+": %w", append(a, errdefs.ErrInvalidArgument)...)
	}
	fd, err := number(far)
	if err != nil {
		return bad("%w", err)
	}
	if !Is(far) {
		return bad("they did not come through a grant's socket")
	}
	maker, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return bad("the kernel does not say who made the grant: %w", err)
	}
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
	if _, err := unix.Poll(p, 0); err != nil || p[0].Revents != unix.POLLIN {
		return bad("the grant was used already, or who made it no longer waits; ask for the workspace again")
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return bad("%w", err)
	}
	text := make([]byte, maxMessage+1)
	// Space for one more than allowed, so that too many are noticed.
	oob := make([]byte, unix.CmsgSpace(4*(2*workspace.MaxMounts+1))+unix.CmsgSpace(unix.SizeofUcred)+64)
	n, oobn, flags, _, err := unix.Recvmsg(fd, text, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return bad("%w", err)
	}
	sender, dirs, known := parse(oob[:oobn])
	switch {
	case !known || sender == nil || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || n > maxMessage:
		return bad("the grant is not of the expected form")
	case sender.Uid != maker.Uid || sender.Gid != maker.Gid:
		return bad("uid %d made the grant and uid %d filled it", maker.Uid, sender.Uid)
	}
	if err := strictjson.Unmarshal(text[:n], &m); err != nil {
		return bad("the grant cannot be read: %w", err)
	}
	switch {
	case m.Version != Version:
		return bad("the grant is of version %d, this broker reads %d; install client and broker of one release", m.Version, Version)
	case len(m.Mounts)+m.stages() != len(dirs) || len(dirs) == 0:
		return bad("the grant names %d mounts, of which %d are staged, and has %d descriptors", len(m.Mounts), m.stages(), len(dirs))
	case m.Held != nil && len(m.Held) != len(m.Mounts):
		return bad("the grant names %d mounts, and what is held in %d", len(m.Mounts), len(m.Held))
	}
	return m, Cred{maker.Uid, maker.Gid}, dirs, nil
}

// parse decodes the control messages. known is false if there was anything but one list of
// descriptors and one sender. All descriptors are returned in any case, to be closed.
func parse(oob []byte) (sender *unix.Ucred, files []*os.File, known bool) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	known = err == nil
	lists := 0
	for _, m := range msgs {
		switch {
		case m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_CREDENTIALS:
			c, err := unix.ParseUnixCredentials(&m)
			known = known && err == nil && sender == nil
			sender = c
		case m.Header.Level == unix.SOL_SOCKET && (m.Header.Type == unix.SCM_RIGHTS || m.Header.Type == scmPidfd):
			lists++
			known = known && m.Header.Type == unix.SCM_RIGHTS && lists == 1
			m.Header.Type = unix.SCM_RIGHTS // a pidfd is a descriptor too
			fds, err := unix.ParseUnixRights(&m)
			known = known && err == nil
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "granted directory"))
			}
		default:
			known = false
		}
	}
	return sender, files, known
}

// scmPidfd is SCM_PIDFD of linux/socket.h. Any holder of the socket can request it.
const scmPidfd = 0x04
