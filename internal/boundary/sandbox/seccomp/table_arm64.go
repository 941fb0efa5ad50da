package seccomp

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_AARCH64
	x32Bit    = 0
)

var native = []int{unix.SYS_RENAMEAT, unix.SYS_NEWFSTATAT}

// nativeNetwork are those that a process of Network needs.
var nativeNetwork = []int{unix.SYS_NEWFSTATAT}

var nativeModes, nativeOpens map[int]int
