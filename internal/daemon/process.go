package daemon

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// unprivileged refuses to run with any privilege. The daemon parses what clients
// send; the broker alone has root.
func unprivileged() error {
	const remedy = `start it with "carrel up", or as its own user: ` +
		"setpriv --reuid carrel --regid carrel --clear-groups --inh-caps=-all --ambient-caps=-all carreld"
	if os.Getuid() == 0 || os.Geteuid() == 0 {
		return fmt.Errorf("cannot run as root: the daemon needs no privilege and must have none; %s: %w", remedy, errdefs.ErrFailedPrecondition)
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&hdr, &caps[0]); err != nil {
		return fmt.Errorf("cannot read the daemon's capabilities: %w", err)
	}
	for _, c := range caps {
		if c.Effective|c.Permitted|c.Inheritable != 0 {
			return fmt.Errorf("cannot run with capabilities: the daemon needs no privilege and must have none; %s: %w",
				remedy, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// harden prevents that the daemon gains privileges later, that its memory reaches a core
// file or another process of this user, and that its files are readable by others.
func harden() error {
	// On every thread, as the call applies to one thread only.
	if _, _, e := psx.Syscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("cannot give up new privileges: %w", e)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot forbid dumps: %w", err)
	}
	unix.Umask(0o077)
	return nil
}

const (
	// gcPercent trades a little processor time for a small heap.
	gcPercent = 50
	// memoryLimit is where the collector works harder; nothing is refused for it.
	memoryLimit = 256 << 20
)

// boundMemory configures the garbage collector, unless the environment does.
func boundMemory(environ []string) {
	set := func(name string) bool {
		for _, kv := range environ {
			if strings.HasPrefix(kv, name+"=") {
				return true
			}
		}
		return false
	}
	if !set("GOGC") {
		debug.SetGCPercent(gcPercent)
	}
	if !set("GOMEMLIMIT") {
		debug.SetMemoryLimit(memoryLimit)
	}
}
