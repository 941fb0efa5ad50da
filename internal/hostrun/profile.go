package hostrun

import (
	"fmt"
	"strings"

	"github.com/carrel-dev/carrel/internal/workspace"
)

// Profile says what a command may do.
type Profile string

// The profiles. Each is a row of the table below.
//
// Those that hold a command keep it from files, mounts, devices, processes, Unix sockets and settings of the kernel. They
// do not keep it from reading what its user may read, from the network (what listens on an IP address can be asked to
// change something), from memory and processor time, or from what reading does: it can take data out of a named pipe,
// and hold advisory locks and leases on files of its user until it ends.
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
	says   string
}

// rows are the profiles. says is what a person is told before they choose one.
var rows = []row{
	{name: None, says: "nothing holds the command; it has no terminal, and what it starts ends with it"},
	{name: ReadOnly, held: true, says: "it reads what the user may read and changes nothing of this machine but private /tmp and /var/tmp"},
	{
		name: SystemInspect, held: true, host: true,
		says: "as read_only, and it sees the processes, devices and temporary files of the host; $TMPDIR is its own",
	},
	{
		name: WorkspaceWrite, held: true, writes: true,
		says: "as read_only, and it may change its directory, but not what tells programs of the user to run something there",
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
	// none is what no profile asks for, reported as off.
	none
)

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
	{"network", none, "the command has the caller's network: what it may reach by IP it can ask to change something", ""},
	{"resources", none, "memory and processor are not limited; its time is", ""},
}

// finding is one thing that was tried or read.
type finding struct {
	Control  string `json:"control"`
	OK       bool   `json:"ok"`
	Evidence string `json:"evidence"`
}

// judge makes the report from what was found inside and from outside: a control is verified if it has findings and all
// hold, and failed if one does not.
func (r *row) judge(found []finding) []workspace.Control {
	var report []workspace.Control
	for _, def := range controls {
		c := workspace.Control{ID: def.id, Requested: def.need != none && (def.need != held || r.held)}
		c.Required = c.Requested && def.need != said
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
		switch {
		case !c.Requested && def.what == "":
			c.State, c.Evidence = workspace.Off, "profile "+string(r.name)+" does not ask for it"
		case !c.Requested:
			c.State, c.Evidence = workspace.Off, def.what
		case def.need == said:
			c.State, c.Evidence = workspace.Applied, def.what
		case len(broken) > 0:
			c.State, c.Evidence, c.Remedy = workspace.Failed, strings.Join(broken, "; "), def.remedy
		case len(good) == 0:
			c.State, c.Evidence, c.Remedy = workspace.Unavailable, "nothing could be tried", def.remedy
		default:
			c.State, c.Evidence = workspace.Verified, strings.Join(good, "; ")
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
