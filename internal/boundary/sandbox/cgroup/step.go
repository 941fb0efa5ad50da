package cgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Steps makes groups for single commands of the caller's, each below the group that the caller is in, so that limits of that one
// hold as well:
//
//	memory, pids, cpu (v1) ─ the caller's group ─ carrel-step-PID-START-N
//	v2                     ─ a group that is the caller's and hands controllers down ─ the same
//
// A group is the command's alone: it has no executor, and is removed with it.
type Steps struct {
	v1      []stepBase
	v2      dirFD // -1: v2 limits nothing here
	point   string
	over    []candidate
	have    []Controller
	missing []string
}

// stepBase is the group of v1 below which groups are made.
type stepBase struct {
	h   *hierarchy
	dir dirFD
}

// StepLimits are what one command may have with all that it starts. 0 is no bound.
type StepLimits struct {
	MemoryBytes, Pids int64
}

// Step is the group of one command, in each hierarchy that limits it.
type Step struct {
	of     *Steps
	name   string
	limits StepLimits

	mu sync.Mutex // Killed may be asked while it is removed
	v1 []dirFD
	v2 dirFD
}

const stepPrefix = "carrel-step-"

var stepNumber atomic.Uint64

// OpenSteps finds where groups of commands can be made. An error of kind not_found says why they cannot. What killed processes
// left there is removed.
func OpenSteps() (*Steps, error) {
	m, cgroups, err := mounted()
	if err != nil {
		return nil, err
	}
	return openSteps(m, cgroups, wanted)
}

func openSteps(m Mounts, cgroups string, need []Controller) (*Steps, error) {
	s := &Steps{v2: -1}
	for _, v := range m.V1 {
		var have []Controller
		for _, c := range controllers {
			if v.Has(c) && !v.Has("cpuset") {
				have = append(have, c)
			}
		}
		if len(have) == 0 {
			continue
		}
		h := &hierarchy{name: v.Name, have: have, path: path.Join(v.Point, groupOf(cgroups, v.Name))}
		dir, err := openat(unix.AT_FDCWD, h.path, openDir)
		if err == nil && unix.Faccessat(dir, ".", unix.W_OK, unix.AT_EACCESS) != nil {
			unix.Close(dir)
			err = fmt.Errorf("the %s group of this process, %s, is not delegated to you", v.Name, h.path)
		}
		if err != nil {
			s.missing = append(s.missing, err.Error())
			continue
		}
		s.v1, s.have = append(s.v1, stepBase{h, dirFD(dir)}), append(s.have, have...)
		sweepSteps(dirFD(dir))
	}
	if slices.ContainsFunc(need, func(c Controller) bool { return !slices.Contains(s.have, c) }) || len(need) == 0 {
		if err := s.openV2(m, cgroups, need); err != nil {
			s.missing = append(s.missing, err.Error())
		}
	}
	if lacks(texts(s.have), need) != "" || len(s.have) == 0 && s.v2 < 0 {
		why := strings.Join(s.missing, "; ")
		s.Close()
		return nil, errdefs.ErrNotFound.WithMessage(cmp.Or(why, "no controller of memory and processes is mounted"))
	}
	return s, nil
}

func texts(list []Controller) (out []string) {
	for _, c := range list {
		out = append(out, string(c))
	}
	return out
}

// groupOf is the path of this process's group in a v1 hierarchy (cgroups(7), /proc/PID/cgroup), "/" if it is not there.
func groupOf(cgroups, name string) string {
	for line := range strings.Lines(cgroups) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) == 3 && f[1] == name && path.Clean(f[2]) == f[2] && !strings.HasPrefix(f[2], "/..") {
			return f[2]
		}
	}
	return "/"
}

// openV2 finds a group of v2 that hands down already. One that this process would have to leave first is not taken: it is
// for a single command.
func (s *Steps) openV2(m Mounts, cgroups string, need []Controller) error {
	base, park, over, err := find(m, cgroups, need)
	if err != nil {
		return err
	}
	if park {
		return fmt.Errorf("the group %s hands nothing down, and this process would have to leave it: %w", base.path, errdefs.ErrNotFound)
	}
	fd, err := openat(unix.AT_FDCWD, path.Join(m.V2, base.path), openDir)
	if err != nil {
		return err
	}
	s.v2, s.point, s.over = dirFD(fd), m.V2, over
	for _, c := range controllers {
		if slices.Contains(base.enabled, string(c)) && !slices.Contains(s.have, c) {
			s.have = append(s.have, c)
		}
	}
	sweepSteps(s.v2)
	return nil
}

