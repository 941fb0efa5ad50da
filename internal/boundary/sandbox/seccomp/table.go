package seccomp

import (
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// Namespace flags of clone and unshare, from linux/sched.h. CLONE_NEWTIME shares
// its bit with the exit signal of clone, so only unshare can take it.
const (
	nsFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
		unix.CLONE_NEWPID | unix.CLONE_NEWNET
	cloneNewTime = 0x80
)

// sockType has the bits of a socket's type that are no flags: SOCK_TYPE_MASK of linux/net.h.
const sockType = 0xf

// Terminal input injection, from asm-generic/ioctls.h and linux/tiocl.h.
const (
	tiocSTI   = 0x5412
	tiocLINUX = 0x541c
)

// argumentRules are the calls that are allowed with some arguments only. A call
// named here needs no place in the lists.
func argumentRules(o Options) map[int][]rule {
	rules := map[int][]rule{
		unix.SYS_IOCTL: {
			{arg: 1, op: anyOf, value: []uint32{tiocSTI, tiocLINUX}, errno: unix.EPERM},
		},
		// 0xffffffff asks; 0 and ADDR_NO_RANDOMIZE are what gdb needs.
		unix.SYS_PERSONALITY: {
			{arg: 0, op: noneOf, value: []uint32{0, 0x0040000, 0xffffffff}, errno: unix.EPERM},
		},
		// Unix, IPv4, IPv6 and route netlink. No vsock (it reaches the host), no
		// packet, alg, bluetooth, can and other families with large kernel surface.
		unix.SYS_SOCKET: {
			{arg: 0, op: noneOf, value: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}, errno: unix.EAFNOSUPPORT},
			{arg: 2, op: noneOf, value: []uint32{unix.NETLINK_ROUTE}, errno: unix.EPROTONOSUPPORT, when: true, whenIs: unix.AF_NETLINK},
			{arg: 2, op: noneOf, value: protocols, errno: unix.EPROTONOSUPPORT, when: true, whenIs: unix.AF_INET},
			{arg: 2, op: noneOf, value: protocols, errno: unix.EPROTONOSUPPORT, when: true, whenIs: unix.AF_INET6},
		},
		unix.SYS_SOCKETPAIR: {
			{arg: 0, op: noneOf, value: []uint32{unix.AF_UNIX}, errno: unix.EAFNOSUPPORT},
		},
		// The limit that keeps the kernel from starting the host's handler of core dumps.
		unix.SYS_SETRLIMIT: {{arg: 0, op: anyOf, value: []uint32{unix.RLIMIT_CORE}, errno: 0}},
		unix.SYS_PRLIMIT64: keepCoreLimit(),
	}
	if !o.UserNS {
		rules[unix.SYS_CLONE] = []rule{{arg: 0, mask: nsFlags, op: nonzero, errno: unix.EPERM}}
		rules[unix.SYS_UNSHARE] = []rule{{arg: 0, mask: nsFlags | cloneNewTime, op: nonzero, errno: unix.EPERM}}
	}
	if o.NoUnix {
		rules[unix.SYS_SOCKET] = append([]rule{{arg: 0, op: anyOf, value: []uint32{unix.AF_UNIX}, errno: unix.EPERM}}, rules[unix.SYS_SOCKET]...)
		// A datagram can be sent to any address from one of a pair, and the kernel takes SOCK_RAW for SOCK_DGRAM.
		rules[unix.SYS_SOCKETPAIR] = append(rules[unix.SYS_SOCKETPAIR],
			rule{arg: 1, mask: sockType, op: noneOf, value: []uint32{unix.SOCK_STREAM, unix.SOCK_SEQPACKET}, errno: unix.EPERM})
	}
	if o.NoIP {
		rules[unix.SYS_SOCKET] = append([]rule{
			{arg: 0, op: anyOf, value: []uint32{unix.AF_INET, unix.AF_INET6}, errno: unix.EPERM},
		}, rules[unix.SYS_SOCKET]...)
	}
	if o.OneID {
		for nr, r := range oneID {
			rules[nr] = append(slices.Clone(r), rules[nr]...)
		}
	}
	if o.NoSetID {
		for nr, at := range modes {
			rules[nr] = []rule{{arg: at, mask: setID, op: nonzero, errno: unix.EPERM}}
		}
		// The mode of an open that makes no file means nothing, and may be anything.
		for nr, at := range opens {
			rules[nr] = []rule{{arg: at + 1, mask: setID, op: nonzero, errno: unix.EPERM, with: creating, withArg: at}}
		}
	}
	return rules
}

