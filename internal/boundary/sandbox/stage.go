package sandbox

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/drop"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/seccomp"
)

// stage is one run of the first stage.
type stage struct {
	spec    *Spec
	spawner *Thread
	status  *os.File
	answers *bufio.Reader
	// landlockABI is what the landlock step enforced.
	landlockABI int
	// sockets bounds those that no control group counts; nil where nothing does.
	sockets *socketGuard
}

// step is one thing the first stage does.
type step struct {
	name string
	// when says in which workspaces it is done.
	when when
	why  string
	run  func(*stage) error
}

// steps run in this order, each for the reason given. Everything here happens in
// namespaces that belong to this workspace alone.
var steps = []step{
	{"ids", with(oneID), "until it has mapped its own it has none", (*stage).mapOwnID},
	{"ids", with(apart), "whoever started it maps them from outside; until then it has none", (*stage).takeIDs},
	{"propagation", always, "no mount made below may reach the host", (*stage).propagation},
	{
		"cgroup namespace", always, "from the groups it is born in, so that paths inside start there; before the move, which changes them",
		(*stage).cgroupNamespace,
	},
	{"cgroup move", always, "limits are switched on for the commands' group only once nothing is left above it", (*stage).cgroupMove},
	{"lend", with(rootless), "while the host's paths lead where they did, and before one is covered", (*stage).lend},
	{"root", always, "built aside, on memory, from binds of what is listed", func(s *stage) error { return buildRoot(s.spec) }},
	{"proc", always, "needs the host's unmasked /proc still in sight", func(*stage) error { return mountProc() }},
	{"cgroup files", with(grouped), "mounted from inside the cgroup namespace", (*stage).cgroupFiles},
	{"pivot", always, "from here on no path leads to the host", (*stage).pivot},
	{"hostname", always, "while CAP_SYS_ADMIN is held", func(s *stage) error { return unix.Sethostname([]byte(s.spec.Name)) }},
	{"network", always, "loopback up, while CAP_NET_ADMIN is held", (*stage).network},
	{"egress", with(reaching), "after loopback is up, while CAP_NET_ADMIN is held; nothing inside can change it later", (*stage).openWays},
	{"nested namespaces", without(userNS), "written before /proc/sys becomes read-only", (*stage).noNestedNamespaces},
	{"nested namespaces", with(userNS), "written before /proc/sys becomes read-only", (*stage).boundNestedNamespaces},
	{"counts", always, "written before /proc/sys becomes read-only", (*stage).boundCounts},
	{"mask", always, "after the last write below /proc", func(*stage) error { return maskProc() }},
	{"read-only root", always, "after the last file was made in it", (*stage).readOnlyRoot},
	{"descriptors", always, "nothing of the broker may be left open", (*stage).descriptors},
	{"resource limits", always, "inherited by every command", (*stage).resourceLimits},
	{"resource limits", without(grouped), "used instead of the limits of control groups", (*stage).ungroupedLimits},
	{"capabilities", without(oneID), "after the last privileged step", func(s *stage) error { return s.capabilities(kept) }},
	{"capabilities", with(oneID), "after the last privileged step; it needs none", func(s *stage) error { return s.capabilities(nil) }},
	{"no new privileges", always, "Landlock and seccomp require it", func(*stage) error { return drop.NewPrivileges() }},
	{
		"landlock", without(nestedMounts), "before seccomp, which could refuse its calls one day; under it nobody mounts (landlock(7))",
		(*stage).landlock,
	},
	{"not dumpable", always, "before commands exist: none may look into the executor", (*stage).notDumpable},
	{"seccomp", always, "last of what restricts, as it refuses what the steps above use", (*stage).seccomp},
	{
		"watched sockets", without(userNS),
		"on the commands' thread alone, as the executor makes some of them; a network made inside is not the executor's, and so is not watched",
		(*stage).watchSockets,
	},
	{
		"listen", with(rootful),
		"the kernel shows the ids of whoever listens to those who connect, and they may as soon as the start is reported", (*stage).listen,
	},
}

