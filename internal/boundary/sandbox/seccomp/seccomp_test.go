package seccomp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/seccomp"
)

const (
	allow = 0x7fff0000
	errno = 0x00050000
)

// call is struct seccomp_data.
type call struct {
	nr, arch uint32
	args     [6]uint64
}

// run interprets a filter as the kernel does, for the instructions that it may have.
func run(t *testing.T, p []unix.SockFilter, c call) uint32 {
	t.Helper()
	var data [64]byte
	binary.LittleEndian.PutUint32(data[0:], c.nr)
	binary.LittleEndian.PutUint32(data[4:], c.arch)
	for i, a := range c.args {
		binary.LittleEndian.PutUint64(data[16+8*i:], a)
	}
	a := uint32(0)
	for pc := 0; pc < len(p); pc++ {
		in := p[pc]
		hop := func(yes bool) {
			if yes {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		}
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = binary.LittleEndian.Uint32(data[in.K:])
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= in.K
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(in.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			hop(a == in.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			hop(a&in.K != 0)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			hop(a >= in.K)
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			hop(a > in.K)
		case unix.BPF_RET | unix.BPF_K:
			return in.K
		default:
			t.Fatalf("instruction %d has code %#x", pc, in.Code)
		}
	}
	t.Fatal("the filter runs off its end")
	return 0
}

func native() uint32 {
	if runtime.GOARCH == "arm64" {
		return unix.AUDIT_ARCH_AARCH64
	}
	return unix.AUDIT_ARCH_X86_64
}

func TestFilterDecides(t *testing.T) {
	fail := func(e unix.Errno) uint32 { return errno | uint32(e) }
	type opts = seccomp.Options
	for _, tt := range []struct {
		name string
		o    opts
		c    call
		want uint32
	}{
		{"read", opts{}, call{nr: unix.SYS_READ}, allow},
		{"the last of a range", opts{}, call{nr: unix.SYS_GETRANDOM}, allow},
		{"clone3", opts{}, call{nr: unix.SYS_CLONE3}, allow},
		{"mount", opts{}, call{nr: unix.SYS_MOUNT}, fail(unix.ENOSYS)},
		{"mount, nesting", opts{UserNS: true}, call{nr: unix.SYS_MOUNT}, fail(unix.ENOSYS)},
		{"mount, mounts", opts{UserNS: true, Mounts: true}, call{nr: unix.SYS_MOUNT}, allow},
		{"pivot_root, mounts", opts{UserNS: true, Mounts: true}, call{nr: unix.SYS_PIVOT_ROOT}, allow},
		{"setns, nesting", opts{UserNS: true}, call{nr: unix.SYS_SETNS}, allow},
		{"io_uring_setup, nesting", opts{UserNS: true, Mounts: true}, call{nr: unix.SYS_IO_URING_SETUP}, fail(unix.ENOSYS)},
		{"io_uring", opts{}, call{nr: unix.SYS_IO_URING_SETUP}, fail(unix.ENOSYS)},
		{"io_uring, allowed", opts{IOUring: true}, call{nr: unix.SYS_IO_URING_SETUP}, allow},
		{"io_setup, rings allowed", opts{IOUring: true}, call{nr: unix.SYS_IO_SETUP}, fail(unix.ENOSYS)},
		{"bpf", opts{UserNS: true, IOUring: true}, call{nr: unix.SYS_BPF}, fail(unix.ENOSYS)},
		{"unknown", opts{}, call{nr: 5000}, fail(unix.ENOSYS)},
		{"the highest number", opts{}, call{nr: 0xffffffff}, fail(unix.ENOSYS)},
		{"another architecture", opts{}, call{nr: unix.SYS_READ, arch: unix.AUDIT_ARCH_I386}, fail(unix.ENOSYS)},
		{"ioctl TCGETS", opts{}, call{nr: unix.SYS_IOCTL, args: [6]uint64{0, unix.TCGETS}}, allow},
		{"ioctl TIOCSTI", opts{}, call{nr: unix.SYS_IOCTL, args: [6]uint64{0, 0x5412}}, fail(unix.EPERM)},
		{"ioctl TIOCSTI, bit 32", opts{}, call{nr: unix.SYS_IOCTL, args: [6]uint64{0, 0x5412 | 1<<32}}, fail(unix.EPERM)},
		{"ioctl TIOCLINUX, upper half", opts{}, call{nr: unix.SYS_IOCTL, args: [6]uint64{0, 0x541c | 0xffffffff<<32}}, fail(unix.EPERM)},
		{"clone of a thread", opts{}, call{nr: unix.SYS_CLONE, args: [6]uint64{unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND}}, allow},
		{"clone NEWUSER", opts{}, call{nr: unix.SYS_CLONE, args: [6]uint64{unix.CLONE_NEWUSER | 17}}, fail(unix.EPERM)},
		{"clone NEWNET among others", opts{}, call{nr: unix.SYS_CLONE, args: [6]uint64{unix.CLONE_NEWNET | unix.CLONE_VM}}, fail(unix.EPERM)},
		{"clone NEWUSER, nesting", opts{UserNS: true}, call{nr: unix.SYS_CLONE, args: [6]uint64{unix.CLONE_NEWUSER | 17}}, allow},
		{"unshare FILES", opts{}, call{nr: unix.SYS_UNSHARE, args: [6]uint64{unix.CLONE_FILES}}, allow},
		{"unshare NEWTIME", opts{}, call{nr: unix.SYS_UNSHARE, args: [6]uint64{0x80}}, fail(unix.EPERM)},
		{"socket unix", opts{}, call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_UNIX}}, allow},
		{"socket inet6", opts{}, call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_INET6, 2, 17}}, allow},
		{"socket netlink route", opts{}, call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_NETLINK, 3, unix.NETLINK_ROUTE}}, allow},
		{
			"socket netlink audit",
			opts{},
			call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_NETLINK, 3, unix.NETLINK_AUDIT}},
			fail(unix.EPROTONOSUPPORT),
		},
		{
			"socket netlink, upper half",
			opts{},
			call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_NETLINK | 1<<32, 3, unix.NETLINK_AUDIT}},
			fail(unix.EPROTONOSUPPORT),
		},
		{"socket ping", opts{}, call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}}, allow},
		{"socket mptcp", opts{}, call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_INET, 1, unix.IPPROTO_MPTCP}}, fail(unix.EPROTONOSUPPORT)},
		{"socket mptcp, upper half", opts{}, call{nr: unix.SYS_SOCKET, args: [6]uint64{2 | 1<<32, 1, 262 | 1<<32}}, fail(unix.EPROTONOSUPPORT)},
		{"socket sctp", opts{}, call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_INET6, 5, unix.IPPROTO_SCTP}}, fail(unix.EPROTONOSUPPORT)},
		{"socket vsock", opts{}, call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_VSOCK}}, fail(unix.EAFNOSUPPORT)},
		{"socket packet", opts{}, call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_PACKET}}, fail(unix.EAFNOSUPPORT)},
		{"socketpair unix", opts{}, call{nr: unix.SYS_SOCKETPAIR, args: [6]uint64{unix.AF_UNIX}}, allow},
		{"setrlimit CORE", opts{}, call{nr: unix.SYS_SETRLIMIT, args: [6]uint64{unix.RLIMIT_CORE, 1}}, fail(0)},
		{"setrlimit CORE, upper half", opts{}, call{nr: unix.SYS_SETRLIMIT, args: [6]uint64{unix.RLIMIT_CORE | 1<<32, 1}}, fail(0)},
		{"setrlimit NOFILE", opts{}, call{nr: unix.SYS_SETRLIMIT, args: [6]uint64{unix.RLIMIT_NOFILE, 1}}, allow},
		{"prlimit64 gets CORE", opts{}, call{nr: unix.SYS_PRLIMIT64, args: [6]uint64{0, unix.RLIMIT_CORE, 0, 1 << 40}}, allow},
		{"prlimit64 sets CORE", opts{}, call{nr: unix.SYS_PRLIMIT64, args: [6]uint64{0, unix.RLIMIT_CORE, 1}}, fail(0)},
		{"prlimit64 gets CORE of another", opts{}, call{nr: unix.SYS_PRLIMIT64, args: [6]uint64{7, unix.RLIMIT_CORE, 0, 1}}, allow},
		{"prlimit64 sets CORE of another", opts{}, call{nr: unix.SYS_PRLIMIT64, args: [6]uint64{7, unix.RLIMIT_CORE, 1}}, fail(unix.EPERM)},
		{
			"prlimit64 sets CORE of another, high pointer",
			opts{},
			call{nr: unix.SYS_PRLIMIT64, args: [6]uint64{7, unix.RLIMIT_CORE, 1 << 40}},
			fail(unix.EPERM),
		},
		{"prlimit64 sets CORE, high pointer", opts{}, call{nr: unix.SYS_PRLIMIT64, args: [6]uint64{0, unix.RLIMIT_CORE, 1 << 40}}, fail(0)},
		{"prlimit64 sets CORE, upper half", opts{}, call{nr: unix.SYS_PRLIMIT64, args: [6]uint64{0, unix.RLIMIT_CORE | 1<<32, 1}}, fail(0)},
		{"prlimit64 swaps CORE", opts{}, call{nr: unix.SYS_PRLIMIT64, args: [6]uint64{0, unix.RLIMIT_CORE, 1 << 40, 1 << 41}}, fail(unix.EPERM)},
		{"prlimit64 swaps CORE, low halves", opts{}, call{nr: unix.SYS_PRLIMIT64, args: [6]uint64{0, unix.RLIMIT_CORE, 1, 1}}, fail(unix.EPERM)},
		{"prlimit64 swaps NOFILE", opts{}, call{nr: unix.SYS_PRLIMIT64, args: [6]uint64{0, unix.RLIMIT_NOFILE, 1, 1}}, allow},
		{"prlimit64 sets CORE, one id", opts{OneID: true}, call{nr: unix.SYS_PRLIMIT64, args: [6]uint64{0, unix.RLIMIT_CORE, 1}}, fail(0)},
		{
			"prlimit64 of another, one id",
			opts{OneID: true},
			call{nr: unix.SYS_PRLIMIT64, args: [6]uint64{1, unix.RLIMIT_NOFILE, 1}},
			fail(unix.EPERM),
		},
		{"fchmodat u+s", opts{}, call{nr: unix.SYS_FCHMODAT, args: [6]uint64{0, 0, 0o4755}}, allow},
		{"openat2", opts{}, call{nr: unix.SYS_OPENAT2}, allow},
		{
			"socket unix, no unix",
			opts{NoUnix: true},
			call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}},
			fail(unix.EPERM),
		},
		{
			"socket unix, upper half, no unix",
			opts{NoUnix: true},
			call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_UNIX | 1<<32}},
			fail(unix.EPERM),
		},
		{
			"socket inet, no unix",
			opts{NoUnix: true},
			call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_INET, unix.SOCK_STREAM}},
			allow,
		},
		{"socket inet, no IP", opts{NoIP: true}, call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_INET, unix.SOCK_DGRAM}}, fail(unix.EPERM)},
		{
			"socket inet6, upper half, no IP",
			opts{NoIP: true},
			call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_INET6 | 1<<32, unix.SOCK_STREAM}},
			fail(unix.EPERM),
		},
		{
			"socket route, no IP",
			opts{NoIP: true, NoUnix: true},
			call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}},
			allow,
		},
		{
			"socket packet, no unix",
			opts{NoUnix: true},
			call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_PACKET}},
			fail(unix.EAFNOSUPPORT),
		},
		{
			"pair of streams, no unix",
			opts{NoUnix: true},
			call{nr: unix.SYS_SOCKETPAIR, args: [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}},
			allow,
		},
		{
			"pair of packets, no unix",
			opts{NoUnix: true},
			call{nr: unix.SYS_SOCKETPAIR, args: [6]uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET}},
			allow,
		},
		{
			"pair of datagrams, no unix",
			opts{NoUnix: true},
			call{nr: unix.SYS_SOCKETPAIR, args: [6]uint64{unix.AF_UNIX, unix.SOCK_DGRAM | unix.SOCK_NONBLOCK}},
			fail(unix.EPERM),
		},
		{
			"pair of raw, no unix",
			opts{NoUnix: true},
			call{nr: unix.SYS_SOCKETPAIR, args: [6]uint64{unix.AF_UNIX, unix.SOCK_RAW}},
			fail(unix.EPERM),
		},
		{"openat2, no set-id", opts{NoSetID: true}, call{nr: unix.SYS_OPENAT2}, fail(unix.ENOSYS)},
		{"fchmod, no set-id", opts{NoSetID: true}, call{nr: unix.SYS_FCHMOD, args: [6]uint64{0, 0o1777}}, allow},
		{"fchmod u+s, no set-id", opts{NoSetID: true}, call{nr: unix.SYS_FCHMOD, args: [6]uint64{0, 0o4755}}, fail(unix.EPERM)},
		{
			"fchmod g+s, upper half, no set-id",
			opts{NoSetID: true},
			call{nr: unix.SYS_FCHMOD, args: [6]uint64{0, 0o2755 | 1<<40}},
			fail(unix.EPERM),
		},
		{"fchmod, upper half only, no set-id", opts{NoSetID: true}, call{nr: unix.SYS_FCHMOD, args: [6]uint64{0, 0o755 | 0o4000<<32}}, allow},
		{"fchmodat u+s, no set-id", opts{NoSetID: true}, call{nr: unix.SYS_FCHMODAT, args: [6]uint64{0, 0, 0o4755}}, fail(unix.EPERM)},
		{"fchmodat2 u+s, no set-id", opts{NoSetID: true}, call{nr: 452, args: [6]uint64{0, 0, 0o4755}}, fail(unix.EPERM)},
		{"mkdirat g+s, no set-id", opts{NoSetID: true}, call{nr: unix.SYS_MKDIRAT, args: [6]uint64{0, 0, 0o2755}}, fail(unix.EPERM)},
		{
			"mknodat u+s, no set-id",
			opts{NoSetID: true},
			call{nr: unix.SYS_MKNODAT, args: [6]uint64{0, 0, unix.S_IFREG | 0o4755}},
			fail(unix.EPERM),
		},
		{"openat, no set-id", opts{NoSetID: true}, call{nr: unix.SYS_OPENAT, args: [6]uint64{0, 0, unix.O_CREAT, 0o644}}, allow},
		{
			"openat of a mode that means nothing, no set-id",
			opts{NoSetID: true},
			call{nr: unix.SYS_OPENAT, args: [6]uint64{0, 0, unix.O_DIRECTORY, 0xffffffff}},
			allow,
		},
		{
			"openat O_CREAT u+s, no set-id",
			opts{NoSetID: true},
			call{nr: unix.SYS_OPENAT, args: [6]uint64{0, 0, unix.O_CREAT | unix.O_WRONLY, 0o4755}},
			fail(unix.EPERM),
		},
		{
			"openat O_TMPFILE u+s, no set-id",
			opts{NoSetID: true},
			call{nr: unix.SYS_OPENAT, args: [6]uint64{0, 0, unix.O_TMPFILE | unix.O_WRONLY, 0o4755}},
			fail(unix.EPERM),
		},
		{"personality query", opts{}, call{nr: unix.SYS_PERSONALITY, args: [6]uint64{0xffffffff}}, allow},
		{"personality of gdb", opts{}, call{nr: unix.SYS_PERSONALITY, args: [6]uint64{0x40000}}, allow},
		{"personality READ_IMPLIES_EXEC", opts{}, call{nr: unix.SYS_PERSONALITY, args: [6]uint64{0x400000}}, fail(unix.EPERM)},
	} {
		if tt.c.arch == 0 {
			tt.c.arch = native()
		}
		p, err := seccomp.Filter(tt.o)
		if err != nil {
			t.Fatal(err)
		}
		if got := run(t, p, tt.c); got != tt.want {
			t.Errorf("%s: %#x, not %#x", tt.name, got, tt.want)
		}
		if runtime.GOARCH == "amd64" && tt.c.nr < 1000 {
			tt.c.nr |= 0x40000000
			if got := run(t, p, tt.c); got != fail(unix.ENOSYS) {
				t.Errorf("%s by its x32 number: %#x", tt.name, got)
			}
		}
	}
}

