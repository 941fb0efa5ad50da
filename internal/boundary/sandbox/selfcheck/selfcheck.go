// Package selfcheck tries, in a process of a workspace, what must fail there, and
// reads what must hold.
//
// An attempt is one raw system call; attempts are data. They run in a child that is
// forked without exec, has one thread only, and touches nothing but its table, so the
// kernel sees exactly the call that is named. The package must not decide what a
// control is worth: it returns what was seen.
package selfcheck

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Last stands for the result of the attempt before in an argument.
const Last = ^uintptr(0) - 4095

// Attempt is one system call. Args may point into memory that Keep holds on to.
type Attempt struct {
	NR   uintptr
	Args [6]uintptr
	// Forks is set for calls that return 0 in a new child if they succeed: that
	// child exits at once.
	Forks bool
	// OnlyIfLast skips the attempt if the one before failed.
	OnlyIfLast bool
}

// Result is what the kernel answered.
type Result struct {
	R1    uintptr
	Errno unix.Errno
	// Ran is false if the attempt was not reached or skipped.
	Ran bool
}

// Name is the errno's symbol, or "ok" and the value.
func (r Result) Name() string {
	switch {
	case !r.Ran:
		return "not run"
	case r.Errno == 0:
		return fmt.Sprintf("ok (%d)", int64(r.R1))
	default:
		return unix.ErrnoName(r.Errno)
	}
}

// slot is Result as the child writes it into shared memory.
type slot struct {
	r1    uintptr
	errno uintptr
	ran   uintptr
}

// table is what the child reads: no Go pointers, nothing that moves.
type table struct {
	attempts *[maxAttempts]Attempt
	n        int
	slots    *[maxAttempts]slot
	uid, gid uintptr
	// stay: the child has the right ids already.
	stay bool
	// clone is a struct clone_args, linux/sched.h: eleven 64-bit words.
	clone *[11]uint64
}

// Words of struct clone_args.
const (
	cloneFlags      = 0
	cloneExitSignal = 4
	cloneCgroup     = 10
)

const maxAttempts = 256

// Run makes the attempts in order as uid and gid, with no supplementary groups, in a
// child born into the v2 cgroup whose directory is open at cgroup, and returns what
// came of each. Without a cgroup, -1, it is in the executor's, and with
// stay it has the executor's ids and groups. It must be called on the thread whose v1 cgroups and namespaces the
// attempts are about.
func Run(attempts []Attempt, uid, gid uint32, cgroup int, stay bool, deadline time.Duration) ([]Result, error) {
	if len(attempts) > maxAttempts {
		return nil, fmt.Errorf("cannot self-check: %d attempts, at most %d", len(attempts), maxAttempts)
	}
	size := int(unsafe.Sizeof([maxAttempts]slot{}))
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("cannot self-check: %w", err)
	}
	defer unix.Munmap(mem)
	list := new([maxAttempts]Attempt)
	copy(list[:], attempts)
	t := &table{
		attempts: list, n: len(attempts), uid: uintptr(uid), gid: uintptr(gid),
		slots: (*[maxAttempts]slot)(unsafe.Pointer(&mem[0])),
	}
	t.clone = new([11]uint64)
	t.clone[cloneExitSignal] = uint64(unix.SIGCHLD)
	t.stay = stay
	if cgroup >= 0 {
		t.clone[cloneFlags] = unix.CLONE_INTO_CGROUP
		t.clone[cloneCgroup] = uint64(cgroup)
	}
	pid, errno := forkAndTry(t)
	runtime.KeepAlive(list)
	if errno != 0 {
		return nil, fmt.Errorf("cannot self-check: cannot fork: %w", errno)
	}
	if err := reap(int(pid), deadline); err != nil {
		return nil, err
	}
	results := make([]Result, len(attempts))
	for i := range results {
		s := t.slots[i]
		results[i] = Result{R1: s.r1, Errno: unix.Errno(s.errno), Ran: s.ran == 1}
	}
	return results, nil
}

