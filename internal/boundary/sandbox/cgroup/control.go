package cgroup

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Freeze freezes all commands of a workspace, or thaws them. Its executor is not in that group
// and goes on answering. Freeze returns when the kernel reports that all are frozen; when ctx ends
// first, it thaws them and returns an error.
func (in *Instance) Freeze(ctx context.Context, name id.Workspace, frozen bool) error {
	what, value, want := "thaw", "0", "frozen 0"
	if frozen {
		what, value, want = "freeze", "1", "frozen 1"
	}
	err := in.v2.within(string(name), func(own dirFD) error {
		c, err := own.open(cmd)
		if err != nil {
			return err
		}
		defer c.close()
		if err := c.write("cgroup.freeze", value); err != nil {
			return err
		}
		err = c.await(ctx, want)
		if err != nil && frozen {
			err = errors.Join(err, c.write("cgroup.freeze", "0"))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot %s the commands of %s: %w", what, name, err)
	}
	return nil
}

// await returns when cgroup.events of the group has the line want, or when ctx ends.
func (d dirFD) await(ctx context.Context, want string) error {
	events, err := openat(int(d), "cgroup.events", unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(events)
	var b [256]byte
	for {
		n, err := unix.Pread(events, b[:], 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if err == nil && strings.Contains(string(b[:n]), want) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the kernel does not say %q: %w: %w", want, context.Cause(ctx), errdefs.ErrUnavailable)
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(events), Events: unix.POLLPRI}}, int(round.Milliseconds()))
	}
}

// Update applies other limits to what runs. After an error the old limits are back in force.
func (in *Instance) Update(name id.Workspace, old, limits workspace.Limits) error {
	var done []*hierarchy
	for _, h := range in.all() {
		err := h.update(string(name), limits)
		if err == nil {
			done = append(done, h)
			continue
		}
		if errors.Is(err, unix.EBUSY) {
			err = fmt.Errorf("the commands use more than that and the kernel cannot take it from them; end some first: %w: %w",
				err, errdefs.ErrFailedPrecondition)
		}
		for _, d := range append(done, h) {
			err = errors.Join(err, d.update(string(name), old))
		}
		return fmt.Errorf("cannot change the limits of %s: %w", name, err)
	}
	return nil
}

// update writes the rows of the table whose value may differ between workspaces.
func (h *hierarchy) update(name string, l workspace.Limits) error {
	return h.within(name, func(own dirFD) error {
		if err := h.apply(own, "", l); err != nil {
			return err
		}
		if len(h.have) == 0 {
			return nil
		}
		c, err := own.open(cmd)
		if err != nil {
			return err
		}
		defer c.close()
		if !h.v1() && h.has(Memory) && l.MemoryBytes < c.unreclaimable() {
			return unix.EBUSY // v1 says so by itself; v2 would end processes instead
		}
		if h.v1() && h.has(Memory) {
			// memory and swap together may not be below memory, so that they are raised
			// first and lowered last. A write that would break that is EINVAL.
			if all := l.MemoryBytes + l.SwapBytes; all > c.number("memory.memsw.limit_in_bytes", "") {
				if err := c.write("memory.memsw.limit_in_bytes", strconv.FormatInt(all, 10)); err != nil && !isNotExist(err) {
					return err
				}
			}
		}
		if err := h.apply(c, cmd, l); err != nil || h.v1() {
			return err
		}
		return h.updateBelow(c, l)
	})
}

// updateBelow applies the new limits to running commands too: the executor gives each command's group
// the limits that it finds when the command starts. Without root an executor's id owns some of
// these groups; commands there have the lower of both limits.
func (h *hierarchy) updateBelow(c dirFD, l workspace.Limits) error {
	names, err := c.groups()
	if err != nil {
		return err
	}
	for _, name := range names {
		sub, err := c.open(name)
		if isNotExist(err) {
			continue // its command has ended
		}
		if err != nil {
			return err
		}
		for _, s := range settings {
			if s.group != cmd || s.v2 != "memory.max" && s.v2 != "pids.max" || !h.has(s.controller) {
				continue
			}
			err = sub.write(s.v2, strconv.FormatInt(s.value(l, false), 10))
			if err != nil && !isNotExist(err) && !errors.Is(err, unix.ENODEV) && !(h.owned && errors.Is(err, unix.EACCES)) {
				sub.close()
				return err
			}
		}
		sub.close()
	}
	return nil
}

// Full reports how much memory the workspaces of an owner, or all together, hold that the kernel cannot reclaim
// at once, and their ceiling, whichever is nearer to it; both are 0 where nothing limits them. owned says that
// it is the owner's.
func (in *Instance) Full(owner string) (used, ceiling int64, owned bool) {
	for _, h := range in.all() {
		if !h.has(Memory) {
			continue
		}
		used, ceiling = h.full(h.dir)
		if owner == "" {
			break
		}
		d, err := h.dir.open(ownerPrefix + owner)
		if err != nil {
			break // it has none that run
		}
		u, c := h.full(d)
		d.close()
		if c > 0 && float64(u)/float64(c) > float64(used)/float64(max(ceiling, 1)) {
			used, ceiling, owned = u, c, true
		}
		break
	}
	return used, ceiling, owned
}

func (h *hierarchy) full(d dirFD) (used, ceiling int64) {
	current, limit, cache := "memory.current", "memory.max", "inactive_file"
	if h.v1() {
		current, limit, cache = "memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"
	}
	return max(d.number(current, "")-max(d.number("memory.stat", cache), 0), 0), max(d.number(limit, ""), 0)
}

// unreclaimable is the memory of a v2 group that the kernel cannot reclaim by writing
// it to disk: workspaces have no swap unless they ask for it.
func (d dirFD) unreclaimable() int64 {
	sum := int64(0)
	for _, key := range []string{"anon", "shmem", "kernel"} {
		sum += max(d.number("memory.stat", key), 0)
	}
	return sum
}

// Stats is what a workspace's commands use together.
func (in *Instance) Stats(name id.Workspace) (workspace.Stats, error) {
	st := workspace.UnknownStats
	for _, h := range in.all() {
		err := h.within(string(name), func(own dirFD) error {
			c, err := own.open(cmd)
			if err != nil {
				return err
			}
			defer c.close()
			for _, r := range counters {
				switch {
				case r.controller != "" && !h.has(r.controller):
				case h.v1():
					if r.v1 != "" && r.controller != "" {
						*r.to(&st) = c.number(r.v1, r.key)
					}
				default:
					if n := c.number(r.v2, r.key); r.controller != "" || n >= 0 {
						*r.to(&st) = n
					}
				}
			}
			if !h.v1() && h.io {
				st.ReadBytes, st.WrittenBytes = c.io()
			}
			return nil
		})
		if err != nil {
			return st, err
		}
	}
	return st, nil
}

// counters are the files that Stats reads. Time is counted by v2 on every host, with or
// without a controller.
var counters = []struct {
	controller Controller
	v1, v2     string
	key        string
	to         func(*workspace.Stats) *int64
}{
	{Memory, "memory.usage_in_bytes", "memory.current", "", func(s *workspace.Stats) *int64 { return &s.MemoryBytes }},
	{Memory, "memory.max_usage_in_bytes", "memory.peak", "", func(s *workspace.Stats) *int64 { return &s.MemoryPeakBytes }},
	{Memory, "memory.oom_control", "memory.events", "oom_kill", func(s *workspace.Stats) *int64 { return &s.OOMKills }},
	{Pids, "pids.current", "pids.current", "", func(s *workspace.Stats) *int64 { return &s.Pids }},
	{"", "", "cpu.stat", "usage_usec", func(s *workspace.Stats) *int64 { return &s.CPUMicros }},
}

// io adds up io.stat over all devices.
func (d dirFD) io() (read, written int64) {
	text, err := d.read("io.stat")
	if err != nil {
		return -1, -1
	}
	for f := range strings.FieldsSeq(text) {
		k, v, _ := strings.Cut(f, "=")
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			continue
		}
		switch k {
		case "rbytes":
			read += n
		case "wbytes":
			written += n
		}
	}
	return read, written
}
