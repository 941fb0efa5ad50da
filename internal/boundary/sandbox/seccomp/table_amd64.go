package seccomp

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_X86_64
	x32Bit    = 0x40000000 // __X32_SYSCALL_BIT, asm/unistd.h
)

// native are the older calls that x86-64 kept.
var native = []int{
	unix.SYS_NEWFSTATAT,
	unix.SYS_OPEN, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_POLL, unix.SYS_ACCESS, unix.SYS_PIPE, unix.SYS_SELECT, unix.SYS_DUP2,
	unix.SYS_PAUSE, unix.SYS_ALARM, unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_GETDENTS, unix.SYS_RENAME, unix.SYS_RENAMEAT,
	unix.SYS_MKDIR, unix.SYS_RMDIR, unix.SYS_CREAT, unix.SYS_LINK, unix.SYS_UNLINK, unix.SYS_SYMLINK, unix.SYS_READLINK,
	unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_GETPGRP, unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_FUTIMESAT,
	unix.SYS_MKNOD, unix.SYS_ARCH_PRCTL, unix.SYS_TIME, unix.SYS_EPOLL_CREATE, unix.SYS_EPOLL_WAIT, unix.SYS_INOTIFY_INIT,
	unix.SYS_SIGNALFD, unix.SYS_EVENTFD, unix.SYS_USTAT,
}

// nativeNetwork are those of them, and of other names here, that a process of Network needs.
var nativeNetwork = []int{unix.SYS_NEWFSTATAT, unix.SYS_ARCH_PRCTL}

var (
	nativeModes = map[int]int{unix.SYS_CHMOD: 1, unix.SYS_CREAT: 1, unix.SYS_MKDIR: 1, unix.SYS_MKNOD: 1}
	nativeOpens = map[int]int{unix.SYS_OPEN: 1}
)
