package probe

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/image"
)

func mounts() cgroup.Mounts {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return cgroup.Mounts{}
	}
	return cgroup.ParseMounts(string(b))
}

// tryCgroups makes a group in every hierarchy and removes it.
func tryCgroups(*Config) (State, string, string) {
	m := mounts()
	layout := "v2"
	switch {
	case m.V2 == "" && len(m.V1) == 0:
		return No, "no control groups are mounted", "mount -t cgroup2 none /sys/fs/cgroup"
	case m.V2 == "":
		layout = "v1"
	case len(m.V1) > 0:
		layout = "hybrid: v1 and v2 at " + m.V2
	}
	if os.Geteuid() != 0 {
		return Partly, layout + "; not tried without root", "run carrel doctor as root to know"
	}
	points := []string{}
	if m.V2 != "" {
		points = append(points, m.V2)
	}
	for _, v := range m.V1 {
		if v.Has(cgroup.Memory) || v.Has(cgroup.Pids) || v.Has(cgroup.CPU) {
			points = append(points, v.Point)
		}
	}
	for _, p := range points {
		sweepProbes(p)
		dir := filepath.Join(p, fmt.Sprintf("%s%d", probeGroup, os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return No, fmt.Sprintf("cannot make a group in %s: %v", p, errors.Unwrap(err)), "mount -o remount,rw " + p
		}
		_, kill := os.Stat(filepath.Join(dir, "cgroup.kill"))
		if err := os.Remove(dir); err != nil && !os.IsNotExist(err) { // from another place in the tree of processes it may look left
			return No, fmt.Sprintf("cannot remove a group in %s: %v", p, errors.Unwrap(err)), "rmdir " + dir
		}
		if p == m.V2 && kill != nil {
			return No, "no cgroup.kill in " + p, upgrade
		}
	}
	return Yes, layout, ""
}

// probeGroup is what the names of groups begin with that are made to see that it can be done. The number of the process follows.
const probeGroup = "carrel-probe-"

// sweepProbes removes what processes left that were killed in between, which would be in the way of the next one with that number.
func sweepProbes(point string) {
	all, err := os.ReadDir(point)
	if err != nil {
		return
	}
	for _, e := range all {
		rest, is := strings.CutPrefix(e.Name(), probeGroup)
		pid, err := strconv.Atoi(rest)
		if is && err == nil && pid > 0 && (pid == os.Getpid() || errors.Is(unix.Kill(pid, 0), unix.ESRCH)) {
			_ = os.Remove(filepath.Join(point, e.Name())) // only an empty one goes
		}
	}
}

// tryController finds a controller where a workspace would: in v1 if it is mounted
// there, else in v2 handed down by the root group.
func tryController(name string) func(*Config) (State, string, string) {
	return func(*Config) (State, string, string) {
		m := mounts()
		for _, v := range m.V1 {
			if v.Has(cgroup.Controller(name)) {
				return Yes, "v1 at " + v.Point, ""
			}
		}
		if m.V2 == "" {
			return No, "no v1 hierarchy has it and v2 is not mounted", "boot with systemd.unified_cgroup_hierarchy=1"
		}
		has := func(file string) bool {
			b, err := os.ReadFile(filepath.Join(m.V2, file))
			return err == nil && slices.Contains(strings.Fields(string(b)), name)
		}
		switch {
		case !has("cgroup.controllers"):
			return No, "v2 does not have it", "boot without cgroup_disable=" + name
		case !has("cgroup.subtree_control"):
			return No, "v2 has it and the root group does not hand it down", fmt.Sprintf("echo +%s > %s",
				name, filepath.Join(m.V2, "cgroup.subtree_control"))
		}
		return Yes, "v2 at " + m.V2, ""
	}
}

func trySwap(*Config) (State, string, string) {
	swaps, err := os.ReadFile("/proc/swaps")
	if err == nil && strings.Count(string(swaps), "\n") <= 1 {
		return Yes, "this host has no swap", ""
	}
	for _, v := range mounts().V1 {
		if !v.Has(cgroup.Memory) {
			continue
		}
		if _, err := os.Stat(filepath.Join(v.Point, "memory.memsw.limit_in_bytes")); err != nil {
			return No, "no memory.memsw.limit_in_bytes", "boot with swapaccount=1, or turn swap off: swapoff -a"
		}
	}
	return Yes, "swap is accounted", ""
}

func tryUseradd(*Config) (State, string, string) {
	for _, p := range []string{"/usr/sbin/useradd", "/usr/sbin/userdel", "/usr/sbin/groupadd"} {
		if err := unix.Access(p, unix.X_OK); err != nil {
			return No, p + ": " + err.Error(), "apt-get install passwd"
		}
	}
	return Yes, "useradd, userdel and groupadd are there", ""
}

// tryIDRange checks that no user, group or range for subordinate ids lies in the range.
func tryIDRange(c *Config) (State, string, string) {
	first, last := uint64(c.FirstID), uint64(c.FirstID)+uint64(c.IDs)-1
	const remedy = "set uid_first in broker.json to a range that nobody uses"
	for _, f := range []string{"/etc/subuid", "/etc/subgid"} {
		for fields := range colonFile(f) {
			if len(fields) != 3 {
				continue
			}
			start, err1 := strconv.ParseUint(fields[1], 10, 64)
			n, err2 := strconv.ParseUint(fields[2], 10, 64)
			if err1 == nil && err2 == nil && n > 0 && start <= last && start+n-1 >= first {
				return No, fmt.Sprintf("%s gives %s the ids %d to %d", f, fields[0], start, start+n-1), remedy
			}
		}
	}
	mine := 0
	for fields := range colonFile("/etc/passwd") {
		if len(fields) < 5 {
			continue
		}
		uid, err := strconv.ParseUint(fields[2], 10, 64)
		if err != nil || uid < first || uid > last {
			continue
		}
		if fields[4] != "carrel workspace" {
			return No, fmt.Sprintf("user %s has uid %d", fields[0], uid), remedy
		}
		mine++
	}
	return Yes, fmt.Sprintf("%d to %d, %d in use by workspaces", first, last, mine), ""
}

// colonFile yields the fields of each line of a file like /etc/passwd.
func colonFile(path string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		f, err := os.Open(path)
		if err != nil {
			return
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if !yield(strings.Split(s.Text(), ":")) {
				return
			}
		}
	}
}

