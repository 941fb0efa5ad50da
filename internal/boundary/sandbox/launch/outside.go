package launch

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/oom"
)

// namespaces are read from outside: a namespace is held if it is not the broker's.
var namespaces = []struct{ file, control string }{
	{"user", "user-namespace"},
	{"mnt", "mount-namespace"},
	{"pid", "pid-namespace"},
	{"ipc", "ipc-namespace"},
	{"uts", "uts-namespace"},
	{"net", "net-namespace"},
}

// identity is what the kernel shows from outside of an executor's ids.
type identity struct {
	gid uint32
	// owner is whose the user namespace is.
	owner uint32
	// uids and gids are the maps of its user namespace, its blanks joined.
	uids, gids string
	// caps are its permitted capabilities, in its own user namespace.
	caps string
	// groups: supplementary groups stay.
	groups bool
	// said is what the report says of the ids.
	said string
}

// keptCaps are KILL, SETGID and SETUID: bits 5, 6 and 7.
const keptCaps, noCaps = "00000000000000e0", "0000000000000000"

// identities are what is expected, by who has which ids.
var identities = map[sandbox.IDScheme]func(*sandbox.Spec) identity{
	sandbox.OwnIDs: func(s *sandbox.Spec) identity {
		ids := fmt.Sprintf("0 %d 1 %d %d 2", s.IDs.Executor, s.IDs.Work, s.IDs.Work)
		return identity{gid: s.IDs.Executor, owner: s.IDs.Agent, uids: ids, gids: ids, caps: keptCaps}
	},
	sandbox.CallersID: func(s *sandbox.Spec) identity {
		x, g := s.IDs.Executor, uint32(os.Getgid())
		return identity{
			gid: g, owner: x, uids: fmt.Sprintf("%d %d 1", x, x), gids: fmt.Sprintf("%d %d 1", x, g), caps: noCaps,
			groups: true, said: fmt.Sprintf("executor and commands share the caller's uid %d", x),
		}
	},
	sandbox.RangeIDs: func(s *sandbox.Spec) identity {
		x, w, a := s.IDs.Executor, s.IDs.Work, s.IDs.Agent
		return identity{
			gid: s.ExecutorGID, owner: uint32(os.Geteuid()), caps: keptCaps,
			uids: fmt.Sprintf("0 %d 1 %d %d 1 %d %d 1", x, w, os.Geteuid(), a, a),
			gids: fmt.Sprintf("0 %d 1 %d %d 1 %d %d 1", s.ExecutorGID, w, os.Getegid(), a, s.AgentGID),
			said: fmt.Sprintf("the executor has uid %d of a range of the caller's, commands the caller's uid %d", x, w),
		}
	},
}

// Outside looks at a started executor through the host's /proc, which nothing inside
// can change.
func Outside(pid int, spec sandbox.Spec) []sandbox.Finding {
	proc := "/proc/" + strconv.Itoa(pid) + "/"
	var found []sandbox.Finding
	add := func(control string, ok bool, format string, a ...any) {
		found = append(found, sandbox.Finding{Control: control, OK: ok, Evidence: "outside: " + fmt.Sprintf(format, a...)})
	}
	for _, ns := range namespaces {
		own, err1 := readLink("/proc/self/ns/" + ns.file)
		theirs, err2 := readLink(proc + "ns/" + ns.file)
		add(ns.control, err1 == nil && err2 == nil && own != theirs, "%s, the host has %s", theirs, own)
	}

	who := identities[spec.IDScheme()](&spec)
	owner, err := namespaceOwner(proc + "ns/user")
	add("counts", err == nil && owner == who.owner, "the user namespace is uid %d's, for whom its counts are added up", owner)

	// A broker that may not lower its own value has found nothing out: the control is unavailable.
	if own, err := oom.Of(os.Getpid()); spec.Mode == sandbox.Rootful && err == nil && own < 0 {
		score, err := oom.Of(pid)
		add("oom-order", err == nil && score == oom.Executor, "oom_score_adj of the executor is %d; commands have %d", score, oom.Command)
		add("oom-order", true, "oom_score_adj of the broker is %d", own)
	}

	status, err := readFile(proc + "status")
	if err != nil {
		add("ids", false, "cannot read status: %v", err)
		return found
	}
	fields := map[string]string{}
	for line := range strings.Lines(status) {
		if k, v, ok := strings.Cut(line, ":"); ok {
			fields[k] = strings.TrimSpace(v)
		}
	}
	want := func(control, field, value string) {
		add(control, fields[field] == value, "%s %s", field, fields[field])
	}
	switch {
	case who.groups:
		// An ordinary user can neither drop groups nor use them for what the workspace shows.
		add("ids", true, "%s; its groups %s stay, unmapped", who.said, fields["Groups"])
	case who.said != "":
		add("ids", true, "%s", who.said)
		fallthrough
	default:
		want("ids", "Groups", "")
	}
	x, g := strconv.FormatUint(uint64(spec.IDs.Executor), 10), strconv.FormatUint(uint64(who.gid), 10)
	want("ids", "Uid", strings.Join([]string{x, x, x, x}, "\t"))
	want("ids", "Gid", strings.Join([]string{g, g, g, g}, "\t"))
	want("capabilities", "CapPrm", who.caps)
	want("capabilities", "CapBnd", "0000000000000000")
	want("capabilities", "CapAmb", "0000000000000000")
	want("no-new-privileges", "NoNewPrivs", "1")
	want("seccomp", "Seccomp", "2")
	for m, w := range map[string]string{"uid_map": who.uids, "gid_map": who.gids} {
		b, err := readFile(proc + m)
		got := strings.Join(strings.Fields(b), " ")
		add("user-namespace", err == nil && got == w, "%s %s", m, got)
	}
	found = append(found, spawners(proc, spec)...)
	return append(found, mounts(proc, spec)...)
}