// protocols of IP sockets: the one that fits the type, TCP, UDP, and ping. Without MPTCP, which programs do without as
// on a host that has none, UDP-Lite, SCTP, DCCP and others, of which the kernel loads modules.
var protocols = []uint32{0, unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6}

// keepCoreLimit is what prlimit64 is answered for a new RLIMIT_CORE: that it was set, as programs that handle
// secrets set it to 0 and end if that fails. Refused are a call that asks for the old limit too, because nothing would
// be written where the caller reads it, and one about another process, which no program needs. Both limits are pointers of 64 bits.
func keepCoreLimit() []rule {
	var rules []rule
	core := func(r rule) {
		r.when, r.whenArg, r.whenIs = true, 1, unix.RLIMIT_CORE
		rules = append(rules, r)
	}
	for _, newHigh := range []bool{false, true} {
		set := rule{op: nonzero, errno: unix.EPERM, with: ^uint32(0), withArg: 2, withHigh: newHigh}
		core(set) // the process is argument 0
		for _, oldHigh := range []bool{false, true} {
			set.arg, set.high = 3, oldHigh
			core(set)
		}
	}
	for _, newHigh := range []bool{false, true} {
		core(rule{arg: 2, high: newHigh, op: nonzero, errno: 0})
	}
	return rules
}

// oneID keeps commands from their executor where both have one id. The executor handles
// every signal that kill can send; one with a code of the sender's choosing, or of the
// kernel's, looks to it like a fault of its own. Memory and descriptors it keeps by not
// being dumpable.
var oneID = map[int][]rule{
	unix.SYS_KILL:               {{arg: 0, op: anyOf, value: executorPID, errno: unix.EPERM}},
	unix.SYS_TKILL:              {{arg: 0, op: anyOf, value: executorPID, errno: unix.EPERM}},
	unix.SYS_TGKILL:             {{arg: 0, op: anyOf, value: executorPID, errno: unix.EPERM}},
	unix.SYS_SETPRIORITY:        {{arg: 1, op: anyOf, value: executorPID, errno: unix.EPERM}},
	unix.SYS_SCHED_SETAFFINITY:  {{arg: 0, op: anyOf, value: executorPID, errno: unix.EPERM}},
	unix.SYS_SCHED_SETPARAM:     {{arg: 0, op: anyOf, value: executorPID, errno: unix.EPERM}},
	unix.SYS_SCHED_SETSCHEDULER: {{arg: 0, op: anyOf, value: executorPID, errno: unix.EPERM}},
	unix.SYS_SCHED_SETATTR:      {{arg: 0, op: anyOf, value: executorPID, errno: unix.EPERM}},
	unix.SYS_PIDFD_OPEN:         {{arg: 0, op: anyOf, value: executorPID, errno: unix.EPERM}},
	unix.SYS_RT_SIGQUEUEINFO:    {always},
	unix.SYS_RT_TGSIGQUEUEINFO:  {always},
	unix.SYS_PIDFD_SEND_SIGNAL:  {{arg: 2, op: nonzero, errno: unix.EPERM}, {arg: 2, high: true, op: nonzero, errno: unix.EPERM}},
	unix.SYS_PRLIMIT64:          {{arg: 0, op: nonzero, errno: unix.EPERM}}, // its own is 0
	// With it, reads and writes could send any signal to the executor.
	unix.SYS_FCNTL: {{arg: 1, op: anyOf, value: []uint32{unix.F_SETSIG}, errno: unix.EPERM}},
}

var (
	executorPID = []uint32{1}
	always      = rule{arg: 0, op: noneOf, errno: unix.EPERM}
)

