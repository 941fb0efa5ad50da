package sandbox

import (
	"fmt"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/drop"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// truncateABI is the first that knows of truncating (Linux 6.2).
const truncateABI = 3

// landlock lets the workspace read and run what it sees, and write only to its own directories.
// Mounts and modes say the same; this holds if one of them is wrong.
func (s *stage) landlock() error {
	abi, err := drop.LandlockABI()
	if err != nil {
		if s.spec.gives("landlock") {
			return nil
		}
		return err
	}
	s.landlockABI = abi
	dev := landlock.RWFiles("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts/ptmx")
	pts := landlock.RWDirs("/dev/pts")
	if s.landlockABI >= 5 {
		dev, pts = dev.WithIoctlDev(), pts.WithIoctlDev()
	}
	rules := []landlock.Rule{
		landlock.RODirs("/"), dev, pts,
		landlock.RWDirs(workspace.Home, "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue").WithRefer(),
		landlock.RWDirs(fmt.Sprintf("/run/user/%d", s.spec.IDs.Work)).WithRefer(),
		// Writing below one's own /proc/PID: comm, oom_score_adj, coredump_filter.
		landlock.PathAccess(procWrite, "/proc"),
	}
	if s.landlockABI >= truncateABI { // "echo x > FILE" truncates
		rules = append(rules, landlock.PathAccess(ll.AccessFSTruncate, "/proc"))
	}
	if s.spec.FDs.Cmd >= 0 {
		// The executor makes a sub-group for each command; the files belong to its id.
		rules = append(rules, landlock.RWDirs(fmt.Sprintf("/proc/self/fd/%d", s.spec.FDs.Cmd)))
	}
	for _, p := range s.spec.Projects {
		// The rule of the home holds for what is mounted below it, and the executor may not
		// enter the home to open it.
		if !p.ReadOnly && !strings.HasPrefix(p.Destination, workspace.Home+"/") {
			rules = append(rules, landlock.RWDirs(p.Destination).WithRefer())
		}
	}
	return drop.Files(abi, rules...)
}

const procWrite = ll.AccessFSReadFile | ll.AccessFSReadDir | ll.AccessFSWriteFile | ll.AccessFSExecute
