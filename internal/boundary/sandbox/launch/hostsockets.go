package launch

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
)

const (
	hostSockets = "host-sockets"
	// unixTable lists the Unix sockets of the network namespace (proc_pid_net(5)).
	unixTable = "/proc/self/net/unix"
	// accepting is the flag of a socket that listens, __SO_ACCEPTCON of include/uapi/linux/net.h.
	accepting = "00010000"
	// maxNamed bounds how many sockets a report names.
	maxNamed = 5
)

// findHostSockets names the sockets in project mounts on which programs of the host listen: a
// command that connects to one has the program act for it, outside of the workspace. A mount
// option that prevents this does not exist, and read-only does not.
//
// It compares paths as the programs named them. To look at a file could take as long as whoever
// serves its file system likes.
func findHostSockets(projects []Project) []sandbox.Finding {
	if len(projects) == 0 {
		return nil
	}
	all, err := listening()
	if err != nil {
		return []sandbox.Finding{{Control: hostSockets, Evidence: err.Error()}}
	}
	var in []string
	for _, s := range all {
		for _, p := range projects {
			if rest, ok := strings.CutPrefix(s, strings.TrimSuffix(p.Dir.Name(), "/")+"/"); ok {
				in = append(in, path.Join(p.Destination, rest))
			}
		}
	}
	if len(in) == 0 {
		none := fmt.Sprintf("outside: none of %d listening sockets lies in a mount", len(all))
		return []sandbox.Finding{{Control: hostSockets, OK: true, Evidence: none}}
	}
	more := ""
	if len(in) > maxNamed {
		more = fmt.Sprintf(" and %d more", len(in)-maxNamed)
		in = in[:maxNamed]
	}
	return []sandbox.Finding{{
		Control: hostSockets, Evidence: "outside: programs of the host listen at " + strings.Join(in, ", ") + more +
			"; what a command asks of them they do outside of the workspace",
	}}
}

// listening returns the paths of the sockets that accept connections.
func listening() ([]string, error) {
	b, err := os.ReadFile(unixTable)
	if err != nil {
		return nil, fmt.Errorf("cannot list the sockets of the host: %w", err)
	}
	var all []string
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		// Num RefCount Protocol Flags Type St Inode Path
		fields := strings.SplitN(lines.Text(), " ", 4)
		if len(fields) < 4 || !strings.HasPrefix(fields[3], accepting+" ") {
			continue
		}
		if i := strings.IndexByte(fields[3], '/'); i >= 0 { // abstract ones begin with @
			// /var/run is a link to /run, by which some still name their sockets.
			all = append(all, path.Clean(strings.Replace(fields[3][i:], "/var/run/", "/run/", 1)))
		}
	}
	return all, lines.Err()
}