// Enter carries out spec, proves it, reports to the broker and waits for its verdict. It
// must run first in the process, on its first thread. The thread it returns is in the commands' groups;
// commands must be started from it. After an error the process must end.
func Enter(spec *Spec) (*Thread, error) {
	s := &stage{spec: spec, spawner: NewThread(), status: os.NewFile(uintptr(spec.FDs.Status), "status")}
	s.answers = bufio.NewReader(s.status)
	defer s.status.Close()
	unix.CloseOnExec(spec.FDs.Status)
	// For ps on the host: by exec it is named after a descriptor.
	if name, err := unix.BytePtrFromString("carrel-executor"); err == nil {
		_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0) // cosmetic
	}
	holds := spec.conditions()
	for _, st := range steps {
		if !st.when.holds(holds) {
			continue
		}
		crashpoint.Here("executor.stage.step")
		if err := st.run(s); err != nil {
			err = fmt.Errorf("cannot enter the workspace: step %q: %w", st.name, err)
			_ = s.send(Progress{Step: st.name, Error: err.Error()})
			return nil, err
		}
	}
	// No restriction follows: the broker sees from outside now what it would see later, and need not
	// wait for the self-check.
	if err := s.send(Progress{Confined: true}); err != nil {
		return nil, fmt.Errorf("cannot report to the broker: %w", err)
	}
	findings, err := s.prove()
	if err != nil {
		_ = s.send(Progress{Step: "self-check", Error: err.Error()})
		return nil, err
	}
	s.sockets.proved()
	crashpoint.Here("executor.stage.proved")
	return s.spawner, s.ask(Progress{Findings: findings})
}

func (s *stage) send(p Progress) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	_, err = s.status.Write(append(b, '\n'))
	return err
}

// ask reports p and waits for the broker to allow the next thing.
func (s *stage) ask(p Progress) error {
	if err := s.send(p); err != nil {
		return fmt.Errorf("cannot report to the broker: %w", err)
	}
	return s.verdict()
}

// verdict waits for the broker to allow the next thing.
func (s *stage) verdict() error {
	line, err := s.answers.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("cannot read the broker's verdict: %w", err)
	}
	var v Verdict
	if err := json.Unmarshal(line, &v); err != nil {
		return fmt.Errorf("cannot read the broker's verdict: %w", err)
	}
	if !v.Go {
		return errors.New("the broker refused the workspace")
	}
	return nil
}

// mapOwnID maps the caller's id to itself, which a process may do for its own
// (user_namespaces(7)).
func (s *stage) mapOwnID() error {
	id := s.spec.IDs.Work
	return errors.Join(
		writeFile("/proc/self/setgroups", "deny"), // or the kernel lets nobody without root map a group
		writeFile("/proc/self/uid_map", fmt.Sprintf("%d %d 1", id, id)),
		writeFile("/proc/self/gid_map", fmt.Sprintf("%d %d 1", id, s.spec.CallerGID)),
	)
}

// takeIDs takes the executor's ids once they are mapped from outside.
func (s *stage) takeIDs() error {
	if err := s.verdict(); err != nil {
		return err
	}
	// On every thread, which package syscall sees to.
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(0, 0, 0), syscall.Setresuid(0, 0, 0)); err != nil {
		return fmt.Errorf("cannot take the executor's ids: %w", err)
	}
	// A change of ids undoes both (prctl(2)): it ends with the process that started it, and that
	// process reads its /proc.
	return errors.Join(
		unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0),
		unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0),
	)
}

func (s *stage) propagation() error {
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}

// onSpawner runs f on the thread that starts commands.
func (s *stage) onSpawner(f func() error) (err error) {
	s.spawner.Do(func() { err = f() })
	return err
}

// cgroupNamespace moves the spawner thread into the v1 groups of the commands, by the
// `tasks` file: a thread that moves itself costs no grace period of the kernel.
func (s *stage) cgroupNamespace() error {
	return s.onSpawner(func() error {
		for i, fd := range s.spec.FDs.V1Tasks {
			if _, err := unix.Write(fd, []byte("0")); err != nil {
				return fmt.Errorf("cannot join the commands' group of %s: %w", s.spec.Cgroup.V1[i], err)
			}
		}
		return unix.Unshare(unix.CLONE_NEWCGROUP)
	})
}

