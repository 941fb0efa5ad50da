package sandbox

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/netns"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/selfcheck"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// check is one or more attempts, of which the last is judged.
type check struct {
	control  string
	name     string
	attempts []selfcheck.Attempt
	// errnos are the answers that hold; nil means that judge decides.
	errnos []unix.Errno
	judge  func(selfcheck.Result) (ok bool, saw string)
	// opened: it is to succeed, because this was asked for.
	opened workspace.Opening
	// when says in which workspaces it is made.
	when when
}

// only restricts a check to some workspaces.
func (c check) only(w when) check {
	c.when = w
	return c
}

// opens makes c a check of what an opening opens. Without expected answers it has to succeed.
func (c check) opens(o workspace.Opening) check {
	c.opened, c.when = o, with(openingConditions[o])
	if c.errnos == nil {
		c.judge = succeeds
	}
	return c
}

// try is a check of one call.
func try(control, name string, errnos []unix.Errno, nr uintptr, args ...uintptr) check {
	a := selfcheck.Attempt{NR: nr}
	copy(a.Args[:], args)
	return check{control: control, name: name, attempts: []selfcheck.Attempt{a}, errnos: errnos}
}

// expect is a check of one call that must return value.
func expect(control, name string, value uintptr, nr uintptr, args ...uintptr) check {
	c := try(control, name, nil, nr, args...)
	c.judge = func(r selfcheck.Result) (bool, string) { return r.Errno == 0 && r.R1 == value, r.Name() }
	return c
}

// then adds a call that is made if the one before succeeded, and judged instead.
func (c check) then(nr uintptr, args ...uintptr) check {
	a := selfcheck.Attempt{NR: nr, OnlyIfLast: true}
	copy(a.Args[:], args)
	c.attempts = append(slices.Clone(c.attempts), a)
	return c
}

func (c check) forks() check {
	c.attempts[len(c.attempts)-1].Forks = true
	return c
}

// Answers by the layer that gives them.
var (
	bySeccomp = []unix.Errno{unix.ENOSYS}
	byRule    = []unix.Errno{unix.EPERM}
	byFamily  = []unix.Errno{unix.EAFNOSUPPORT}
	byKernel  = []unix.Errno{unix.EPERM}
	byMapping = []unix.Errno{unix.EPERM, unix.EINVAL}
	byHiding  = []unix.Errno{unix.EPERM, unix.ESRCH}
	readOnlyE = []unix.Errno{unix.EROFS, unix.EACCES, unix.EPERM}
	absent    = []unix.Errno{unix.ENOENT, unix.EACCES}
	noRoute   = []unix.Errno{unix.ENETUNREACH, unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT}
)

const (
	atFDCWD  = ^uintptr(99) // AT_FDCWD, -100
	selfTest = 15 * time.Second
)

