package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/brokerapi"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/sandbox"
	"github.com/carrel-dev/carrel/internal/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Host is Effects on the Linux host it runs on, as root.
type Host struct {
	users
	*dirs
	settings Settings
	groups   *cgroup.Instance
	launch   func(context.Context, launch.Config) (*launch.Executor, error)
	binary   *os.File // the executor, sealed
	bootID   string
	log      *slog.Logger
	placing  sync.Mutex // over the records of protected names
	aside    chan struct{}
	mended   []workspace.Mended
}

var _ Effects = (*Host)(nil)

// HostConfig is what a Host is made from.
type HostConfig struct {
	Settings Settings
	// Launch starts executors: launch.Start, but in tests. Required.
	Launch func(context.Context, launch.Config) (*launch.Executor, error)
	// Binary is the sealed executor that Launch is given. Host closes it.
	Binary *os.File
	// OneConnection: the broker has no socket of its own, and the runtime directory may
	// be the daemon's.
	OneConnection bool
	// Log gets what executors write to stderr. Required.
	Log *slog.Logger
}

// OpenHost opens the directories, making those that are missing, and the control groups.
func OpenHost(cfg HostConfig) (*Host, error) {
	h := &Host{settings: cfg.Settings, launch: cfg.Launch, binary: cfg.Binary, log: cfg.Log, aside: make(chan struct{}, aside)}
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
	if h.dirs, err = openDirs(cfg.Settings, cfg.OneConnection); err != nil {
		return nil, err
	}
	h.users.state, h.users.bootID = h.dirs.state, h.bootID
	removed, err := h.tidy(context.Background())
	if err != nil {
		cfg.Log.Error("cannot put the user database in order", "error", err) // what needs it says so
		h.mended = append(h.mended, workspace.Mended{Kind: workspace.NotMended, Done: err.Error()})
	} else if len(removed) > 0 {
		h.mended = append(h.mended, workspace.Mended{Kind: workspace.UserDatabase, Done: "a tool of the broker's was killed; removed: " + strings.Join(removed, ", ")})
	}
	h.groups, err = cgroup.Open(cgroup.Config{Name: cfg.Settings.CgroupName, MemoryBytes: total / 100 * int64(cfg.Settings.CgroupMemoryPercent)})
	if err != nil {
		h.dirs.close()
		return nil, err
	}
	return h, nil
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
	return nil
}

