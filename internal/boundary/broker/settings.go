package broker

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/strictjson"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// minThroughput lets a program be read in a time that somebody waits for.
const minThroughput = 64 << 10

// DefaultSettings is where the settings are when no file is named.
const DefaultSettings = "/etc/carrel/broker.json"

// Defaults of settings that are left out.
const (
	DefaultDataDir             = "/var/lib/carrel"
	DefaultRuntimeDir          = "/run/carrel"
	DefaultUIDFirst            = 1879048192 // 0x70000000: clear of useradd's, subuid's and systemd's ranges
	DefaultUIDCount            = 1 << 20
	DefaultCgroupName          = "carrel"
	DefaultCgroupMemoryPercent = 90
	DefaultCgroupPidsPercent   = 75
	DefaultCgroupOwnerPercent  = 75
	DefaultShell               = "/bin/bash"
	DefaultExecutorPath        = "/usr/libexec/carrel/carrel-executor"
	DefaultEgressPath          = "/usr/libexec/carrel/carrel-egress"
	DefaultMaxWorkspaces       = 2000
	DefaultCreatePerHour       = 60
)

const (
	// maxSettings bounds the file in bytes.
	maxSettings = 64 << 10
	// maxCreate bounds create_burst and create_per_hour.
	maxCreate = 1_000_000
)

// Settings is the broker's configuration: a JSON file that only root can write. A
// field that is left out has the default above; an unknown one is an error.
type Settings struct {
	DataDir    string `json:"data_dir"`
	RuntimeDir string `json:"runtime_dir"`
	// DaemonUID is the one user besides root that is listened to. Required, not 0.
	DaemonUID uint32 `json:"daemon_uid"`
	DaemonGID uint32 `json:"daemon_gid"`
	// UIDFirst and UIDCount are the range that ids are taken from, three a workspace, and one for its carrel-egress: see
	// EgressUID.
	UIDFirst uint32 `json:"uid_first"`
	UIDCount uint32 `json:"uid_count"`
	// CgroupName is the instance's group in each hierarchy.
	CgroupName string `json:"cgroup_name"`
	// CgroupMemoryPercent of the host's memory is the ceiling of all workspaces.
	CgroupMemoryPercent int `json:"cgroup_memory_percent"`
	// CgroupPidsPercent of the processes and threads that the host can have is the ceiling of all
	// workspaces.
	CgroupPidsPercent int `json:"cgroup_pids_percent"`
	// CgroupOwnerPercent of both ceilings is that of the workspaces of one owner, unless an administrator
	// made them.
	CgroupOwnerPercent int `json:"cgroup_owner_percent"`
	// IOBytesPerSecond bounds what each workspace reads, and what it writes, on the disk of DataDir; 0 is no
	// bound. It takes cgroup v2.
	IOBytesPerSecond int64 `json:"io_bytes_per_second"`
	// HomeRoot holds the homes; DataDir/homes if left out.
	HomeRoot string `json:"home_root"`
	// HomeLinks is a directory that gets a symbolic link to each home, such as /home; ""
	// for none.
	HomeLinks string `json:"home_links"`
	// WorkspaceGroup is a group of the host that every workspace's user is a member of; ""
	// for none. Commands inside do not have it.
	WorkspaceGroup string `json:"workspace_group"`
	Shell          string `json:"shell"`
	ExecutorPath   string `json:"executor_path"`
	// EgressPath is carrel-egress. Where there is none, no workspace has a way out.
	EgressPath string `json:"egress_path"`
	// LimitsMax are the highest limits a workspace may have; 0 means no bound but that
	// of package workspace.
	LimitsMax     workspace.Limits `json:"limits_max"`
	MaxWorkspaces int              `json:"max_workspaces"`
	// CreateBurst is how many workspaces may be created at once, MaxWorkspaces if left out, and
	// CreatePerHour how many in the long run.
	CreateBurst   int `json:"create_burst"`
	CreatePerHour int `json:"create_per_hour"`
}

