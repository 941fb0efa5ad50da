/* Ways out through namespaces, mounts and devices. */
#include "attack.h"
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

static long clone3_flags(uint64_t flags)
{
	struct clone_args a = { .flags = flags, .exit_signal = SIGCHLD };
	long p = syscall(SYS_clone3, &a, sizeof a);
	if (p == 0)
		_exit(0);
	return p;
}

static long clone_flags(unsigned long flags)
{
	long p = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
	if (p == 0)
		_exit(0);
	return p;
}

/* A thread library asks for clone3; the old way must be refused as well. */
static const struct { const char *name; unsigned long flag; } kinds[] = {
	{ "user", CLONE_NEWUSER }, { "mount", CLONE_NEWNS }, { "pid", CLONE_NEWPID }, { "net", CLONE_NEWNET },
	{ "ipc", CLONE_NEWIPC }, { "uts", CLONE_NEWUTS }, { "cgroup", CLONE_NEWCGROUP },
	{ "user+mount", CLONE_NEWUSER | CLONE_NEWNS }, { "user+all", CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS },
};

static long new_mount(void)
{
	long fs = syscall(SYS_fsopen, "tmpfs", 0);
	if (fs < 0)
		return fs;
	if (syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		return -1;
	return syscall(SYS_fsmount, fs, 0, 0);
}

static long move_tree(void)
{
	long t = syscall(SYS_open_tree, AT_FDCWD, "/usr", OPEN_TREE_CLONE);
	if (t < 0)
		return t;
	return syscall(SYS_move_mount, t, "", AT_FDCWD, "/mnt", MOVE_MOUNT_F_EMPTY_PATH);
}

static long out_of_chroot(void)
{
	mkdir("jail", 0755);
	if (chroot("jail") < 0)
		return -1;
	for (int i = 0; i < 64; i++)
		if (chdir("..") < 0)
			return -1;
	return chroot(".");
}

static long join(const char *path)
{
	int fd = open(path, O_RDONLY);
	return fd < 0 ? fd : setns(fd, 0);
}

static long join_pid(pid_t pid)
{
	long fd = syscall(SYS_pidfd_open, pid, 0);
	return fd < 0 ? fd : setns((int)fd, CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWUTS);
}

static long device(const char *path, mode_t type, unsigned a, unsigned b)
{
	unlink(path);
	return mknod(path, type | 0666, makedev(a, b));
}

int main(void)
{
	char what[64];
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		snprintf(what, sizeof what, "unshare(%s)", kinds[i].name);
		TRY(what, unshare((int)kinds[i].flag));
		snprintf(what, sizeof what, "clone(%s)", kinds[i].name);
		TRY(what, clone_flags(kinds[i].flag));
		snprintf(what, sizeof what, "clone3(%s)", kinds[i].name);
		TRY(what, clone3_flags(kinds[i].flag));
	}
	TRY("unshare(time)", unshare(CLONE_NEWTIME));
	TRY("clone3(time)", clone3_flags(CLONE_NEWTIME));
	TRY("mount(tmpfs)", mount("none", "/mnt", "tmpfs", 0, ""));
	TRY("mount(bind)", mount("/usr", "/mnt", "", MS_BIND, ""));
	TRY("mount(proc)", mount("none", "/mnt", "proc", 0, ""));
	TRY("mount(remount rw)", mount("", "/", "", MS_REMOUNT | MS_BIND, ""));
	TRY("mount(remount home suid)", mount("", getenv("HOME") ? getenv("HOME") : "/tmp", "", MS_REMOUNT | MS_BIND, ""));
	TRY("mount(private)", mount("", "/", "", MS_REC | MS_PRIVATE, ""));
	TRY("umount2", umount2("/proc", MNT_DETACH));
	TRY("mount_setattr", syscall(SYS_mount_setattr, AT_FDCWD, "/", 0, &(struct mount_attr){ .attr_clr = MOUNT_ATTR_RDONLY }, sizeof(struct mount_attr)));
	TRY("fsopen", new_mount());
	TRY("fspick", syscall(SYS_fspick, AT_FDCWD, "/", 0));
	TRY("open_tree", syscall(SYS_open_tree, AT_FDCWD, "/usr", OPEN_TREE_CLONE));
	TRY("move_mount", move_tree());
	TRY("pivot_root", syscall(SYS_pivot_root, ".", "."));
	TRY("chroot", chroot("/tmp"));
	TRY("leave a chroot", out_of_chroot());
	TRY("setns(/proc/1/ns/mnt)", join("/proc/1/ns/mnt"));
	TRY("setns(/proc/1/ns/net)", join("/proc/1/ns/net"));
	TRY("setns(/proc/1/ns/user)", join("/proc/1/ns/user"));
	TRY("setns(/proc/self/ns/mnt)", join("/proc/self/ns/mnt"));
	TRY("setns(pidfd of 1)", join_pid(1));
	TRY("mknod(block)", device("dev.block", S_IFBLK, 8, 0));
	TRY("mknod(mem)", device("dev.mem", S_IFCHR, 1, 1));
	TRY("mknod(kmsg)", device("/tmp/dev.kmsg", S_IFCHR, 1, 11));
	TRY("mknod(fuse)", device("/dev/shm/dev.fuse", S_IFCHR, 10, 229));
	TRY("sethostname", sethostname("elsewhere", 9));
	TRY("setdomainname", setdomainname("elsewhere", 9));
	TRY("open_by_handle_at", syscall(SYS_open_by_handle_at, AT_FDCWD, (char[16]){ 8 }, O_RDONLY));

	return 0;
}