const (
	setID = unix.S_ISUID | unix.S_ISGID
	// creating is O_CREAT and what O_TMPFILE has beside O_DIRECTORY.
	creating = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY
)

// modes are the calls that take a file's mode, by the argument that it is; opens those
// that take one behind their flags.
var (
	modes = withNative(map[int]int{
		unix.SYS_FCHMOD: 1, unix.SYS_FCHMODAT: 2, sysFchmodat2: 2, unix.SYS_MKDIRAT: 2, unix.SYS_MKNODAT: 2,
	}, nativeModes)
	opens = withNative(map[int]int{unix.SYS_OPENAT: 2}, nativeOpens)
)

func withNative(m, native map[int]int) map[int]int {
	maps.Copy(m, native)
	return m
}

// nesting is what making namespaces inside needs, mounting what making a root of one's own
// in them needs.
var (
	nesting  = []int{unix.SYS_CLONE, unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME}
	mounting = []int{
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT,
		unix.SYS_FSPICK, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_MOUNT_SETATTR,
	}
)

// common is the allow-list that all 64-bit architectures share. What is absent
// gets ENOSYS, so programs take the path they take on an older kernel. Absent on
// purpose: io_uring, AIO (its contexts are counted for the host as a whole), bpf, userfaultfd, perf_event_open, the key ring, mounting,
// modules, kexec, clocks, quotas, swap, open_by_handle_at, kcmp, syslog, setns.
var common = []int{
	// Files.
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_LSEEK, unix.SYS_PREAD64,
	unix.SYS_PWRITE64, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREADV, unix.SYS_PWRITEV, unix.SYS_PREADV2,
	unix.SYS_PWRITEV2, unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_CLOSE_RANGE, unix.SYS_DUP, unix.SYS_DUP3,
	unix.SYS_FCNTL, unix.SYS_FLOCK, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC_FILE_RANGE, unix.SYS_SYNCFS,
	unix.SYS_SYNC, unix.SYS_TRUNCATE, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_FADVISE64, unix.SYS_READAHEAD,
	unix.SYS_GETDENTS64, unix.SYS_GETCWD, unix.SYS_CHDIR, unix.SYS_FCHDIR, unix.SYS_MKDIRAT, unix.SYS_MKNODAT,
	unix.SYS_UNLINKAT, unix.SYS_LINKAT, unix.SYS_SYMLINKAT, unix.SYS_RENAMEAT2, unix.SYS_READLINKAT, unix.SYS_FCHMOD,
	unix.SYS_FCHMODAT, sysFchmodat2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT, unix.SYS_UMASK,
	unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_STATX, unix.SYS_STATFS, unix.SYS_FSTATFS, unix.SYS_NAME_TO_HANDLE_AT,
	unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_GETXATTR, unix.SYS_LGETXATTR, unix.SYS_FGETXATTR,
	unix.SYS_LISTXATTR, unix.SYS_LLISTXATTR, unix.SYS_FLISTXATTR, unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR,
	unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE, unix.SYS_SPLICE, unix.SYS_TEE, unix.SYS_VMSPLICE, unix.SYS_PIPE2,
	unix.SYS_INOTIFY_INIT1, unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_INOTIFY_RM_WATCH,
	unix.SYS_CACHESTAT,
	// Waiting.
	unix.SYS_PSELECT6, unix.SYS_PPOLL, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2,
	unix.SYS_EVENTFD2, unix.SYS_SIGNALFD4, unix.SYS_TIMERFD_CREATE, unix.SYS_TIMERFD_SETTIME, unix.SYS_TIMERFD_GETTIME,
	// Memory.
	unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MREMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE, unix.SYS_MSYNC, unix.SYS_MINCORE,
	unix.SYS_MLOCK, unix.SYS_MLOCK2, unix.SYS_MUNLOCK, unix.SYS_MLOCKALL, unix.SYS_MUNLOCKALL, unix.SYS_BRK, unix.SYS_MEMFD_CREATE,
	unix.SYS_MEMFD_SECRET, unix.SYS_MEMBARRIER, unix.SYS_PROCESS_MADVISE, unix.SYS_PROCESS_MRELEASE, unix.SYS_PKEY_ALLOC,
	unix.SYS_PKEY_FREE, unix.SYS_PKEY_MPROTECT, unix.SYS_GET_MEMPOLICY, unix.SYS_SET_MEMPOLICY, unix.SYS_MBIND,
	unix.SYS_REMAP_FILE_PAGES,
	// Processes, threads, signals.
	unix.SYS_CLONE3, unix.SYS_EXECVE, unix.SYS_EXECVEAT, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_WAIT4, unix.SYS_WAITID,
	unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGPENDING,
	unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_RT_SIGRETURN, unix.SYS_RT_SIGSUSPEND, unix.SYS_RT_SIGTIMEDWAIT,
	unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_PIDFD_GETFD,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PRCTL, unix.SYS_SET_TID_ADDRESS,
	unix.SYS_SET_ROBUST_LIST, unix.SYS_GET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_FUTEX, unix.SYS_FUTEX_WAITV, sysFutexWake,
	sysFutexWait, sysFutexRequeue, unix.SYS_GETPID, unix.SYS_GETPPID, unix.SYS_GETTID, unix.SYS_GETPGID, unix.SYS_SETPGID,
	unix.SYS_GETSID, unix.SYS_SETSID, unix.SYS_SECCOMP, unix.SYS_LANDLOCK_CREATE_RULESET, unix.SYS_LANDLOCK_ADD_RULE,
	unix.SYS_LANDLOCK_RESTRICT_SELF,
	// Identity. Changing it needs capabilities that only the executor has.
	unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_GETGROUPS, unix.SYS_GETRESUID, unix.SYS_GETRESGID,
	unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID, unix.SYS_SETGROUPS,
	unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_CAPGET, unix.SYS_CAPSET, unix.SYS_CHROOT,
	// Scheduling and limits.
	unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_GETPARAM, unix.SYS_SCHED_SETPARAM,
	unix.SYS_SCHED_GETSCHEDULER, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_GETATTR, unix.SYS_SCHED_SETATTR,
	unix.SYS_SCHED_GET_PRIORITY_MAX, unix.SYS_SCHED_GET_PRIORITY_MIN, unix.SYS_SCHED_RR_GET_INTERVAL, unix.SYS_GETPRIORITY,
	unix.SYS_SETPRIORITY, unix.SYS_IOPRIO_GET, unix.SYS_IOPRIO_SET, unix.SYS_GETRLIMIT, unix.SYS_SETRLIMIT, unix.SYS_PRLIMIT64,
	unix.SYS_GETRUSAGE, unix.SYS_TIMES, unix.SYS_GETCPU,
	// Time.
	unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_NANOSLEEP, unix.SYS_GETTIMEOFDAY,
	unix.SYS_GETITIMER, unix.SYS_SETITIMER, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_GETTIME,
	unix.SYS_TIMER_GETOVERRUN, unix.SYS_TIMER_DELETE,
	// Sockets; socket and socketpair have rules.
	unix.SYS_CONNECT, unix.SYS_ACCEPT, unix.SYS_ACCEPT4, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME,
	unix.SYS_SENDTO, unix.SYS_RECVFROM, unix.SYS_SENDMSG, unix.SYS_RECVMSG, unix.SYS_SENDMMSG, unix.SYS_RECVMMSG, unix.SYS_SHUTDOWN,
	unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKOPT,
	// System V and POSIX IPC, private to the workspace's namespace.
	unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMDT, unix.SYS_SHMCTL, unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP,
	unix.SYS_SEMCTL, unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL, unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK,
	unix.SYS_MQ_TIMEDSEND, unix.SYS_MQ_TIMEDRECEIVE, unix.SYS_MQ_NOTIFY, unix.SYS_MQ_GETSETATTR,
	// The rest.
	unix.SYS_UNAME, unix.SYS_SYSINFO, unix.SYS_GETRANDOM,
}

// Numbers newer than the library's tables; they are the same on every
// architecture (kernel: scripts/syscall.tbl).
const (
	sysFchmodat2    = 452
	sysFutexWake    = 454
	sysFutexWait    = 455
	sysFutexRequeue = 456
)
