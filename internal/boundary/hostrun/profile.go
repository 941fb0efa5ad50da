package hostrun

import (
	"fmt"
	"strings"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Profile says what a command may do.
type Profile string

// The profiles. Each is a row of the table below.
//
// Those that hold a command keep it from files, mounts, devices, processes, Unix sockets and settings of the kernel. They
// do not keep it from reading what its user may read, or from what reading does: it can take data out of a named pipe,
// and hold advisory locks and leases on files of its user until it ends. Those that change nothing reach no network;
// WorkspaceWrite has the caller's. Memory and processes are bounded (see Limits), and processor time is not: what is held
// runs behind what else the host does.
const (
	None                  Profile = "none"
	ReadOnly              Profile = "read_only"
	SystemInspect         Profile = "system_inspect"
	WorkspaceWrite        Profile = "workspace_write"
	PrivilegedPassthrough Profile = "privileged_passthrough"
)

// row is one profile.
type row struct {
	name Profile
	// held: namespaces, Landlock and a filter hold it.
	held bool
	// host: it sees the host's processes and devices, which it can neither signal, trace, control nor write.
	host bool
	// writes: it may change its directory.
	writes bool
	// noIP: it sees the host's network and can make no IP socket. alone: it has a network of its own, with a loopback.
	noIP, alone bool
	// limited: its memory and processes are bounded.
	limited bool
	says    string
}

// rows are the profiles. says is what a person is told before they choose one.
var rows = []row{
	{name: None, limited: true, says: "nothing holds the command but bounds; it has no terminal, and what it starts ends with it"},
	{
		name: ReadOnly, held: true, alone: true, limited: true,
		says: "it reads what the user may read, changes nothing of this machine but private /tmp and /var/tmp, and reaches no network",
	},
	{
		name: SystemInspect, held: true, host: true, noIP: true, limited: true,
		says: "as read_only, and it sees the processes, devices, network and temporary files of the host; $TMPDIR is its own",
	},
	{
		name: WorkspaceWrite, held: true, writes: true, limited: true,
		says: "as read_only, and it may change its directory, but not what tells programs of the user to run something there; it has the " +
			"caller's network",
	},
	{name: PrivilegedPassthrough, says: "nothing holds the command, and nothing is meant to"},
}

// Describe says in a sentence what a profile means; "" if there is none of that name.
func (p Profile) Describe() string {
	if r := rowOf(p); r != nil {
		return r.says
	}
	return ""
}

func rowOf(p Profile) *row {
	for i := range rows {
		if rows[i].name == p {
			return &rows[i]
		}
	}
	return nil
}

func profileNames() string {
	var names []string
	for _, r := range rows {
		names = append(names, string(r.name))
	}
	return strings.Join(names, ", ")
}

// need says for which profiles a control is required.
type need int

const (
	always need = iota
	held
	// said is a control that is reported and not required.
	said
	// limited is required where a profile holds a command, and watched alone where it does not.
	limited
	// unreached is required of profiles that reach no network.
	unreached
)

// asks reports whether a profile asks for a control of that need.
func (r *row) asks(n need) bool {
	switch n {
	case held:
		return r.held
	case limited:
		return r.limited
	case unreached:
		return r.noIP || r.alone
	case always, said:
	}
	return true
}

// controls is the control table.
var controls = []struct {
	id   string
	need need
	// what is the evidence of a control that is off or was applied without a trial.
	what, remedy string
}{
	{"terminal", always, "", "report this with uname -r: the command would have a terminal"},
	{"ending", always, "", "use a kernel with PR_SET_CHILD_SUBREAPER (3.4 or newer) and a readable /proc"},
	{"prompts", said, "pagers, editors and askpass programs are off in its environment", ""},
	{"user-namespace", held, "", "sysctl -w user.max_user_namespaces=15000, and see carrel doctor"},
	{"mount-namespace", held, "", "sysctl -w user.max_mnt_namespaces=15000"},
	{"pid-namespace", held, "", "sysctl -w user.max_pid_namespaces=15000"},
	{"ipc-namespace", held, "", "sysctl -w user.max_ipc_namespaces=15000"},
	{"nested-namespaces", held, "", "use a kernel with user.max_user_namespaces (4.9 or newer)"},
	{"capabilities", held, "", "report this: the command must have no capability that changes something"},
	{"no-new-privileges", held, "", "use a kernel with no_new_privs (3.5 or newer)"},
	{"seccomp", held, "", "use a kernel with CONFIG_SECCOMP_FILTER"},
	{"landlock", held, "", "use Linux 5.19 or newer and add \"landlock\" to the lsm= list on the kernel's command line"},
	{"files", held, "", "report this with /proc/self/mountinfo: a file of the host could be changed"},
	{"processes", held, "", "report this with uname -r: another process could be reached"},
	{"sockets", held, "", "report this with uname -r: a socket of a service could be reached"},
	{"kernel", held, "", "report this with uname -r: a call that changes the machine was answered"},
	{"devices", held, "", "report this with uname -r: a device could be written or controlled"},
	{"descriptors", always, "", "report this: a descriptor of the caller's would leak into the command"},
	{
		"network", unreached, "the command has the caller's network: what it may reach by IP it can ask to change something",
		"if it has a network of its own: sysctl -w user.max_net_namespaces=15000; else report this with uname -r",
	},
	{
		"memory", limited, "watched: a command whose processes take more together is ended",
		"set less than the machine has (steps.memory), and report this with uname -r if it is not that",
	},
	{
		"process-count", limited, "watched: a command that has more is ended",
		"use Linux 5.14 or newer, as root 6.14, or bound nothing (steps.processes: 0)",
	},
	{"processor", held, "", "report this: the command would run before what else the host does"},
}

// finding is one thing that was tried or read.
type finding struct {
	Control  string `json:"control"`
	OK       bool   `json:"ok"`
	Evidence string `json:"evidence"`
}

// grouping are the controls that control groups make stronger, where there are some.
var grouping = map[string]bool{"memory": true, "process-count": true, "processor": true}

// judge makes the report from what was found inside and from outside: a control is verified if it has findings and all
// hold, and failed if one does not. ungrouped is why no control group bounds the command.
func (r *row) judge(found []finding, ungrouped string) []workspace.Control {
	var report []workspace.Control
	for _, def := range controls {
		c := workspace.Control{ID: def.id, Requested: r.asks(def.need)}
		c.Required = c.Requested && def.need != said && (def.need != limited || r.held)
		var good, broken []string
		for _, f := range found {
			switch {
			case f.Control != def.id:
			case f.OK:
				good = append(good, f.Evidence)
			default:
				broken = append(broken, f.Evidence)
			}
		}
		// What control groups bound is more than is asked for, where it is not required.
		if len(good) > 0 && len(broken) == 0 && grouping[def.id] {
			c.Requested = true
		}
		switch {
		case grouping[def.id] && c.Requested && !c.Required && len(good) > 0 && len(broken) == 0:
			c.State, c.Evidence = workspace.Verified, strings.Join(good, "; ")
		case !c.Requested && def.what == "":
			c.State, c.Evidence = workspace.Off, "profile "+string(r.name)+" does not ask for it"
		case !c.Requested:
			c.State, c.Evidence = workspace.Off, def.what
		case !c.Required:
			c.State, c.Evidence = workspace.Applied, def.what
		case len(broken) > 0:
			c.State, c.Evidence, c.Remedy = workspace.Failed, strings.Join(broken, "; "), def.remedy
		case len(good) == 0:
			c.State, c.Evidence, c.Remedy = workspace.Unavailable, "nothing could be tried", def.remedy
		default:
			c.State, c.Evidence = workspace.Verified, strings.Join(good, "; ")
		}
		if grouping[def.id] && ungrouped != "" && r.limited {
			c.Evidence += "; no control group bounds it: " + ungrouped
		}
		report = append(report, c)
	}
	return report
}

// Held says in a few words what held a command.
func Held(p Profile, controls []workspace.Control) string {
	verified, other := 0, []string{}
	for _, c := range controls {
		switch c.State {
		case workspace.Verified:
			verified++
		case workspace.Off:
		default:
			other = append(other, fmt.Sprintf("%s %s", c.ID, c.State))
		}
	}
	text := fmt.Sprintf("profile %s, %d controls verified", p, verified)
	if len(other) > 0 {
		text += "; " + strings.Join(other, ", ")
	}
	return text
}
