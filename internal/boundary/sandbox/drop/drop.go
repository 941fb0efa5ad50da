// Package drop has the calling process give up rights for good, on every thread: capabilities, new privileges, and
// files by Landlock. The first stage and carrel-egress use it.
//
// It must not know what its caller needs.
package drop

import (
	"fmt"
	"unsafe"

	"github.com/containerd/errdefs"
	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// landlockConfigs are by ABI what is enforced, strictly. Below 2 (Linux 5.19) a file
// could not be renamed from one directory to another, which builds need.
var landlockConfigs = map[int]landlock.Config{2: landlock.V2, 3: landlock.V3, 4: landlock.V3, 5: landlock.V5}

const minLandlock, maxLandlock = 2, 5

// LandlockABI returns the version of Landlock that Files enforces. The error, of kind errdefs.ErrFailedPrecondition, says
// what this host lacks.
func LandlockABI() (int, error) {
	abi, err := ll.LandlockGetABIVersion()
	if err != nil || abi < minLandlock { // err may be nil: the ABI is too low
		return 0, fmt.Errorf("cannot use Landlock: ABI %d (%v), at least %d (Linux 5.19) with \"landlock\" in the kernel's lsm= list "+
			"is needed: %w",
			abi, err, minLandlock, errdefs.ErrFailedPrecondition)
	}
	return min(abi, maxLandlock), nil
}

// Files leaves only what rules allow, by the version that LandlockABI returned. It sets no_new_privs.
func Files(abi int, rules ...landlock.Rule) error {
	if err := landlockConfigs[abi].RestrictPaths(rules...); err != nil {
		return fmt.Errorf("cannot enforce Landlock ABI %d: %w", abi, err)
	}
	return nil
}

// Capabilities leaves only those that are kept.
func Capabilities(kept ...int) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for _, c := range kept {
		data[c/32].Permitted |= 1 << (c % 32)
		data[c/32].Effective |= 1 << (c % 32)
	}
	if _, _, e := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0); e != 0 {
		return fmt.Errorf("cannot drop capabilities: %w", e)
	}
	return nil
}

// NewPrivileges sets no_new_privs: no exec gains rights any more.
func NewPrivileges() error {
	if _, _, e := psx.Syscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("cannot set no_new_privs: %w", e)
	}
	return nil
}

// Dumps keeps the process's memory from core files and from other processes of its user.
func Dumps() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot forbid dumps: %w", err)
	}
	return nil
}
