package userbroker

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/broker"
	"github.com/carrel-dev/carrel/internal/brokerapi"
	"github.com/carrel-dev/carrel/internal/grant"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/rootless"
	"github.com/carrel-dev/carrel/internal/sandbox"
	"github.com/carrel-dev/carrel/internal/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// TakeMounts is part of broker.Effects. The grant must be of the user that this process runs as,
// whose rights are all that there are.
func (h *host) TakeMounts(_ context.Context, p brokerapi.CreateParams, file *os.File) ([]broker.Mount, error) {
	return broker.TakeGrant(p, file, func(m workspace.Mount, who grant.Cred, dir *os.File) (broker.Mount, error) {
		if who.UID != uint32(os.Geteuid()) {
			return broker.Mount{}, fmt.Errorf("cannot mount directories for uid %d: this carrel is of uid %d: %w",
				who.UID, os.Geteuid(), errdefs.ErrPermissionDenied)
		}
		if err := rootless.CheckSource(m.Source); err != nil {
			return broker.Mount{}, err
		}
		identity, err := h.identify(dir)
		if err != nil {
			return broker.Mount{}, fmt.Errorf("cannot mount %s: %w", m.Source, err)
		}
		m.OwnerUID = who.UID
		return broker.Mount{Mount: m, Identity: identity, OwnerGID: who.GID, CallerUID: who.UID, CallerGID: who.GID}, nil
	})
}

// identify looks at an open directory.
func (h *host) identify(d *os.File) (broker.Identity, error) {
	rc, err := d.SyscallConn()
	if err != nil {
		return broker.Identity{}, err
	}
	var st unix.Statx_t
	cerr := rc.Control(func(fd uintptr) {
		err = unix.Statx(int(fd), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
	})
	if err := errors.Join(cerr, err); err != nil {
		return broker.Identity{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return broker.Identity{}, fmt.Errorf("it is no directory: %w", errdefs.ErrInvalidArgument)
	}
	i := broker.Identity{Device: unix.Mkdev(st.Dev_major, st.Dev_minor), Inode: st.Ino, Boot: h.bootID}
	if st.Mask&unix.STATX_BTIME != 0 {
		i.Born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return i, nil
}

// openMounts makes the mounts of a workspace ready for a start: each must still be the
// directory that was granted.
func (h *host) openMounts(e broker.Entry, o *opened) (projects []launch.Project, err error) {
	if len(e.Mounts) == 0 {
		return nil, nil
	}
	if o.hold, err = rootless.NewHold(e.Name); err != nil {
		o.hold = nil
		return nil, err
	}
	var mounts []workspace.Mount
	for _, m := range e.Mounts {
		mounts = append(mounts, m.Mount)
	}
	if projects, err = o.hold.Open(mounts); err != nil {
		return nil, err
	}
	for i, p := range projects {
		now, err := h.identify(p.Dir)
		if err == nil && !now.Is(e.Mounts[i].Identity) {
			err = fmt.Errorf("another directory is there than the one that was granted; put it back, or destroy the workspace and create it anew: %w", errdefs.ErrFailedPrecondition)
		}
		if err != nil {
			closeProjects(projects)
			return nil, fmt.Errorf("cannot mount %s: %w", mounts[i].Source, err)
		}
	}
	return projects, nil
}

func closeProjects(projects []launch.Project) {
	for _, p := range projects {
		p.Dir.Close()
	}
}

// guard ends a workspace whose protected names are no longer held, as the broker does: who
// removes or replaces one on the host unmounts what protects it.
func (h *host) guard(name id.Workspace, projects []launch.Project, r broker.Running) error {
	var rw []sandbox.Project
	for _, p := range projects {
		if !p.ReadOnly {
			rw = append(rw, p.Project)
		}
	}
	if len(rw) == 0 {
		return nil
	}
	f, err := os.Open(mountinfo(r.Executor.PID))
	if err != nil {
		return fmt.Errorf("cannot watch the mounts of %s: %w", name, err)
	}
	rc, err := f.SyscallConn()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	go func() {
		<-r.Exited
		f.Close()
	}()
	go func() {
		// The kernel reports each change of the mounts to whoever polls this file.
		_ = rc.Read(func(uintptr) bool {
			lost := launch.Lost(sandbox.Rootless, r.Executor.PID, rw)
			select {
			case <-r.Exited:
				return true
			default:
			}
			if lost == "" {
				return false
			}
			h.cfg.Log.Warn("a workspace is ended: what was protected in a mount was removed or replaced on the host", "workspace", name, "lost", lost)
			_ = r.Kill()
			return true
		})
	}()
	return nil
}
