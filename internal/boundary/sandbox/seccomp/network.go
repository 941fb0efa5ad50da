package seccomp

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// Network returns the program for a Go process with the number pid that only connects, copies and resolves
// names. It may open files to read, use TCP and UDP sockets and those that it inherited, start threads, and
// signal itself. It can start no program, and signal or look into no other process.
func Network(pid int) ([]unix.SockFilter, error) {
	rules := maps.Clone(networkRules)
	// The runtime sends signals to its own threads.
	rules[unix.SYS_TGKILL] = []rule{{arg: 0, op: noneOf, value: []uint32{uint32(pid)}, errno: unix.EPERM}}
	return assemble(slices.Clone(network), rules)
}

var network = append([]int{
	// What it has open, and files to read.
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREAD64, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_LSEEK,
	unix.SYS_FCNTL, unix.SYS_SPLICE, unix.SYS_PIPE2, unix.SYS_SENDFILE, unix.SYS_EVENTFD2, unix.SYS_READLINKAT,
	// Connections.
	unix.SYS_CONNECT, unix.SYS_ACCEPT4, unix.SYS_SENDTO, unix.SYS_RECVFROM, unix.SYS_SENDMSG, unix.SYS_RECVMSG,
	unix.SYS_SHUTDOWN, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKOPT,
	// Waiting and time.
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_FUTEX, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_GETTIME,
	unix.SYS_GETTIMEOFDAY, unix.SYS_RESTART_SYSCALL,
	// What Go's runtime needs.
	unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE, unix.SYS_BRK, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK,
	unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_SCHED_YIELD,
	unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETRANDOM, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME,
	unix.SYS_TIMER_DELETE, unix.SYS_GETRUSAGE,
}, nativeNetwork...)

// threadFlags are those that Go starts a thread with; a clone without one of them would be a process.
const threadFlags = unix.CLONE_VM | unix.CLONE_THREAD

var networkRules = map[int][]rule{
	unix.SYS_CLONE: {{arg: 0, mask: threadFlags, op: noneOf, value: []uint32{threadFlags}, errno: unix.EPERM}},
	// To read: no mode of access but O_RDONLY, and nothing is made or cut.
	unix.SYS_OPENAT: {{arg: 2, mask: unix.O_ACCMODE | unix.O_CREAT | unix.O_TRUNC, op: nonzero, errno: unix.EACCES}},
	unix.SYS_SOCKET: {
		{arg: 0, op: noneOf, value: []uint32{unix.AF_INET, unix.AF_INET6}, errno: unix.EAFNOSUPPORT},
		{arg: 2, op: noneOf, value: []uint32{0, unix.IPPROTO_TCP, unix.IPPROTO_UDP}, errno: unix.EPROTONOSUPPORT},
	},
	// Its own limits, to read.
	unix.SYS_PRLIMIT64: {{arg: 2, op: nonzero, errno: unix.EPERM}, {arg: 2, high: true, op: nonzero, errno: unix.EPERM}},
}
