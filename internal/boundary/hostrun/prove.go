package hostrun

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/selfcheck"
)

// proveTime is how long the attempts may take.
const proveTime = 10 * time.Second

// check is one or more attempts, of which the last is judged.
type check struct {
	control, layer, name string
	attempts             []selfcheck.Attempt
	// errnos are the answers that hold; none: it must succeed, with value if that is not negative.
	errnos []unix.Errno
	value  int64
}

// try is a check of one call that must fail.
func try(control, layer, name string, errnos []unix.Errno, nr uintptr, args ...uintptr) check {
	a := selfcheck.Attempt{NR: nr}
	copy(a.Args[:], args)
	return check{control: control, layer: layer, name: name, attempts: []selfcheck.Attempt{a}, errnos: errnos}
}

// expect is a check of one call that must return value, or anything if that is negative.
func expect(control, name string, value int64, nr uintptr, args ...uintptr) check {
	c := try(control, "kernel", name, nil, nr, args...)
	c.value = value
	return c
}

// undo makes a call if the one before succeeded, so that a guard which does not hold costs nothing. The first is judged.
func (c check) undo(nr uintptr, args ...uintptr) check {
	a := selfcheck.Attempt{NR: nr, OnlyIfLast: true}
	copy(a.Args[:], args)
	c.attempts = append(c.attempts, a)
	return c
}

// forks says that the call returns in a child too if it succeeds.
func (c check) forks() check {
	c.attempts[0].Forks = true
	return c
}

func (c check) finding(r selfcheck.Result) finding {
	ok := r.Ran && slices.Contains(c.errnos, r.Errno)
	if c.errnos == nil {
		ok = r.Ran && r.Errno == 0 && (c.value < 0 || int64(r.R1) == c.value)
	}
	return finding{c.control, ok, fmt.Sprintf("%s: %s (%s)", c.name, r.Name(), c.layer)}
}

// Answers by the layer that gives them.
var (
	byFilter = []unix.Errno{unix.ENOSYS}
	byRule   = []unix.Errno{unix.EPERM}
	// byKernel is what it answers who has no right, or sees nobody of that number.
	byKernel  = []unix.Errno{unix.EPERM, unix.ESRCH, unix.EACCES}
	unseen    = []unix.Errno{unix.ESRCH}
	byFamily  = []unix.Errno{unix.EAFNOSUPPORT}
	byMounts  = []unix.Errno{unix.EROFS}
	writing   = []unix.Errno{unix.EROFS, unix.EACCES, unix.EPERM}
	byDomain  = []unix.Errno{unix.EACCES}
	forbidden = []unix.Errno{unix.EACCES, unix.ENOENT}
	byPoint   = []unix.Errno{unix.EBUSY, unix.EXDEV}
	nested    = []unix.Errno{unix.ENOSPC, unix.EPERM}
)

// ownNumbers are enough for the supervisor's own threads and children until the command begins.
const ownNumbers = 300

const atFDCWD = ^uintptr(99) // AT_FDCWD, -100

// prove tries what must fail and reads what must hold.
func (s *stage) prove() ([]finding, error) {
	found := s.ownFindings()
	if !s.row.held {
		return found, nil
	}
	found = append(found, s.boundFindings()...)
	m, err := selfcheck.NewMemory(s.memory())
	if err != nil {
		return nil, err
	}
	defer m.Close()
	checks := s.checks(m)
	var attempts []selfcheck.Attempt
	for _, c := range checks {
		attempts = append(attempts, c.attempts...)
	}
	results, err := selfcheck.Run(attempts, 0, 0, -1, true, proveTime)
	if err != nil {
		return nil, err
	}
	for _, c := range checks {
		found = append(found, c.finding(results[0]))
		results = results[len(c.attempts):]
	}
	return found, nil
}