// ReadSettings reads and checks the file at path. It is refused unless root owns it and
// nobody else can write it, because a user who writes it commands root.
func ReadSettings(path string) (Settings, error) {
	fail := func(format string, a ...any) (Settings, error) {
		return Settings{}, fmt.Errorf("cannot use the settings %s: "+format, append([]any{path}, a...)...)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fail("%w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := fstat(f, &st); err != nil {
		return fail("%w", err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fail("it is not a regular file: %w", errdefs.ErrFailedPrecondition)
	case st.Uid != 0:
		return fail("it belongs to uid %d; chown root it: %w", st.Uid, errdefs.ErrPermissionDenied)
	case st.Mode&0o022 != 0:
		return fail("others can write it (mode %04o); chmod go-w it: %w", st.Mode&0o7777, errdefs.ErrPermissionDenied)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSettings+1))
	if err != nil {
		return fail("%w", err)
	}
	if len(b) > maxSettings {
		return fail("it is longer than %d bytes: %w", maxSettings, errdefs.ErrInvalidArgument)
	}
	s, err := ParseSettings(b)
	if err != nil {
		return fail("%w", err)
	}
	return s, nil
}

// ParseSettings decodes and checks settings and fills in the defaults.
func ParseSettings(b []byte) (Settings, error) {
	s := Settings{
		DataDir: DefaultDataDir, RuntimeDir: DefaultRuntimeDir, UIDFirst: DefaultUIDFirst, UIDCount: DefaultUIDCount,
		CgroupName: DefaultCgroupName, CgroupMemoryPercent: DefaultCgroupMemoryPercent, CgroupPidsPercent: DefaultCgroupPidsPercent,
		CgroupOwnerPercent: DefaultCgroupOwnerPercent, Shell: DefaultShell, ExecutorPath: DefaultExecutorPath, EgressPath: DefaultEgressPath,
		MaxWorkspaces: DefaultMaxWorkspaces, CreatePerHour: DefaultCreatePerHour,
	}
	if err := strictjson.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	if s.HomeRoot == "" {
		s.HomeRoot = filepath.Join(s.DataDir, "homes")
	}
	if s.CreateBurst == 0 {
		s.CreateBurst = s.MaxWorkspaces
	}
	return s, s.Validate()
}

// lastUID is that of carrel-egress where it has none for each workspace. No id of carrel-egress is in the user database, as the
// ids of executors are not.
func (s Settings) lastUID() uint32 { return s.UIDFirst + s.UIDCount - 1 }

// endOfWorkspaces is the first id behind those that workspaces get.
func (s Settings) endOfWorkspaces() uint32 {
	return s.UIDFirst + brokerapi.WorkspaceIDs(s.UIDCount)
}

// EgressUID is the id of a workspace's carrel-egress: its own, counted from the end of the range, or that which all have where
// the range is too small.
func (s Settings) EgressUID(ids workspace.IDs) uint32 {
	last, end := s.lastUID(), s.endOfWorkspaces()
	if n := (ids.Executor - s.UIDFirst) / 3; ids.Executor >= s.UIDFirst && n < last-end {
		return last - 1 - n
	}
	return last
}

// InRange reports whether an id is one of the range.
func (s Settings) InRange(uid uint32) bool { return uid >= s.UIDFirst && uid-s.UIDFirst < s.UIDCount }

// Validate reports the first setting that cannot be worked with.
func (s Settings) Validate() error {
	bad := func(key, why string) error {
		return fmt.Errorf("%s %s: %w", key, why, errdefs.ErrInvalidArgument)
	}
	for _, p := range []struct{ key, path string }{
		{"data_dir", s.DataDir},
		{"runtime_dir", s.RuntimeDir},
		{"home_root", s.HomeRoot},
		{"shell", s.Shell},
		{"executor_path", s.ExecutorPath},
		{"egress_path", s.EgressPath},
	} {
		// A colon or a newline would end a field of passwd.
		if !filepath.IsAbs(p.path) || filepath.Clean(p.path) != p.path || p.path == "/" || strings.ContainsAny(p.path, ":\n\x00") ||
			len(p.path) > 1024 {
			return bad(p.key, fmt.Sprintf("is %q; it must be a clean absolute path without colons", p.path))
		}
	}
	if p := s.HomeLinks; p != "" && (!filepath.IsAbs(p) || filepath.Clean(p) != p || p == "/" || len(p) > 1024 ||
		strings.ContainsAny(p, ":\n\x00")) {
		return bad("home_links", fmt.Sprintf("is %q; it must be a clean absolute path, or left out", p))
	}
	last := uint64(s.UIDFirst) + uint64(s.UIDCount)
	switch {
	case s.DaemonUID == 0:
		return bad("daemon_uid", "is missing or 0; the daemon must not be root")
	case s.DaemonUID == 1<<32-1:
		return bad("daemon_uid", "is 4294967295, which means no user")
	case s.UIDFirst < 1000:
		return bad("uid_first", fmt.Sprintf("is %d; ids below 1000 belong to the system", s.UIDFirst))
	case s.UIDCount < 4:
		return bad("uid_count", fmt.Sprintf("is %d; a workspace takes three ids, and carrel-egress the last", s.UIDCount))
	case last > 1<<31: // -1 and ids that a signed 32-bit number cannot hold
		return bad("uid_count", fmt.Sprintf("is %d; the last id would be %d, and it must stay below 2147483648", s.UIDCount, last-1))
	case uint64(s.DaemonUID) >= uint64(s.UIDFirst) && uint64(s.DaemonUID) < last:
		return bad("daemon_uid", fmt.Sprintf("is %d, inside the range of the workspaces' ids", s.DaemonUID))
	case s.WorkspaceGroup != "" && (!validCgroupName(s.WorkspaceGroup) || len(s.WorkspaceGroup) > 32):
		return bad("workspace_group", fmt.Sprintf("is %q; it must be the name of a group, 1 to 32 letters, digits and hyphens", s.WorkspaceGroup))
	case !validCgroupName(s.CgroupName):
		return bad("cgroup_name", fmt.Sprintf("is %q; it must be 1 to 64 letters, digits and hyphens", s.CgroupName))
	case s.CgroupMemoryPercent < 1 || s.CgroupMemoryPercent > 100:
		return bad("cgroup_memory_percent", fmt.Sprintf("is %d; it must be 1 to 100", s.CgroupMemoryPercent))
	case s.CgroupPidsPercent < 1 || s.CgroupPidsPercent > 100:
		return bad("cgroup_pids_percent", fmt.Sprintf("is %d; it must be 1 to 100", s.CgroupPidsPercent))
	case s.CgroupOwnerPercent < 1 || s.CgroupOwnerPercent > 100:
		return bad("cgroup_owner_percent", fmt.Sprintf("is %d; it must be 1 to 100", s.CgroupOwnerPercent))
	case s.IOBytesPerSecond != 0 && s.IOBytesPerSecond < minThroughput:
		return bad("io_bytes_per_second", fmt.Sprintf("is %d; it must be 0, for no bound, or at least %d", s.IOBytesPerSecond, minThroughput))
	case s.MaxWorkspaces < 1:
		return bad("max_workspaces", fmt.Sprintf("is %d; it must be at least 1", s.MaxWorkspaces))
	case s.CreateBurst < 1 || s.CreateBurst > maxCreate:
		return bad("create_burst", fmt.Sprintf("is %d; it must be 1 to %d", s.CreateBurst, maxCreate))
	case s.CreatePerHour < 1 || s.CreatePerHour > maxCreate:
		return bad("create_per_hour", fmt.Sprintf("is %d; it must be 1 to %d", s.CreatePerHour, maxCreate))
	}
	l := s.LimitsMax
	for _, v := range []int64{l.MemoryBytes, l.SwapBytes, l.Pids, l.CPUWeight, l.OpenFiles, l.DiskBytes} {
		if v < 0 {
			return bad("limits_max", "has a negative value")
		}
	}
	return nil
}

// allows reports the first limit that is above limits_max.
func (s Settings) allows(l workspace.Limits) error {
	for _, c := range []struct {
		name   string
		v, max int64
	}{
		{"memory_bytes", l.MemoryBytes, s.LimitsMax.MemoryBytes},
		{"swap_bytes", l.SwapBytes, s.LimitsMax.SwapBytes},
		{"pids", l.Pids, s.LimitsMax.Pids},
		{"cpu_weight", l.CPUWeight, s.LimitsMax.CPUWeight},
		{"open_files", l.OpenFiles, s.LimitsMax.OpenFiles},
		{"disk_bytes", l.DiskBytes, s.LimitsMax.DiskBytes},
	} {
		if c.max > 0 && c.v > c.max {
			return fmt.Errorf("cannot use %d as limit %s: this host allows at most %d (limits_max in the broker's settings): %w",
				c.v, c.name, c.max, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

func validCgroupName(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return s != "" && len(s) <= 64 && s[0] != '-'
}