// checks is the table of what is tried inside. Each row says which control it is
// evidence for.
func (s *stage) checks(m *selfcheck.Memory) []check {
	str, work := m.String, uintptr(s.spec.IDs.Work)
	home := workspace.Home
	u32 := func(v ...uint32) []byte {
		var b []byte
		for _, x := range v {
			b = binary.NativeEndian.AppendUint32(b, x)
		}
		return b
	}
	u64 := func(v ...uint64) []byte {
		var b []byte
		for _, x := range v {
			b = binary.NativeEndian.AppendUint64(b, x)
		}
		return b
	}
	cloneArgs := func(flags uint64) uintptr {
		return m.Bytes(u64(flags, 0, 0, 0, uint64(unix.SIGCHLD), 0, 0, 0, 0, 0, 0))
	}
	open := func(control, name string, errnos []unix.Errno, flags uintptr) check {
		return try(control, "open "+name, errnos, unix.SYS_OPENAT, atFDCWD, str(name), flags|unix.O_CLOEXEC, 0o600)
	}
	siginfo := make([]byte, 128)
	copy(siginfo, u32(uint32(unix.SIGKILL), 0, 0xffffffff)) // si_code SI_QUEUE
	limits := m.Bytes(u64(64, 64))
	iov := m.Bytes(u64(uint64(str("x")), 1))

	// Where commands may mount, the kernel answers what the filter answers elsewhere.
	byMount := map[bool][]unix.Errno{false: bySeccomp, true: byKernel}[s.spec.conditions()&nestedMounts != 0]
	list := []check{
		// ids
		s.readIDs(m, "getresuid", unix.SYS_GETRESUID), s.readIDs(m, "getresgid", unix.SYS_GETRESGID),
		try("ids", "setuid(0)", byMapping, unix.SYS_SETUID, 0),
		try("ids", "setgid(0)", byMapping, unix.SYS_SETGID, 0),
		try("ids", "setuid of another", byMapping, unix.SYS_SETUID, work-1),
		try("ids", "setgroups", byKernel, unix.SYS_SETGROUPS, 1, m.Bytes(u32(0))),

		// privileges
		expect("no-new-privileges", "PR_GET_NO_NEW_PRIVS", 1, unix.SYS_PRCTL, unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
		expect("seccomp", "PR_GET_SECCOMP", unix.SECCOMP_MODE_FILTER, unix.SYS_PRCTL, unix.PR_GET_SECCOMP, 0, 0, 0, 0),
		try("seccomp", "getpid by its x32 number", bySeccomp, unix.SYS_GETPID|0x40000000),
		try("seccomp", "an unknown call", bySeccomp, 4095),
		s.readCaps(m),

		// namespaces and mounts; in the workspace's own, nobody has a right, whatever is allowed
		try("nested-namespaces", "clone3(NEWNS)", byKernel, unix.SYS_CLONE3, cloneArgs(unix.CLONE_NEWNS), 88).forks(),
		try("nested-namespaces", "clone3(NEWPID)", byKernel, unix.SYS_CLONE3, cloneArgs(unix.CLONE_NEWPID), 88).forks(),
		try("root", "mount", byMount, unix.SYS_MOUNT, str("x"), str("/tmp"), str("tmpfs"), 0, 0),
		try("root", "remount rw", byMount, unix.SYS_MOUNT, 0, str("/"), 0, unix.MS_REMOUNT|unix.MS_BIND, 0),
		try("root", "umount2", byMount, unix.SYS_UMOUNT2, str("/proc"), unix.MNT_DETACH),
		try("root", "pivot_root", byMount, unix.SYS_PIVOT_ROOT, str("/tmp"), str("/tmp")),
		try("root", "open_tree", byMount, unix.SYS_OPEN_TREE, atFDCWD, str("/"), unix.OPEN_TREE_CLONE),
		try("root", "mount_setattr", byMount, unix.SYS_MOUNT_SETATTR, atFDCWD, str("/"), 0, m.Bytes(u64(0, 0, 0, 0)), 32),
		try("root", "open_by_handle_at", bySeccomp, unix.SYS_OPEN_BY_HANDLE_AT, atFDCWD, 0, 0),
		try("root", "chroot", byKernel, unix.SYS_CHROOT, str("/tmp")),
		open("root", "/carrel-check", readOnlyE, unix.O_WRONLY|unix.O_CREAT),
		open("root", "/usr/carrel-check", readOnlyE, unix.O_WRONLY|unix.O_CREAT),
		open("root", "/etc/carrel-check", readOnlyE, unix.O_WRONLY|unix.O_CREAT),
		open("root", "/etc/passwd", readOnlyE, unix.O_WRONLY),
		open("root", "/etc/shadow", absent, unix.O_RDONLY),
		open("root", "/root/.ssh", absent, unix.O_RDONLY),
		open("root", "/proc/1/root/etc/shadow", absent, unix.O_RDONLY),
		open("root", "/proc/1/cwd/", absent, unix.O_RDONLY),
		open("root", "/run/docker.sock", absent, unix.O_RDWR),
		open("root", "/run/dbus/system_bus_socket", absent, unix.O_RDWR),
		open("root", "/run/carrel/carrel.sock", absent, unix.O_RDWR),

		// /proc and /dev
		open("proc", "/proc/sys/kernel/core_pattern", readOnlyE, unix.O_WRONLY),
		open("proc", "/proc/sys/user/max_user_namespaces", readOnlyE, unix.O_WRONLY),
		s.readNothing(m, "/proc/kcore"), s.readNothing(m, "/proc/sysrq-trigger"), s.readNothing(m, "/proc/kallsyms"),
		open("proc", "/dev/mem", absent, unix.O_RDONLY), open("proc", "/dev/kmsg", absent, unix.O_RDONLY),

		// home
		expect("home", "write access to "+home, 0, unix.SYS_FACCESSAT2, atFDCWD, str(home), unix.W_OK|unix.X_OK, unix.AT_EACCESS),
		try("home", "mknod of a device", byKernel, unix.SYS_MKNODAT, atFDCWD, str(home+"/.carrel-check"), unix.S_IFCHR|0o666, 1<<8|3),
		s.readMountFlags(m, "home", home), s.readMountFlags(m, "home", "/tmp"), s.readMountFlags(m, "home", "/var/tmp"),

		// the executor
		try("executor", "kill(1, 0)", byHiding, unix.SYS_KILL, 1, 0),
		try("executor", "kill(1, KILL)", byHiding, unix.SYS_KILL, 1, uintptr(unix.SIGKILL)),
		try("executor", "sigqueue(1)", byHiding, unix.SYS_RT_SIGQUEUEINFO, 1, uintptr(unix.SIGKILL), m.Bytes(siginfo)),
		try("executor", "ptrace(SEIZE, 1)", byHiding, unix.SYS_PTRACE, unix.PTRACE_SEIZE, 1, 0, 0),
		try("executor", "prlimit(1)", byHiding, unix.SYS_PRLIMIT64, 1, unix.RLIMIT_NOFILE, limits, 0),
		try("executor", "process_vm_readv(1)", byHiding, unix.SYS_PROCESS_VM_READV, 1, iov, 1, iov, 1, 0),
		try("executor", "setpriority(1)", []unix.Errno{unix.EPERM, unix.EACCES, unix.ESRCH}, unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 1, 19),
		try("executor", "sched_setaffinity(1)", byHiding, unix.SYS_SCHED_SETAFFINITY, 1, 8, m.Bytes(u64(1))),
		open("executor", "/proc/1/mem", absent, unix.O_RDWR),
		open("executor", "/proc/1/environ", absent, unix.O_RDONLY),
		open("executor", "/proc/1/fd/", absent, unix.O_RDONLY),
		try("executor", "pidfd of 1, signal", byHiding, unix.SYS_PIDFD_OPEN, 1, 0).
			then(unix.SYS_PIDFD_SEND_SIGNAL, selfcheck.Last, uintptr(unix.SIGKILL), 0, 0),
		try("executor", "pidfd of 1, take its descriptor", byHiding, unix.SYS_PIDFD_OPEN, 1, 0).
			then(unix.SYS_PIDFD_GETFD, selfcheck.Last, uintptr(s.spec.FDs.Listener), 0),

		// kernel
		try("kernel", "bpf", bySeccomp, unix.SYS_BPF, 0, 0, 0),
		try("kernel", "io_setup", bySeccomp, unix.SYS_IO_SETUP, 1, 0),
		try("kernel", "userfaultfd", bySeccomp, unix.SYS_USERFAULTFD, 0),
		try("kernel", "perf_event_open", bySeccomp, unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0),
		try("kernel", "keyctl", bySeccomp, unix.SYS_KEYCTL, 0, 0, 0, 0, 0),
		try("kernel", "add_key", bySeccomp, unix.SYS_ADD_KEY, 0, 0, 0, 0, 0),
		try("kernel", "request_key", bySeccomp, unix.SYS_REQUEST_KEY, 0, 0, 0, 0),
		try("kernel", "init_module", bySeccomp, unix.SYS_INIT_MODULE, 0, 0, 0),
		try("kernel", "kexec_load", bySeccomp, unix.SYS_KEXEC_LOAD, 0, 0, 0, 0),
		try("kernel", "clock_settime", bySeccomp, unix.SYS_CLOCK_SETTIME, 0, 0),
		try("kernel", "syslog", bySeccomp, unix.SYS_SYSLOG, 3, 0, 0),
		try("kernel", "personality(READ_IMPLIES_EXEC)", byRule, unix.SYS_PERSONALITY, 0x0400000),

		// terminal: the second compares the low half only, as the kernel does
		try("terminal", "ioctl(TIOCSTI)", byRule, unix.SYS_IOCTL, 0, 0x5412, str("x")),
		try("terminal", "ioctl(TIOCSTI with bit 32)", byRule, unix.SYS_IOCTL, 0, 0x5412|1<<32, str("x")),
		try("terminal", "ioctl(TIOCLINUX)", byRule, unix.SYS_IOCTL, 0, 0x541c, str("x")),

		// network: addresses reserved for documentation, so that nobody is bothered
		connect(m, "192.0.2.1:80").only(without(reaching)), connect(m, "[2001:db8::1]:80"),
		connect(m, "169.254.169.254:80").only(without(reaching)),
		try("sockets", "raw socket", byKernel, unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
		try("sockets", "packet socket", byFamily, unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0),
		try("sockets", "vsock", byFamily, unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0),
		try("sockets", "alg socket", byFamily, unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
		try("sockets", "netlink audit", []unix.Errno{unix.EPROTONOSUPPORT}, unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT),
		try("sockets", "netlink netfilter", []unix.Errno{unix.EPROTONOSUPPORT}, unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW,
			unix.NETLINK_NETFILTER),
		try("sockets", "MPTCP", []unix.Errno{unix.EPROTONOSUPPORT}, unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP),
		try("sockets", "UDP-Lite", []unix.Errno{unix.EPROTONOSUPPORT}, unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE),
		s.readLimit(m, "RLIMIT_CORE", unix.RLIMIT_CORE, CoreLimit),
		s.readLimit(m, "RLIMIT_NOFILE", unix.RLIMIT_NOFILE, uint64(s.spec.Limits.OpenFiles)),
		s.readLimit(m, "RLIMIT_MSGQUEUE", unix.RLIMIT_MSGQUEUE, msgQueue),
		s.readLimit(m, "RLIMIT_SIGPENDING", unix.RLIMIT_SIGPENDING, sigPending),
		s.readCgroup(m, s.ownGroups).only(with(grouped)), s.readCgroup(m, noGroups).only(without(grouped)),
		s.readLimit(m, "RLIMIT_NPROC", unix.RLIMIT_NPROC, uint64(s.spec.Limits.Pids)+OwnThreads).only(without(grouped)),
		s.readLimit(m, "RLIMIT_DATA", unix.RLIMIT_DATA, uint64(s.spec.Limits.MemoryBytes)).only(without(grouped)),
		try("executor", "pidfd_send_signal(with info)", byRule, unix.SYS_PIDFD_SEND_SIGNAL, 0, 0, 1<<32, 0).only(with(oneID)),
		try("executor", "fcntl(F_SETSIG)", byRule, unix.SYS_FCNTL, 0, unix.F_SETSIG, uintptr(unix.SIGSEGV)).only(with(oneID)),
		expect("ids", "getgroups", 0, unix.SYS_GETGROUPS, 0, 0).only(without(oneID)),
	}
	if slices.Contains(s.spec.Cgroup.V2Controllers, "memory") {
		// Without root the commands' id owns the files, and only the mount is read-only.
		list = append(list, open("memory", "/sys/fs/cgroup/cmd/memory.max", readOnlyE, unix.O_WRONLY))
	}
	for _, c := range counts {
		list = append(list, s.readNumber(m, "counts", c.name, c.most, c.optional))
	}
	list = append(list, s.checkOpenings(m, cloneArgs(unix.CLONE_NEWUSER))...)
	list = append(list, checkCoreLimit(m)...)
	if s.spec.Net.Egress { // before checkSockets, which uses datagram sockets up
		list = append(list, datagram(m, netip.AddrPortFrom(netns.Refused, 443)))
	}
	list = append(list, checkSockets()...)
	list = append(list, s.checkProjects(m)...)
	list = append(list, s.checkDisk(m)...)
	if s.spec.Net.Egress {
		list = append(list, checkEgress(m)...)
	}
	// Bounding and ambient set, each capability on its own.
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		list = append(list, expect("capabilities", "", 0, unix.SYS_PRCTL, unix.PR_CAPBSET_READ, c, 0, 0, 0))
	}
	// Every thread of the executor, by its own number.
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil && tid != 1 {
			list = append(list, try("executor", "", byHiding, unix.SYS_TGKILL, 1, uintptr(tid), uintptr(unix.SIGKILL)),
				// Landlock holds threads apart, but not the one that commands are born from.
				try("executor", "", byHiding, unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, 0).only(with(oneID)))
		}
	}
	holds := s.spec.conditions()
	return slices.DeleteFunc(list, func(c check) bool { return !c.when.holds(holds) })
}

func connect(m *selfcheck.Memory, to string) check {
	ap := netip.MustParseAddrPort(to)
	port := []byte{byte(ap.Port() >> 8), byte(ap.Port())}
	family, addr := unix.AF_INET, append(port, ap.Addr().AsSlice()...)
	if ap.Addr().Is6() {
		family, addr = unix.AF_INET6, append(append(port, 0, 0, 0, 0), ap.Addr().AsSlice()...)
	}
	sa := append(binary.NativeEndian.AppendUint16(nil, uint16(family)), addr...)
	sa = append(sa, make([]byte, 28-len(sa))...)
	size := uintptr(16)
	if family == unix.AF_INET6 {
		size = 28
	}
	return try("network", "connect "+to, noRoute, unix.SYS_SOCKET, uintptr(family), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0).
		then(unix.SYS_CONNECT, selfcheck.Last, m.Bytes(sa), size)
}

func (s *stage) readIDs(m *selfcheck.Memory, name string, nr uintptr) check {
	b, p := m.Buffer(12)
	c := try("ids", name, nil, nr, p, p+4, p+8)
	c.judge = func(r selfcheck.Result) (bool, string) {
		id := s.spec.IDs.Work
		ok := r.Errno == 0
		for i := 0; i < 12; i += 4 {
			ok = ok && binary.NativeEndian.Uint32(b[i:]) == id
		}
		return ok, strconv.Itoa(int(binary.NativeEndian.Uint32(b)))
	}
	return c
}

func (s *stage) readCaps(m *selfcheck.Memory) check {
	hdr, hp := m.Buffer(8)
	binary.NativeEndian.PutUint32(hdr, unix.LINUX_CAPABILITY_VERSION_3)
	data, dp := m.Buffer(24)
	c := try("capabilities", "capget", nil, unix.SYS_CAPGET, hp, dp)
	c.judge = func(r selfcheck.Result) (bool, string) {
		for _, b := range data {
			if b != 0 {
				return false, fmt.Sprintf("%x", data)
			}
		}
		return r.Errno == 0, "none permitted, effective or inheritable"
	}
	return c
}

// readNothing opens a masked file: it is absent, refused, or empty.
func (s *stage) readNothing(m *selfcheck.Memory, name string) check {
	_, p := m.Buffer(64)
	c := try("proc", "read "+name, nil, unix.SYS_OPENAT, atFDCWD, m.String(name), unix.O_RDONLY|unix.O_CLOEXEC, 0).
		then(unix.SYS_READ, selfcheck.Last, p, 64)
	c.judge = func(r selfcheck.Result) (bool, string) {
		return !r.Ran || r.Errno != 0 || r.R1 == 0, "nothing to read"
	}
	return c
}

func (s *stage) readMountFlags(m *selfcheck.Memory, control, name string) check {
	b, p := m.Buffer(int(unsafe.Sizeof(unix.Statfs_t{})))
	c := try(control, "", nil, unix.SYS_STATFS, m.String(name), p)
	c.judge = func(r selfcheck.Result) (bool, string) {
		flags := (*unix.Statfs_t)(unsafe.Pointer(&b[0])).Flags
		want := int64(unix.ST_NOSUID | unix.ST_NODEV)
		return r.Errno == 0 && flags&want == want, name + " is nosuid,nodev"
	}
	return c
}

func (s *stage) readLimit(m *selfcheck.Memory, name string, resource uintptr, want uint64) check {
	b, p := m.Buffer(16)
	c := try("process-limits", name, nil, unix.SYS_PRLIMIT64, 0, resource, 0, p)
	c.judge = func(r selfcheck.Result) (bool, string) {
		// A host whose own hard limit is lower holds more, not less.
		hard := binary.NativeEndian.Uint64(b[8:])
		return r.Errno == 0 && hard <= want, strconv.FormatUint(hard, 10)
	}
	return c
}

// readNumber checks a number below /proc/sys/user.
func (s *stage) readNumber(m *selfcheck.Memory, control, name string, want int, optional bool) check {
	b, p := m.Buffer(64)
	c := try(control, name, nil, unix.SYS_OPENAT, atFDCWD, m.String("/proc/sys/user/"+name), unix.O_RDONLY|unix.O_CLOEXEC, 0).
		then(unix.SYS_READ, selfcheck.Last, p, 63)
	c.judge = func(r selfcheck.Result) (bool, string) {
		if !r.Ran || r.Errno != 0 {
			return optional && r.Errno == unix.ENOENT, r.Name()
		}
		n := strings.TrimSpace(string(b[:r.R1]))
		return n == strconv.Itoa(want), n
	}
	return c
}

// readCgroup reads the attempts' own membership: they are where commands are born.
func (s *stage) readCgroup(m *selfcheck.Memory, judge func(groups string) (ok bool, saw string)) check {
	b, p := m.Buffer(4096)
	c := try("cgroup-namespace", "/proc/self/cgroup", nil, unix.SYS_OPENAT, atFDCWD, m.String("/proc/self/cgroup"),
		unix.O_RDONLY|unix.O_CLOEXEC, 0).
		then(unix.SYS_READ, selfcheck.Last, p, 4095)
	c.judge = func(r selfcheck.Result) (bool, string) {
		if r.Errno != 0 || !r.Ran {
			return false, r.Name()
		}
		groups := string(b[:r.R1])
		ok, saw := judge(groups)
		if !ok {
			saw = strings.ReplaceAll(groups, "\n", " ")
		}
		return ok, saw
	}
	return c
}

// noGroups sees that no group of the host is named.
func noGroups(groups string) (ok bool, saw string) {
	for line := range strings.Lines(groups) {
		if !strings.HasSuffix(line, ":/\n") {
			return false, ""
		}
	}
	return true, "no group of the host is named"
}

// ownGroups checks that commands start in the groups of the workspace.
func (s *stage) ownGroups(groups string) (ok bool, saw string) {
	ok = strings.Contains(groups, "0::/cmd")
	for _, h := range s.spec.Cgroup.V1 {
		ok = ok && strings.Contains(groups, ":"+h+":/\n")
	}
	return ok, "commands are born in " + strings.Join(append(slices.Clone(s.spec.Cgroup.V1), "v2 /cmd"), ", ")
}

// prove makes the attempts and reads what only the executor can see of itself.
func (s *stage) prove() ([]Finding, error) {
	m, err := selfcheck.NewMemory(128 << 10)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	checks := s.checks(m)
	var attempts []selfcheck.Attempt
	for _, c := range checks {
		attempts = append(attempts, c.attempts...)
	}
	var results []selfcheck.Result
	if err := s.onSpawner(func() error {
		results, err = selfcheck.Run(attempts, s.spec.IDs.Work, s.spec.IDs.Work, s.spec.FDs.Cmd, s.spec.OneID(), selfTest)
		return err
	}); err != nil {
		return nil, err
	}
	var found []Finding
	for _, c := range checks {
		r := results[len(c.attempts)-1]
		for _, first := range results[:len(c.attempts)-1] {
			if first.Errno != 0 && !r.Ran {
				r = first // a step on the way was refused already
			}
		}
		results = results[len(c.attempts):]
		found = append(found, c.finding(r))
	}
	return append(compact(found), s.ownDescriptors()), nil
}

func (c check) finding(r selfcheck.Result) Finding {
	ok, saw := slices.Contains(c.errnos, r.Errno) && r.Ran, r.Name()
	if c.judge != nil {
		ok, saw = c.judge(r)
	}
	evidence := saw
	if c.name != "" {
		evidence = c.name + ": " + saw
	} else if !ok {
		evidence = fmt.Sprintf("call %d(%d): %s", c.attempts[0].NR, int64(c.attempts[0].Args[1]), saw)
	}
	return Finding{Control: c.control, OK: ok, Evidence: evidence, Opened: c.opened}
}

// compact joins the good findings of a control into one and counts those that have no
// name of their own.
func compact(found []Finding) []Finding {
	var out []Finding
	for _, f := range found {
		if f.OK {
			i := slices.IndexFunc(out, func(o Finding) bool { return o.OK && o.Control == f.Control && o.Opened == f.Opened })
			if i >= 0 {
				if !strings.Contains(out[i].Evidence, f.Evidence) {
					out[i].Evidence += ", " + f.Evidence
				}
				continue
			}
		}
		out = append(out, f)
	}
	return out
}

// ownDescriptors checks that a command would inherit only its three descriptors.
func (s *stage) ownDescriptors() Finding {
	f := Finding{Control: "descriptors", OK: true}
	open, err := descriptors()
	if err != nil {
		return Finding{Control: f.Control, Evidence: "cannot list the descriptors: " + err.Error()}
	}
	n := 0
	for _, fd := range open {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil {
			continue // it was closed meanwhile
		}
		n++
		if flags&unix.FD_CLOEXEC == 0 {
			f.OK = false
			f.Evidence += fmt.Sprintf("descriptor %d is not close-on-exec; ", fd)
		}
	}
	if f.OK {
		f.Evidence = fmt.Sprintf("%d open, all close-on-exec", n)
	}
	return f
}
