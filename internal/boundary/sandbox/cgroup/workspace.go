package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// EnableSubtree applies the limits of v2. It must run after the executor has moved
// to sup: a group that holds a process cannot hand controllers down to the groups below it,
// and their files do not exist before it does. Without controllers in v2 it does nothing.
func (in *Instance) EnableSubtree(name id.Workspace, l workspace.Limits) error {
	h := in.v2
	if len(h.have) == 0 {
		return nil
	}
	return h.within(string(name), func(own dirFD) error {
		if err := own.write("cgroup.subtree_control", strings.Join(h.handedDown(), " ")); err != nil {
			return fmt.Errorf("cannot hand controllers down in %s/%s: %w", h.path, name, err)
		}
		for _, group := range []string{sup, cmd} {
			d, err := own.open(group)
			if err != nil {
				return err
			}
			err = h.apply(d, group, l)
			d.close()
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// within opens the workspace's own group for f.
func (h *hierarchy) within(name string, f func(own dirFD) error) error {
	own, err := h.open(name)
	if err != nil {
		return fmt.Errorf("cannot open the control group of %s: %w", name, err)
	}
	defer own.close()
	return f(own)
}

// Check reads back where pid, the executor, is and which limits are in force.
func (in *Instance) Check(name id.Workspace, pid int, l workspace.Limits) []Evidence {
	var all []Evidence
	for _, h := range in.all() {
		err := h.within(string(name), func(own dirFD) error {
			for _, s := range settings {
				if s.group == net {
					continue // its process comes later, and where the group cannot be limited, not at all
				}
				if e, ok := h.readBack(own, s, l); ok {
					all = append(all, e)
				}
			}
			if e, ok := in.throttled(own); ok && h == in.v2 {
				all = append(all, e)
			}
			all = append(all, h.membership(own, pid))
			return nil
		})
		all = append(all, in.together(h, string(name))...)
		if err != nil {
			all = append(all, Evidence{"supervisor-cgroup", false, err.Error()})
		}
	}
	return all
}

func (h *hierarchy) readBack(own dirFD, s setting, l workspace.Limits) (Evidence, bool) {
	name := s.file(h.v1())
	// cmd is evidence for the controller's own control, sup for the executor's.
	control := s.control()
	if s.group == sup {
		control = "supervisor-cgroup"
	}
	if name == "" || !h.has(s.controller) {
		return Evidence{}, false
	}
	dir, where := own, "workspace"
	if s.group != "" {
		d, err := own.open(s.group)
		if err != nil {
			return Evidence{control, false, err.Error()}, true
		}
		defer d.close()
		dir, where = d, s.group
	}
	got, err := dir.read(name)
	if err != nil {
		return Evidence{control, false, err.Error()}, !(s.optional && isNotExist(err))
	}
	got = strings.TrimSpace(got)
	return Evidence{control, holds(got, s.value(l, h.v1())), fmt.Sprintf("%s %s %s is %s", h.label(), where, name, got)}, true
}

func (h *hierarchy) label() string {
	if h.v1() {
		return "v1"
	}
	return "v2"
}

func (h *hierarchy) membership(own dirFD, pid int) Evidence {
	dir, where := own, "workspace"
	if h.v1() || len(h.have) > 0 {
		d, err := own.open(sup)
		if err != nil {
			return Evidence{"supervisor-cgroup", false, err.Error()}
		}
		defer d.close()
		dir, where = d, sup
	}
	name := h.name
	if !h.v1() {
		name = "v2"
	}
	pids, err := dir.pids()
	if err != nil || !slices.Contains(pids, pid) {
		return Evidence{"supervisor-cgroup", false, fmt.Sprintf("the executor is not in %s of %s", where, name)}
	}
	return Evidence{"supervisor-cgroup", true, fmt.Sprintf("the executor is in %s of %s", where, name)}
}

// Kill sends KILL to every process of a workspace, its executor included. It does not
// wait. A workspace without groups has no processes.
func (in *Instance) Kill(name id.Workspace) error {
	own, err := in.v2.open(string(name))
	if isNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot end the processes of %s: %w", name, err)
	}
	defer own.close()
	if err := own.killAll(); err != nil {
		return fmt.Errorf("cannot end the processes of %s: %w", name, err)
	}
	return nil
}

// killAll sends KILL to every process in a group and below it.
func (d dirFD) killAll() error {
	err := d.write("cgroup.kill", "1")
	if isNotExist(err) { // before Linux 5.14
		_, err = killTree(d, 0)
	}
	return err
}

// killTree sends KILL to the processes in a group and below it, and returns how many it found.
// It is repeated until it finds none, because a fork may escape it.
func killTree(d dirFD, depth int) (int, error) {
	if depth > 2*maxDepth {
		return 0, errors.New("groups nest too deep")
	}
	met := 0
	pids, err := d.pids()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		met++
		if err := killMember(d, pid); err != nil {
			return met, err
		}
	}
	names, err := d.groups()
	if err != nil {
		return met, err
	}
	for _, n := range names {
		sub, err := d.open(n)
		if isNotExist(err) {
			continue
		}
		if err != nil {
			return met, err
		}
		m, err := killTree(sub, depth+1)
		sub.close()
		met += m
		if err != nil {
			return met, err
		}
	}
	return met, nil
}

// killMember ends pid if it is still a member once it is held by a pidfd, so that it does not
// kill a process with a reused pid. A v1 group lists the whole process of each thread in it, and
// a thread of ours that has just started an executor may not have ended yet.
func killMember(d dirFD, pid int) error {
	if pid == os.Getpid() {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot hold process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	pids, err := d.pids()
	if err != nil || !slices.Contains(pids, pid) {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot end process %d: %w", pid, err)
	}
	return nil
}

// round bounds one wait, so that ctx is looked at and a lost event does no harm.
const round = 50 * time.Millisecond

// WaitEmpty returns when no process is left in a workspace's groups, or when ctx ends.
func (in *Instance) WaitEmpty(ctx context.Context, name id.Workspace) error {
	own, err := in.v2.open(string(name))
	if isNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot watch the processes of %s: %w", name, err)
	}
	defer own.close()
	if err := own.await(ctx, "populated 0"); err != nil {
		return fmt.Errorf("cannot empty the groups of %s: processes are left: %w", name, err)
	}
	return nil
}

// Remove ends every process of a workspace, waits until they have ended, and removes its
// groups, including the groups that the executor made. ctx bounds the wait. It is no error if
// there are none.
func (in *Instance) Remove(ctx context.Context, name id.Workspace) error {
	if err := in.Kill(name); err != nil {
		return err
	}
	if err := in.WaitEmpty(ctx, name); err != nil {
		return err
	}
	for _, h := range in.all() {
		if err := in.remove(ctx, h, string(name)); err != nil {
			return fmt.Errorf("cannot remove the control group %s/%s: %w", h.path, name, err)
		}
	}
	return nil
}

// remove tries until the last process has left: when v2 has no members any more, a v1 hierarchy may
// still hold a process for a moment, or one that never was in v2.
func (in *Instance) remove(ctx context.Context, h *hierarchy, name string) error {
	wait := 50 * time.Microsecond
	for {
		err := in.removeFrom(h, name)
		if err == nil || !errors.Is(err, unix.EBUSY) || ctx.Err() != nil {
			return err
		}
		if own, bad := h.open(name); bad == nil {
			_, _ = killTree(own, 0)
			own.close()
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
		wait = min(2*wait, round)
	}
}

func removeTree(parent dirFD, name string, depth int) error {
	if depth > 2*maxDepth {
		return errors.New("groups nest too deep")
	}
	d, err := parent.open(name)
	if isNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := d.groups()
	for _, n := range names {
		if err == nil {
			err = removeTree(d, n, depth+1)
		}
	}
	d.close()
	if err != nil {
		return err
	}
	if err := unix.Unlinkat(int(parent), name, unix.AT_REMOVEDIR); err != nil && !isNotExist(err) {
		return err
	}
	return nil
}
