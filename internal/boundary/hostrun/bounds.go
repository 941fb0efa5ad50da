package hostrun

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/selfcheck"
)

// Limits bound a command and all that it starts, together.
//
// Under the profiles that hold a command the kernel refuses each process private memory beyond Memory (RLIMIT_DATA, which does
// not count what is only reserved), and more than Processes processes and threads (RLIMIT_NPROC, which counts those of the
// command's own user namespace; for root, whom it does not bind, the numbers of the process namespace). What all processes
// take together is watched, and a command that takes more is ended with all that it started. Under None there is the watch
// alone, as what a person approved may start what stays. Memory of files without a name that nobody has mapped is not counted.
type Limits struct {
	// Memory is in bytes, at least MinMemory; 0 is half of the machine's. Processes counts threads too, and is at least
	// MinProcesses; 0 is DefaultProcesses. NoBound of either is no bound.
	Memory    int64
	Processes int
}

// Bounds of Limits.
const (
	NoBound          = -1
	MinMemory        = 256 << 20
	MinProcesses     = 64
	MaxProcesses     = 1 << 20
	DefaultProcesses = 1024
)

// bounds are the limits in force; 0 is none.
func (l Limits) bounds() (memory int64, processes int, err error) {
	memory, processes = l.Memory, l.Processes
	switch {
	case memory == 0:
		memory = max(total()/2, MinMemory)
	case memory == NoBound:
		memory = 0
	case memory < MinMemory:
		return 0, 0, bad("cannot run the command: %d bytes of memory are too few; allow at least %d", memory, MinMemory)
	}
	switch {
	case processes == 0:
		processes = DefaultProcesses
	case processes == NoBound:
		processes = 0
	case processes < MinProcesses || processes > MaxProcesses:
		return 0, 0, bad("cannot run the command: it cannot be bounded to %d processes; allow %d to %d", processes, MinProcesses, MaxProcesses)
	}
	return memory, processes, nil
}

// total is the machine's memory.
func total() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// reserved are the numbers that the kernel gives only once in a process namespace (RESERVED_PIDS, kernel/pid.c).
const reserved = 300

// pidMax is how many numbers processes and threads of a namespace have, of its own since Linux 6.14.
const pidMax = "/proc/sys/kernel/pid_max"

// count bounds the processes of root's command by the numbers of its namespace. On an older kernel the file is the host's.
func (s *stage) count() error {
	if !s.spec.Root || s.spec.Processes == 0 || !since(6, 14) {
		return nil
	}
	fd, err := unix.Open(pidMax, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte(strconv.Itoa(s.pidMax())))
		unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", pidMax, err)
	}
	return nil
}

func (s *stage) pidMax() int { return s.most() + reserved + 1 }

func (s *stage) most() int { return s.spec.most() }

// most is how many processes and threads there may be, the supervisor's own included; 0 is no bound.
func (s *spec) most() int {
	if s.Processes == 0 {
		return 0
	}
	return s.Processes + own
}

// since reports whether the kernel is at least of a version.
func since(major, minor int) bool { //nolint:unparam // it happens to be 14 of both
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var a, b int
	n, _ := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b)
	return n == 2 && (a > major || a == major && b >= minor)
}

// bound sets the limits of each process, and of processes by their user.
func (s *stage) bound() error {
	for _, l := range []struct {
		resource int
		value    uint64
	}{{unix.RLIMIT_DATA, uint64(s.spec.Memory)}, {unix.RLIMIT_NPROC, uint64(s.most())}} {
		var old syscall.Rlimit
		if l.value == 0 {
			continue
		}
		if err := syscall.Getrlimit(l.resource, &old); err != nil {
			return err
		}
		limit := min(l.value, old.Max)
		if err := syscall.Setrlimit(l.resource, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
			return err
		}
	}
	return nil
}

// spares is how many threads the supervisor has ready when the command begins: what it blocks in, and what the runtime uses
// beside that. Where its command has taken all that there may be, none can be made, and the runtime ends a program that needs one.
const spares = 8

