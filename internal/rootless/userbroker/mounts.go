package userbroker

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/rootless"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/mountgrant"
)

// TakeMounts is part of broker.Effects. The grant must be of the user that this process runs as,
// whose rights are all that there are.
func (h *host) TakeMounts(_ context.Context, p brokerapi.CreateParams, file *os.File) ([]broker.Mount, error) {
	return broker.TakeGrant(p, file, func(m workspace.Mount, who mountgrant.Cred, dir, stage *os.File) (broker.Mount, error) {
		if who.UID != uint32(os.Geteuid()) {
			return broker.Mount{}, fmt.Errorf("cannot mount directories for uid %d: this carrel is of uid %d: %w",
				who.UID, os.Geteuid(), errdefs.ErrPermissionDenied)
		}
		if err := rootless.CheckSource(m, dir); err != nil {
			return broker.Mount{}, err
		}
		identity, err := broker.Identify(dir, h.bootID)
		if err != nil {
			return broker.Mount{}, fmt.Errorf("cannot mount %s: %w", m.Source, err)
		}
		m.OwnerUID = who.UID
		granted := broker.Mount{Mount: m, Identity: identity, OwnerGID: who.GID, CallerUID: who.UID, CallerGID: who.GID}
		if stage != nil {
			identity, err := broker.Identify(stage, h.bootID)
			if err != nil {
				return broker.Mount{}, fmt.Errorf("cannot make a staged copy of %s: %w", m.Source, err)
			}
			granted.StageIdentity = &identity
		}
		return granted, nil
	})
}

// openMounts makes the mounts of a workspace ready for a start: each must still be the
// directory that was granted.
func (h *host) openMounts(e broker.Entry, o *opened) (projects []launch.Project, err error) {
	if len(e.Mounts) == 0 {
		return nil, nil
	}
	if o.protection, err = rootless.NewProtection(e.Name); err != nil {
		o.protection = nil
		return nil, err
	}
	var mounts []workspace.Mount
	for _, m := range e.Mounts {
		mounts = append(mounts, m.Mount)
	}
	if projects, err = o.protection.Open(mounts); err != nil {
		return nil, err
	}
	for i, p := range projects {
		now, err := broker.Identify(p.Dir, h.bootID)
		same := now.Is(e.Mounts[i].Identity)
		if err == nil && p.Stage != nil {
			if now, err = broker.Identify(p.Stage, h.bootID); err == nil {
				same = same && e.Mounts[i].StageIdentity != nil && now.Is(*e.Mounts[i].StageIdentity)
			}
		}
		if err == nil && !same {
			err = fmt.Errorf("another directory is there than the one that was granted; put it back, or destroy the workspace and "+
				"create it anew: %w", errdefs.ErrFailedPrecondition)
		}
		if err != nil {
			launch.CloseProjects(projects)
			return nil, fmt.Errorf("cannot mount %s: %w", mounts[i].Source, err)
		}
	}
	return projects, nil
}
