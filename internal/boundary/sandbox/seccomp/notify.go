package seccomp

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Watched is a filter beside that of Filter, which refuses foreign architectures and families: it
// leaves to a Listener each socket of route netlink, and of datagrams over IP, and allows all else.
func Watched() []unix.SockFilter {
	const (
		ld     = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jeq    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		and    = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
		ret    = unix.BPF_RET | unix.BPF_K
		family = 0
		kind   = 1
		// typeMask is SOCK_TYPE_MASK of linux/net.h: the other bits are flags.
		typeMask = 0xf
	)
	return []unix.SockFilter{
		{Code: ld, K: offNR},
		{Code: jeq, K: unix.SYS_SOCKET, Jt: 0, Jf: 8},
		{Code: ld, K: arg(family)},
		{Code: jeq, K: unix.AF_NETLINK, Jt: 5, Jf: 0},
		{Code: jeq, K: unix.AF_INET, Jt: 1, Jf: 0},
		{Code: jeq, K: unix.AF_INET6, Jt: 0, Jf: 4},
		{Code: ld, K: arg(kind)},
		{Code: and, K: typeMask},
		{Code: jeq, K: unix.SOCK_DGRAM, Jt: 0, Jf: 1},
		{Code: ret, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: ret, K: retAllow},
	}
}

// Listener answers the calls that a filter leaves to it, one at a time.
//
//	a command                     the kernel                  Listener
//	socket(AF_NETLINK, …) ─────►  waits for an answer  ─────► Receive
//	returns               ◄─────────────────────────────────  Refuse, Continue or Give
//
// Once a call was received, only a KILL ends its wait, so that an answer never meets a call that was
// interrupted by another signal and is about to be made again.
type Listener struct{ fd int }

// LoadWatched installs the filter on the calling thread alone and those that it starts, for good. It fails
// where the process has such a filter already: the kernel allows one.
func LoadWatched(p []unix.SockFilter) (*Listener, error) {
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	fd, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(p)
	if e != 0 {
		return nil, fmt.Errorf("cannot watch system calls: %w", e)
	}
	return &Listener{int(fd)}, nil // it is close-on-exec
}

// Call is one call that waits for an answer.
type Call struct {
	id uint64
	// Args are its arguments. What they point to must not be trusted: it can change.
	Args [6]uint64
}

// notification is struct seccomp_notif of linux/seccomp.h, and room for what kernels may add.
type notification struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
	_          [176]byte
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	val   int64
	errno int32
	flags uint32
}

// given is struct seccomp_notif_addfd.
type given struct {
	id          uint64
	flags       uint32
	fd          uint32
	newFD       uint32
	newFDsFlags uint32
}

// ioctl repeats what a signal interrupted.
func (l *Listener) ioctl(request uintptr, p unsafe.Pointer) error {
	for {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), request, uintptr(p))
		switch e {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return e
		}
	}
}

// Receive waits for the next call. ENOENT means that it ended meanwhile.
func (l *Listener) Receive() (Call, error) {
	var n notification // the kernel requires it to be zero
	if err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)); err != nil {
		return Call{}, err
	}
	return Call{n.id, n.args}, nil
}

// The answers. An error means that who called has ended.

// Refuse has the call fail.
func (l *Listener) Refuse(c Call, e unix.Errno) error {
	return l.send(response{id: c.id, errno: -int32(e)})
}

// Continue has the kernel make the call. It reads what arguments point to again.
func (l *Listener) Continue(c Call) error {
	return l.send(response{id: c.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})
}

func (l *Listener) send(r response) error {
	return l.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
}

// Give has the call return a descriptor of its own for what fd is. Where its process has too many, the call
// fails with that. No signal may interrupt it: the call would return 0.
func (l *Listener) Give(c Call, fd int, closeOnExec bool) error {
	g := given{id: c.id, fd: uint32(fd), flags: unix.SECCOMP_ADDFD_FLAG_SEND}
	if closeOnExec {
		g.newFDsFlags = unix.O_CLOEXEC
	}
	err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&g))
	if errors.Is(err, unix.EMFILE) {
		return l.Refuse(c, unix.EMFILE)
	}
	return err
}
