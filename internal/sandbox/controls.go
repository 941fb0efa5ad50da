package sandbox

import (
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/workspace"
)

// Finding is one thing that was tried or read, inside or from outside.
type Finding struct {
	Control  string `json:"control"`
	OK       bool   `json:"ok"`
	Evidence string `json:"evidence"`
	// Opened: what was tried was to succeed, because that was asked for.
	Opened workspace.Opening `json:"opened,omitempty"`
}

// Mode is how a workspace is held; it says which controls are required.
type Mode string

// Rootful: started by a broker with root. Rootless: by an ordinary user, whose own id is
// the one that executor and commands have.
const (
	Rootful  Mode = "rootful"
	Rootless Mode = "rootless"
)

// controlDef is one row of the control table.
type controlDef struct {
	id string
	// required lists the modes in which a start fails unless it is verified.
	required []Mode
	// remedy is for the person at the host.
	remedy string
}

// projectMounts and disk are the controls that not every workspace asks for.
const (
	projectMounts = "project-mounts"
	disk          = "disk"
)

// Asked says which of them a workspace asks for, and what it opens.
type Asked struct {
	Projects, Disk bool
	Allow          []workspace.Opening
	// Grouped: its limits are those of control groups. As they always are but without root,
	// where NoGroup says why they are not.
	Grouped bool
	NoGroup string
}

// off is the control as it is reported when it was not asked for, and whether that is so.
func (a Asked) off(id string) (workspace.Control, bool) {
	switch id {
	case projectMounts:
		return workspace.Control{ID: id, State: workspace.Off, Evidence: "no directory of the host is mounted"}, !a.Projects
	case disk:
		return workspace.Control{
			ID: id, State: workspace.Off, Evidence: "no disk limit is set; the file system's own space is the limit",
			Remedy: "create the workspace with --disk, or put the data directory on a file system of its own",
		}, !a.Disk
	}
	return workspace.Control{}, false
}

var (
	inRootful = []Mode{Rootful}
	inBoth    = []Mode{Rootful, Rootless}
)

// controls is the control table. docs/security.md says what each stops. A control
// without a single finding is not verified.
var controls = []controlDef{
	{"ids", inBoth, "see that the broker runs as root and that no other tool changes the workspace's user"},
	{"user-namespace", inBoth, "sysctl -w user.max_user_namespaces=15000"},
	{"mount-namespace", inBoth, "sysctl -w user.max_mnt_namespaces=15000"},
	{"pid-namespace", inBoth, "sysctl -w user.max_pid_namespaces=15000"},
	{"ipc-namespace", inBoth, "sysctl -w user.max_ipc_namespaces=15000"},
	{"uts-namespace", inBoth, "sysctl -w user.max_uts_namespaces=15000"},
	{"net-namespace", inBoth, "sysctl -w user.max_net_namespaces=15000"},
	{"cgroup-namespace", inBoth, "sysctl -w user.max_cgroup_namespaces=15000"},
	{"nested-namespaces", inBoth, "use a kernel with user.max_user_namespaces (4.9 or newer)"},
	{"capabilities", inBoth, "report this: the executor must not hand on a capability"},
	{"no-new-privileges", inBoth, "use a kernel with no_new_privs (3.5 or newer)"},
	{"seccomp", inBoth, "use a kernel with CONFIG_SECCOMP_FILTER"},
	{"landlock", inBoth, "use Linux 5.19 or newer and add \"landlock\" to the lsm= list on the kernel's command line"},
	{"root", inBoth, "report this with the output of carrel inspect: a part of the host's files is in reach"},
	{"mounts", inBoth, "report this with the output of carrel inspect: an unexpected mount is inside"},
	{"proc", inBoth, "run the broker outside a container that masks /proc"},
	{"home", inBoth, "put the data directory on a local file system that keeps owners and modes"},
	{"executor", inBoth, "report this: a command can reach its executor"},
	{"io_uring", inBoth, "if it was asked for, sysctl -w kernel.io_uring_disabled=0, or leave --allow io_uring out; else report this with uname -r"},
	{"kernel", inBoth, "report this with uname -r: a refused system call was answered"},
	{"terminal", inBoth, "report this with uname -r: terminal input could be injected"},
	{"network", inBoth, "report this: something beyond loopback answers"},
	{"sockets", inBoth, "report this with uname -r: a socket family that must be refused could be opened"},
	{"descriptors", inBoth, "report this: a descriptor would leak into commands"},
	{"process-limits", inBoth, "report this: a resource limit did not hold"},
	{"supervisor-cgroup", inRootful, "make /sys/fs/cgroup writable for the broker"},
	{"memory", inRootful, "enable the memory controller: on v2 echo +memory > /sys/fs/cgroup/cgroup.subtree_control; on v1 boot without cgroup_disable=memory"},
	{"pids", inRootful, "enable the pids controller: on v2 echo +pids > /sys/fs/cgroup/cgroup.subtree_control; on v1 mount it below /sys/fs/cgroup"},
	{projectMounts, inBoth, "report this with the output of carrel inspect: a directory of the host is not held as it must be"},
	{disk, inRootful, "see that carrel doctor has yes for disk_image; report this with the output of carrel inspect"},
	{"swap", nil, "boot with swapaccount=1 (cgroup v1), or turn swap off"},
	{"cpu", nil, "enable the cpu controller: on v2 echo +cpu > /sys/fs/cgroup/cgroup.subtree_control; on v1 mount it below /sys/fs/cgroup"},
}