// exitOK is the child's exit code once it has made all attempts.
const exitOK = 77

// reap waits for the child, and ends it when it hangs.
func reap(pid int, deadline time.Duration) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("cannot self-check: cannot watch the child: %w", err)
	}
	defer unix.Close(fd)
	end := time.Now().Add(deadline)
	hung := false
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, max(0, int(time.Until(end).Milliseconds())))
		if err == unix.EINTR {
			continue
		}
		if hung = n == 0; hung {
			unix.Kill(pid, unix.SIGKILL)
		}
		break
	}
	var ws unix.WaitStatus
	for {
		_, err = unix.Wait4(pid, &ws, 0, nil)
		if err != unix.EINTR {
			break
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("cannot self-check: %w", err)
	case hung:
		return fmt.Errorf("cannot self-check: an attempt did not return within %v", deadline)
	case ws.Exited() && ws.ExitStatus() == exitOK:
		return nil
	case ws.Signaled():
		return fmt.Errorf("cannot self-check: the child was ended by %v", ws.Signal())
	default:
		return errors.New("cannot self-check: the child could not change to the commands' id")
	}
}

// forkAndTry forks and makes the attempts in the child, which never returns.
//
// The child of a threaded process may not enter the Go scheduler, grow its stack or
// allocate, hence nosplit and raw calls only, as in syscall.forkExec.
//
//go:nosplit
//go:norace
//go:noinline
func forkAndTry(t *table) (uintptr, unix.Errno) {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE3, uintptr(unsafe.Pointer(t.clone)), unsafe.Sizeof(*t.clone), 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	var e1, e2, e3 unix.Errno
	if !t.stay {
		_, _, e1 = unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
		_, _, e2 = unix.RawSyscall(unix.SYS_SETRESGID, t.gid, t.gid, t.gid)
		_, _, e3 = unix.RawSyscall(unix.SYS_SETRESUID, t.uid, t.uid, t.uid)
	}
	code := uintptr(exitOK)
	if e1 != 0 || e2 != 0 || e3 != 0 {
		code = 1
	} else {
		last, failed := uintptr(0), false
		for i := 0; i < t.n && i < maxAttempts; i++ {
			a := &t.attempts[i]
			if a.OnlyIfLast && failed {
				continue
			}
			args := a.Args
			for j := range args {
				if args[j] == Last {
					args[j] = last
				}
			}
			r1, _, errno := unix.RawSyscall6(a.NR, args[0], args[1], args[2], args[3], args[4], args[5])
			if a.Forks && errno == 0 && r1 == 0 {
				unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
			t.slots[i].r1 = r1
			t.slots[i].errno = uintptr(errno)
			t.slots[i].ran = 1
			last, failed = r1, errno != 0
		}
	}
	for {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, code, 0, 0)
	}
}

// Memory is what attempts point to: strings, structures and buffers, in one shared
// mapping, so that what the child writes is seen here and addresses stay put.
type Memory struct {
	b    []byte
	used int
}

// NewMemory maps size bytes.
func NewMemory(size int) (*Memory, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("cannot self-check: %w", err)
	}
	return &Memory{b: b}, nil
}

// Close unmaps it.
func (m *Memory) Close() { unix.Munmap(m.b) }

// Buffer returns n zero bytes, aligned to 16, and their address.
func (m *Memory) Buffer(n int) ([]byte, uintptr) {
	at := (m.used + 15) &^ 15
	if at+n > len(m.b) {
		panic("selfcheck: memory is too small for its table")
	}
	m.used = at + n
	b := m.b[at : at+n : at+n]
	return b, uintptr(unsafe.Pointer(&b[0]))
}

// String returns the address of s and a terminating zero.
func (m *Memory) String(s string) uintptr {
	b, p := m.Buffer(len(s) + 1)
	copy(b, s)
	return p
}

// Bytes returns the address of a copy of v.
func (m *Memory) Bytes(v []byte) uintptr {
	b, p := m.Buffer(len(v))
	copy(b, v)
	return p
}
