package probe

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// enough is how many workspaces at their default limits the host's numbers should hold.
const enough = 32

// numbers are what the host has one sum of for everybody, and how much of it a workspace can take with
// the default limits. What ends at the workspace, and what commands cannot ask for, is not here.
var numbers = []struct {
	name string // below /proc/sys
	each uint64
	// kept is what the host keeps for itself, as a file too.
	kept   string
	remedy string
}{
	{"kernel/pid_max", uint64(workspace.DefaultLimits.Pids), "", "sysctl -w kernel.pid_max=4194304"},
	{"kernel/pty/max", sandbox.Terminals, "kernel/pty/reserve", "sysctl -w kernel.pty.max=16384"},
	// As systemd sets it: files are charged to the memory of a workspace.
	{"fs/file-max", uint64(workspace.DefaultLimits.Pids * workspace.DefaultLimits.OpenFiles), "", "sysctl -w fs.file-max=9223372036854775807"},
}

// trySharedNumbers compares them with what workspaces may take.
func trySharedNumbers(*Config) (State, string, string) { return sharedNumbers("/proc/sys") }

func sharedNumbers(dir string) (state State, found, remedy string) {
	var all, few []string
	for _, n := range numbers {
		most, err := readNumber(dir, n.name)
		kept := uint64(0)
		if err == nil && n.kept != "" {
			kept, err = readNumber(dir, n.kept)
		}
		option := strings.ReplaceAll(n.name, "/", ".")
		if err != nil {
			return Partly, err.Error(), "look with: sysctl " + option
		}
		workspaces := (most - min(kept, most)) / n.each
		all = append(all, fmt.Sprintf("%s %d for %d", option, most, workspaces))
		if workspaces < enough {
			few = append(few, n.remedy)
		}
	}
	found = strings.Join(all, ", ") + " workspaces that take all that the default limits let them"
	if few == nil {
		return Yes, found, ""
	}
	return Partly, found, strings.Join(few, "; ") + ", and the same in /etc/sysctl.d, or lower limits (limits_max in the broker's settings)"
}

func readNumber(dir, name string) (uint64, error) {
	b, err := os.ReadFile(dir + "/" + name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
}
