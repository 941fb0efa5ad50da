package broker

import (
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/sandbox"
	"github.com/carrel-dev/carrel/internal/sandbox/launch"
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
	fd, err := unix.PidfdOpen(x.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return gone("it has ended")
	}
	if err != nil {
		return Running{}, fmt.Errorf("cannot hold the executor of %s: %w", e.Name, err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	// One that nobody has waited for yet has ended all the same.
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0); err == nil && n > 0 {
		_ = pidfd.Close()
		return gone("it has ended")
	}
	// Held now, so that what is read next belongs to this process or to none.
	start, err := StartTime(x.PID)
	if err == nil && start != x.StartTime {
		err = errors.New("its pid belongs to another process")
	}
	if err == nil {
		err = hasUID(x.PID, e.IDs.Executor)
	}
	if err != nil {
		_ = pidfd.Close()
		return gone(err.Error())
	}
	r, err := watch(pidfd, *x)
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
		p := sandbox.Project{Destination: m.Destination, Pinned: launch.Held(r.Executor.PID, m.Destination)}
		for _, x := range all[e.Name] {
			if x.Mount.Is(m.Identity) {
				p.Pinned = append(p.Pinned, x.Name)
			}
		}
		rw = append(rw, p)
	}
	return guard(e.Name, sandbox.Rootful, rw, r, h.log)
}
