package probe

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/thread"
)

const upgrade = "install a newer kernel; on Debian 12: apt-get install linux-image-amd64"

func tryRoot(*Config) (State, string, string) {
	if os.Geteuid() == 0 {
		return Yes, "uid 0", ""
	}
	return No, fmt.Sprintf("uid %d", os.Geteuid()), "run it as root: sudo carrel up"
}

// minKernel is Linux 5.19, the first with Landlock ABI 2, which "landlock" looks at: this
// row is for readers of the first line only.
var minKernel = [2]int{5, 19}

func tryKernel(*Config) (State, string, string) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return No, err.Error(), upgrade
	}
	release := unix.ByteSliceToString(u.Release[:])
	major, minor, ok := parseRelease(release)
	if !ok || major < minKernel[0] || major == minKernel[0] && minor < minKernel[1] {
		return No, fmt.Sprintf("Linux %s, older than %d.%d", release, minKernel[0], minKernel[1]), upgrade
	}
	return Yes, "Linux " + release, ""
}

func parseRelease(s string) (major, minor int, ok bool) {
	a, rest, ok := strings.Cut(s, ".")
	if !ok {
		return 0, 0, false
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(rest)
	}
	major, err1 := strconv.Atoi(a)
	minor, err2 := strconv.Atoi(rest[:end])
	return major, minor, err1 == nil && err2 == nil
}

// noProgram is a path that cannot exist: the parent is not a directory. A child that
// gets as far as running it has proved its namespaces, and ends at once.
const noProgram = "/dev/null/carrel-probe"

// cloneInto makes a child in new namespaces and returns the error of the clone.
func cloneInto(flags uintptr) error {
	_, err := syscall.ForkExec(noProgram, []string{"probe"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Cloneflags: flags}})
	if errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err == nil {
		err = errors.New("a program without a path was run")
	}
	return err
}

func tryUserNamespaces(*Config) (State, string, string) {
	if err := cloneInto(unix.CLONE_NEWUSER); err != nil {
		return No, "clone(CLONE_NEWUSER): " + err.Error(), "sysctl -w user.max_user_namespaces=15000 kernel.unprivileged_userns_clone=1"
	}
	return Yes, "clone(CLONE_NEWUSER) works", ""
}

var namespaces = []struct {
	name string
	flag uintptr
}{
	{"mnt", unix.CLONE_NEWNS},
	{"pid", unix.CLONE_NEWPID},
	{"ipc", unix.CLONE_NEWIPC},
	{"uts", unix.CLONE_NEWUTS},
	{"net", unix.CLONE_NEWNET},
	{"cgroup", unix.CLONE_NEWCGROUP},
}

// tryNamespaces makes all of them under a new user namespace, as a workspace does; one
// by one only to say which is missing.
func tryNamespaces(*Config) (State, string, string) {
	all := uintptr(unix.CLONE_NEWUSER)
	for _, n := range namespaces {
		all |= n.flag
	}
	if cloneInto(all) == nil {
		return Yes, "mnt, pid, ipc, uts, net and cgroup work together", ""
	}
	for _, n := range namespaces {
		if err := cloneInto(unix.CLONE_NEWUSER | n.flag); err != nil {
			return No, n.name + ": " + err.Error(), "sysctl -w user.max_" + n.name + "_namespaces=15000"
		}
	}
	return No, "each works, all together do not", "sysctl -a | grep user.max_"
}

// tryUnprivileged does as nobody what a user without root would do. In the kernel each thread has
// its own ids, and this thread ends with the goroutine.
func tryUnprivileged(*Config) (State, string, string) {
	err := thread.Throwaway(func() error {
		if os.Geteuid() == 0 {
			const nobody = 65534
			for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
				if _, _, errno := unix.RawSyscall(call, nobody, nobody, nobody); errno != 0 {
					return errno
				}
			}
		}
		return cloneInto(unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID)
	})
	if err != nil {
		return No, "clone(CLONE_NEWUSER) as nobody: " + err.Error(), "sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000"
	}
	return Yes, "clone(CLONE_NEWUSER) works for nobody", ""
}

func trySeccomp(*Config) (State, string, string) {
	const getActionAvail, killProcess, userNotif = 2, 0x80000000, 0x7fc00000 // linux/seccomp.h
	avail := func(action uint32) error {
		_, _, errno := unix.Syscall(unix.SYS_SECCOMP, getActionAvail, 0, uintptr(unsafe.Pointer(&action)))
		if errno != 0 {
			return errno
		}
		return nil
	}
	if err := avail(killProcess); err != nil {
		return No, "seccomp(SECCOMP_GET_ACTION_AVAIL): " + err.Error(), "use a kernel with CONFIG_SECCOMP_FILTER"
	}
	if avail(userNotif) != nil {
		return Yes, "filters work", ""
	}
	return Yes, "filters and notification work", ""
}

// minLandlock is the first ABI that can allow moving a file between directories (Linux 5.19).
const minLandlock = 2

func tryLandlock(*Config) (State, string, string) {
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version)
	if errno != 0 {
		return No, "landlock_create_ruleset: " + errno.Error(), "add \"landlock\" to the lsm= list on the kernel's command line and restart"
	}
	if abi < minLandlock {
		return No, fmt.Sprintf("ABI %d, at least %d is needed", abi, minLandlock), upgrade
	}
	return Yes, fmt.Sprintf("ABI %d", abi), ""
}

// call is the check of a system call whose absence is ENOSYS.
func call(name string, err error) (State, string, string) {
	if err != nil {
		return No, name + ": " + err.Error(), upgrade
	}
	return Yes, name + " works", ""
}

func tryPidfd(*Config) (State, string, string) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err == nil {
		err = unix.PidfdSendSignal(fd, 0, nil, 0)
		unix.Close(fd)
	}
	return call("pidfd_open", err)
}

func tryClone3(*Config) (State, string, string) {
	// A size of 0 is refused with EINVAL by a kernel that knows the call.
	_, _, errno := unix.Syscall(unix.SYS_CLONE3, 0, 0, 0)
	if errno == unix.EINVAL {
		errno = 0
	}
	return call("clone3", orNil(errno))
}

func orNil(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

func tryOpenat2(*Config) (State, string, string) {
	fd, err := unix.Openat2(unix.AT_FDCWD, "/proc", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err == nil {
		unix.Close(fd)
	}
	return call("openat2", err)
}

func tryMountAPI(*Config) (State, string, string) {
	fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	if errors.Is(err, unix.EPERM) {
		return Partly, "fsopen: " + err.Error(), "run carrel doctor as root to know"
	}
	return call("fsopen", err)
}

func tryMemfd(*Config) (State, string, string) {
	const exec = 0x10 // MFD_EXEC of linux/memfd.h, Linux 6.3
	fd, err := unix.MemfdCreate("carrel-probe", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|exec)
	if errors.Is(err, unix.EINVAL) { // an older kernel: every memfd may be executed
		fd, err = unix.MemfdCreate("carrel-probe", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return No, "memfd_create: " + err.Error(), "sysctl -w vm.memfd_noexec=0"
	}
	unix.Close(fd)
	return Yes, "an executable memfd can be made", ""
}
