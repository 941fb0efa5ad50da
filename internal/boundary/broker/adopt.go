package broker

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/linux/pidfd"
)

// Adopt is part of Effects. The pid alone proves nothing: the process must have started
// when the ledger says, in this boot, and have the executor's id.
func (h *Host) Adopt(e Entry) (Running, error) {
	x := e.Executor
	gone := func(why string) (Running, error) {
		return Running{}, fmt.Errorf("cannot find the executor of %s: %s: %w", e.Name, why, errdefs.ErrNotFound)
	}
	if x == nil || x.PID <= 1 {
		return gone("the ledger names none")
	}
	if x.BootID != h.bootID {
		return gone("the host has been started again since")
	}
	f, err := pidfd.Open(x.PID, x.StartTime)
	if errors.Is(err, pidfd.ErrEnded) {
		return gone(err.Error())
	}
	var uids []uint32
	if err == nil {
		if uids, err = uidsOf(x.PID); err != nil {
			_ = f.Close()
		}
	}
	if err != nil {
		return Running{}, fmt.Errorf("cannot tell whether the executor of %s runs: %w", e.Name, err)
	}
	if !slices.Contains(uids, e.IDs.Executor) {
		_ = f.Close()
		return gone(fmt.Sprintf("process %d has the ids %v and not %d", x.PID, uids, e.IDs.Executor))
	}
	r, err := watch(f, *x)
	if err == nil {
		err = h.adoptGuard(e, r)
	}
	return r, err
}

// adoptGuard guards the mounts of an executor of an earlier broker: what that one placed,
// and what is held now.
func (h *Host) adoptGuard(e Entry, r Running) error {
	all, err := h.allPlaced()
	if err != nil {
		return err
	}
	var rw []sandbox.Project
	for _, m := range e.Mounts {
		if m.ReadOnly {
			continue
		}
		if m.Staged {
			rw = append(rw, sandbox.Project{Destination: m.Destination, Staged: true})
			continue
		}
		p := sandbox.Project{
			Destination: m.Destination, Pinned: launch.Held(r.Executor.PID, m.Destination),
			Held: launch.HeldOf(r.Executor.PID, m.Destination, m.Held),
		}
		for _, x := range all[e.Name] {
			if x.Mount.Is(m.Identity) {
				p.Pinned = append(p.Pinned, x.Name)
			}
		}
		rw = append(rw, p)
	}
	return guard(e.Name, sandbox.Rootful, rw, r, h.log)
}