// Close closes the descriptors.
func (s *Steps) Close() {
	for _, b := range s.v1 {
		b.dir.close()
	}
	if s.v2 >= 0 {
		s.v2.close()
	}
	s.v1, s.v2 = nil, -1
}

// Make makes the group of a command. The caller must call Remove.
func (s *Steps) Make(l StepLimits) (*Step, error) {
	start, ok := startOf(os.Getpid())
	if !ok {
		return nil, fmt.Errorf("cannot make a control group: it is not known when this process started: %w", errdefs.ErrInternal)
	}
	g := &Step{of: s, limits: l, v2: -1, name: stepPrefix + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(start, 10) + "-" +
		strconv.FormatUint(stepNumber.Add(1), 10)}
	err := g.make()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make a control group for the command: %w", err), g.Remove(context.Background()))
	}
	return g, nil
}

func (g *Step) make() error {
	for _, b := range g.of.v1 {
		d, err := b.dir.make(g.name)
		if err != nil {
			return err
		}
		g.v1 = append(g.v1, d)
		if err := lockStep(d); err != nil {
			return err
		}
	}
	if g.of.v2 >= 0 {
		d, err := g.of.v2.make(g.name)
		if err != nil {
			return err
		}
		g.v2 = d
		if err := lockStep(d); err != nil {
			return err
		}
	}
	return g.Limit(g.limits)
}

// lockStep locks a group that was made: as long as that is so it is in use, also by a process that cannot be seen from where
// another one looks.
func lockStep(d dirFD) error { return unix.Flock(int(d), unix.LOCK_EX|unix.LOCK_NB) }

// Limit sets the limits of the group, for what is in it already too. A limit of 0 leaves the one that there is.
func (g *Step) Limit(l StepLimits) error {
	g.limits = l
	for i, d := range g.v1 {
		if err := g.write(d, g.of.v1[i].h.have, true); err != nil {
			return err
		}
	}
	if g.v2 < 0 {
		return nil
	}
	return g.write(g.v2, g.of.have, false)
}

// row is a file of the group with what is written to it.
type row struct {
	controller Controller
	file       string
	value      int64
	// optional: a kernel may lack the file.
	optional bool
}

// share is the share of the processor that a command has with all that it starts, against what runs in the groups beside its own:
// that of one group, however many processes it has.
const share = 100

// rows are what is written, in order: v1 wants limit_in_bytes before memsw, which must not be smaller.
func (g *Step) rows(v1 bool) []row {
	l := g.limits
	if v1 {
		return []row{
			{Memory, "memory.limit_in_bytes", l.MemoryBytes, false},
			{Memory, "memory.memsw.limit_in_bytes", l.MemoryBytes, true},
			{Memory, "memory.kmem.tcp.limit_in_bytes", sockets(l.MemoryBytes), true},
			{Pids, pidsMax, l.Pids, false},
			{CPU, "cpu.shares", shares(share), false},
		}
	}
	var swap int64
	if l.MemoryBytes > 0 {
		swap = -1 // none
	}
	return []row{
		{Memory, "memory.max", l.MemoryBytes, false},
		{Memory, "memory.swap.max", swap, true},
		{Memory, "memory.oom.group", 1, true},
		{Pids, pidsMax, l.Pids, false},
		{CPU, "cpu.weight", share, false},
	}
}

// write sets the limits of a group.
func (g *Step) write(d dirFD, have []Controller, v1 bool) error {
	for _, r := range g.rows(v1) {
		if !slices.Contains(have, r.controller) {
			continue
		}
		value := max(r.value, 0)
		if least := g.of.least(r.file); !v1 && least >= 0 {
			if r.value == 0 {
				value = least
			}
			value = min(value, least)
		} else if r.value == 0 {
			continue
		}
		if err := d.write(r.file, strconv.FormatInt(value, 10)); err != nil && !(r.optional && isNotExist(err)) {
			return err
		}
	}
	return nil
}

// least is the lowest limit of the groups that are passed over between the caller's and the one that is used, -1 if there is none.
func (s *Steps) least(file string) (least int64) {
	least = -1
	for _, c := range s.over {
		fd, err := openat(unix.AT_FDCWD, path.Join(s.point, c.path), openDir)
		if err != nil {
			continue
		}
		if n := dirFD(fd).number(file, ""); n >= 0 && (least < 0 || n < least) {
			least = n
		}
		dirFD(fd).close()
	}
	return least
}

