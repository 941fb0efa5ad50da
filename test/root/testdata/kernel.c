/* Parts of the kernel that no program of a workspace needs. */
#include "attack.h"
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <netinet/in.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#ifdef __x86_64__
/* The call is numbered as a 32-bit or x32 program numbers it: getpid is 20 there, and
 * 39 with bit 30. A filter that looks at the number alone takes it for another. */
static long int80(long nr, long a, long b, long c)
{
	long r;
	__asm__ volatile("int $0x80" : "=a"(r) : "a"(nr), "b"(a), "c"(b), "d"(c) : "memory", "r8", "r9", "r10", "r11");
	if (r < 0 && r > -4096) {
		errno = (int)-r;
		return -1;
	}
	return r;
}

static long x32(long nr)
{
	return syscall(0x40000000L | nr, 0, 0, 0, 0, 0, 0);
}
#endif

static long load_bpf(void)
{
	struct bpf_insn insns[] = { { .code = 0xb7 }, { .code = 0x95 } }; /* r0 = 0; exit */
	union bpf_attr a = { .prog_type = BPF_PROG_TYPE_SOCKET_FILTER, .insns = (uint64_t)(uintptr_t)insns, .insn_cnt = 2, .license = (uint64_t)(uintptr_t)"GPL" };
	return syscall(SYS_bpf, BPF_PROG_LOAD, &a, sizeof a);
}

static long perf(void)
{
	struct perf_event_attr a = { .type = PERF_TYPE_SOFTWARE, .size = sizeof a, .config = PERF_COUNT_SW_CPU_CLOCK };
	return syscall(SYS_perf_event_open, &a, 0, -1, -1, 0);
}

static long sock(int family, int type, int protocol) { return socket(family, type, protocol); }

static long pair(int family)
{
	int s[2];
	return socketpair(family, SOCK_STREAM, 0, s);
}

/* change_core succeeds if the limit is not what it was, whatever the call is answered. */
static long change_core(rlim_t to)
{
	struct rlimit was = { 0 }, is = { 0 };
	getrlimit(RLIMIT_CORE, &was);
	if (setrlimit(RLIMIT_CORE, &(struct rlimit){ to, to }) < 0)
		return -1;
	getrlimit(RLIMIT_CORE, &is);
	errno = EPERM;
	return is.rlim_cur == was.rlim_cur && is.rlim_max == was.rlim_max ? -1 : 0;
}

int main(void)
{
	char params[256] = { 0 };
#ifdef __x86_64__
	TRY("getpid by int 0x80", int80(20, 0, 0, 0));
	TRY("mount by int 0x80", int80(21, 0, 0, 0) < 0 && errno == EFAULT ? 0 : -1);
	TRY("unshare by int 0x80", int80(310, 0x10000000, 0, 0));
	TRY("keyctl by int 0x80", int80(288, 0, -3, 0));
	TRY("getpid as x32", x32(39));
	TRY("getuid as x32", x32(102));
	TRY("a number past 32 bits", syscall(0x100000000L | SYS_keyctl, 0, -3, 1));
#endif
	TRY("keyctl(get session)", syscall(SYS_keyctl, 0, -3, 1));
	TRY("add_key", syscall(SYS_add_key, "user", "crt", "x", 1, -3));
	TRY("request_key", syscall(SYS_request_key, "user", "crt", NULL, 0) < 0 && errno == ENOKEY ? 0 : -1);
	TRY("bpf", load_bpf());
	unsigned long aio = 0;
	TRY("io_setup", syscall(SYS_io_setup, 1, &aio));
	TRY("io_uring_setup", syscall(SYS_io_uring_setup, 1, params));
	TRY("userfaultfd", syscall(SYS_userfaultfd, 0));
	TRY("userfaultfd(user mode)", syscall(SYS_userfaultfd, 1));
	TRY("perf_event_open", perf());
	TRY("fanotify_init", syscall(SYS_fanotify_init, 0, O_RDONLY));
	TRY("quotactl", syscall(SYS_quotactl, 0x800001 << 8, NULL, 0, NULL) < 0 && errno != ENOSYS && errno != EPERM ? 0 : -1);
	TRY("acct", syscall(SYS_acct, NULL));
	TRY("syslog", syscall(SYS_syslog, 10, NULL, 0));
	TRY("ioperm", syscall(SYS_ioperm, 0x80, 1, 1));
	TRY("iopl", syscall(SYS_iopl, 3));
	TRY("init_module", syscall(SYS_init_module, "", 0, "") < 0 && errno != ENOSYS && errno != EPERM ? 0 : -1);
	TRY("clock_settime", syscall(SYS_clock_settime, 0, NULL) < 0 && errno == EFAULT ? 0 : -1);
	TRY("personality(READ_IMPLIES_EXEC)", personality(READ_IMPLIES_EXEC));
	TRY("personality(PER_LINUX32)", personality(PER_LINUX32));
	TRY("raise RLIMIT_NOFILE", setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 1 << 20, 1 << 20 }));
	TRY("raise RLIMIT_CORE", change_core(4096));
	TRY("lower RLIMIT_CORE", change_core(0)); /* with 0 the kernel starts the host's handler */
	TRY("nice -20", setpriority(PRIO_PROCESS, 0, -20));

	TRY("packet socket", sock(AF_PACKET, SOCK_RAW, 0));
	TRY("raw socket", sock(AF_INET, SOCK_RAW, IPPROTO_ICMP));
	TRY("raw IPv6 socket", sock(AF_INET6, SOCK_RAW, IPPROTO_RAW));
	TRY("vsock", sock(AF_VSOCK, SOCK_STREAM, 0));
	TRY("alg", sock(AF_ALG, SOCK_SEQPACKET, 0));
	TRY("key", sock(AF_KEY, SOCK_RAW, 2));
	TRY("xdp", sock(44, SOCK_RAW, 0));
	TRY("bluetooth", sock(AF_BLUETOOTH, SOCK_RAW, 1));
	TRY("can", sock(AF_CAN, SOCK_RAW, 1));
	TRY("tipc", sock(AF_TIPC, SOCK_STREAM, 0));
	TRY("smc", sock(43, SOCK_STREAM, 0));
	TRY("netlink audit", sock(AF_NETLINK, SOCK_RAW, 9));
	TRY("netlink netfilter", sock(AF_NETLINK, SOCK_RAW, 12));
	TRY("netlink uevent", sock(AF_NETLINK, SOCK_RAW, 15));
	TRY("netlink sock_diag", sock(AF_NETLINK, SOCK_RAW, 4));
	TRY("netlink generic", sock(AF_NETLINK, SOCK_RAW, 16));
	TRY("netlink xfrm", sock(AF_NETLINK, SOCK_RAW, 6));
	TRY("a family with bit 32 set", syscall(SYS_socket, 0x100000000L | AF_PACKET, SOCK_RAW, 0));
	TRY("pair of vsocks", pair(AF_VSOCK));
	return 0;
}
