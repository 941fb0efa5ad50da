package sandbox

import (
	"fmt"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// kept are the capabilities of an executor in its own user namespace: it changes to
// the commands' ids and signals them. Commands have none; an executor that shares their id
// needs none.
var kept = []int{unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID}

// Secure bits, from linux/securebits.h: uid 0 of the namespace gains nothing by
// exec, and that cannot be undone. The fix-up of capabilities on setuid stays, so that a child
// that changes its id loses all.
const secureBits = 1<<0 | 1<<1 | // NOROOT and its lock
	1<<5 // the lock of KEEP_CAPS

// noAmbient has a thread's children gain nothing by ambient capabilities either.
const noAmbient = 1<<6 | 1<<7 // NO_CAP_AMBIENT_RAISE and its lock

// dropForCommands empties the bounding set of the calling thread and takes the ambient set from it.
// Two threads need it: the first, which the broker looks at, and the one that starts commands. On
// every thread it would stop the runtime for each capability, 3 ms in all; the others start nothing
// but what StartTrusted does. It needs CAP_SETPCAP, and secureBits set before.
func dropForCommands() error {
	if _, _, e := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, secureBits|noAmbient, 0); e != 0 {
		return fmt.Errorf("cannot lock the ambient capabilities: %w", e)
	}
	for c := 0; c <= unix.CAP_LAST_CAP || bounded(c); c++ {
		if !bounded(c) {
			continue
		}
		if _, _, e := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0); e != 0 {
			return fmt.Errorf("cannot drop capability %d from the bounding set: %w", c, e)
		}
	}
	return nil
}

// lockSecureBits is for every thread. It needs CAP_SETPCAP.
func lockSecureBits() error {
	if _, _, e := psx.Syscall3(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, secureBits, 0); e != 0 {
		return fmt.Errorf("cannot lock the secure bits: %w", e)
	}
	return nil
}

// bounded reports whether the kernel knows c and it is in the bounding set.
func bounded(c int) bool {
	r, _, e := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, uintptr(c), 0)
	return e == 0 && r == 1
}