// namespaceOwner is the user who made a namespace.
func namespaceOwner(path string) (uid uint32, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.NS_GET_OWNER_UID, uintptr(unsafe.Pointer(&uid))); e != 0 {
		return 0, fmt.Errorf("cannot read who made the namespace: %w", e)
	}
	return uid, nil
}

// spawners checks that exactly one of the executor's threads, the one that starts commands,
// is in the commands' group of each v1 hierarchy. Inside, a group reads as "/" wherever
// the namespace was made.
func spawners(proc string, spec sandbox.Spec) []sandbox.Finding {
	if len(spec.Cgroup.V1) == 0 {
		return nil
	}
	tasks, err := os.ReadDir(proc + "task")
	in := make([]int, len(spec.Cgroup.V1))
	cmd := "/" + string(spec.Name) + "/cmd"
	for _, t := range tasks {
		groups, rerr := readFile(proc + "task/" + t.Name() + "/cgroup")
		if rerr != nil {
			continue // a thread that ended meanwhile
		}
		for line := range strings.Lines(groups) {
			// 4:memory:/carrel/ws-2a97516c/cmd
			_, line, _ = strings.Cut(strings.TrimSpace(line), ":")
			controllers, path, _ := strings.Cut(line, ":")
			if i := slices.Index(spec.Cgroup.V1, controllers); i >= 0 && strings.HasSuffix(path, cmd) {
				in[i]++
			}
		}
	}
	var found []sandbox.Finding
	for i, hierarchy := range spec.Cgroup.V1 {
		for control := range strings.SplitSeq(hierarchy, ",") {
			found = append(found, sandbox.Finding{
				Control: control, OK: err == nil && in[i] == 1,
				Evidence: fmt.Sprintf("outside: %d of %d threads is in cmd of %s, where commands are born", in[i], len(tasks), hierarchy),
			})
		}
	}
	return found
}

// table reads the mount table of a process.
func table(proc string) ([]sandbox.Mount, error) {
	text, err := readFile(proc + "mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot read mountinfo: %w", err)
	}
	var seen []sandbox.Mount
	for line := range strings.Lines(text) {
		// 36 35 98:0 /root /point options … - type source super (proc_pid_mountinfo(5))
		left, right, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if !ok || len(f) < 6 || len(g) < 2 {
			return nil, fmt.Errorf("cannot understand %q", line)
		}
		seen = append(seen, sandbox.Mount{
			Point: unescape(f[4]), Root: f[3], Type: g[0], Options: strings.Split(f[5], ","), Super: strings.Split(g[len(g)-1], ","),
		})
	}
	if len(seen) == 0 {
		return nil, errors.New("no mounts are listed")
	}
	return seen, nil
}

// mounts holds the mount table of the workspace against what may be there.
func mounts(proc string, spec sandbox.Spec) []sandbox.Finding {
	bad := func(why string) []sandbox.Finding {
		return []sandbox.Finding{{Control: "mounts", Evidence: "outside: " + why}}
	}
	seen, err := table(proc)
	if err != nil {
		return bad(err.Error())
	}
	expected := sandbox.Expect(&spec)
	for _, m := range seen {
		if msg := expected.Unexpected(m); msg != "" {
			return bad(msg)
		}
	}
	found := []sandbox.Finding{{
		Control: "mounts", OK: true, Evidence: fmt.Sprintf("outside: %d mounts, each one of the table and as restricted as it says", len(seen)),
	}}
	for _, p := range sandbox.ProjectFindings(spec.Mode, seen, spec.Projects) {
		p.Evidence = "outside: " + p.Evidence
		found = append(found, p)
	}
	return found
}

// unescape undoes what the kernel does to space, tab, newline and backslash in a path.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// readFile reads a file of /proc, without what package os prepares for files of other
// kinds: a start reads some twenty.
func readFile(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var all strings.Builder
	var chunk [8 << 10]byte
	for {
		n, err := unix.Read(fd, chunk[:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return "", &os.PathError{Op: "read", Path: path, Err: err}
		case n == 0:
			return all.String(), nil
		default:
			all.Write(chunk[:n])
		}
	}
}

func readLink(path string) (string, error) {
	var b [64]byte
	n, err := unix.Readlink(path, b[:])
	if err != nil {
		return "", &os.PathError{Op: "readlink", Path: path, Err: err}
	}
	return string(b[:n]), nil
}