func (s *stage) cgroupMove() error {
	for _, fd := range s.spec.FDs.Give {
		if err := give(fd); err != nil {
			return fmt.Errorf("cannot give a control group to the executor: %w", err)
		}
	}
	if s.spec.FDs.SupProcs < 0 {
		return nil
	}
	if _, err := unix.Write(s.spec.FDs.SupProcs, []byte("0")); err != nil {
		return fmt.Errorf("cannot move to the supervisor's group: %w", err)
	}
	return s.ask(Progress{Moved: true})
}

// give lets the executor's gid write a file that its user made. The user stays the owner and can
// remove it. In the other order, others of the user's group could write it for a moment.
func give(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := unix.Fchown(fd, -1, 0); err != nil {
		return err
	}
	return unix.Fchmod(fd, st.Mode&0o777|0o020)
}

// cgroupFiles shows the workspace's own groups, read-only, where tools look for their
// limits: v2 at /sys/fs/cgroup, or v1 hierarchies below it.
func (s *stage) cgroupFiles() error {
	return s.onSpawner(func() error {
		if len(s.spec.Cgroup.V1) == 0 {
			return mountFresh("cgroup2", "/sys/fs/cgroup", readOnly|unix.MOUNT_ATTR_NOEXEC)
		}
		for _, h := range s.spec.Cgroup.V1 {
			var options []string
			for c := range strings.SplitSeq(h, ",") {
				options = append(options, c, "")
			}
			if err := mountFresh("cgroup", "/sys/fs/cgroup/"+h, readOnly|unix.MOUNT_ATTR_NOEXEC, options...); err != nil {
				return err
			}
		}
		return nil
	})
}

// pivot makes newRoot the root and unmounts the host's. pivot_root(".", ".") stacks the
// old root over the new one, where it is unmounted without a directory for it.
func (s *stage) pivot() error {
	if err := unix.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("cannot pivot: %w", err)
	}
	if err := unix.Mount("", ".", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("cannot let go of the host's root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	// A working directory outside the new root would read as "(unreachable)".
	if wd, err := os.Getwd(); err != nil || wd != "/" {
		return fmt.Errorf("cannot trust the working directory: it is %q: %w", wd, err)
	}
	return nil
}

func (s *stage) network() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("cannot bring loopback up: %w", err)
	}
	if s.spec.Net.LowPorts {
		return writeFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
	}
	return nil
}

func (s *stage) noNestedNamespaces() error {
	return writeFile("/proc/sys/user/max_user_namespaces", "0")
}

// boundNestedNamespaces bounds those that are made inside. They count for the user who owns this
// one too, up to the host's own bounds.
func (s *stage) boundNestedNamespaces() error {
	for _, kind := range []string{"user", "mnt", "pid", "ipc", "uts", "net", "cgroup", "time"} {
		err := writeFile("/proc/sys/user/max_"+kind+"_namespaces", strconv.Itoa(nestedMax))
		if err != nil && (kind != "time" || !errors.Is(err, unix.ENOENT)) { // Linux 5.6
			return err
		}
	}
	return nil
}

// nestedMax is how many namespaces of each kind may be made where they may be. A browser makes
// one or two for each tab.
const nestedMax = 256

// counts bound what the kernel counts for each id in the namespace. The host's own limits, for each
// workspace, hold too.
var counts = []struct {
	name string // below /proc/sys/user
	most int
	// optional: a kernel may lack it.
	optional bool
}{
	{"max_inotify_instances", 128, false},   // as the kernel's own default for a user
	{"max_inotify_watches", 1 << 16, false}, // a large source tree; each holds about 1 KiB of the kernel's memory
	{"max_fanotify_groups", 0, true},        // Linux 5.13; the filter refuses fanotify
	{"max_fanotify_marks", 0, true},
}

func (s *stage) boundCounts() error {
	for _, c := range counts {
		err := writeFile("/proc/sys/user/"+c.name, strconv.Itoa(c.most))
		if err != nil && (!c.optional || !errors.Is(err, unix.ENOENT)) {
			return err
		}
	}
	return nil
}

func writeFile(path, value string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open %s: %w", path, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return fmt.Errorf("cannot write %q to %s: %w", value, path, err)
	}
	return nil
}

