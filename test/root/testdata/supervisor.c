/* Attacks on another process: signals of every kind and number, tracing, limits. The
 * arguments are its pid and the last thread id to try; with "mild" in the end nothing is sent that would end it. */
#include "attack.h"
#include <linux/kcmp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>

static long queue(pid_t pid, int sig)
{
	siginfo_t si = { .si_code = SI_QUEUE, .si_signo = sig };
	return syscall(SYS_rt_sigqueueinfo, pid, sig, &si);
}

static long queue_thread(pid_t pid, pid_t tid, int sig)
{
	siginfo_t si = { .si_code = SI_QUEUE, .si_signo = sig };
	return syscall(SYS_rt_tgsigqueueinfo, pid, tid, sig, &si);
}

static long by_pidfd(pid_t pid, int sig, int info)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (fd < 0)
		return fd;
	siginfo_t si = { .si_code = SI_QUEUE, .si_signo = sig };
	return syscall(SYS_pidfd_send_signal, fd, sig, info ? &si : NULL, 0);
}

static long take_fd(pid_t pid, int n)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	return fd < 0 ? fd : syscall(SYS_pidfd_getfd, fd, n, 0);
}

static long advise(pid_t pid, int release)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (fd < 0)
		return fd;
	struct iovec v = { (void *)0x400000, 4096 };
	return release ? syscall(SYS_process_mrelease, fd, 0) : syscall(SYS_process_madvise, fd, &v, 1, MADV_COLD, 0);
}

static long vm(pid_t pid, int write)
{
	char b[8];
	struct iovec mine = { b, sizeof b }, theirs = { (void *)0x400000, sizeof b };
	return write ? process_vm_writev(pid, &mine, 1, &theirs, 1, 0) : process_vm_readv(pid, &mine, 1, &theirs, 1, 0);
}

static long file(pid_t pid, const char *name, int flags)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
	return open(path, flags);
}

static long link_of(pid_t pid, const char *name)
{
	char path[64], to[256];
	snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
	return readlink(path, to, sizeof to);
}

/* count makes many attempts and prints one line for each result. */
static void signals(pid_t pid, pid_t last, int mild)
{
	char what[96];
	long results[5][2][134] = { 0 };
	static const char *const ways[] = { "kill", "tgkill", "tkill", "sigqueueinfo", "pidfd_send_signal" };
	for (int sig = 0; sig <= 64; sig++) {
		if (mild && sig != 0 && sig != SIGURG && sig != SIGCHLD && sig != SIGWINCH)
			continue;
		for (pid_t tid = pid; tid <= last; tid++) {
			for (int way = 0; way < 5; way++) {
				long r = -1;
				errno = 0;
				switch (way) {
				case 0: r = tid == pid ? kill(pid, sig) : (errno = ESRCH, -1); break;
				case 1: r = syscall(SYS_tgkill, pid, tid, sig); break;
				case 2: r = tid == pid ? syscall(SYS_tkill, tid, sig) : (errno = ESRCH, -1); break;
				case 3: r = tid == pid ? queue(pid, sig) : queue_thread(pid, tid, sig); break;
				case 4: r = tid == pid ? by_pidfd(pid, sig, sig & 1) : (errno = ESRCH, -1); break;
				}
				results[way][r >= 0][r >= 0 ? 0 : errno]++;
			}
		}
	}
	for (int way = 0; way < 5; way++)
		for (int e = 0; e < 134; e++) {
			if (results[way][0][e] && e != ESRCH) {
				snprintf(what, sizeof what, "%s, %ld times", ways[way], results[way][0][e]);
				report(what, -1, e);
			}
			if (results[way][1][e]) {
				snprintf(what, sizeof what, "%s, %ld times", ways[way], results[way][1][e]);
				report(what, 0, 0);
			}
		}
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	pid_t pid = atoi(argv[1]), last = atoi(argv[2]);
	int mild = argc > 3;

	signals(pid, last, mild);
	TRY("ptrace(SEIZE)", ptrace(PTRACE_SEIZE, pid, 0, 0));
	TRY("ptrace(ATTACH)", ptrace(PTRACE_ATTACH, pid, 0, 0));
	TRY("prlimit(read)", prlimit(pid, RLIMIT_NOFILE, NULL, &(struct rlimit){ 0 }));
	TRY("prlimit(set)", prlimit(pid, RLIMIT_MSGQUEUE, &(struct rlimit){ 0, 0 }, NULL));
	TRY("process_vm_readv", vm(pid, 0) < 0 && errno == EFAULT ? 0 : -(errno != 0));
	TRY("process_vm_writev", vm(pid, 1) < 0 && errno == EFAULT ? 0 : -(errno != 0));
	TRY("process_madvise", advise(pid, 0) < 0 && errno == ENOMEM ? 0 : -(errno != 0));
	TRY("setpriority", setpriority(PRIO_PROCESS, pid, 19));
	TRY("sched_setscheduler", sched_setscheduler(pid, SCHED_IDLE, &(struct sched_param){ 0 }));
	TRY("sched_setaffinity", sched_setaffinity(pid, sizeof(cpu_set_t), &(cpu_set_t){ .__bits = { 1 } }));
	TRY("ioprio_set", syscall(SYS_ioprio_set, 1, pid, 3 << 13));
	TRY("pidfd_getfd", take_fd(pid, 0));
	TRY("kcmp", syscall(SYS_kcmp, pid, getpid(), KCMP_VM, 0, 0));
	TRY("open mem", file(pid, "mem", O_RDWR));
	TRY("open environ", file(pid, "environ", O_RDONLY));
	TRY("open maps", file(pid, "maps", O_RDONLY));
	TRY("open auxv", file(pid, "auxv", O_RDONLY));
	TRY("open exe", file(pid, "exe", O_RDONLY));
	TRY("open exe for writing", mild ? 0 : file(pid, "exe", O_WRONLY));
	TRY("open root", file(pid, "root/", O_RDONLY));
	TRY("open cwd", file(pid, "cwd/", O_RDONLY));
	TRY("open fd", file(pid, "fd/", O_RDONLY));
	TRY("open task", file(pid, "task/", O_RDONLY));
	TRY("open clear_refs", file(pid, "clear_refs", O_WRONLY));
	TRY("open oom_score_adj", file(pid, "oom_score_adj", O_WRONLY));
	TRY("open coredump_filter", file(pid, "coredump_filter", O_WRONLY));
	TRY("open uid_map", mild ? 0 : file(pid, "uid_map", O_WRONLY));
	TRY("open gid_map", mild ? 0 : file(pid, "gid_map", O_WRONLY));
	TRY("read link exe", link_of(pid, "exe"));
	TRY("read link ns/user", link_of(pid, "ns/user"));
	return 0;
}