// A call that takes a file's mode, as the kernel's own tables have it, and is allowed
// must be one that NoSetID judges.
func TestCallsWithAMode(t *testing.T) {
	p, err := seccomp.Filter(seccomp.Options{NoSetID: true})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]uint32{
		"fchmod": unix.SYS_FCHMOD, "fchmodat": unix.SYS_FCHMODAT, "fchmodat2": 452, "mkdirat": unix.SYS_MKDIRAT, "mknodat": unix.SYS_MKNODAT,
		"openat": unix.SYS_OPENAT, "openat2": unix.SYS_OPENAT2,
		"file_setattr": 469, "open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT, "open_tree_attr": 467, "io_uring_setup": unix.SYS_IO_URING_SETUP,
	}
	if runtime.GOARCH == "amd64" {
		maps.Copy(names, map[string]uint32{"open": 2, "creat": 85, "chmod": 90, "mkdir": 83, "mknod": 133})
	}
	all := ^uint64(0)
	for name, nr := range names {
		if got := run(t, p, call{nr: nr, arch: native(), args: [6]uint64{all, all, all, all, all, all}}); got == allow {
			t.Errorf("%s makes set-uid files", name)
		}
	}
}

// TestEveryNumberHasOneAnswer holds the compressed ranges against a plain list.
func TestEveryNumberHasOneAnswer(t *testing.T) {
	p, err := seccomp.Filter(seccomp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	allowed := 0
	for nr := range uint32(600) {
		switch got := run(t, p, call{nr: nr, arch: native()}); got {
		case allow:
			allowed++
		case errno | uint32(unix.ENOSYS), errno | uint32(unix.EPERM), errno | uint32(unix.EAFNOSUPPORT), errno | uint32(unix.EPROTONOSUPPORT):
		default:
			t.Errorf("%d: %#x", nr, got)
		}
	}
	if allowed < 200 || allowed > 360 {
		t.Errorf("%d calls are allowed", allowed)
	}
}

const childEnv = "CARREL_SECCOMP_TEST_CHILD"

// TestKernelAgrees loads the filter for real in a child and asks the kernel.
func TestKernelAgrees(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		underFilter()
		return
	}
	c := exec.Command(os.Args[0], "-test.run=^TestKernelAgrees$", "-test.v")
	c.Env = append(os.Environ(), childEnv+"=1")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"before: ENODEV or another answer of the call", "mount: ENOSYS", "tiocsti: EPERM", "tiocsti bit 32: EPERM",
		"vsock: EAFNOSUPPORT", "getpid: ok",
	} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("no line %q in:\n%s", want, out)
		}
	}
}