// ownFindings are what the supervisor sees of itself, which its command inherits.
func (s *stage) ownFindings() (found []finding) {
	add := func(control string, ok bool, format string, a ...any) {
		found = append(found, finding{control, ok, fmt.Sprintf(format, a...)})
	}
	sid, err := unix.Getsid(0)
	add("terminal", err == nil && sid == os.Getpid(), "session %d is the supervisor's own", sid)
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err == nil {
		unix.Close(fd)
	}
	add("terminal", err != nil, "open /dev/tty: %s", errnoName(err))
	_, err = unix.IoctlGetTermios(0, unix.TCGETS)
	add("terminal", err != nil, "standard input as a terminal: %s", errnoName(err))

	if s.row.held {
		add("processes", os.Getppid() == 0, "the parent's number here is %d: it is of another process namespace", os.Getppid())
		add("ending", os.Getpid() == 1, "the supervisor is process %d of the namespace, which ends with it", os.Getpid())
	} else {
		var on int32
		err := prctlGet(unix.PR_GET_CHILD_SUBREAPER, &on)
		add("ending", err == nil && on == 1, "PR_GET_CHILD_SUBREAPER %d: orphans stay below the supervisor, which ends them", on)
	}

	if s.row.held {
		terminals, err := filepath.Glob("/dev/pts/[0-9]*")
		add("devices", err == nil && terminals == nil, "terminals in /dev/pts: %v", terminals)
	}

	open, err := os.ReadDir("/proc/self/fd")
	var leaks []string
	for _, e := range open {
		fd, cerr := strconv.Atoi(e.Name())
		if cerr != nil || fd < 3 {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			leaks = append(leaks, e.Name())
		}
	}
	add("descriptors", err == nil && leaks == nil, "%d open in the supervisor, left open over exec: [%s]", len(open), strings.Join(leaks, " "))
	return found
}

func errnoName(err error) string {
	if e, ok := err.(unix.Errno); ok { //nolint:errorlint // a call of package unix returns it bare
		return unix.ErrnoName(e)
	}
	return fmt.Sprint(err)
}

