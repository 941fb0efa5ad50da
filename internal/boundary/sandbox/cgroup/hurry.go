package cgroup

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// weight is the file of a hierarchy that has a group's weight, what that is by default, and the most that it can be
// (admin-guide/cgroup-v2.rst, scheduler/sched-design-CFS.rst).
func (h *hierarchy) weight() (file, usual, most string) {
	if h.v1() {
		return "cpu.shares", "1024", "262144"
	}
	return "cpu.weight", "100", "10000"
}

// Hurry has the scheduler prefer a workspace, and what else its owner runs, until done is called, which is to be soon. It
// is for the moment in which an executor is born in its groups: the broker starts one program at a time, and everybody
// would wait for the share that the busy workspaces of that owner leave. Where it cannot be done the birth takes longer. The
// error of done is that the owner's group keeps the weight, until the next birth there or the next start of the broker.
func (in *Instance) Hurry(name id.Workspace, l workspace.Limits) (done func() error) {
	nothing := func() error { return nil }
	h := in.weighing()
	if h == nil {
		return nothing
	}
	parent, err := h.parent(string(name))
	if err != nil {
		return nothing
	}
	own, err := parent.open(string(name))
	if err != nil {
		parent.close()
		return nothing
	}
	file, usual, most := h.weight()
	in.hurrying.Lock()
	defer in.hurrying.Unlock()
	shared := !sameGroup(parent, h.dir)
	if shared {
		in.hurried[parent.inode()]++
		_ = parent.write(file, most)
	}
	_ = own.write(file, most)
	return func() (err error) {
		in.hurrying.Lock()
		defer in.hurrying.Unlock()
		_ = h.apply(own, "", l) // it is read back before the start is over
		if at := parent.inode(); shared {
			if in.hurried[at]--; in.hurried[at] == 0 {
				delete(in.hurried, at)
				err = parent.write(file, usual)
			}
		}
		own.close()
		parent.close()
		if isNotExist(err) { // the owner's last workspace has gone meanwhile
			err = nil
		}
		return err
	}
}

// calm takes back what a broker that was killed in a hurry has left.
func (in *Instance) calm() error {
	h := in.weighing()
	if h == nil {
		return nil
	}
	owners, err := h.owners()
	file, usual, _ := h.weight()
	for _, o := range owners {
		d, e := h.dir.open(o)
		if e == nil {
			e = d.write(file, usual)
			d.close()
		}
		if e != nil && !isNotExist(e) {
			err = errors.Join(err, fmt.Errorf("cannot set the weight of %s in %s: %w", o, h.path, e))
		}
	}
	return err
}

// weighing is the hierarchy in which root divides the processors, or nil.
func (in *Instance) weighing() *hierarchy {
	for _, h := range in.all() {
		if h.has(CPU) && !h.owned {
			return h
		}
	}
	return nil
}

func (d dirFD) inode() uint64 {
	var st unix.Stat_t
	_ = unix.Fstat(int(d), &st)
	return st.Ino
}
