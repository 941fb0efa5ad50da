package broker

import (
	"fmt"
	"os"

	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/sandbox"
	"github.com/carrel-dev/carrel/internal/sandbox/launch"
)

// guard ends a workspace whose protected names are no longer held. Nothing inside can
// bring that about, and a user of the host can: the kernel unmounts what is mounted on a
// name that is removed or replaced elsewhere, as editors and git clean do. What a command
// then left under such a name would be run on the host, so nothing goes on silently.
func (h *Host) guard(name id.Workspace, projects []sandbox.Project, r Running) error {
	if len(projects) == 0 {
		return nil
	}
	// The kernel reports each change of the mounts to whoever polls this file.
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", r.Executor.PID))
	if err != nil {
		return fmt.Errorf("cannot watch the mounts of %s: %w", name, err)
	}
	rc, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("cannot watch the mounts of %s: %w", name, err)
	}
	go func() {
		<-r.Exited
		_ = f.Close() // which ends the other
	}()
	go func() {
		_ = rc.Read(func(uintptr) bool {
			select {
			case <-r.Exited:
				return true
			default:
			}
			lost := launch.Lost(sandbox.Rootful, r.Executor.PID, projects)
			if lost == "" {
				return false
			}
			h.log.Error("ending a workspace, because what was protected in a project mount was removed or replaced on the host; see what is there now, then start it again",
				"workspace", name, "lost", lost)
			if err := r.Kill(); err != nil {
				h.log.Error("cannot end it", "workspace", name, "error", err)
			}
			return true
		})
	}()
	return nil
}

// guarded are the writable mounts of projects.
func guarded(projects []launch.Project) []sandbox.Project {
	var rw []sandbox.Project
	for _, p := range projects {
		if !p.ReadOnly {
			rw = append(rw, p.Project)
		}
	}
	return rw
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
	return h.guard(e.Name, rw, r)
}
