package sandbox

import (
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Finding is one thing that was tried or read, inside or from outside.
type Finding struct {
	Control  string `json:"control"`
	OK       bool   `json:"ok"`
	Evidence string `json:"evidence"`
	// Opened: what was tried was to succeed, because that was asked for.
	Opened workspace.Opening `json:"opened,omitempty"`
}

// Mode is how a workspace is held.
type Mode string

// Rootful: started by a broker with root. Rootless: by an ordinary user, whose own id is
// the one that executor and commands have.
const (
	Rootful  Mode = "rootful"
	Rootless Mode = "rootless"
)

// need says whether a start fails unless a control is verified.
type need int

// limits are required of control groups, where they are used.
const (
	wanted need = iota
	required
	limits
)

// controlDef is one row of the control table.
type controlDef struct {
	id   string
	need need
	// remedy is for the person at the host.
	remedy string
}

// These are the controls that not every workspace asks for.
const (
	projectMounts = "project-mounts"
	hostSockets   = "host-sockets"
	disk          = "disk"
	oomOrder      = "oom-order"
	egress        = "egress"
)

// Asked says which of them a workspace asks for, and what it opens.
type Asked struct {
	Projects, Disk, Egress bool
	Allow                  []workspace.Opening
	// Grouped: control groups hold its limits. With root they always do. Without root,
	// NoGroup says why they do not.
	Grouped bool
	NoGroup string
}

// off are the controls as they are reported where nobody asked for them, by what is asked.
var off = map[string]struct {
	unless conditions
	report workspace.Control
}{
	projectMounts: {mounted, workspace.Control{ID: projectMounts, State: workspace.Off, Evidence: "no directory of the host is mounted"}},
	hostSockets:   {mounted, workspace.Control{ID: hostSockets, State: workspace.Off, Evidence: "no directory of the host is mounted"}},
	egress: {reaching, workspace.Control{
		ID: egress, State: workspace.Off, Evidence: "no destination is reachable, so there is nothing to filter",
	}},
	oomOrder: {rootful, workspace.Control{
		ID: oomOrder, State: workspace.Off, Evidence: "without root, commands are ended in the order of the caller's own processes",
	}},
	disk: {sized, workspace.Control{
		ID: disk, State: workspace.Off, Evidence: "no disk limit is set; the file system's own space is the limit",
		Remedy: "create the workspace with --disk, or put the data directory on a file system of its own",
	}},
}

// controls is the control table. docs/security.md says what each stops. A control
// without a single finding is not verified.
var controls = []controlDef{
	{"ids", required, "see that the broker runs as root and that no other tool changes the workspace's user"},
	{"user-namespace", required, "sysctl -w user.max_user_namespaces=15000"},
	{"mount-namespace", required, "sysctl -w user.max_mnt_namespaces=15000"},
	{"pid-namespace", required, "sysctl -w user.max_pid_namespaces=15000"},
	{"ipc-namespace", required, "sysctl -w user.max_ipc_namespaces=15000"},
	{"uts-namespace", required, "sysctl -w user.max_uts_namespaces=15000"},
	{"net-namespace", required, "sysctl -w user.max_net_namespaces=15000"},
	{"cgroup-namespace", required, "sysctl -w user.max_cgroup_namespaces=15000"},
	{"nested-namespaces", required, "use a kernel with user.max_user_namespaces (4.9 or newer)"},
	{"capabilities", required, "report this: the executor must not hand on a capability"},
	{"no-new-privileges", required, "use a kernel with no_new_privs (3.5 or newer)"},
	{"seccomp", required, "use a kernel with CONFIG_SECCOMP_FILTER"},
	{"landlock", required, "use Linux 5.19 or newer and add \"landlock\" to the lsm= list on the kernel's command line"},
	{"root", required, "report this with the output of carrel inspect: a part of the host's files is in reach"},
	{"mounts", required, "report this with the output of carrel inspect: an unexpected mount is inside"},
	{"proc", required, "run the broker outside a container that masks /proc"},
	{"home", required, "put the data directory on a local file system that keeps owners and modes"},
	{"executor", required, "report this: a command can reach its executor"},
	{"io_uring", required, "if it was asked for, sysctl -w kernel.io_uring_disabled=0, or leave --allow io_uring out; " +
		"else report this with uname -r"},
	{"kernel", required, "report this with uname -r: a refused system call was answered"},
	{"terminal", required, "report this with uname -r: terminal input could be injected"},
	{"network", required, "report this: something beyond loopback answers"},
	{egress, required, "see that nothing ended carrel-egress; report this: connections do not go through carrel-egress alone"},
	{"sockets", required, "report this with uname -r: a socket family that must be refused could be opened"},
	{"descriptors", required, "report this: a descriptor would leak into commands"},
	{"process-limits", required, "report this: a resource limit did not hold"},
	{"core-dumps", wanted, "give what starts the workspace a hard limit of core files of at least 1 (ulimit -Hc, LimitCORE=): with 0, " +
		"a crash starts the host's handler where kernel.core_pattern pipes to one"},
	{"counts", required, "report this with uname -r: what the kernel counts by user is not counted for this workspace alone"},
	{"supervisor-cgroup", limits, "make /sys/fs/cgroup writable for the broker"},
	{"memory", limits, "enable the memory controller: on v2 echo +memory > /sys/fs/cgroup/cgroup.subtree_control; " +
		"on v1 boot without cgroup_disable=memory"},
	{"pids", limits, "enable the pids controller: on v2 echo +pids > /sys/fs/cgroup/cgroup.subtree_control; " +
		"on v1 mount it below /sys/fs/cgroup"},
	{socketCount, limits, "run the broker outside of a container whose own filter leaves calls to a listener; " +
		"report this with uname -r: sockets that no control group counts are not bounded"},
	{projectMounts, required, "report this with the output of carrel inspect: a directory of the host is not held as it must be"},
	{hostSockets, wanted, "mount a directory without them, if commands are not meant to use them"},
	{disk, limits, "see that carrel doctor has yes for disk_image; report this with the output of carrel inspect"},
	{"swap", wanted, "boot with swapaccount=1 (cgroup v1), or turn swap off"},
	{oomOrder, wanted, "run the broker with CAP_SYS_RESOURCE: in a lack of memory the kernel may end it, or a service of the host, " +
		"before a command"},
	{"cpu", wanted, "enable the cpu controller: on v2 echo +cpu > /sys/fs/cgroup/cgroup.subtree_control; on v1 mount it below /sys/fs/cgroup"},
	{"io", wanted, "boot with cgroup v2 alone, and echo +io > /sys/fs/cgroup/cgroup.subtree_control"},
}

// instead is what bounds a workspace without control groups, by the limit that it replaces.
var instead = map[string]string{
	"memory":            "; RLIMIT_DATA bounds each process alone, and tmpfs sizes the private files",
	"pids":              "; RLIMIT_NPROC bounds the processes and threads of this user namespace instead",
	"supervisor-cgroup": "; the executor shares that of its caller",
	"swap":              "",
	"cpu":               "",
	"io":                "",
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

// Judge makes the report from what was found inside and outside. A control is
// verified if it has findings and all of them hold; failed if one does not; unavailable
// if there is none.
//
// A control that accept names is not required: the person who asked for the workspace accepted
// its absence, and the report says so.
func Judge(mode Mode, asked Asked, accept []string, findings []Finding) workspace.Report {
	r := workspace.Report{Boundary: modes[mode].boundary, Root: modes[mode].root}
	holds := asked.conditions(mode)
	for _, def := range controls {
		if o, ok := off[def.id]; ok && holds&o.unless == 0 {
			r.Controls = append(r.Controls, o.report)
			continue
		}
		c := workspace.Control{ID: def.id, Requested: true, Required: def.need == required || def.need == limits && holds&grouped != 0}
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
		if other, ok := instead[def.id]; ok && holds&grouped == 0 && c.State == workspace.Unavailable {
			c.Evidence, c.Remedy = asked.noGroup(other), "have one delegated, as carrel doctor says, "+
				"or run it as root, through the daemon: sudo carrel up"
		}
		if c.Required && c.State != workspace.Verified && slices.Contains(accept, def.id) {
			c.Required, c.Evidence = false, "accepted with --accept; "+c.Evidence
		}
		r.Controls = append(r.Controls, c)
	}
	return r
}

// Amend replaces evidence of the form "WHAT is VALUE", by WHAT, with what was found after limits
// were changed.
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
