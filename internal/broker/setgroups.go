package broker

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setGroups sets the supplementary groups of the calling thread alone.
func setGroups(n int, list *uint32) error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(n), uintptr(unsafe.Pointer(list)), 0); e != 0 {
		return e
	}
	return nil
}