// spare has the threads made. They inherit what holds this one.
func (s *stage) spare() {
	if s.spec.Processes == 0 || !s.row.held {
		return
	}
	if runtime.GOMAXPROCS(0) > 2 {
		runtime.GOMAXPROCS(2) // each would take a thread to clean up memory
	}
	var there, left sync.WaitGroup
	there.Add(spares)
	gone := make(chan struct{})
	for range spares {
		left.Go(func() {
			runtime.LockOSThread()
			there.Done()
			<-gone
			runtime.UnlockOSThread() // the thread stays, for whoever needs one
		})
	}
	there.Wait()
	close(gone)
	left.Wait()
}

// own is room for the supervisor's threads beside the processes of its command.
const own = 32

// niceness is how far behind what else the host does a command runs that is held.
const niceness = 10

func (s *stage) behind() error {
	// Where the kernel shares the processor by sessions, it is the session's that counts (sched(7)).
	if fd, err := unix.Open("/proc/self/autogroup", unix.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
		_, _ = unix.Write(fd, []byte(strconv.Itoa(niceness)))
		unix.Close(fd)
	}
	now, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 less it, as the call has no negative results
	if err != nil {
		return err
	}
	return unix.Setpriority(unix.PRIO_PROCESS, 0, max(20-now, niceness))
}

// loopback brings up that of a network of the command's own.
func (s *stage) loopback() error {
	if !s.row.alone {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(r))); e != 0 {
		return fmt.Errorf("cannot bring up the loopback of the command's own network: %w", e)
	}
	return nil
}

// Answers of what bounds a command.
var (
	tooMuch  = []unix.Errno{unix.ENOMEM}
	tooMany  = []unix.Errno{unix.EAGAIN}
	nowhere  = []unix.Errno{unix.ENETUNREACH}
	somewhat = uint64(1)
)

// boundChecks try the limits and the network. The last has the child that tries have no more processes.
func (s *stage) boundChecks(m *selfcheck.Memory) (list []check) {
	words := func(v ...uint64) uintptr {
		var b []byte
		for _, x := range v {
			b = binary.NativeEndian.AppendUint64(b, x)
		}
		return m.Bytes(b)
	}
	switch {
	case s.row.noIP:
		list = append(list,
			try("network", "filter", "socket(INET, STREAM)", byRule, unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0),
			try("network", "filter", "socket(INET, DGRAM)", byRule, unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM, 0),
			try("network", "filter", "socket(INET6, STREAM)", byRule, unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_STREAM, 0))
	case s.row.alone:
		// 192.0.2.1, which is nobody's (RFC 5737).
		to := m.Bytes([]byte{unix.AF_INET, 0, 0, 9, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0})
		if big := binary.NativeEndian.Uint16([]byte{0, 1}) == 1; big {
			to = m.Bytes([]byte{0, unix.AF_INET, 0, 9, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0})
		}
		list = append(list,
			expect("network", "socket(INET, STREAM)", -1, unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0),
			try("network", "network namespace", "connect to 192.0.2.1", nowhere, unix.SYS_CONNECT, selfcheck.Last, to, 16))
	}
	list = append(list, expect("processor", "20 less its niceness", int64(20-s.nice()), unix.SYS_GETPRIORITY, unix.PRIO_PROCESS, 0))
	if s.spec.Memory > 0 {
		list = append(list, try("memory", "RLIMIT_DATA", fmt.Sprintf("mmap of %d bytes", s.spec.Memory), tooMuch, unix.SYS_MMAP, 0,
			uintptr(s.spec.Memory), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0))
	}
	if s.spec.Processes > 0 && !s.spec.Root {
		list = append(list,
			expect("process-count", "RLIMIT_NPROC of 1", 0, unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NPROC, words(somewhat, somewhat), 0),
			try("process-count", "RLIMIT_NPROC", "clone3 beyond it", tooMany, unix.SYS_CLONE3,
				words(0, 0, 0, 0, uint64(unix.SIGCHLD), 0, 0, 0, 0, 0, 0), 88).forks())
	}
	return list
}

