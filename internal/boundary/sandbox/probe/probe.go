// Package probe finds out what this host supports, by trying it: it makes a namespace,
// a system call, a control group. Each check says what it found, what it is for, and the command
// that would fix it.
//
// It must leave nothing behind, change no setting, and take well under a second. The proof of a
// running workspace is not its task: that is the workspace's report.
package probe

import (
	"context"
	"runtime"
	"sync"
)

// State is what a check found.
type State string

// Yes: it works here. Partly: some of it works. No: it does not.
const (
	Yes    State = "yes"
	Partly State = "partly"
	No     State = "no"
)

// Result is one check of one host.
type Result struct {
	ID string `json:"id"`
	// Needed says what depends on it.
	Needed string `json:"needed"`
	// Required: no workspace starts without it. Rootless: nor does one without root.
	Required bool  `json:"required"`
	Rootless bool  `json:"rootless"`
	State    State `json:"state"`
	// Found is what was seen, the errno included.
	Found string `json:"found"`
	// Remedy is a command or an instruction; it is empty when State is Yes.
	Remedy string `json:"remedy"`
}

// Config says where to look. The zero value is this host.
type Config struct {
	// DataDir is the directory whose file system will hold the homes; it or its
	// nearest existing parent is looked at. "" is /var/lib/carrel.
	DataDir string
	// FirstID and IDs are the range that workspaces take their ids from; 0 is the default.
	FirstID, IDs uint32
	// Programs are the paths of the other programs that start workspaces without root.
	Programs []string
}

// Defaults of Config.
const (
	DefaultDataDir = "/var/lib/carrel"
	DefaultFirstID = 1879048192
	DefaultIDs     = 1 << 20
)

// check is one row of the table. try answers from the host, never from what a version
// number promises.
type check struct {
	id, needed string
	required   bool
	// rootless: needed for a workspace without root.
	rootless bool
	try      func(*Config) (state State, found, remedy string)
}

// checks is the table, in the order in which a person would fix things.
var checks = []check{
	{"root", "making users and namespaces for workspaces", true, false, tryRoot},
	{"kernel", "cgroup.kill and clone into a control group", true, true, tryKernel},
	{"user_namespaces", "the user namespace of each workspace", true, false, tryUserNamespaces},
	{"namespaces", "own mounts, processes, IPC, host name, network and control groups", true, true, tryNamespaces},
	{"cgroups", "knowing and ending every process of a workspace", true, false, tryCgroups},
	{"cgroup_memory", "the memory limit", true, false, tryController("memory")},
	{"cgroup_pids", "the limit on processes", true, false, tryController("pids")},
	{"cgroup_cpu", "the share of the processors", false, false, tryController("cpu")},
	{"swap_accounting", "the limit on swap", false, false, trySwap},
	{"seccomp", "refusing dangerous system calls", true, true, trySeccomp},
	{"landlock", "confining files a second time", true, true, tryLandlock},
	{"pidfd", "signals that cannot hit a reused pid", true, true, tryPidfd},
	{"clone3", "starting commands inside their control group", true, true, tryClone3},
	{"openat2", "opening paths that nobody can redirect", true, true, tryOpenat2},
	{"mount_api", "mounts that cannot be raced", true, true, tryMountAPI},
	{"memfd_exec", "starting the executor from sealed memory", true, true, tryMemfd},
	{"useradd", "a Unix user per workspace", true, false, tryUseradd},
	{"id_range", "ids that belong to nobody else", true, false, tryIDRange},
	{"protected_links", "keeping users of this host from laying links for programs of root", false, false, tryProtectedLinks},
	{"hidden_processes", "hiding command lines from other users of this host", false, false, tryHiddenProcesses},
	{"shared_numbers", "processes, terminals and open files for everybody when workspaces take all they may", false, false, trySharedNumbers},
	{"nftables", "redirecting a workspace's network to its proxy", false, false, tryNftables},
	{"disk_image", "a limit on disk space", false, false, tryImage},
	{"kvm", "microVMs with hardware support", false, false, tryKVM},
	{"unprivileged_user_namespaces", "workspaces without root", false, true, tryUnprivileged},
	{"apparmor", "workspaces without root", false, true, tryAppArmor},
	{"delegated_cgroups", "limits of workspaces without root", false, false, tryDelegated},
	{"subuid", "own ids for workspaces without root", false, false, trySubuid},
}

// Run makes every check and returns the results in the table's order. A check that has not run when
// ctx ends is No.
func Run(ctx context.Context, cfg Config) []Result {
	if cfg.DataDir == "" {
		cfg.DataDir = DefaultDataDir
	}
	if cfg.FirstID == 0 {
		cfg.FirstID = DefaultFirstID
	}
	if cfg.IDs == 0 {
		cfg.IDs = DefaultIDs
	}
	results := make([]Result, len(checks))
	next := make(chan int, len(checks))
	for i := range checks {
		next <- i
	}
	close(next)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				c := &checks[i]
				r := Result{
					ID: c.id, Needed: c.needed, Required: c.required, Rootless: c.rootless, State: No, Found: "not tried: out of time",
					Remedy: "try again on a less busy host",
				}
				if ctx.Err() == nil {
					r.State, r.Found, r.Remedy = c.try(&cfg)
				}
				results[i] = r
			}
		})
	}
	wg.Wait()
	return results
}

// UnmetRootless returns the checks that a workspace without root needs and that are not Yes or
// Partly.
func UnmetRootless(results []Result) []Result {
	var out []Result
	for _, r := range results {
		if r.Rootless && r.State == No {
			out = append(out, r)
		}
	}
	return out
}

// Unmet returns the required ones that are not Yes or Partly.
func Unmet(results []Result) []Result {
	var out []Result
	for _, r := range results {
		if r.Required && r.State == No {
			out = append(out, r)
		}
	}
	return out
}