// Fork runs f, which starts a process, so that the process is born in the groups of v1. It must be called on a thread that is
// locked to its goroutine. in is an open directory of v2 to clone into, or -1.
func (g *Step) Fork(f func(in int) error) (err error) {
	back := make([]*os.File, 0, len(g.v1))
	defer func() {
		for _, t := range back {
			_, _ = t.WriteString("0") // at worst the group stays, which is the next one's to remove
			_ = t.Close()
		}
	}()
	for i, d := range g.v1 {
		own, err := g.of.v1[i].dir.openFile("tasks", unix.O_WRONLY)
		if err != nil {
			return fmt.Errorf("cannot find the way back into %s: %w", g.of.v1[i].h.path, err)
		}
		back = append(back, own)
		if err := d.write("tasks", "0"); err != nil {
			return fmt.Errorf("cannot enter the control group of the command: %w", err)
		}
	}
	return f(int(g.v2))
}

// Check reads back which limits are in force, and that a process is in the group.
func (g *Step) Check(pid int) (all []Evidence) {
	for i, d := range g.v1 {
		all = append(all, g.check(d, g.of.v1[i].h.have, true, pid)...)
	}
	if g.v2 >= 0 {
		all = append(all, g.check(g.v2, g.of.have, false, pid)...)
	}
	return all
}

func (g *Step) check(d dirFD, have []Controller, v1 bool, pid int) (all []Evidence) {
	label := map[bool]string{true: "v1", false: "v2"}[v1]
	pids, err := d.pids()
	in := err == nil && slices.Contains(pids, pid)
	for _, r := range g.rows(v1) {
		if r.value == 0 || !slices.Contains(have, r.controller) {
			continue
		}
		got, err := d.read(r.file)
		if r.optional && isNotExist(err) {
			continue
		}
		n, nerr := strconv.ParseInt(strings.TrimSpace(got), 10, 64)
		want, page := max(r.value, 0), int64(os.Getpagesize())
		ok := err == nil && nerr == nil && in && (n == want || n == want/page*page || n < want && !v1)
		all = append(all, Evidence{string(r.controller), ok, fmt.Sprintf("%s %s %s of its own control group, it is in it: %t", label, r.file,
			strings.TrimSpace(got), in)})
	}
	return all
}

// Killed is how many processes of the group the kernel has ended because its memory was full.
func (g *Step) Killed() (n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, d := range g.v1 {
		if g.of.v1[i].h.has(Memory) {
			n += max(d.number("memory.oom_control", "oom_kill"), 0)
		}
	}
	if g.v2 >= 0 {
		n += max(g.v2.number("memory.events", "oom_kill"), 0)
	}
	return n
}

// stepWait bounds the wait for the end of what is in the group.
const stepWait = 2 * time.Second

// Remove ends what is left in the group, and removes it.
func (g *Step) Remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepWait)
	defer cancel()
	g.mu.Lock()
	v1, v2 := g.v1, g.v2
	g.v1, g.v2 = nil, -1
	g.mu.Unlock()
	var errs []error
	for i, d := range v1 {
		errs = append(errs, removeStep(ctx, g.of.v1[i].dir, d, g.name))
	}
	if v2 >= 0 {
		errs = append(errs, removeStep(ctx, g.of.v2, v2, g.name))
	}
	return errors.Join(errs...)
}

// removeStep tries until the last process has left.
func removeStep(ctx context.Context, base, d dirFD, name string) error {
	defer d.close()
	wait := 50 * time.Microsecond
	for {
		err := removeTree(base, name, 0)
		if err == nil || !errors.Is(err, unix.EBUSY) || ctx.Err() != nil {
			return err
		}
		_ = d.killAll() // what cannot be ended is seen by the next try
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
		wait = min(2*wait, round)
	}
}

// sweepSteps removes the groups of processes that have ended, with what is in them. What cannot be removed stays for the next.
func sweepSteps(base dirFD) {
	names, _ := base.groups()
	for _, name := range names {
		rest, ours := strings.CutPrefix(name, stepPrefix)
		at := strings.LastIndexByte(rest, '-')
		if !ours || at < 0 {
			continue
		}
		pid, start, ok := parseOwned(ownedPrefix + rest[:at])
		if now, lives := startOf(pid); !ok || lives && now == start {
			continue
		}
		d, err := base.open(name)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(d), &st); err != nil || int(st.Uid) != os.Geteuid() ||
			unix.Flock(int(d), unix.LOCK_EX|unix.LOCK_NB) != nil {
			d.close()
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), stepWait)
		_ = removeStep(ctx, base, d, name)
		cancel()
	}
}
