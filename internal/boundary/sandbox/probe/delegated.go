package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
)

// tryDelegated looks for a control group of the caller's own.
func tryDelegated(*Config) (State, string, string) {
	if os.Geteuid() == 0 {
		return Partly, "root's workspaces have groups of their own; not tried for others", "run carrel doctor as an ordinary user to know"
	}
	group, err := cgroup.Delegated()
	if err == nil {
		return Yes, "the group " + group + " of cgroup v2", ""
	}
	return No, err.Error(), Delegation(mounts().V2, "/run/user", "/usr/bin/systemd-run", os.Geteuid())
}

// Delegation says how the user with that id gets a delegated group. v2 is mounted at point, users'
// runtime directories are in runtime, and run is systemd's program. systemd can give one if the
// user's own manager runs and has the controllers.
func Delegation(point, runtime, run string, uid int) string {
	const none = "log in where systemd gives sessions cgroup v2 (systemd.unified_cgroup_hierarchy=1 on the kernel's command line), " +
		"or have root give you a group with memory and pids; or use a carrel that root brought up"
	id := fmt.Sprint(uid)
	bus, err := os.Stat(filepath.Join(runtime, id, "bus"))
	if err != nil || bus.Mode()&os.ModeSocket == 0 {
		return none
	}
	if _, err := os.Stat(run); err != nil {
		return none
	}
	manager := filepath.Join(point, "user.slice", "user-"+id+".slice", "user@"+id+".service")
	b, err := os.ReadFile(filepath.Join(manager, "cgroup.controllers"))
	if err != nil {
		return none
	}
	for _, c := range []string{"memory", "pids"} {
		if !slices.Contains(strings.Fields(string(b)), c) {
			return fmt.Sprintf("as root: mkdir -p /etc/systemd/system/user@.service.d && printf '[Service]\\nDelegate=cpu memory "+
				"pids\\n' > /etc/systemd/system/user@.service.d/delegate.conf && systemctl daemon-reload; "+
				"then log in anew (systemd has given you no %s)", c)
		}
	}
	return "systemd-run --user --scope -p Delegate=yes carrel run -- COMMAND, or the same with a shell, and carrel in it"
}