func (s *stage) nice() int {
	now, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return niceness
	}
	return max(20-now, niceness)
}

// boundFindings are what is read of the limits.
func (s *stage) boundFindings() (found []finding) {
	add := func(control string, ok bool, format string, a ...any) {
		found = append(found, finding{control, ok, fmt.Sprintf(format, a...)})
	}
	var l syscall.Rlimit
	if err := syscall.Getrlimit(unix.RLIMIT_DATA, &l); s.spec.Memory == 0 {
		add("memory", true, "no bound, as it was asked for")
	} else {
		add("memory", err == nil && l.Max <= uint64(s.spec.Memory), "RLIMIT_DATA %d of each process; together %d, watched", l.Max, s.spec.Memory)
	}
	switch err := syscall.Getrlimit(unix.RLIMIT_NPROC, &l); {
	case s.spec.Processes == 0:
		add("process-count", true, "no bound, as it was asked for")
	case !s.spec.Root:
		add("process-count", err == nil && l.Max <= uint64(s.most()), "RLIMIT_NPROC %d", l.Max)
		add("process-count", since(5, 14), "the kernel counts by user namespace since 5.14")
	case s.spec.Grouped && !since(6, 14): // the caller reads what its group bounds
	default:
		b, err := os.ReadFile(pidMax)
		n, nerr := strconv.Atoi(strings.TrimSpace(string(b)))
		add("process-count", err == nil && nerr == nil && since(6, 14) && n <= s.pidMax(), "kernel.pid_max of the process namespace: %d", n)
	}
	return found
}

// watchEvery is the time between two looks at what a command takes; a shorter one is never looked at.
const watchEvery = 100 * time.Millisecond

// errExceeded is the cause of the end of a command that took more than it may.
var errExceeded = errors.New("it took more than it may")

// exceeded says which bound.
type exceeded struct{ text string }

func (e *exceeded) Error() string        { return e.text }
func (e *exceeded) Is(target error) bool { return target == errExceeded }
func (e *exceeded) Unwrap() error        { return errdefs.ErrResourceExhausted }

// watch ends a command that takes more than it may.
func (s *session) watch(ctx context.Context, over context.CancelCauseFunc) {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.exited:
			return
		case <-t.C:
		}
		memory, processes := taken(s.command.Process.Pid)
		if full := s.filled(); full != nil {
			over(full)
			return
		}
		switch {
		case s.spec.Memory > 0 && memory > s.spec.Memory:
			over(&exceeded{fmt.Sprintf("its processes took %d MiB of memory together, and may take %d; have it do less at once, or have an "+
				"administrator raise steps.memory", memory>>20, s.spec.Memory>>20)})
			return
		case s.spec.Processes > 0 && processes > s.spec.Processes+own+reserved:
			over(&exceeded{fmt.Sprintf("it had %d processes and threads, and may have %d; have it do less at once, or have an administrator "+
				"raise steps.processes", processes, s.spec.Processes)})
			return
		}
	}
}

// buffers are what files of /proc are read into.
var buffers = sync.Pool{New: func() any { b := make([]byte, 16<<10); return &b }}

// taken is the memory that the processes below one have to themselves or share among them, and how many threads they have.
// What changes meanwhile is seen the next time.
func taken(pid int) (memory int64, threads int) {
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	for _, p := range below(pid) {
		status := readInto("/proc/"+strconv.Itoa(p)+"/status", *b)
		memory += (number(status, "RssAnon:") + number(status, "RssShmem:")) << 10
		threads += int(number(status, "Threads:"))
	}
	return memory, threads
}

func readInto(path string, b []byte) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	n, _ := f.Read(b) // one that has ended has none
	return b[:n]
}

// number is that of a line of a status file.
func number(status []byte, name string) (n int64) {
	at := bytes.Index(status, []byte("\n"+name))
	if at < 0 {
		return 0
	}
	f := bytes.Fields(status[at+1+len(name):])
	if len(f) > 0 {
		n, _ = strconv.ParseInt(string(f[0]), 10, 64)
	}
	return n
}
