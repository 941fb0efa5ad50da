package cgroup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// owned is what an instance of an ordinary user has in addition to its hierarchy.
type owned struct {
	// parked: this process has left the group above the instance's for one in it, and handed
	// controllers down there.
	parked bool
	left   error
}

// Left says what a killed process left beside the instance that could not be removed.
func (in *Instance) Left() error {
	if in.of == nil {
		return nil
	}
	return in.of.left
}

// self is the group, in the instance's, of a process that is parked. No workspace has the name.
const self = "self"

const ownedPrefix = "carrel-"

// ownedName names the group of a process: by its pid and when it started, in clock ticks since
// the boot.
func ownedName(pid int, start uint64) string {
	return ownedPrefix + strconv.Itoa(pid) + "-" + strconv.FormatUint(start, 10)
}

func parseOwned(name string) (pid int, start uint64, ok bool) {
	rest, ok := strings.CutPrefix(name, ownedPrefix)
	p, s, ok2 := strings.Cut(rest, "-")
	pid, err1 := strconv.Atoi(p)
	start, err2 := strconv.ParseUint(s, 10, 64)
	return pid, start, ok && ok2 && err1 == nil && err2 == nil && pid > 0 && ownedName(pid, start) == name
}

// startOf reads when a process started, field 22 of /proc/PID/stat; ok is false for a process that
// has ended.
func startOf(pid int) (start uint64, ok bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	// The name, in parentheses, may hold anything.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return 0, false
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return start, err == nil
}

// settle makes the instance's group in its root, and hands controllers down to it.
func (in *Instance) settle(at string) error {
	start, ok := startOf(os.Getpid())
	if !ok {
		return fmt.Errorf("cannot read when this process started: %w", errdefs.ErrInternal)
	}
	h := in.v2
	in.name = ownedName(os.Getpid(), start)
	h.path = path.Join(at, in.name)
	if err := unix.Mkdirat(int(h.root), in.name, 0o755); err != nil {
		in.name = "" // it is not ours to remove
		return &os.PathError{Op: "mkdir", Path: h.path, Err: err}
	}
	var err error
	if h.dir, err = h.root.open(in.name); err != nil {
		return err
	}
	// Until this process has ended, and a child that it has just forked has closed its files.
	if err := unix.Flock(int(h.dir), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("cannot lock %s: %w", h.path, err)
	}
	if in.of.parked {
		if err := in.park(); err != nil {
			return err
		}
	}
	return h.dir.write("cgroup.subtree_control", strings.Join(h.handedDown(), " "))
}

func (in *Instance) park() error {
	h := in.v2
	s, err := h.dir.make(self)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.write("cgroup.procs", "0"); err != nil {
		return err
	}
	return h.root.write("cgroup.subtree_control", strings.Join(h.handedDown(), " "))
}

// unpark undoes park. It is no error if this process is not parked.
func (in *Instance) unpark() error {
	h := in.v2
	if h.dir < 0 {
		return nil
	}
	back := strings.ReplaceAll(strings.Join(h.handedDown(), " "), "+", "-")
	for _, d := range []dirFD{h.dir, h.root} {
		if err := d.write("cgroup.subtree_control", back); err != nil {
			return err
		}
	}
	if err := h.root.write("cgroup.procs", "0"); err != nil {
		return err
	}
	return removeTree(h.dir, self, 0)
}

// bound applies the lowest limits of the groups that are passed over to the instance: a limit on
// the caller's group was meant for what is started from it.
func (in *Instance) bound(point string, over []candidate) error {
	for _, file := range []string{"memory.max", "memory.swap.max", "pids.max"} {
		least := int64(-1)
		for _, c := range over {
			fd, err := openat(unix.AT_FDCWD, path.Join(point, c.path), openDir)
			if err != nil {
				return err
			}
			n := dirFD(fd).number(file, "")
			dirFD(fd).close()
			if n >= 0 && (least < 0 || n < least) {
				least = n
			}
		}
		if least < 0 {
			continue
		}
		if err := in.v2.dir.write(file, strconv.FormatInt(least, 10)); err != nil {
			return err
		}
	}
	least, value := math.Inf(1), ""
	for _, c := range over {
		if quota, text := cpuMax(path.Join(point, c.path)); quota < least {
			least, value = quota, text
		}
	}
	if value == "" || !in.v2.has(CPU) {
		return nil
	}
	return in.v2.dir.write("cpu.max", value)
}

// cpuMax reads how many processors' time a group may use, and how the kernel writes that: a
// quota and a period, or "max" instead of a quota.
func cpuMax(dir string) (processors float64, text string) {
	b, err := os.ReadFile(path.Join(dir, "cpu.max"))
	f := strings.Fields(string(b))
	if err != nil || len(f) != 2 {
		return math.Inf(1), ""
	}
	quota, err1 := strconv.ParseFloat(f[0], 64)
	period, err2 := strconv.ParseFloat(f[1], 64)
	if err1 != nil || err2 != nil || period <= 0 { // max
		return math.Inf(1), ""
	}
	return quota / period, strings.Join(f, " ")
}

// removeOwned removes the instance's group.
func (in *Instance) removeOwned() error {
	var err error
	if in.of.parked {
		err = in.unpark()
	}
	if in.name != "" && err == nil {
		err = removeTree(in.v2.root, in.name, 0)
	}
	if err != nil {
		err = fmt.Errorf("cannot remove the control group %s: %w", in.v2.path, err)
	}
	in.Close()
	return err
}

// sweepWait bounds the wait for the end of processes that a killed process left.
const sweepWait = 2 * time.Second

// sweep removes from base the groups of the caller's processes that were killed, and ends the
// processes in them. It leaves groups of other users and of live processes alone.
func sweep(base dirFD) error {
	names, err := base.groups()
	for _, name := range names {
		pid, start, ok := parseOwned(name)
		if !ok {
			continue
		}
		if now, lives := startOf(pid); lives && now == start {
			continue
		}
		if e := sweepOne(base, name); e != nil {
			err = errors.Join(err, fmt.Errorf("cannot remove the control group %s, which a process that was killed left: %w", name, e))
		}
	}
	return err
}

func sweepOne(base dirFD, name string) error {
	d, err := base.open(name)
	if isNotExist(err) {
		return nil // another was faster
	}
	if err != nil {
		return err
	}
	defer d.close()
	var st unix.Stat_t
	if err := unix.Fstat(int(d), &st); err != nil || int(st.Uid) != os.Geteuid() {
		return err
	}
	// Its process may be invisible from here, in a pid namespace of its own.
	if err := unix.Flock(int(d), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	} else if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), sweepWait)
	defer cancel()
	err = d.killAll()
	if err == nil {
		err = d.await(ctx, "populated 0")
	}
	if err == nil {
		err = removeTree(base, name, 0)
	}
	if isNotExist(err) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// lendable opens the files that an executor with another id than the caller's must write, so that
// the executor gives them to its own group: the caller cannot.
func (f *Files) lendable(own, c dirFD) error {
	for _, g := range []struct {
		dir   dirFD
		name  string
		flags int
	}{
		{own, "cgroup.procs", unix.O_WRONLY},
		{c, ".", unix.O_RDONLY | unix.O_DIRECTORY},
		{c, "cgroup.procs", unix.O_WRONLY},
		{c, "cgroup.subtree_control", unix.O_WRONLY},
	} {
		file, err := g.dir.openFile(g.name, g.flags)
		if err != nil {
			return err
		}
		f.Give = append(f.Give, file)
	}
	return nil
}
