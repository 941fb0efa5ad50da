package broker

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Host is Effects on the Linux host it runs on, as root.
type Host struct {
	users
	*dirs
	settings Settings
	groups   *cgroup.Instance
	launch   func(context.Context, launch.Config) (*launch.Executor, error)
	binary   *os.File // the executor, sealed
	egress   egresses
	bootID   string
	log      *slog.Logger
	placing  sync.Mutex // over the records of protected names
	slow     slowCalls
	mended   []workspace.Mended
}

// HostConfig is what a Host is made from.
type HostConfig struct {
	Settings Settings
	// Launch starts executors: launch.Start, but in tests. Required.
	Launch func(context.Context, launch.Config) (*launch.Executor, error)
	// Binary is the sealed executor that Launch is given. Host closes it.
	Binary *os.File
	// Egress is carrel-egress, sealed; nil if there is none. Host closes it.
	Egress *os.File
	// OneConnection: the broker has no socket of its own, and the runtime directory may
	// be the daemon's.
	OneConnection bool
	// Log gets what executors write to stderr. Required.
	Log *slog.Logger
}

// OpenHost opens the directories, making those that are missing, and the control groups.
func OpenHost(cfg HostConfig) (*Host, error) {
	h := &Host{settings: cfg.Settings, launch: cfg.Launch, binary: cfg.Binary, log: cfg.Log, slow: make(slowCalls, maxSlow)}
	h.egress.binary = cfg.Egress
	h.users.settings, h.users.etc = cfg.Settings, "/etc"
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("cannot tell this boot from others: %w", err)
	}
	h.bootID = strings.TrimSpace(string(boot))
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, fmt.Errorf("cannot see how much memory there is: %w", err)
	}
	total, err := cgroup.ParseMemTotal(string(meminfo))
	if err != nil {
		return nil, err
	}
	pids, err := hostPids()
	if err != nil {
		return nil, err
	}
	if h.dirs, err = openDirs(cfg.Settings, cfg.OneConnection); err != nil {
		return nil, err
	}
	h.users.state, h.users.bootID = h.dirs.state, h.bootID
	removed, err := h.tidy(context.Background())
	if err != nil {
		cfg.Log.Error("cannot put the user database in order", "error", err) // what needs it says so
		h.mended = append(h.mended, workspace.Mended{Kind: workspace.NotMended, Done: err.Error()})
	} else if len(removed) > 0 {
		h.mended = append(h.mended, workspace.Mended{
			Kind: workspace.UserDatabase,
			Done: "a tool of the broker's was killed; removed: " + strings.Join(removed, ", "),
		})
	}
	all := cgroup.Shared{
		MemoryBytes: total / 100 * int64(cfg.Settings.CgroupMemoryPercent),
		Pids:        pids * int64(cfg.Settings.CgroupPidsPercent) / 100,
	}
	owner := int64(cfg.Settings.CgroupOwnerPercent)
	h.groups, err = cgroup.Open(cgroup.Config{
		Name: cfg.Settings.CgroupName, Shared: all,
		Each:       cgroup.Shared{MemoryBytes: all.MemoryBytes / 100 * owner, Pids: all.Pids * owner / 100},
		Throughput: cgroup.Throughput{BytesPerSecond: cfg.Settings.IOBytesPerSecond, Path: cfg.Settings.DataDir},
	})
	if err != nil {
		h.dirs.close()
		return nil, err
	}
	return h, nil
}

// hostPids is how many processes and threads the host can have.
func hostPids() (most int64, err error) {
	for _, name := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		b, err := os.ReadFile(name)
		if err != nil {
			return 0, fmt.Errorf("cannot see how many processes the host can have: %w", err)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("cannot understand %s: %w", name, err)
		}
		if most == 0 || n < most {
			most = n
		}
	}
	return most, nil
}

// InForce is part of Effects: the ids of the ledger are those of the host.
func (h *Host) InForce(ids workspace.IDs) workspace.IDs { return ids }

// Mended is part of Effects.
func (h *Host) Mended() []workspace.Mended { return h.mended }

// Missing lists the controllers that this host does not offer, for the log.
func (h *Host) Missing() []cgroup.Missing { return h.groups.Missing() }

// OpenState opens the directory of the ledger.
func (h *Host) OpenState() (*os.File, error) { return beneath(h.data, "broker") }

// Close is part of Effects.
func (h *Host) Close() error {
	h.groups.Close()
	h.dirs.close()
	closeFiles(h.binary)
	h.egress.close()
	return nil
}