// Leftovers is part of Effects.
func (h *Host) Leftovers() ([]id.Workspace, error) {
	all, err := h.groups.Names()
	if err != nil {
		return nil, err
	}
	placed, err := h.allPlaced()
	if err != nil {
		return nil, err
	}
	for name := range placed {
		if name != "" {
			all = append(all, name)
		}
	}
	for _, in := range []struct {
		dir      *os.File
		suffixes []string
	}{{h.sockets, []string{".sock"}}, {h.reports, []string{unfinished, ""}}} {
		list, err := os.ReadDir(in.dir.Name())
		if err != nil {
			return nil, fmt.Errorf("cannot look for what was left in %s: %w", in.dir.Name(), err)
		}
		for _, f := range list {
			for _, suffix := range in.suffixes {
				if name, ok := strings.CutSuffix(f.Name(), suffix); ok && id.IsWorkspace(name) {
					all = append(all, id.Workspace(name))
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func socketName(name id.Workspace) string { return string(name) + ".sock" }

// fullPercent of the ceiling of all workspaces is where no more are started: beyond it
// the kernel would soon end processes of those that run.
const fullPercent = 95

// Start is part of Effects. What a failed start made is gone when it returns.
func (h *Host) Start(ctx context.Context, e Entry) (r Running, report workspace.Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	defer func() {
		if err != nil {
			clean, stop := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
			defer stop()
			err = alsoFailed(err, h.CleanUp(clean, e.Name))
		}
	}()
	if used, ceiling := h.groups.Full(); ceiling > 0 && used > ceiling/100*fullPercent {
		return r, report, fmt.Errorf("cannot start %s: the workspaces that run hold %d MiB of the %d MiB that all may have together (cgroup_memory_percent in the broker's settings); stop one, or pause what grows: %w",
			e.Name, used>>20, ceiling>>20, errdefs.ErrResourceExhausted)
	}
	projects, err := h.openMounts(ctx, e)
	if err != nil {
		return r, report, fmt.Errorf("cannot start %s: %w", e.Name, err)
	}
	defer launch.CloseProjects(projects)
	c := launch.Config{
		Binary: h.binary, Projects: projects,
		Spec: sandbox.Spec{
			Name: e.Name, User: string(e.Name), IDs: e.IDs, Shell: h.settings.Shell, Limits: e.Limits, Allow: e.Allow,
			// Tmpfs is charged to the workspace as well; a quarter leaves it room to work.
			TmpfsBytes: max(e.Limits.MemoryBytes/4, 1<<20),
			// Its network is its own: any port may be bound there.
			Net: sandbox.Net{LowPorts: true},
		},
	}
	lent, err := h.lend(ctx, e, &c)
	defer closeFiles(lent...)
	if err != nil {
		return r, report, err
	}
	groups, err := c.JoinGroups(ctx, h.groups)
	if err != nil {
		return r, report, err
	}
	defer groups.Close()
	crashpoint.Here("broker.start.groups-made")
	if c.Listener, err = h.bind(e.Name); err != nil {
		return r, report, err
	}
	defer c.Listener.Close()
	crashpoint.Here("broker.start.socket-bound")
	if c.Log, err = launch.LogOf(e.Name, h.log); err != nil {
		return r, report, err
	}
	defer c.Log.Close()
	started, err := h.launch(ctx, c)
	if err != nil {
		return r, report, fmt.Errorf("cannot start %s: %w", e.Name, err)
	}
	known := brokerapi.Executor{BootID: h.bootID, Socket: h.sockets.Name() + "/" + socketName(e.Name)}
	if r, err = Supervise(e.Name, started, known, sandbox.Rootful, projects, h.log); err == nil {
		err = h.keepReport(e.Name, started.Report)
	}
	return r, started.Report, err
}

// bind makes the socket that the executor will listen on. It is bound by way of the
// directory's descriptor: the path could be too long for an address.
func (h *Host) bind(name id.Workspace) (*os.File, error) {
	wrap := func(err error) (*os.File, error) {
		return nil, fmt.Errorf("cannot make the socket of %s: %w", name, err)
	}
	if err := h.unbind(name); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return wrap(err)
	}
	l := os.NewFile(uintptr(fd), socketName(name))
	// The mode that the socket's file is made with (unix(7)), less the umask.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		_ = l.Close()
		return wrap(err)
	}
	err = withFD(h.sockets, func(dir int) error {
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, socketName(name))}); err != nil {
			return err
		}
		crashpoint.Here("broker.start.socket-made")
		return unix.Fchownat(dir, socketName(name), int(h.settings.DaemonUID), int(h.settings.DaemonGID), unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		_ = l.Close()
		return wrap(err)
	}
	return l, nil
}

func (h *Host) unbind(name id.Workspace) error {
	return removeAt(h.sockets, socketName(name))
}

// Freeze is part of Effects.
func (h *Host) Freeze(ctx context.Context, name id.Workspace, frozen bool) error {
	return h.groups.Freeze(ctx, name, frozen)
}

// Limit is part of Effects.
func (h *Host) Limit(e Entry, limits workspace.Limits) error {
	report, err := h.Report(e.Name)
	if err != nil {
		return err
	}
	if report, err = launch.ChangeLimits(h.groups, e.Name, e.Executor.PID, e.Limits, limits, report); err != nil {
		return err
	}
	crashpoint.Here("broker.update.applied")
	if err = h.replaceReport(e.Name, report); err != nil {
		err = errors.Join(err, h.groups.Update(e.Name, limits, e.Limits))
	}
	return err
}

// Stats is part of Effects.
func (h *Host) Stats(e Entry) (workspace.Stats, error) {
	st, err := h.groups.Stats(e.Name)
	st.DiskBytes = diskUse(e)
	return st, err
}

// CleanUp is part of Effects.
func (h *Host) CleanUp(ctx context.Context, name id.Workspace) error {
	return each(
		func() error {
			if err := h.groups.Remove(ctx, name); err != nil {
				return err // what runs still must not find a protected name free
			}
			crashpoint.Here("broker.clean.groups-removed")
			return h.unplace(ctx, name)
		},
		func() error { return h.unbind(name) },
		func() error { crashpoint.Here("broker.clean.socket-removed"); return nil },
		func() error { return h.dropReport(name) },
	)
}

// keepReport writes the report for a broker that comes after this one. It need not
// survive a crash of the host, as the workspace does not either, nor appear at once:
// nobody reads it before the ledger says that the workspace runs.
func (h *Host) keepReport(name id.Workspace, r workspace.Report) error {
	err := h.writeReport(string(name), r)
	crashpoint.Here("broker.report.written")
	if err != nil {
		return fmt.Errorf("cannot keep the report of %s: %w", name, err)
	}
	return nil
}

// replaceReport puts another in the place of a report that a later broker may have to
// read at any moment.
func (h *Host) replaceReport(name id.Workspace, r workspace.Report) error {
	file := string(name) + unfinished
	err := h.writeReport(file, r)
	crashpoint.Here("broker.report.replaced")
	if err == nil {
		err = withFD(h.reports, func(fd int) error { return unix.Renameat(fd, file, fd, string(name)) })
	}
	if err != nil {
		return fmt.Errorf("cannot keep the report of %s: %w", name, err)
	}
	return nil
}

func (h *Host) writeReport(file string, r workspace.Report) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := openAt(h.reports, file, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

func (h *Host) dropReport(name id.Workspace) error {
	return errors.Join(removeAt(h.reports, string(name)+unfinished), removeAt(h.reports, string(name)))
}

// Report is part of Effects.
func (h *Host) Report(name id.Workspace) (r workspace.Report, err error) {
	f, err := openAt(h.reports, string(name), unix.O_RDONLY, 0)
	if err == nil {
		defer f.Close()
		err = json.NewDecoder(f).Decode(&r)
	}
	if err != nil {
		return r, fmt.Errorf("cannot read the report of %s: %w; stop and start the workspace to have it proved again: %w", name, err, errdefs.ErrFailedPrecondition)
	}
	return r, nil
}