func underFilter() {
	say := func(what string, e unix.Errno) {
		if e == 0 {
			fmt.Println(what + ": ok")
			return
		}
		fmt.Println(what + ": " + unix.ErrnoName(e))
	}
	mount := func() unix.Errno {
		_, _, e := unix.RawSyscall6(unix.SYS_MOUNT, 0, 0, 0, 0, 0, 0)
		return e
	}
	// The guard can fail: without the filter the kernel answers otherwise.
	if e := mount(); e != unix.ENOSYS {
		fmt.Println("before: ENODEV or another answer of the call")
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	p, err := seccomp.Filter(seccomp.Options{})
	if err == nil {
		err = seccomp.Load(p)
	}
	if err != nil {
		// A thread that was made before no_new_privs was set cannot take part.
		fmt.Println(err)
		if strings.Contains(err.Error(), "permission denied") {
			fmt.Println("needs root for a filter on all threads")
		}
		os.Exit(1)
	}
	say("mount", mount())
	_, _, e := unix.RawSyscall(unix.SYS_IOCTL, 0, 0x5412, 0)
	say("tiocsti", e)
	_, _, e = unix.RawSyscall(unix.SYS_IOCTL, 0, 0x5412|1<<32, 0)
	say("tiocsti bit 32", e)
	_, _, e = unix.RawSyscall(unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	say("vsock", e)
	_, _, e = unix.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
	say("getpid", e)
}

// Watched leaves route netlink and datagrams over IP to a listener, and nothing else.
func TestWatchedSockets(t *testing.T) {
	const left = unix.SECCOMP_RET_USER_NOTIF
	for _, tt := range []struct {
		name string
		c    call
		want uint32
	}{
		{"read", call{nr: unix.SYS_READ, args: [6]uint64{unix.AF_NETLINK}}, allow},
		{"netlink", call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW}}, left},
		{"netlink, upper half", call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_NETLINK | 1<<32, unix.SOCK_DGRAM}}, left},
		{"udp", call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_INET, unix.SOCK_DGRAM}}, left},
		{"udp6 with flags", call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_INET6, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC}}, left},
		{"udp, upper half", call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_INET, unix.SOCK_DGRAM | 1<<32}}, left},
		{"tcp", call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}}, allow},
		{"unix", call{nr: unix.SYS_SOCKET, args: [6]uint64{unix.AF_UNIX, unix.SOCK_DGRAM}}, allow},
	} {
		if got := run(t, seccomp.Watched(), tt.c); got != tt.want {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
	}
}
