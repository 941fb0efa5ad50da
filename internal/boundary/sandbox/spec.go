// Package sandbox is the first stage of an executor: it turns the new namespaces
// that the broker started it in into a workspace, drops every right that is not
// needed, and proves what holds before anything else runs.
//
// It must not start commands or speak to the daemon, and it takes no decision: the
// Spec says what is wanted, and a step that cannot be done is an error.
package sandbox

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/seccomp"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// SpecVersion is the version of Spec that this build writes and reads.
const SpecVersion = 4

// SpecFD is the descriptor at which an executor finds its sealed spec.
const SpecFD = 3

// Environ is an executor's environment, for its Go runtime. The collector is off while the
// first stage runs, because its garbage costs less than a collection; the executor then
// sets its own bounds and returns the memory.
var Environ = []string{"GOTRACEBACK=single", "GOGC=off", "GOMAXPROCS=2"}

// MaxSpec bounds the encoded spec in bytes.
const MaxSpec = 256 << 10

// Spec is everything the first stage is told. The broker writes it as JSON into a
// sealed memfd; it holds no path of the host, only descriptors.
type Spec struct {
	Version int `json:"version"`
	// Mode is who starts it. Required.
	Mode Mode `json:"mode,omitempty"`
	// Accept are the controls that it may run without if the host does not have them.
	Accept []string `json:"accept,omitempty"`
	// Allow is what commands may do that commands of other workspaces may not.
	Allow []workspace.Opening `json:"allow,omitempty"`
	Name  id.Workspace        `json:"name"`
	User  string              `json:"user"`
	IDs   workspace.IDs       `json:"ids"`
	// CallerGID is the caller's group on the host, which an executor that shares the caller's
	// id maps with it.
	CallerGID uint32 `json:"caller_gid,omitempty"`
	// ExecutorGID and AgentGID are the groups on the host of an executor that is apart from
	// its commands without root. They are not for the executor.
	ExecutorGID uint32 `json:"-"`
	AgentGID    uint32 `json:"-"`
	// Shell is the login shell of the synthesised passwd entry.
	Shell  string           `json:"shell"`
	Limits workspace.Limits `json:"limits"`
	// TmpfsBytes bounds all tmpfs mounts inside together.
	TmpfsBytes int64           `json:"tmpfs_bytes"`
	Net        Net             `json:"net"`
	Seccomp    seccomp.Options `json:"seccomp"`
	FDs        FDs             `json:"fds"`
	Cgroup     Cgroup          `json:"cgroup"`
	// Projects are the project mounts, in the order of FDs.Projects.
	Projects []Project `json:"projects,omitempty"`
}

// FDs are the descriptors an executor inherits, by what they are.
type FDs struct {
	// Status is a stream socket to the broker: see Progress and Verdict.
	Status int `json:"status"`
	// Listener is the bound, not yet listening socket for the daemon. Rootless there is
	// none: Peers are connections that exist already.
	Listener int   `json:"listener"`
	Peers    []int `json:"peers,omitempty"`
	// Home, Tmp and VarTmp are detached mounts. Rootless they, and Projects, are
	// directories, of which the first stage makes such mounts, or -1 for fresh ones on
	// memory.
	Home   int `json:"home"`
	Tmp    int `json:"tmp"`
	VarTmp int `json:"var_tmp"`
	// Projects are detached mounts too, idmapped: the owner's ids on the host are those
	// of the commands inside.
	Projects []int `json:"projects,omitempty"`
	// Stages are of the same kind, for the staged ones of Projects, in their order: where what is written there goes.
	Stages []int `json:"stages,omitempty"`
	// V1Tasks are the `tasks` files of the cmd group, one for each v1 hierarchy
	// that limits something, open for writing.
	V1Tasks []int `json:"v1_tasks,omitempty"`
	// SupProcs is cgroup.procs of the v2 sup group, or -1 where the executor may stay
	// in the group it is born in (v2 without controllers).
	SupProcs int `json:"sup_procs"`
	// Give are files of the groups that an executor apart from its commands gives to its
	// own group of ids, and lets that write: without root nobody else can.
	Give []int `json:"give,omitempty"`
	// Cmd is the v2 cmd group's directory, or -1 where no group is used: then
	// commands are told apart by their sessions.
	Cmd int `json:"cmd"`
	// Ways is a sequenced-packet socket that gets the sockets of package netns, once, with
	// Net.Egress; it is not used otherwise.
	Ways int `json:"ways"`
}

