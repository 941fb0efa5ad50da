package hostrun

import (
	"fmt"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/drop"
)

// Versions of Landlock that know more than files: ioctl on devices (Linux 6.10), and scopes of signals and of abstract
// sockets (6.12).
const ioctlABI, scopeABI = 5, 6

func landlockABI() (int, error) {
	abi, err := drop.LandlockABI()
	if err != nil {
		return 0, err
	}
	if real, err := ll.LandlockGetABIVersion(); err == nil && real >= scopeABI {
		return scopeABI, nil
	}
	return abi, nil
}

// landlock lets the command read and run what it sees, and write only what is its own. The mounts say the same of
// files, and not of devices. Its process is in a domain of its own, from which no other can be traced. It sets no_new_privs on all
// threads, which it requires.
func (s *stage) landlock() error {
	files := min(s.abi, ioctlABI)
	var written []string
	for _, d := range devices {
		if d.written {
			written = append(written, "/dev/"+d.name)
		}
	}
	pts := landlock.RWDirs("/dev/pts")
	if files >= ioctlABI {
		pts = pts.WithIoctlDev()
	}
	dirs := privateIn(s.row)
	for _, w := range s.spec.Writes {
		dirs = append(dirs, w.Dir)
	}
	rules := []landlock.Rule{landlock.RODirs("/"), landlock.RWFiles(written...), pts, landlock.RWDirs(dirs...).WithRefer()}
	if s.abi < scopeABI {
		return drop.Files(files, rules...)
	}
	// One ruleset: each is enforced on all threads, one after the other.
	all := landlock.Config{HandledAccessFS: landlock.V5.HandledAccessFS, Scoped: landlock.V6.Scoped}
	if err := all.Restrict(rules...); err != nil {
		return fmt.Errorf("cannot enforce Landlock ABI %d: %w", s.abi, err)
	}
	return nil
}

// Secure bits, from linux/securebits.h: uid 0 gains nothing by exec, and that cannot be undone.
const secureBits = 1<<0 | 1<<1 | // NOROOT and its lock
	1<<5 // the lock of KEEP_CAPS

// keptBy is what root's command keeps: it reads what root may read, and changes nothing.
const keptBy = unix.CAP_DAC_READ_SEARCH

func (s *stage) kept() []int {
	if s.spec.Root {
		return []int{keptBy}
	}
	return nil
}

// capabilities gives up all but what is kept: the bounding set of this thread, which starts the command, and the others
// of every thread.
func (s *stage) capabilities() error {
	err := elsewhere(func() error {
		if _, _, e := psx.Syscall3(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, secureBits, 0); e != 0 {
			return fmt.Errorf("cannot lock the secure bits: %w", e)
		}
		return nil
	})
	if err != nil {
		return err
	}
	kept := s.kept()
	for c := 0; ; c++ {
		r, _, e := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, uintptr(c), 0)
		if e != 0 {
			break // the kernel knows no more
		}
		if r == 0 || len(kept) > 0 && c == kept[0] {
			continue
		}
		if _, _, e := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0); e != 0 {
			return fmt.Errorf("cannot drop capability %d from the bounding set: %w", c, e)
		}
	}
	if err := elsewhere(func() error { return drop.Capabilities(kept...) }); err != nil {
		return err
	}
	if len(kept) == 0 {
		return nil
	}
	// As uid 0 has no privilege of its own any more, only an ambient capability outlives the exec.
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{}
	bit := uint32(1) << keptBy
	data[0] = unix.CapUserData{Effective: bit, Permitted: bit, Inheritable: bit}
	if _, _, e := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0); e != 0 {
		return fmt.Errorf("cannot make a capability inheritable: %w", e)
	}
	if _, _, e := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, keptBy, 0, 0, 0); e != 0 {
		return fmt.Errorf("cannot keep a capability over exec: %w", e)
	}
	return nil
}

// prctlGet reads a value that prctl writes to an address.
func prctlGet(what int, to *int32) error {
	if _, _, e := unix.RawSyscall(unix.SYS_PRCTL, uintptr(what), uintptr(unsafe.Pointer(to)), 0); e != 0 {
		return e
	}
	return nil
}