// rlimitsInstead says what is in the place of the limits that control groups hold, where
// an ordinary user has none that is used.
var rlimitsInstead = map[string]string{
	"memory":            "; RLIMIT_DATA bounds each process alone, and tmpfs sizes the private files",
	"pids":              "; RLIMIT_NPROC bounds the processes and threads of this user namespace instead",
	"supervisor-cgroup": "; the executor shares that of its caller",
	"swap":              "",
	"cpu":               "",
}

// noGroup is the evidence on a limit of a workspace without a control group.
func (a Asked) noGroup(instead string) string {
	why := "no control group is used without root"
	if a.NoGroup != "" {
		why += ": " + a.NoGroup
	}
	return why + instead
}

// IsControl reports whether there is a control of that name.
func IsControl(name string) bool {
	return slices.ContainsFunc(controls, func(d controlDef) bool { return d.id == name })
}

// notAsked are controls that this release does not request of anyone.
var notAsked = []workspace.Control{
	{ID: "egress", State: workspace.Off, Evidence: "no destination is reachable, so there is nothing to filter"},
}

// Judge makes the report from what was found inside and outside. A control is
// verified if it has findings and all of them hold; failed if one does not; unavailable
// if there is none.
//
// A control that accept names is not required: its absence was accepted by whoever asked
// for the workspace, and the report says so.
func Judge(mode Mode, asked Asked, accept []string, findings []Finding) workspace.Report {
	r := workspace.Report{Boundary: workspace.BoundaryNamespace, Root: workspace.RootSystem}
	for _, def := range controls {
		if c, off := asked.off(def.id); off {
			r.Controls = append(r.Controls, c)
			continue
		}
		c := workspace.Control{ID: def.id, Requested: true}
		for _, m := range def.required {
			c.Required = c.Required || m == mode || m == Rootful && asked.Grouped
		}
		var good, bad []string
		for _, f := range findings {
			switch {
			case f.Control != def.id:
			case f.Opened != "" && !slices.Contains(asked.Allow, f.Opened):
				bad = append(bad, "open, and --allow "+string(f.Opened)+" was not asked for: "+f.Evidence)
			case f.OK:
				good = append(good, f.Evidence)
			default:
				bad = append(bad, f.Evidence)
			}
		}
		switch {
		case len(bad) > 0:
			c.State, c.Evidence, c.Remedy = workspace.Failed, strings.Join(bad, "; "), def.remedy
		case len(good) > 0:
			c.State, c.Evidence = workspace.Verified, strings.Join(good, "; ")
		default:
			c.State, c.Evidence, c.Remedy = workspace.Unavailable, "nothing could be tried", def.remedy
		}
		asked.open(&c, findings, def.remedy)
		if instead, ok := rlimitsInstead[def.id]; ok && mode == Rootless && !asked.Grouped && c.State == workspace.Unavailable {
			c.Evidence, c.Remedy = asked.noGroup(instead), "have one delegated, as carrel doctor says, or run it as root, through the daemon: sudo carrel up"
		}
		if c.Required && c.State != workspace.Verified && slices.Contains(accept, def.id) {
			c.Required, c.Evidence = false, "accepted with --accept; "+c.Evidence
		}
		r.Controls = append(r.Controls, c)
	}
	r.Controls = append(r.Controls, notAsked...)
	return r
}

// Amend puts what was found anew, after limits were changed, in the place of what was
// found before: evidence of the form "WHAT is VALUE", by WHAT.
func Amend(r *workspace.Report, found []Finding) {
	for _, f := range found {
		what, _, ok := strings.Cut(f.Evidence, " is ")
		if !ok {
			continue
		}
		for i := range r.Controls {
			c := &r.Controls[i]
			if c.ID != f.Control {
				continue
			}
			each := strings.Split(c.Evidence, "; ")
			for j, e := range each {
				if strings.HasPrefix(e, what+" is ") {
					each[j] = f.Evidence
				}
			}
			c.Evidence = strings.Join(each, "; ")
			if !f.OK {
				c.State, c.Remedy = workspace.Failed, "stop and start the workspace"
			}
		}
	}
}
