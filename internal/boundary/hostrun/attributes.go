package hostrun

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes say in what the supervisor starts. It has a session of its own, so that no terminal is its or its
// command's.
func attributes(r *row) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setsid: true}
	if !r.held {
		// No signal at this process's end: it would end the supervisor before that has ended the rest. The end of the
		// socket tells it.
		return a
	}
	// The first of its process namespace, with which all in it ends.
	a.Pdeathsig = syscall.SIGKILL
	a.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC
	if r.alone {
		a.Cloneflags |= unix.CLONE_NEWNET
	}
	// Ids are what they are outside. An ordinary user may map only its own; the kernel shows the files of others as
	// nobody's then. In a namespace below the host's nobody has a right over the host, root included.
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
	if os.Geteuid() == 0 {
		a.UidMappings, a.GidMappings = allIDs("/proc/self/uid_map"), allIDs("/proc/self/gid_map")
		a.GidMappingsEnableSetgroups = true
	}
	// Every capability, in the new namespace alone: an id that is not 0 would lose them by the exec. The steps give
	// them up.
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if _, _, e := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, c, 0); e == 0 {
			a.AmbientCaps = append(a.AmbientCaps, c)
		}
	}
	return a
}

// allIDs maps all ids of this process's own namespace to themselves, by its map (user_namespaces(7)).
func allIDs(path string) (m []syscall.SysProcIDMap) {
	f, err := os.Open(path)
	if err != nil {
		return []syscall.SysProcIDMap{{Size: 1}}
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, 64<<10))
	for lines.Scan() {
		var inside, outside, size int64
		if _, err := fmt.Sscan(strings.TrimSpace(lines.Text()), &inside, &outside, &size); err != nil || size <= 0 || size > math.MaxUint32 {
			continue
		}
		m = append(m, syscall.SysProcIDMap{ContainerID: int(inside), HostID: int(inside), Size: int(size)})
	}
	return m
}