func (s *stage) readOnlyRoot() error {
	return unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

// descriptors closes all but stdio, the status socket, the listener, the commands' groups and
// where a thread joins those, and marks those close-on-exec. The runtime's own, made close-on-exec before
// main, are those that are open below and are an epoll or event descriptor.
func (s *stage) descriptors() error {
	keep := append([]int{s.spec.FDs.Status, s.spec.FDs.Listener, s.spec.FDs.Cmd}, s.spec.FDs.Peers...)
	keep = append(keep, s.spec.FDs.V1Tasks...)
	open, err := descriptors()
	if err != nil {
		return err
	}
	var b [64]byte // longer than the names that matter
	for _, fd := range open {
		n, _ := unix.Readlink("/proc/self/fd/"+strconv.Itoa(fd), b[:]) // what has no name is closed
		link := string(b[:max(n, 0)])
		if slices.Contains(keep, fd) || link == "anon_inode:[eventpoll]" || link == "anon_inode:[eventfd]" {
			unix.CloseOnExec(fd)
			continue
		}
		unix.Close(fd)
	}
	return nil
}

// rlimits that are not a limit of the workspace's own.
var rlimits = []struct {
	resource int
	value    uint64
}{
	{unix.RLIMIT_CORE, CoreLimit},
	{unix.RLIMIT_MEMLOCK, 8 << 20}, // as the kernel's own default
	{unix.RLIMIT_MSGQUEUE, msgQueue},
	{unix.RLIMIT_SIGPENDING, sigPending},
	{unix.RLIMIT_NICE, 0},
	{unix.RLIMIT_RTPRIO, 0},
}

// These are counted for an id: four POSIX queues of the default size, and signals and timers.
const (
	msgQueue   = 400 << 10
	sigPending = 1 << 10
)

func setLimit(resource int, v uint64) error {
	var old unix.Rlimit
	if err := unix.Getrlimit(resource, &old); err != nil {
		return err
	}
	v = min(v, old.Max) // raising takes a right that the namespace does not have
	// syscall's and not unix's: os would restore its own idea of NOFILE in children.
	if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: v, Max: v}); err != nil {
		return fmt.Errorf("cannot set resource limit %d to %d: %w", resource, v, err)
	}
	return nil
}

func (s *stage) resourceLimits() error {
	for _, r := range rlimits {
		if err := setLimit(r.resource, r.value); err != nil {
			return err
		}
	}
	return setLimit(unix.RLIMIT_NOFILE, uint64(s.spec.Limits.OpenFiles))
}

// ungroupedLimits are used instead of the groups' limits. The first is counted for the id in this
// user namespace, threads and the executor's own included; the second is for each process.
func (s *stage) ungroupedLimits() error {
	if err := setLimit(unix.RLIMIT_NPROC, uint64(s.spec.Limits.Pids)+OwnThreads); err != nil {
		return err
	}
	return setLimit(unix.RLIMIT_DATA, uint64(s.spec.Limits.MemoryBytes))
}

// OwnThreads is how many threads an executor that shares its commands' id may have beyond
// their limit: a Go process that cannot make a thread ends.
const OwnThreads = 48

func (s *stage) capabilities(kept []int) error {
	if err := lockSecureBits(); err != nil {
		return err
	}
	if err := dropForCommands(); err != nil {
		return err
	}
	if err := s.onSpawner(dropForCommands); err != nil {
		return err
	}
	return drop.Capabilities(kept...)
}

func (s *stage) notDumpable() error {
	return drop.Dumps()
}

// backlog is more than the daemon needs: it has two connections.
const backlog = 16

func (s *stage) listen() error {
	return unix.Listen(s.spec.FDs.Listener, backlog)
}

func (s *stage) seccomp() error {
	o, holds := &s.spec.Seccomp, s.spec.conditions()
	o.OneID, o.UserNS, o.Mounts, o.IOUring = holds&oneID != 0, holds&userNS != 0, holds&nestedMounts != 0, holds&ioUring != 0
	p, err := seccomp.Filter(*o)
	if err != nil {
		return err
	}
	if err := seccomp.Load(p); err != nil && !s.spec.gives("seccomp") {
		return err
	}
	return nil
}
