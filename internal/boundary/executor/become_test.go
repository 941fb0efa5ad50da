package executor_test

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// lockAndBecome changes the effective id of the calling thread, which ends with its
// goroutine.
func lockAndBecome(uid uint32) {
	runtime.LockOSThread()
	const keep = ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); e != 0 {
		panic(e)
	}
}