// Cgroup says where controllers were found, so that the same are shown inside.
type Cgroup struct {
	// V1 are the v1 hierarchies in use, as their mount options name them, in the
	// order of FDs.V1Tasks: "memory", "pids", "cpu" or a joint one, "cpu,cpuacct".
	V1 []string `json:"v1,omitempty"`
	// V2Controllers are those that limit through v2.
	V2Controllers []string `json:"v2_controllers,omitempty"`
}

// Net is what the first stage prepares in the network namespace, which has loopback only.
type Net struct {
	// LowPorts lets ports below 1024 be bound.
	LowPorts bool `json:"low_ports"`
	// Egress redirects connections to the addresses that stand for names, and sends the sockets
	// that carrel-egress serves to FDs.Ways.
	Egress bool `json:"egress,omitempty"`
	// Trust is the certificate of an authority that commands trust beside the host's, in PEM, "" for none.
	Trust string `json:"trust,omitempty"`
}

// maxTrust bounds Net.Trust in bytes.
const maxTrust = 16 << 10

// maxProjects bounds Spec.Projects: each mount, a git directory for it, and the host's in that.
const maxProjects = 3 * workspace.MaxMounts

// Validate reports what is wrong with a spec. The executor calls it before it acts.
func (s *Spec) Validate() error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("cannot use the spec: "+format+": %w", append(a, errdefs.ErrInvalidArgument)...)
	}
	switch {
	case s.Version != SpecVersion:
		return bad("version %d, this executor reads %d; install broker and executor of one release", s.Version, SpecVersion)
	case !id.IsWorkspace(string(s.Name)):
		return bad("name %q", s.Name)
	case s.User == "" || strings.ContainsAny(s.User, ":/\n\x00"):
		return bad("user %q", s.User)
	case !s.Mode.known():
		return bad("mode %q", s.Mode)
	case s.IDs != modes[s.Mode].ids(s.IDs.Executor) && s.IDScheme() != RangeIDs || s.IDs.Executor == 0:
		return bad("ids %+v", s.IDs)
	case s.FDs.Cmd < 0 && modes[s.Mode].conditions&grouped != 0:
		return bad("no group for commands")
	case !strings.HasPrefix(s.Shell, "/") || strings.ContainsAny(s.Shell, ":\n\x00"):
		return bad("shell %q", s.Shell)
	case s.TmpfsBytes < 1<<20:
		return bad("tmpfs ceiling %d", s.TmpfsBytes)
	case len(s.Cgroup.V1) != len(s.FDs.V1Tasks):
		return bad("%d v1 hierarchies, %d descriptors", len(s.Cgroup.V1), len(s.FDs.V1Tasks))
	case s.Net.Egress && s.FDs.Ways <= SpecFD:
		return bad("egress, and no socket for what it serves")
	case len(s.Net.Trust) > maxTrust:
		return bad("a certificate of %d bytes", len(s.Net.Trust))
	case len(s.Projects) != len(s.FDs.Projects) || len(s.Projects) > maxProjects:
		return bad("%d project mounts, %d descriptors", len(s.Projects), len(s.FDs.Projects))
	case s.staged() != len(s.FDs.Stages):
		return bad("%d staged mounts, %d descriptors", s.staged(), len(s.FDs.Stages))
	case s.writableProjects() && !s.Seccomp.NoSetID:
		// A set-uid file that a command makes there is one on the host.
		return bad("writable project mounts without the rules against set-uid files")
	}
	if err := workspace.CheckOpenings(s.Allow, nil); err != nil {
		return err
	}
	for _, p := range s.Projects {
		if !p.ReadOnly {
			if err := workspace.CheckWritable(s.Allow, "directory "+p.Destination); err != nil {
				return err
			}
		}
		if err := workspace.CheckDestination(p.Destination); err != nil {
			return err
		}
		if p.Staged && (p.ReadOnly || p.Own || len(p.Pinned)+len(p.Held) > 0) {
			return bad("staged and held at %s", p.Destination)
		}
		if len(p.Pinned) > maxPinned {
			return bad("%d names to protect", len(p.Pinned))
		}
		if len(p.Held) > MaxHeld {
			return bad("%d paths to hold", len(p.Held))
		}
		for _, held := range p.Held {
			if !fs.ValidPath(held) || held == "." {
				return bad("%q to hold", held)
			}
		}
	}
	return s.Limits.Validate()
}