func trySubuid(*Config) (State, string, string) {
	name, uid := caller()
	return subordinate(name, uid, "/etc/subuid", "/etc/subgid")
}

// caller is the user whose ids are looked for: the caller of sudo, or the user of this process. name
// is empty if the id has none; a name from the environment counts only if no other id has it.
func caller() (name, uid string) {
	if name = os.Getenv("SUDO_USER"); name != "" {
		if u, err := user.Lookup(name); err == nil {
			uid = u.Uid
		}
		return name, uid
	}
	uid = strconv.Itoa(os.Getuid())
	if u, err := user.LookupId(uid); err == nil {
		return u.Username, uid
	}
	name = os.Getenv("USER")
	if u, err := user.Lookup(name); err == nil && u.Uid != uid {
		name = ""
	}
	return name, uid
}

// subordinate looks for a user's lines, by name or number (subuid(5)).
func subordinate(name, uid string, files ...string) (State, string, string) {
	const least = 2 // as many as a workspace takes; see package rootless/subid
	who, remedy := name, fmt.Sprintf("usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s", name)
	entry := fmt.Sprintf("give uid %s an entry in passwd (useradd --no-create-home --uid %s NAME), without which newuidmap refuses it",
		uid, uid)
	if name == "" {
		who, remedy = "uid "+uid, fmt.Sprintf("%s, and: echo %s:100000:65536 | tee -a %s", entry, uid, strings.Join(files, " "))
	}
	for _, f := range files {
		found := false
		for fields := range colonFile(f) {
			if len(fields) != 3 || fields[0] == "" || fields[0] != name && fields[0] != uid {
				continue
			}
			n, err := strconv.ParseUint(fields[2], 10, 32)
			found = found || err == nil && n >= least
		}
		if !found {
			return No, fmt.Sprintf("%s gives %s no ids", f, who), remedy
		}
	}
	if name == "" {
		return No, who + " has subordinate ids and no entry in passwd", entry
	}
	return Yes, name + " has subordinate ids", ""
}

