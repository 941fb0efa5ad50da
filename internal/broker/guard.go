package broker

import (
	"github.com/carrel-dev/carrel/internal/sandbox"
	"github.com/carrel-dev/carrel/internal/sandbox/launch"
)

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