func (m Mode) known() bool {
	_, ok := modes[m]
	return ok
}

// IDScheme says who has which ids.
type IDScheme int

// OwnIDs: a broker gave the workspace ids of its own. CallersID: executor and commands share the
// caller's. RangeIDs: commands have the caller's, and the executor one of a range of the caller's.
const (
	OwnIDs IDScheme = iota
	CallersID
	RangeIDs
)

// IDScheme says who has which ids in the workspace of s.
func (s *Spec) IDScheme() IDScheme {
	i := s.IDs
	switch {
	case modes[s.Mode].conditions&rootful != 0:
		return OwnIDs
	case i.Executor != i.Work && i.Agent != i.Work && i.Agent != i.Executor && i.Work != 0 && i.Agent != 0:
		return RangeIDs
	}
	return CallersID
}

// OneID reports whether executor and commands share one id.
func (s *Spec) OneID() bool { return s.IDScheme() == CallersID }

// gives reports whether the workspace may run without a control.
func (s *Spec) gives(control string) bool { return slices.Contains(s.Accept, control) }

func (s *Spec) writableProjects() bool {
	return slices.ContainsFunc(s.Projects, func(p Project) bool { return !p.ReadOnly })
}

// staged counts the staged project mounts.
func (s *Spec) staged() (n int) {
	for _, p := range s.Projects {
		if p.Staged {
			n++
		}
	}
	return n
}

// ReadSpec reads, closes and checks the spec at fd.
func ReadSpec(fd int) (*Spec, error) {
	f := os.NewFile(uintptr(fd), "spec")
	if f == nil {
		return nil, fmt.Errorf("cannot read the spec: descriptor %d is not open; the executor is started by carrel-broker only: %w",
			fd, errdefs.ErrFailedPrecondition)
	}
	defer f.Close()
	b := make([]byte, MaxSpec+1)
	n, err := f.ReadAt(b, 0)
	if n == 0 {
		return nil, fmt.Errorf("cannot read the spec: %w; the executor is started by carrel-broker only", err)
	}
	if n > MaxSpec {
		return nil, fmt.Errorf("cannot read the spec: it is longer than %d bytes: %w", MaxSpec, errdefs.ErrInvalidArgument)
	}
	var s Spec
	if err := json.Unmarshal(b[:n], &s); err != nil {
		return nil, fmt.Errorf("cannot read the spec: %w", err)
	}
	return &s, s.Validate()
}

// Progress is what an executor sends on its status socket, one JSON object a line:
// first {"moved":true} once it has left the v2 workspace group, then {"confined":true} once
// every step is done, then its findings, or an error that ends the start.
type Progress struct {
	Moved    bool      `json:"moved,omitempty"`
	Confined bool      `json:"confined,omitempty"`
	Findings []Finding `json:"findings,omitempty"`
	Step     string    `json:"step,omitempty"`
	Error    string    `json:"error,omitempty"`
}

// MaxProgress bounds one line of progress in bytes.
const MaxProgress = 128 << 10

// Verdict is the broker's answer to Moved, when the limits are in force, and to the findings, when it
// has added what it saw from outside and all required controls hold. There is none to Confined.
// Anything else ends the executor.
type Verdict struct {
	Go bool `json:"go"`
}