// tryNftables asks the kernel for the generation of its rules, which changes nothing.
func tryNftables(*Config) (State, string, string) {
	const load = "modprobe nf_tables"
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return No, "netlink: " + err.Error(), load
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}); err != nil {
		return No, "netlink: " + err.Error(), load
	}
	// A header (struct nlmsghdr) and struct nfgenmsg, in this machine's byte order.
	const subsysNftables, getGen = 10, 16 // linux/netfilter/nfnetlink.h, nf_tables.h
	msg := make([]byte, unix.SizeofNlMsghdr+4)
	*(*unix.NlMsghdr)(unsafe.Pointer(&msg[0])) = unix.NlMsghdr{
		Len: uint32(len(msg)), Type: subsysNftables<<8 | getGen,
		Flags: unix.NLM_F_REQUEST, Seq: 1,
	}
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return No, "netlink: " + err.Error(), load
	}
	reply := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, reply, 0)
	if err != nil || n < unix.SizeofNlMsghdr {
		return No, fmt.Sprintf("no answer from nf_tables: %v", err), load
	}
	h := (*unix.NlMsghdr)(unsafe.Pointer(&reply[0]))
	if h.Type == unix.NLMSG_ERROR && n >= unix.SizeofNlMsghdr+4 {
		errno := -*(*int32)(unsafe.Pointer(&reply[unix.SizeofNlMsghdr]))
		if unix.Errno(errno) == unix.EPERM {
			return Partly, "nf_tables: " + unix.EPERM.Error(), "run carrel doctor as root to know"
		}
		return No, "nf_tables: " + unix.Errno(errno).Error(), load
	}
	return Yes, "nf_tables answers", ""
}

// tryImage asks for what a file system in a file needs.
func tryImage(c *Config) (State, string, string) {
	for _, path := range []string{"/usr/sbin/mke2fs", "/sbin/mke2fs", "/usr/bin/mke2fs"} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		err := image.Ready()
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			return Partly, path + "; loop devices were not tried without root", "run carrel doctor as root to know"
		}
		if err != nil {
			return No, said(err), "modprobe loop ext4; in a container, give it /dev/loop-control and the loop devices"
		}
		if err := image.Grows(); err != nil {
			return Partly, path + ", loop devices and ext4; a limit cannot be raised: " + said(err),
				"give the broker CAP_SYS_RESOURCE, or archive and restore with a larger --disk"
		}
		var fs unix.Statfs_t
		if dir := nearest(c.DataDir); unix.Statfs(dir, &fs) == nil && fs.Type == unix.TMPFS_MAGIC {
			return Partly, dir + " is on a tmpfs: what is in an image counts as memory of its workspace", "put the data directory on a disk"
		}
		return Yes, path + ", loop devices and ext4", ""
	}
	return No, "there is no mke2fs", "apt-get install e2fsprogs"
}

// nearest is path or its first parent that exists.
func nearest(path string) string {
	for path != "/" {
		if _, err := os.Stat(path); err == nil {
			return path
		}
		path = filepath.Dir(path)
	}
	return path
}

// said is the text of an error without the kind at its end.
func said(err error) string {
	return strings.TrimSuffix(err.Error(), ": "+errdefs.ErrFailedPrecondition.Error())
}
