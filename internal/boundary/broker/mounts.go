package broker

import (
	"context"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
)

// openMounts makes the mounts of a workspace ready for a start.
func (h *Host) openMounts(ctx context.Context, e Entry) ([]launch.Project, error) {
	if len(e.Mounts) == 0 {
		return nil, nil
	}
	return callSlow(ctx, h.slow, func() (projects []launch.Project, err error) {
		for _, m := range e.Mounts {
			dir, home, err := h.openSource(m)
			if err != nil {
				launch.CloseProjects(projects)
				return nil, err
			}
			p := launch.Project{
				Project: sandbox.Project{Destination: m.Destination, ReadOnly: m.ReadOnly, Staged: m.Staged},
				Dir:     dir, OwnerUID: m.OwnerUID, OwnerGID: m.OwnerGID,
			}
			switch {
			case m.Staged:
				p.Stage, err = h.openStage(m)
			case !m.ReadOnly:
				p.Pinned, err = h.pin(e.Name, m, dir, home)
			}
			projects = append(projects, p)
			if err != nil {
				launch.CloseProjects(projects)
				return nil, err
			}
		}
		return projects, nil
	}, launch.CloseProjects)
}