// checks is the table of what is tried under the profiles that hold a command.
func (s *stage) checks(m *selfcheck.Memory) []check {
	str, dir, caller := m.String, s.spec.Dir, uintptr(s.spec.Caller)
	words := func(v ...uint64) uintptr {
		var b []byte
		for _, x := range v {
			b = binary.NativeEndian.AppendUint64(b, x)
		}
		return m.Bytes(b)
	}
	cloneArgs := func(flags uint64) uintptr { return words(flags, 0, 0, 0, uint64(unix.SIGCHLD), 0, 0, 0, 0, 0, 0) }
	open := func(control, layer, path string, errnos []unix.Errno, flags uintptr) check {
		return try(control, layer, "open "+path, errnos, unix.SYS_OPENAT, atFDCWD, str(path), flags|unix.O_CLOEXEC, 0o600)
	}
	mkdir := func(in string) check {
		p := str(in + "/.carrel-check")
		return try("files", "mounts", "mkdir in "+in, writing, unix.SYS_MKDIRAT, atFDCWD, p, 0o700).
			undo(unix.SYS_UNLINKAT, atFDCWD, p, unix.AT_REMOVEDIR)
	}
	xattr := func(of string) check {
		name, value := str("user.carrel-check"), str("1")
		return try("files", "mounts, which Landlock knows nothing of", "setxattr "+of, byMounts, unix.SYS_SETXATTR, str(of), name, value, 1, 0).
			undo(unix.SYS_REMOVEXATTR, str(of), name)
	}
	iov := words(uint64(str("x")), 1)
	list := []check{
		// files
		mkdir("/"), mkdir("/etc"), mkdir("/usr"), xattr("/"), xattr("/etc"),
		open("files", "mounts", "/etc/passwd", writing, unix.O_WRONLY),
		try("files", "mounts", "chmod /etc", []unix.Errno{unix.EROFS}, unix.SYS_FCHMODAT, atFDCWD, str("/etc"), 0o755),
		open("files", "mounts", "/proc/sys/kernel/core_pattern", writing, unix.O_WRONLY),
		open("files", "mounts", "/proc/sys/vm/drop_caches", writing, unix.O_WRONLY),
		open("files", "mounts", "/proc/sysrq-trigger", append(slices.Clone(writing), unix.ENOENT), unix.O_WRONLY),
		try("files", "filter", "mount", byFilter, unix.SYS_MOUNT, str("x"), str("/tmp"), str("tmpfs"), 0, 0),
		try("files", "filter", "remount rw", byFilter, unix.SYS_MOUNT, 0, str("/"), 0, unix.MS_REMOUNT|unix.MS_BIND, 0),
		try("files", "filter", "umount2", byFilter, unix.SYS_UMOUNT2, str("/tmp"), unix.MNT_DETACH),
		try("files", "filter", "mount_setattr", byFilter, unix.SYS_MOUNT_SETATTR, atFDCWD, str("/"), 0,
			words(0, unix.MOUNT_ATTR_RDONLY, 0, 0), 32),
		try("files", "filter", "open_tree", byFilter, unix.SYS_OPEN_TREE, atFDCWD, str("/"), unix.OPEN_TREE_CLONE),
		try("files", "filter", "setns", byFilter, unix.SYS_SETNS, 0, 0),
		try("files", "kernel", "chroot", byRule, unix.SYS_CHROOT, str("/tmp")),

		// Landlock alone: the mounts let a device be written whose mode says so.
		open("landlock", "Landlock", "/dev/random", byDomain, unix.O_WRONLY),
		expect("landlock", "open /dev/null to write", -1, unix.SYS_OPENAT, atFDCWD, str("/dev/null"), unix.O_WRONLY|unix.O_CLOEXEC, 0),

		// namespaces
		try("nested-namespaces", "filter", "unshare(NEWUSER)", byRule, unix.SYS_UNSHARE, unix.CLONE_NEWUSER),
		try("nested-namespaces", "max_user_namespaces", "clone3(NEWUSER)", nested, unix.SYS_CLONE3, cloneArgs(unix.CLONE_NEWUSER), 88).forks(),
		try("nested-namespaces", "kernel", "clone3(NEWNS)", byRule, unix.SYS_CLONE3, cloneArgs(unix.CLONE_NEWNS), 88).forks(),

		// privileges
		expect("no-new-privileges", "PR_GET_NO_NEW_PRIVS", 1, unix.SYS_PRCTL, unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
		expect("seccomp", "PR_GET_SECCOMP", unix.SECCOMP_MODE_FILTER, unix.SYS_PRCTL, unix.PR_GET_SECCOMP, 0, 0, 0, 0),
		try("seccomp", "filter", "an unknown call", byFilter, 4095),
		try("capabilities", "kernel", "setgroups", byRule, unix.SYS_SETGROUPS, 1, words(0)),
		try("capabilities", "kernel", "setuid of another", []unix.Errno{unix.EPERM, unix.EINVAL}, unix.SYS_SETUID, 12345),

		// processes
		open("processes", "not there, or Landlock and the user namespace", fmt.Sprintf("/proc/%d/mem", caller), forbidden, unix.O_RDONLY),
		open("processes", "not there, or Landlock and the user namespace", fmt.Sprintf("/proc/%d/root/", caller), forbidden, unix.O_RDONLY),
		open("processes", "not dumpable", "/proc/"+s.self()+"/mem", forbidden, unix.O_RDONLY),
		try("processes", "filter", "kill(supervisor, 0)", byRule, unix.SYS_KILL, 1, 0),
		try("processes", "not dumpable", "ptrace(SEIZE, supervisor)", byKernel, unix.SYS_PTRACE, unix.PTRACE_SEIZE, 1, 0, 0),

		// sockets
		try("sockets", "filter", "socket(UNIX, STREAM)", byRule, unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0),
		try("sockets", "filter", "socket(UNIX, DGRAM)", byRule, unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_DGRAM, 0),
		try("sockets", "filter", "socketpair(UNIX, DGRAM)", byRule, unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_DGRAM, 0, words(0)),
		try("sockets", "filter", "socketpair(UNIX, RAW)", byRule, unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_RAW, 0, words(0)),
		try("sockets", "filter", "socket(VSOCK)", byFamily, unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0),
		try("sockets", "filter", "socket(PACKET)", byFamily, unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0),
		try("sockets", "kernel", "socket(INET, RAW)", byRule, unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_RAW, 1),
		try("sockets", "filter", "io_uring_setup", byFilter, unix.SYS_IO_URING_SETUP, 1, words(make([]uint64, 15)...)),

		// devices
		try("devices", "kernel", "mknod of a device", []unix.Errno{unix.EPERM, unix.EACCES}, unix.SYS_MKNODAT, atFDCWD,
			str(s.temporary()+"/.carrel-check"),
			unix.S_IFCHR|0o666, 1<<8|3),
	}
	if s.spec.Caller > ownNumbers { // else the number may be another's here
		list = append(list,
			try("processes", "process namespace", "kill(caller, 0)", unseen, unix.SYS_KILL, caller, 0),
			try("processes", "process namespace", "ptrace(SEIZE, caller)", byKernel, unix.SYS_PTRACE, unix.PTRACE_SEIZE, caller, 0, 0),
			try("processes", "process namespace", "process_vm_writev(caller)", byKernel, unix.SYS_PROCESS_VM_WRITEV, caller, iov, 1, iov, 1, 0),
			try("processes", "process namespace", "pidfd_open(caller)", byKernel, unix.SYS_PIDFD_OPEN, caller, 0),
			try("processes", "process namespace", "sched_setaffinity(caller)", byKernel, unix.SYS_SCHED_SETAFFINITY, caller, 8, words(1)))
	}
	for _, c := range []struct {
		name string
		nr   uintptr
	}{
		{"sethostname", unix.SYS_SETHOSTNAME},
		{"init_module", unix.SYS_INIT_MODULE},
		{"finit_module", unix.SYS_FINIT_MODULE},
		{"clock_settime", unix.SYS_CLOCK_SETTIME},
		{"settimeofday", unix.SYS_SETTIMEOFDAY},
		{"adjtimex", unix.SYS_ADJTIMEX},
		{"reboot", unix.SYS_REBOOT},
		{"kexec_load", unix.SYS_KEXEC_LOAD},
		{"swapon", unix.SYS_SWAPON},
		{"bpf", unix.SYS_BPF},
		{"keyctl", unix.SYS_KEYCTL},
		{"syslog", unix.SYS_SYSLOG},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN},
		{"quotactl", unix.SYS_QUOTACTL},
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT},
	} {
		list = append(list, try("kernel", "filter", c.name, byFilter, c.nr)) // the filter answers before any argument counts
	}
	if !s.changes(dir) && !slices.Contains(privateIn(s.row), dir) {
		list = append(list, xattr(dir))
		if !within(dir, "/proc") { // where nobody makes a directory
			list = append(list, mkdir(dir))
		}
	}
	for _, w := range s.spec.Writes {
		for _, name := range w.Locked {
			at, aside := str(w.Dir+"/"+name), str(w.Dir+"/.carrel-check")
			list = append(list, try("files", "mounts", "rename "+name, byPoint, unix.SYS_RENAMEAT2, atFDCWD, at, atFDCWD, aside, 0).
				undo(unix.SYS_RENAMEAT2, atFDCWD, aside, atFDCWD, at, 0))
		}
		list = append(list,
			expect("files", "write access to "+w.Dir, 0, unix.SYS_FACCESSAT2, atFDCWD, str(w.Dir), unix.W_OK|unix.X_OK, unix.AT_EACCESS),
			try("files", "filter", "chmod u+s", byRule, unix.SYS_FCHMODAT, atFDCWD, str(w.Dir), 0o4700))
		if up := filepath.Dir(w.Dir); !s.changes(up) && !s.covered(up) {
			list = append(list, mkdir(up))
		}
	}
	return append(list, s.boundChecks(m)...)
}

// memory is room for the texts of the checks, in bytes.
func (s *stage) memory() int {
	n := 256 << 10
	for _, w := range s.spec.Writes {
		n += (len(w.Locked) + 4) * 2 * (len(w.Dir) + 512)
	}
	return n
}

// self is the supervisor's number in the /proc that is in sight.
func (s *stage) self() string {
	link, err := os.Readlink("/proc/self")
	if err != nil {
		return "1"
	}
	return link
}
