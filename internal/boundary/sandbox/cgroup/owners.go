package cgroup

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Shared is what several workspaces may have together; a field that is 0 bounds nothing.
type Shared struct {
	MemoryBytes int64
	// Pids counts processes and threads.
	Pids int64
}

// ownerPrefix begins the group of an owner, in which those of the owner's workspaces are. The kernel ends the
// largest process below the ceiling that is met, so that one owner's ceiling spares the others.
// No workspace has such a name: 16 hex digits follow.
const ownerPrefix = "o-"

// parent opens the group that holds a workspace's: the instance's or an owner's.
func (h *hierarchy) parent(name string) (dirFD, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(h.dir), name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil || !isNotExist(err) {
		return h.dir.again()
	}
	owners, err := h.owners()
	if err != nil {
		return -1, err
	}
	for _, o := range owners {
		d, err := h.dir.open(o)
		if isNotExist(err) {
			continue // the last of its workspaces is gone
		}
		if err != nil {
			return -1, err
		}
		if unix.Fstatat(int(d), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			return d, nil
		}
		d.close()
	}
	return h.dir.again()
}

// open opens the workspace's own group.
func (h *hierarchy) open(name string) (dirFD, error) {
	parent, err := h.parent(name)
	if err != nil {
		return -1, err
	}
	defer parent.close()
	return parent.open(name)
}

// removeFrom removes a workspace's group, which holds no process, and its owner's if it was the last.
func (in *Instance) removeFrom(h *hierarchy, name string) error {
	parent, err := h.parent(name)
	if err != nil {
		return err
	}
	err = removeTree(parent, name, 0)
	shared := !sameGroup(parent, h.dir)
	parent.close()
	if err == nil && shared {
		err = in.vacate(h)
	}
	return err
}

// owners lists the groups of owners.
func (h *hierarchy) owners() (all []string, err error) {
	names, err := h.dir.groups()
	for _, n := range names {
		if strings.HasPrefix(n, ownerPrefix) && !id.IsWorkspace(n) {
			all = append(all, n)
		}
	}
	return all, err
}

// place makes the group of a workspace, in that of its owner if one is given.
func (in *Instance) place(h *hierarchy, owner, name string) error {
	if own, err := h.open(name); err == nil { // also where an earlier release put it
		own.close()
		return unix.EEXIST
	}
	if owner == "" {
		return unix.Mkdirat(int(h.dir), name, 0o755)
	}
	in.owning.Lock() // so that the owner's is not removed in between
	defer in.owning.Unlock()
	d, err := h.dir.make(ownerPrefix + owner)
	if err != nil {
		return err
	}
	defer d.close()
	if err := h.share(d, in.each); err != nil {
		return fmt.Errorf("cannot bound what its owner's workspaces have together: %w", err)
	}
	return unix.Mkdirat(int(d), name, 0o755)
}

// vacate removes the groups of owners that hold no workspace any more.
func (in *Instance) vacate(h *hierarchy) error {
	in.owning.Lock()
	defer in.owning.Unlock()
	owners, err := h.owners()
	for _, o := range owners {
		e := unix.Unlinkat(int(h.dir), o, unix.AT_REMOVEDIR)
		if e != nil && !isNotExist(e) && !errors.Is(e, unix.EBUSY) && !errors.Is(e, unix.ENOTEMPTY) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// share puts bounds on a group that workspaces are in, and hands controllers down in it.
func (h *hierarchy) share(d dirFD, s Shared) error {
	if !h.v1() {
		for _, c := range h.handedDown() {
			if err := d.write("cgroup.subtree_control", c); err != nil {
				return err
			}
		}
	}
	if s.Pids > 0 && h.has(Pids) {
		if err := d.write(pidsMax, strconv.FormatInt(s.Pids, 10)); err != nil {
			return err
		}
	}
	if s.MemoryBytes == 0 || !h.has(Memory) {
		return nil
	}
	if !h.v1() {
		return d.write("memory.max", strconv.FormatInt(s.MemoryBytes, 10))
	}
	// Before Linux 5.11 a v1 group counts the groups below it only if it is told to while there
	// are none.
	if d.number("memory.use_hierarchy", "") == 0 {
		if err := d.write("memory.use_hierarchy", "1"); err != nil {
			return err
		}
	}
	return d.write("memory.limit_in_bytes", strconv.FormatInt(s.MemoryBytes, 10))
}

// together reads the bounds of the groups that a workspace is in.
func (in *Instance) together(h *hierarchy, name string) (all []Evidence) {
	read := func(d dirFD, whose string, s Shared) {
		memory := "memory.max"
		if h.v1() {
			memory = "memory.limit_in_bytes"
		}
		for _, x := range []struct {
			c    Controller
			file string
			want int64
		}{{Memory, memory, s.MemoryBytes}, {Pids, pidsMax, s.Pids}} {
			if x.want == 0 || !h.has(x.c) {
				continue
			}
			got, err := d.read(x.file)
			if err != nil {
				all = append(all, Evidence{string(x.c), false, err.Error()})
				continue
			}
			got = strings.TrimSpace(got)
			all = append(all, Evidence{string(x.c), holds(got, x.want), fmt.Sprintf("%s %s %s is %s", h.label(), whose, x.file, got)})
		}
	}
	read(h.dir, "all workspaces", in.ceiling)
	parent, err := h.parent(name)
	if err != nil {
		return append(all, Evidence{string(Memory), false, err.Error()})
	}
	defer parent.close()
	if !sameGroup(parent, h.dir) {
		read(parent, "all of the owner's", in.each)
	}
	return all
}

func sameGroup(a, b dirFD) bool {
	var x, y unix.Stat_t
	return unix.Fstat(int(a), &x) == nil && unix.Fstat(int(b), &y) == nil && x.Ino == y.Ino
}
