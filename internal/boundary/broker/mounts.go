package broker

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

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
				p.Held = there(dir, m.Held)
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

// there are the paths below a directory, without links on the way, that something is at.
func there(dir *os.File, paths []string) (found []string) {
	for _, p := range paths {
		err := withFD(dir, func(fd int) error {
			at, err := unix.Openat2(fd, p, &unix.OpenHow{
				Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
				Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
			})
			if err == nil {
				err = unix.Close(at)
			}
			return err
		})
		if err == nil {
			found = append(found, p)
		}
	}
	return found
}
